// Tests the word of a group: its states, and leases that race with evictions.
#include "device/group.hpp"

#include "doctest_safemap.hpp"

#include <array>
#include <atomic>
#include <cstdint>
#include <mutex>
#include <random>
#include <thread>
#include <vector>

namespace word_test {

using safemap::device::Word;
using State = Word::State;

namespace {

/// A word, and values that stand for the memory of its group. They are not atomic, so ThreadSanitizer reports an access
/// that the word does not order.
struct Slot {
    Word word;
    std::array<std::uint64_t, 4> values = {};
};

/// The cache's side: brings and evicts under a mutex.
class Keeper {
public:
    explicit Keeper(std::size_t slots) : slots_(slots) {}

    Slot& slot(std::size_t i) { return slots_[i]; }

    /// Leases in any state, and brings the values if they are absent.
    void lease(Slot& slot) {
        const std::lock_guard lock(mutex_);
        slot.word.lease();
        if (slot.word.state() == State::absent) bring(slot);
    }
    void bring_if_absent(Slot& slot) {
        const std::lock_guard lock(mutex_);
        if (slot.word.state() == State::absent) bring(slot);
    }
    /// Returns true if it evicted the slot.
    bool evict(Slot& slot, bool change_mind) {
        const std::lock_guard lock(mutex_);
        if (!slot.word.try_reserve()) return false;
        if (change_mind) {
            slot.word.change(State::reserved, State::resident);
            return false;
        }
        slot.values.fill(0);
        slot.word.change(State::reserved, State::absent);
        return true;
    }

private:
    void bring(Slot& slot) {
        slot.word.change(State::absent, State::arriving);
        slot.values.fill(++generation_);
        slot.word.change(State::arriving, State::resident);
    }

    std::mutex mutex_;
    std::uint64_t generation_ = 0;
    std::vector<Slot> slots_;
};

/// Looks at a leased slot several times. Returns true if it is resident and its values do not change.
bool stays(const Slot& slot) {
    const std::uint64_t first = slot.values[0];
    bool same = first != 0;
    for (int look = 0; look < 5; ++look) {
        same = same && slot.word.state() == State::resident && slot.word.leased();
        for (const std::uint64_t value : slot.values) same = same && value == first;
    }
    return same;
}

}  // namespace

TEST_CASE("only a resident group is leased without the lock, and only one without leases is reserved") {
    Word word;
    CHECK(word.state() == State::absent);
    CHECK_FALSE(word.leased());
    CHECK_FALSE(word.try_lease());
    CHECK_FALSE(word.try_reserve());

    word.change(State::absent, State::arriving);
    CHECK(word.state() == State::arriving);
    CHECK_FALSE(word.try_lease());
    CHECK_FALSE(word.try_reserve());

    word.change(State::arriving, State::resident);
    CHECK(word.try_lease());
    CHECK(word.try_lease());
    CHECK(word.leased());
    CHECK_FALSE(word.try_reserve());
    word.release();
    CHECK_FALSE(word.try_reserve());
    word.release();
    CHECK_FALSE(word.leased());

    CHECK(word.try_reserve());
    CHECK(word.state() == State::reserved);
    CHECK_FALSE(word.try_reserve());
    CHECK_FALSE(word.try_lease());
    word.change(State::reserved, State::resident);
    CHECK(word.try_lease());
    word.release();
    CHECK(word.try_reserve());
    word.change(State::reserved, State::absent);
    CHECK(word.state() == State::absent);
    CHECK_FALSE(word.try_lease());
}

TEST_CASE("changes of the state keep the leases, and leases keep the state") {
    constexpr State states[] = {State::absent, State::arriving, State::resident, State::reserved};
    for (const State from : states)
        for (const State to : states)
            for (int leases = 0; leases < 4; ++leases) {
                Word word;
                word.change(State::absent, from);
                for (int i = 0; i < leases; ++i) word.lease();
                CHECK(word.state() == from);
                word.change(from, to);
                CHECK(word.state() == to);
                for (int i = 0; i < leases; ++i) {
                    CHECK(word.leased());
                    word.release();
                    CHECK(word.state() == to);
                }
                CHECK_FALSE(word.leased());
            }
}

TEST_CASE("a lease sees a resident group that does not change, while others evict and bring") {
    constexpr std::size_t slots = 3;
    constexpr std::uint64_t enough = 3'000;
    Keeper keeper(slots);
    std::atomic<std::uint64_t> broken = 0;
    std::atomic<std::uint64_t> fast = 0;
    std::atomic<std::uint64_t> slow = 0;
    std::atomic<std::uint64_t> evictions = 0;
    // Runs until each kind of step was made often enough.
    const auto repeat = [&](unsigned seed, auto&& step) {
        std::mt19937 random(seed);
        while (fast < enough || slow < enough || evictions < enough) step(keeper.slot(random() % slots), random);
    };
    const auto look = [&](Slot& slot) {
        if (!stays(slot)) ++broken;
        slot.word.release();
    };
    const auto lease_fast = [&](unsigned seed) {
        repeat(seed, [&](Slot& slot, auto&) {
            if (!slot.word.try_lease()) return;
            ++fast;
            look(slot);
        });
    };
    const auto lease_slowly = [&](unsigned seed) {
        repeat(seed, [&](Slot& slot, auto&) {
            keeper.lease(slot);
            ++slow;
            look(slot);
        });
    };
    const auto evict = [&](unsigned seed) {
        repeat(seed, [&](Slot& slot, auto& random) {
            if (random() % 3 == 0) keeper.bring_if_absent(slot);
            else if (keeper.evict(slot, random() % 4 == 0)) ++evictions;
        });
    };
    std::vector<std::thread> threads;
    threads.emplace_back(lease_fast, 1);
    threads.emplace_back(lease_fast, 2);
    threads.emplace_back(lease_slowly, 3);
    threads.emplace_back(evict, 4);
    for (std::thread& thread : threads) thread.join();
    CHECK(broken == 0);
    for (std::size_t i = 0; i < slots; ++i) CHECK_FALSE(keeper.slot(i).word.leased());
}

}  // namespace word_test
