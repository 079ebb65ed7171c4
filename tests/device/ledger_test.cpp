// Tests the arithmetic of the budget against slow references. From top to bottom: groups without data, the reference,
// random schedules, blocks of small groups, kept memory.
#include "device/ledger.hpp"

#include "doctest_safemap.hpp"
#include "soak.hpp"

#include <safemap/advanced/stored_tensor.hpp>

#include <algorithm>
#include <functional>
#include <memory>
#include <random>
#include <set>
#include <span>
#include <utility>
#include <vector>

namespace ledger_test {

using safemap::DeviceMemory;
using safemap::Dtype;
using safemap::LazyTensor;
using safemap::Source;
using safemap::device::Account;
using safemap::device::Group;
using safemap::device::Heap;
using safemap::device::Holding;
using safemap::device::Ledger;
using State = safemap::device::Word::State;

namespace {

/// Makes groups of any size, whose tensor has no data.
class Groups {
public:
    Group& make(std::uint64_t size) {
        std::vector<LazyTensor> tensors;
        tensors.emplace_back("t", safemap::stored_run(Dtype::u8, {size}, source_, 0));
        std::vector<std::uint32_t> from;
        groups_.push_back(
            std::make_unique<Group>(nullptr, ++made_, safemap::device::lay_out(std::move(tensors), from)));
        groups_.back()->prepare({});
        return *groups_.back();
    }
    std::vector<Group*> make(std::initializer_list<std::uint64_t> sizes) {
        std::vector<Group*> made;
        for (const std::uint64_t size : sizes) made.push_back(&make(size));
        return made;
    }

private:
    std::shared_ptr<const Source> source_ = safemap::callback_source("zeros", UINT64_MAX, [](auto, auto) {});
    std::vector<std::unique_ptr<Group>> groups_;
    std::uint64_t made_ = 0;
};

/// Returns the claims of groups that have no slot.
std::uint64_t claims_of(const Account& account, std::span<Group* const> groups) {
    return account.claims_of(groups, std::vector<std::uint32_t>(groups.size(), safemap::device::no_slot), true);
}

/// Reserves room as the cache does. Returns the bytes that are still missing.
std::uint64_t reserve_room(Ledger& ledger, const Account& account, std::uint64_t bytes, Ledger::Reach reach,
                           std::vector<Holding*>& victims) {
    Ledger::Missing missing = ledger.missing(account, bytes);
    ledger.reserve(account, bytes, missing, reach, victims);
    return std::max(missing.own, missing.all);
}

struct Memory final : DeviceMemory {
    explicit Memory(std::uint64_t bytes) : bytes_(bytes) {}
    std::uint64_t size() const noexcept override { return bytes_; }
    void* handle() const noexcept override { return nullptr; }
    std::uint64_t bytes_;
};

std::uint64_t padded(std::uint64_t size) { return (size + 255) / 256 * 256; }

/// The reference: a list of groups with the holding of each, from which everything is added up at each query.
struct Model {
    struct Piece {
        Holding* real;
        std::uint64_t size;
        bool shared;
        std::uint64_t given = 0;
        std::vector<Group*> groups = {};
    };
    explicit Model(std::uint64_t bytes) : budget(bytes) {}

    bool shares(std::uint64_t size) const {
        return budget >= 1U << 20 && size > 0 && size <= std::min<std::uint64_t>(256U << 10, budget / 64);
    }
    std::uint64_t claimed() const {
        std::uint64_t sum = 0;
        for (const Piece& piece : pieces) sum += piece.size;
        return sum;
    }
    /// Doubles the bytes of all blocks.
    std::uint64_t next_block(std::uint64_t size) const {
        std::uint64_t shared = 0;
        for (const Piece& piece : pieces) shared += piece.shared ? piece.size : 0;
        const std::uint64_t most = std::min<std::uint64_t>(16U << 20, budget / 16);
        return std::min(most, std::max({std::uint64_t{4'096}, padded(size), padded(shared)}));
    }
    Piece& of(const Holding& holding) {
        return *std::ranges::find_if(pieces, [&](const Piece& piece) { return piece.real == &holding; });
    }
    /// The holdings that can go: those whose order the policy decides, and in order those that a prefetch announced.
    struct Candidates {
        std::vector<const Holding*> ordinary = {};
        std::vector<const Holding*> awaited = {};
    };
    Candidates candidates(std::uint64_t since, bool demanded) const {
        std::uint64_t groups = 0;
        for (const Piece& piece : pieces) groups += piece.groups.size();
        const auto awaited = [&](const Group* group) {
            return group->announced >= group->used && group->announced + 2 * groups >= since ? group->announced : 0;
        };
        const auto can_go = [&](const Group* group) {
            return group->word.state() == State::resident && !group->word.leased() && group->used <= since &&
                   group->announced <= since && (demanded || awaited(group) == 0);
        };
        std::vector<const Piece*> found;
        for (const Piece& piece : pieces)
            if (piece.size > 0 && piece.real != open && std::ranges::all_of(piece.groups, can_go))
                found.push_back(&piece);
        const auto last_awaited = [&](const Piece& piece) {
            std::uint64_t time = 0;
            for (const Group* group : piece.groups) time = std::max(time, awaited(group));
            return time;
        };
        const auto oldest = [](const Piece& piece) {
            std::uint64_t number = UINT64_MAX;
            for (const Group* group : piece.groups) number = std::min(number, group->number);
            return number;
        };
        std::ranges::sort(found, std::greater(),
                          [&](const Piece* piece) { return std::pair(last_awaited(*piece), oldest(*piece)); });
        Candidates all;
        for (const Piece* const piece : found)
            (last_awaited(*piece) > 0 ? all.awaited : all.ordinary).push_back(piece->real);
        return all;
    }

    std::uint64_t budget;
    std::vector<Piece> pieces;
    const Holding* open = nullptr;
};

/// A ledger and its reference, with the steps that the cache takes.
class Both {
public:
    explicit Both(std::uint64_t budget) : real(budget), account(budget), model(budget) {}

    /// Gives each group a holding as the cache does. Returns the bytes that this claimed.
    std::uint64_t settle(std::span<Group* const> groups) {
        const std::uint64_t before = real.claimed();
        Holding* block = nullptr;
        for (Group* const group : groups) {
            const std::uint64_t size = group->layout.size;
            Holding* in = nullptr;
            if (model.shares(size)) {
                in = account.open_block(size);
                if (in == nullptr && block != nullptr && block->has_room(size)) in = block;
                if (in == nullptr) in = block = &add(model.next_block(size), true);
            } else {
                in = &add(size, false);
            }
            real.put(*group, *in, true);
            Model::Piece& piece = model.of(*in);
            CHECK(group->offset == piece.given);
            CHECK(group->offset + size <= in->size);
            if (piece.shared) piece.given = std::min(piece.size, piece.given + padded(size));
            piece.groups.push_back(group);
        }
        if (block != nullptr) last_block = block;
        return real.claimed() - before;
    }
    Holding& add(std::uint64_t size, bool shared) {
        if (shared) CHECK(account.next_block(1, account.in_blocks) == model.next_block(1));
        Holding& holding = real.add(account, size, shared);
        model.pieces.push_back({&holding, size, shared});
        return holding;
    }
    void open(Holding* block) {
        account.open = block;
        model.open = block;
    }
    void take_out(Group& group) {
        Holding& holding = *group.holding;
        Model::Piece& piece = model.of(holding);
        std::erase(piece.groups, &group);
        Holding* const empty = real.take_out(group);
        CHECK(group.holding == nullptr);
        CHECK(empty == (piece.groups.empty() ? &holding : nullptr));
        if (empty == nullptr) return;
        if (model.open == empty) model.open = nullptr;
        if (last_block == empty) last_block = nullptr;
        std::erase_if(model.pieces, [&](const Model::Piece& one) { return one.real == empty; });
        const auto memory = std::make_shared<Memory>(1);
        Ledger::provide(*empty, memory);
        CHECK(real.remove(*empty).memory == memory);
    }

    void check() const {
        CHECK(real.claimed() == model.claimed());
        CHECK(real.claimed() <= model.budget);
        std::uint64_t leased = 0;
        std::uint64_t resident = 0;
        for (const Model::Piece& piece : model.pieces) {
            CHECK(piece.real->size == piece.size);
            CHECK(piece.real->given == piece.given);
            bool held = false;
            for (const Group* group : piece.groups) {
                held = held || group->word.leased();
                resident += group->word.state() == State::resident ? group->layout.size : 0;
            }
            leased += held ? piece.size : 0;
        }
        CHECK(real.leased(account) == leased);
        CHECK(real.resident(account) == resident);
        REQUIRE(real.holdings().size() == model.pieces.size());
        for (std::size_t i = 0; i < real.holdings().size(); ++i) CHECK(real.holdings()[i]->at == i);
    }

    Ledger real;
    Account account;
    Model model;
    Holding* last_block = nullptr;  // made by the last settle()
};

/// One random schedule.
class Schedule {
public:
    Schedule(unsigned seed, std::uint64_t budget) : random_(seed), both_(budget), budget_(budget) {
        const std::uint64_t large = budget / 3;
        const std::uint64_t small = budget / 64;
        for (int i = 0; i < 40; ++i) {
            const std::uint64_t kind = below(8);
            all_.push_back(&groups_.make(kind == 0 ? 0 : kind < 4 ? below(large) : 1 + below(kind < 6 ? small : 600)));
        }
    }
    ~Schedule() {
        for (Group* group : all_)
            while (group->word.leased()) group->word.release();
    }

    void step() {
        switch (below(8)) {
            case 0:
            case 1: return bring();
            case 2: return reserve();
            case 3: return evict_one();
            case 4: return lease();
            case 5:
            case 6: return announce();
            default: return release();
        }
    }
    void check() const { both_.check(); }

private:
    std::uint64_t below(std::uint64_t n) {
        return n == 0 ? 0 : std::uniform_int_distribution<std::uint64_t>(0, n - 1)(random_);
    }
    Group& any() { return *all_[below(all_.size())]; }

    void bring() {
        std::vector<Group*> absent;
        std::ranges::shuffle(all_, random_);
        const std::uint64_t most = 1 + below(10);
        for (Group* group : all_)
            if (group->word.state() == State::absent && absent.size() < most) absent.push_back(group);
        const std::uint64_t claims = claims_of(both_.account, absent);
        if (claims > budget_ - both_.real.claimed()) return;
        both_.last_block = nullptr;
        CHECK(both_.settle(absent) == claims);
        for (Group* group : absent) {
            group->word.change(State::absent, State::arriving);
            group->used = ++clock_;
            if (below(5) != 0) group->word.change(State::arriving, State::resident);
        }
        if (both_.last_block != nullptr && below(4) != 0) both_.open(both_.last_block);
    }

    void reserve() {
        const std::uint64_t since = clock_ - below(clock_ + 1) / 3;
        const std::uint64_t bytes = below(budget_ + budget_ / 4);
        const std::uint64_t free = budget_ - both_.real.claimed();
        std::uint64_t missing = bytes - std::min(bytes, free);
        const bool demanded = below(2) == 0;
        const Model::Candidates candidates = both_.model.candidates(since, demanded);
        std::vector<Holding*> victims;
        const std::uint64_t left =
            reserve_room(both_.real, both_.account, bytes, {.since = since, .demanded = demanded}, victims);
        std::size_t i = 0;
        const auto take = [&] { missing -= std::min(missing, victims[i++]->size); };
        while (i < victims.size() && std::ranges::count(candidates.ordinary, victims[i]) == 1) {
            CHECK(missing > 0);
            CHECK(std::ranges::count(victims, victims[i]) == 1);
            take();
        }
        CHECK((missing == 0 || i == candidates.ordinary.size()));
        for (const Holding* const awaited : candidates.awaited) {
            if (missing == 0) break;
            REQUIRE(i < victims.size());
            CHECK(victims[i] == awaited);
            take();
        }
        CHECK(i == victims.size());
        CHECK(left == missing);
        for (const Holding* holding : victims)
            for (const Group* group : holding->groups) CHECK(group->word.state() == State::reserved);
        if (below(2) == 0) return both_.real.restore(victims);
        std::vector<Group*> going;
        for (const Holding* holding : victims)
            going.insert(going.end(), holding->groups.begin(), holding->groups.end());
        for (Group* group : going) {
            group->word.change(State::reserved, State::absent);
            both_.take_out(*group);
        }
    }

    void evict_one() {
        Group& group = any();
        if (group.word.state() == State::arriving) group.word.change(State::arriving, State::resident);
        else if (group.word.try_reserve()) {
            group.word.change(State::reserved, State::absent);
            both_.take_out(group);
        }
    }
    void lease() {
        if (Group& group = any(); group.word.try_lease()) group.used = ++clock_;
    }
    void announce() {
        clock_ += 1 + below(20);
        for (std::uint64_t n = 1 + below(5); n > 0; --n) any().announced = clock_;
    }
    void release() {
        if (Group& group = any(); group.word.leased()) group.word.release();
    }
    std::mt19937 random_;
    Groups groups_;
    Both both_;
    std::uint64_t budget_;
    std::vector<Group*> all_;
    std::uint64_t clock_ = 0;
};

}  // namespace

TEST_CASE("random schedules keep the budget and agree with the slow reference") {
    const unsigned seed = soak::seed(20261203);
    CAPTURE(seed);
    constexpr std::uint64_t budgets[] = {10'000, 1U << 20, (5U << 20) + 77, 300U << 20};
    for (unsigned round = 0; round < 60; ++round) {
        CAPTURE(round);
        Schedule schedule(seed + round, budgets[round % 4]);
        for (int step = 0; step < 200; ++step) {
            CAPTURE(step);
            schedule.step();
            schedule.check();
        }
    }
}

TEST_CASE("the claims of small groups are what settling them claims, in any order of sizes") {
    const unsigned seed = soak::seed(20261204);
    CAPTURE(seed);
    std::mt19937 random(seed);
    for (unsigned round = 0; round < 300; ++round) {
        CAPTURE(round);
        Groups groups;
        Both both(64U << 20);
        const auto some = [&](std::uint64_t most) {
            std::vector<Group*> made;
            for (std::size_t n = 1 + random() % 12; n > 0; --n) made.push_back(&groups.make(1 + random() % most));
            return made;
        };
        both.settle(some(3'000));
        if (round % 3 != 0) both.open(both.last_block);
        const auto next = some(round % 2 == 0 ? 6'000 : 200'000);
        const std::uint64_t claims = claims_of(both.account, next);
        CHECK(both.settle(next) == claims);
        both.check();
    }
}

TEST_CASE("a group that does not fit into the open block does not close it for the next ones") {
    Groups groups;
    Both both(64U << 20);
    both.settle(groups.make({3'500}));
    both.open(both.last_block);
    const auto next = groups.make({1'000, 300, 2'800});
    CHECK(claims_of(both.account, next) == 4'096);
    CHECK(both.settle(next) == 4'096);
    CHECK(next[1]->offset == 3'584);
    CHECK(next[2]->holding == next[0]->holding);
    CHECK(next[2]->offset == 1'024);
}

TEST_CASE("blocks double from 4 KiB to 16 MiB, and have a sixteenth of a smaller budget") {
    for (const std::uint64_t budget : {std::uint64_t{1} << 20, std::uint64_t{100} << 20, std::uint64_t{1} << 40}) {
        CAPTURE(budget);
        Ledger ledger(budget);
        Account account(budget);
        std::uint64_t sum = 0;
        std::uint64_t largest = 0;
        for (int i = 0; i < 15; ++i) {
            const std::uint64_t size = account.next_block(1, account.in_blocks);
            CHECK(size == std::min({std::max<std::uint64_t>(sum, 4'096), budget / 16, std::uint64_t{16} << 20}));
            if (size > budget - ledger.claimed()) break;
            ledger.add(account, size, true);
            sum += size;
            largest = size;
        }
        CHECK(largest == std::min(budget / 16, std::uint64_t{16} << 20));
    }
    CHECK(Account(1U << 20).next_block(5'000, 0) == 5'120);
}

TEST_CASE("groups up to a quarter of a MiB share blocks, unless the budget is small") {
    CHECK_FALSE(Account(1U << 30).shares(0));
    CHECK(Account(1U << 30).shares(1));
    CHECK(Account(1U << 30).shares(256U << 10));
    CHECK_FALSE(Account(1U << 30).shares((256U << 10) + 1));
    CHECK(Account(1U << 20).shares(16U << 10));
    CHECK_FALSE(Account(1U << 20).shares((16U << 10) + 1));
    CHECK_FALSE(Account((1U << 20) - 1).shares(1));
}

TEST_CASE("claims of more than 2^64 bytes saturate") {
    Groups groups;
    std::vector<Group*> large;
    for (int i = 0; i < 8; ++i) large.push_back(&groups.make((std::uint64_t{1} << 61) - 1));
    const Account account(1'000);
    CHECK(claims_of(account, large) == UINT64_MAX - 7);
    large.push_back(&groups.make(9));
    CHECK(claims_of(account, large) == UINT64_MAX);
}

TEST_CASE("the open block goes only if it is not open, and a block goes as a whole") {
    Groups groups;
    Both both(1U << 20);
    const auto small = groups.make({100, 200});
    const auto large = groups.make({100'000, 100'001});
    both.settle(small);
    both.settle(large);
    std::uint64_t time = 0;
    for (Group* group : {small[0], small[1], large[1], large[0]}) {
        group->word.change(State::absent, State::resident);
        group->used = ++time;
    }
    Holding* const block = small[0]->holding;
    CHECK(small[1]->holding == block);
    const auto victims_of = [&](std::uint64_t bytes, std::uint64_t since) {
        std::vector<Holding*> victims;
        reserve_room(both.real, both.account, bytes, {.since = since}, victims);
        both.real.restore(victims);
        return std::set(victims.begin(), victims.end());
    };
    CHECK(victims_of(1U << 20, time) == std::set{large[1]->holding, large[0]->holding, block});
    CHECK(victims_of(1U << 20, time - 1) == std::set{large[1]->holding, block});
    CHECK(victims_of(1U << 20, 1).empty());
    both.open(block);
    CHECK(victims_of(1U << 20, time) == std::set{large[1]->holding, large[0]->holding});
    both.open(nullptr);
    CHECK(small[1]->word.try_lease());
    CHECK(victims_of(1U << 20, time) == std::set{large[1]->holding, large[0]->holding});
    CHECK(victims_of((1U << 20) - 200'001 - 4'096, time).empty());
    CHECK(victims_of((1U << 20) - 200'001 - 4'095, time) == std::set{large[1]->holding});
    CHECK_FALSE(Ledger::try_reserve(*block));
    CHECK(small[0]->word.state() == State::resident);
    small[1]->word.release();
    CHECK(Ledger::try_reserve(*block));
}

TEST_CASE("what a prefetch announced goes last, and only for a demand, until it is leased or many steps have passed") {
    Groups groups;
    Both both(1'000);
    const auto all = groups.make({100, 200, 300, 400});
    both.settle(all);
    for (Group* group : all) group->word.change(State::absent, State::resident);
    all[3]->announced = 20;
    all[1]->announced = 22;
    all[2]->announced = 22;
    all[2]->used = 23;
    const auto victims_of = [&](bool demanded, std::uint64_t since) {
        std::vector<Holding*> victims;
        reserve_room(both.real, both.account, 1'000, {.since = since, .demanded = demanded}, victims);
        both.real.restore(victims);
        return std::set(victims.begin(), victims.end());
    };
    const auto in = [&](std::size_t i) { return all[i]->holding; };
    CHECK(victims_of(false, 25) == std::set{in(2), in(0)});
    CHECK(victims_of(true, 25) == std::set{in(2), in(0), in(1), in(3)});
    // Four groups, each of which could be leased in a step of 2.
    CHECK(victims_of(false, 28) == std::set{in(2), in(0)});
    CHECK(victims_of(false, 29) == std::set{in(3), in(2), in(0)});
    CHECK(victims_of(false, 31) == std::set{in(3), in(2), in(1), in(0)});
    all[0]->announced = 40;
    CHECK(victims_of(true, 39) == std::set{in(3), in(2), in(1)});
}

TEST_CASE("random uses of kept memory keep the budget and agree with the slow reference") {
    for (unsigned seed = 0; seed < 100; ++seed) {
        CAPTURE(seed);
        std::mt19937 random(seed);
        const std::uint64_t budget = 100 + random() % 1'000;
        Heap heap(budget);
        std::vector<std::shared_ptr<DeviceMemory>> used;  // held by holdings, or being freed
        std::vector<DeviceMemory*> kept;
        std::uint64_t total = 0;
        std::uint64_t peak = 0;
        const auto smallest = [&](std::uint64_t least, std::uint64_t most) {
            std::uint64_t best = UINT64_MAX;
            for (const DeviceMemory* memory : kept)
                if (memory->size() >= least && memory->size() <= most) best = std::min(best, memory->size());
            return best;
        };
        const auto took = [&](std::shared_ptr<DeviceMemory> memory, std::uint64_t size) {
            REQUIRE((memory != nullptr) == (size != UINT64_MAX));
            if (!memory) return false;
            CHECK(memory->size() == size);
            REQUIRE(std::erase(kept, memory.get()) == 1);
            used.push_back(std::move(memory));
            return true;
        };
        for (int step = 0; step < 500; ++step) {
            const std::uint64_t size = random() % (budget / 3);
            switch (random() % 4) {
                case 0: {
                    CHECK(heap.fits(size) == (total + size <= budget));
                    if (!heap.fits(size)) break;
                    heap.coming(size);
                    used.push_back(std::make_shared<Memory>(size));
                    total += size;
                    break;
                }
                case 1: {
                    if (used.empty()) break;
                    std::swap(used[random() % used.size()], used.back());
                    kept.push_back(used.back().get());
                    heap.keep({std::move(used.back())});
                    used.pop_back();
                    break;
                }
                case 2: {
                    const bool known = !kept.empty() && random() % 2 == 0;
                    const std::uint64_t wanted = known ? kept[random() % kept.size()]->size() : size;
                    took(heap.take(wanted).memory, smallest(wanted, wanted));
                    break;
                }
                case 3: {
                    const std::uint64_t missing = total + size <= budget ? 0 : total + size - budget;
                    std::uint64_t expected = smallest(missing, UINT64_MAX);
                    if (expected == UINT64_MAX)
                        for (const DeviceMemory* memory : kept)
                            expected = expected == UINT64_MAX ? memory->size() : std::max(expected, memory->size());
                    if (!took(heap.take_to_free(size).memory, expected)) break;
                    CHECK(heap.total() == total);  // until it is gone
                    total -= used.back()->size();
                    heap.gone(used.back()->size());
                    used.pop_back();
                    break;
                }
            }
            peak = std::max(peak, total);
            CHECK(heap.total() == total);
            CHECK(heap.peak() == peak);
            CHECK(heap.total() <= budget);
        }
    }
}

}  // namespace ledger_test
