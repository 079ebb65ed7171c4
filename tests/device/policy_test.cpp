// Tests the policy of the cache. From top to bottom: traces, policies to compare with (LRU, the fixed set, ARC,
// S3-FIFO), a slow twin of the policy itself, hit rates on the traces, the twin in random runs, single promises,
// threads.
#include "device/policy.hpp"

#include "device/policy_traces.hpp"
#include "doctest_safemap.hpp"
#include "soak.hpp"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <deque>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <utility>
#include <vector>

namespace policy_test {

using safemap::device::Policy;
using safemap::device::Use;

namespace {

/// Replays a trace. Returns the percentage of hits.
template <class Tested> double hit_rate(const Case& of, Tested&& tested) {
    std::vector<bool> resident(of.sizes.size()), leased(of.sizes.size());
    std::uint64_t taken = 0;
    std::size_t hits = 0;
    for (std::size_t i = 0; i < of.trace.size(); ++i) {
        if (i % per_token == 0) leased.assign(leased.size(), false);
        const std::size_t group = of.trace[i];
        if (resident[group]) {
            ++hits;
            tested.hit(group);
        } else {
            while (of.budget - taken < of.sizes[group]) {
                const std::size_t victim = tested.victim(of.sizes[group], [&](std::size_t at) { return !leased[at]; });
                REQUIRE(victim != none);
                REQUIRE(resident[victim]);
                resident[victim] = false;
                taken -= of.sizes[victim];
            }
            resident[group] = true;
            taken += of.sizes[group];
            tested.came(group, of.sizes[group]);
        }
        leased[group] = of.at_once;
    }
    return 100.0 * static_cast<double>(hits) / static_cast<double>(of.trace.size());
}

// Policies to compare with

/// The policy, with a number for each group.
class Tested {
public:
    explicit Tested(const Case& of) : policy_(of.budget), uses_(of.sizes.size()) {}
    void hit(std::size_t group) { policy_.hit(uses_[group]); }
    void came(std::size_t group, std::uint64_t bytes) { policy_.came(uses_[group], bytes, true); }
    template <class CanGo> std::size_t victim(std::uint64_t coming, CanGo can_go) {
        Use* const found = policy_.victim(coming, [&](Use& use) { return can_go(number(use)); });
        if (found == nullptr) return none;
        policy_.left(*found);
        return number(*found);
    }

private:
    std::size_t number(const Use& use) const { return static_cast<std::size_t>(&use - uses_.data()); }

    Policy policy_;
    std::vector<Use> uses_;
};

/// Each group has a rank: the one with the least goes.
class Ranked {
public:
    /// `fixed`: groups that are made later go first, as they did before there was a policy. Otherwise this is LRU.
    Ranked(const Case& of, bool fixed) : ranks_(of.sizes.size(), 0), fixed_(fixed) {}
    void hit(std::size_t group) { ranks_[group] = fixed_ ? ranks_.size() - group : ++time_; }
    void came(std::size_t group, std::uint64_t) { hit(group); }
    template <class CanGo> std::size_t victim(std::uint64_t, CanGo can_go) {
        std::size_t least = none;
        for (std::size_t i = 0; i < ranks_.size(); ++i)
            if (ranks_[i] != 0 && can_go(i) && (least == none || ranks_[i] < ranks_[least])) least = i;
        if (least != none) ranks_[least] = 0;
        return least;
    }

private:
    std::vector<std::uint64_t> ranks_;  // 0: absent
    bool fixed_;
    std::uint64_t time_ = 0;
};

/// Returns true if an entry was in the queue. It is not any more.
bool take(std::deque<std::size_t>& queue, std::size_t entry) { return std::erase(queue, entry) > 0; }

/// Returns the hits of ARC (Megiddo and Modha, FAST 2003) for groups of one size.
std::size_t hits_of_arc(const Trace& trace, std::size_t fit) {
    std::deque<std::size_t> t1, t2, b1, b2;  // the oldest is in front
    std::size_t p = 0, hits = 0;
    const auto replace = [&](bool in_b2) {
        const bool of_t1 = !t1.empty() && (t1.size() > p || (in_b2 && t1.size() == p));
        auto& from = of_t1 ? t1 : t2;
        (of_t1 ? b1 : b2).push_back(from.front());
        from.pop_front();
    };
    for (const std::size_t x : trace) {
        if (take(t1, x) || take(t2, x)) {
            ++hits;
            t2.push_back(x);
        } else if (std::ranges::find(b1, x) != b1.end()) {
            p = std::min(fit, p + std::max<std::size_t>(1, b2.size() / b1.size()));
            replace(false);
            take(b1, x);
            t2.push_back(x);
        } else if (std::ranges::find(b2, x) != b2.end()) {
            p -= std::min(p, std::max<std::size_t>(1, b1.size() / b2.size()));
            replace(true);
            take(b2, x);
            t2.push_back(x);
        } else {
            if (t1.size() + b1.size() == fit) {
                if (t1.size() < fit) {
                    b1.pop_front();
                    replace(false);
                } else {
                    t1.pop_front();
                }
            } else if (t1.size() + t2.size() + b1.size() + b2.size() >= fit) {
                if (t1.size() + t2.size() + b1.size() + b2.size() == 2 * fit) b2.pop_front();
                replace(false);
            }
            t1.push_back(x);
        }
    }
    return hits;
}

/// Returns the hits of S3-FIFO (Yang, Zhang, Qiu, Yue, Rashmi, SOSP 2023) for groups of one size.
std::size_t hits_of_s3_fifo(const Trace& trace, std::size_t fit) {
    std::deque<std::size_t> small, main, ghost;
    std::vector<int> uses(*std::ranges::max_element(trace) + 1, -1);  // -1: absent
    const std::size_t small_size = std::max<std::size_t>(1, fit / 10);
    std::size_t hits = 0;
    const auto evict_from_main = [&] {
        for (;;) {
            const std::size_t x = main.front();
            main.pop_front();
            if (uses[x] == 0) {
                uses[x] = -1;
                return;
            }
            --uses[x];
            main.push_back(x);
        }
    };
    const auto evict = [&] {
        if (small.size() < small_size && !main.empty()) return evict_from_main();
        while (!small.empty()) {
            const std::size_t x = small.front();
            small.pop_front();
            if (uses[x] > 1) {
                uses[x] = 0;
                main.push_back(x);
                continue;
            }
            uses[x] = -1;
            ghost.push_back(x);
            if (ghost.size() > fit - small_size) ghost.pop_front();
            return;
        }
        evict_from_main();
    };
    for (const std::size_t x : trace) {
        if (uses[x] >= 0) {
            ++hits;
            uses[x] = std::min(uses[x] + 1, 3);
            continue;
        }
        if (small.size() + main.size() == fit) evict();
        uses[x] = 0;
        (take(ghost, x) ? main : small).push_back(x);
    }
    return hits;
}

// The twin

/// Decides as Policy does, by looking at all entries each time.
class Twin {
public:
    Twin(std::uint64_t budget, std::size_t count, std::size_t looks)
        : budget_(budget), looks_(looks), window_(budget / 2), all_(count) {}

    std::uint64_t window() const { return window_; }
    void hit(std::size_t at) {
        if (all_[at].used != now_) ++all_[at].uses;
        all_[at].used = now_;
    }
    void came(std::size_t at, std::uint64_t bytes, bool demanded) {
        Entry& e = all_[at];
        count(e, 0);
        const double units = 1'048'576.0 / static_cast<double>(budget_) * static_cast<double>(bytes);
        const std::uint64_t time = now_ + 1 + static_cast<std::uint64_t>(units);
        if (std::exchange(e.in_rival, false) && demanded) window_ = std::min(budget_, window_ + bytes);
        for (std::size_t left = std::min<std::size_t>(4, extra_.size()); left > 0; --left) {
            const std::size_t first = extra_.front();
            if (look(first)) continue;
            extra_.pop_front();
            extra_.push_back(first);
        }
        in_use_ -= std::min(in_use_, bytes / 64);
        e.bytes = bytes;
        e.came = e.used = now_ = time;
        e.uses += demanded ? 1 : 0;
        e.ahead = !demanded;
        e.place = Place::window;
        e.in_window = true;
        e.key = time;
        join_rival(at, time);
    }
    void left(std::size_t at) {
        Entry& e = all_[at];
        if (e.place == Place::absent) return;
        leave(at);
        e.place = Place::absent;
        if (std::ranges::find(extra_, at) != extra_.end() && !look(at)) std::erase(extra_, at);
    }
    void forget(std::size_t at) {
        left(at);
        all_[at] = {};
    }
    void let_go_first(std::size_t at) {
        Entry& e = all_[at];
        if (e.place == Place::absent) return;
        leave(at);
        count(e, 0);
        e.place = Place::main;
        e.in_window = false;
        e.on_trial = true;
        e.key = 0;
    }
    void stays(std::size_t at) { put_back(at); }
    template <class CanGo> std::size_t victim(std::uint64_t coming, CanGo can_go) {
        for (std::size_t left = std::min<std::size_t>(16, refused_.size()); left > 0; --left) {
            put_back(refused_.front());
            refused_.pop_front();
        }
        std::size_t unseen = refused_.size(), looks = looks_, main_looks = looks_, moves = looks_;
        for (;;) {
            const std::size_t next = take_next(coming, unseen, looks, main_looks, moves);
            if (next == none) return none;
            if (can_go(next)) {
                note_loss(all_[next]);
                return next;
            }
            all_[next].place = Place::refused;
            refused_.push_back(next);
        }
    }

private:
    enum class Place { absent, window, main, refused, chosen };
    struct Entry {
        std::uint64_t used = 0, came = 0, bytes = 0, worth = 0, key = 0, rival_key = 0;
        std::uint32_t uses = 0, counted = 0, uncounted = 0;
        Place place = Place::absent;
        bool in_window = false, on_trial = false, in_rival = false, ahead = false;
    };
    static constexpr double half_life = 2 * 1'048'576.0;

    /// Returns the entry with the least key, and of these the one that came last.
    template <class In> std::size_t least(std::uint64_t Entry::*key, In in) const {
        std::size_t found = none;
        for (std::size_t i = 0; i < all_.size(); ++i) {
            if (!in(all_[i])) continue;
            if (found == none || all_[i].*key < all_[found].*key ||
                (all_[i].*key == all_[found].*key && all_[i].came > all_[found].came))
                found = i;
        }
        return found;
    }
    template <class In> std::uint64_t bytes_of(In in) const {
        std::uint64_t sum = 0;
        for (const Entry& e : all_) sum += in(e) ? e.bytes : 0;
        return sum;
    }
    std::uint64_t main_bytes() const {
        return bytes_of([](const Entry& e) { return e.place != Place::absent && !e.in_window && !e.on_trial; });
    }
    std::uint64_t window_bytes() const {
        return bytes_of([](const Entry& e) { return e.place != Place::absent && e.in_window; });
    }
    void count(Entry& e, std::uint32_t without) const {
        const std::uint32_t uses = e.uses - e.counted;
        if (uses <= without) return;
        const std::uint64_t more =
            e.used + static_cast<std::uint64_t>(half_life * std::log2(static_cast<double>(uses - without)));
        const double apart = static_cast<double>(std::max(more, e.worth) - std::min(more, e.worth)) / half_life;
        const bool alone = std::min(more, e.worth) == 0 || apart > 40;
        e.worth = std::max(more, e.worth);
        if (!alone) e.worth += static_cast<std::uint64_t>(half_life * std::log2(1 + std::exp2(-apart)));
        e.counted += uses - without;
    }
    std::size_t oldest(std::size_t& looks) {
        for (;; --looks) {
            const std::size_t at = least(&Entry::key, [](const Entry& e) { return e.place == Place::window; });
            if (at == none || looks == 0 || all_[at].used <= all_[at].key) return at;
            all_[at].key = all_[at].used;
        }
    }
    std::size_t least_worth(std::size_t& looks) {
        for (;; --looks) {
            const std::size_t at = least(&Entry::key, [](const Entry& e) { return e.place == Place::main; });
            if (at == none || looks == 0 || all_[at].uses - all_[at].counted <= all_[at].uncounted) return at;
            if (std::ranges::find(extra_, at) != extra_.end()) look(at);
            all_[at].on_trial = false;
            all_[at].uncounted = 0;
            count(all_[at], 0);
            all_[at].key = all_[at].worth;
        }
    }
    std::size_t take_next(std::uint64_t coming, std::size_t& unseen, std::size_t& looks, std::size_t& main_looks,
                          std::size_t& moves) {
        std::size_t at = oldest(looks);
        for (; at != none && window_bytes() + coming > window_ && moves > 0; at = oldest(looks), --moves) {
            Entry& e = all_[at];
            const std::uint64_t reserve = std::min(budget_, std::max({window_, in_use_, coming}));
            e.on_trial = main_bytes() + e.bytes > budget_ - reserve;
            e.place = Place::main;
            e.in_window = false;
            count(e, e.on_trial ? 1 : 0);
            e.uncounted = std::max(e.uses - e.counted, e.on_trial && e.ahead ? 1U : 0U);
            e.key = e.worth;
        }
        if (const std::size_t worst = least_worth(main_looks); worst != none) at = worst;
        if (at == none && unseen > 0) {
            --unseen;
            at = refused_.front();
            refused_.pop_front();
        }
        if (at != none) all_[at].place = Place::chosen;
        return at;
    }
    void note_loss(const Entry& lost) {
        const std::uint64_t reserve = std::max(window_, in_use_);
        const bool has_trial =
            std::ranges::any_of(all_, [](const Entry& e) { return e.place == Place::main && e.on_trial; });
        if (lost.in_window || lost.on_trial || has_trial || main_bytes() > budget_ - reserve) return;
        in_use_ = std::min(budget_, reserve + lost.bytes);
    }
    void put_back(std::size_t at) { all_[at].place = all_[at].in_window ? Place::window : Place::main; }
    void leave(std::size_t at) {
        if (all_[at].place == Place::refused) std::erase(refused_, at);
        all_[at].on_trial = false;
        all_[at].uncounted = 0;
    }
    bool look(std::size_t at) {
        if (all_[at].used <= all_[at].rival_key) return false;
        window_ -= std::min(window_, all_[at].bytes);
        std::erase(extra_, at);
        join_rival(at, all_[at].used);
        return true;
    }
    void join_rival(std::size_t at, std::uint64_t time) {
        const auto in_rival = [](const Entry& e) { return e.in_rival; };
        all_[at].in_rival = true;
        all_[at].rival_key = time;
        for (std::size_t looks = looks_; bytes_of(in_rival) > budget_;) {
            const std::size_t out = least(&Entry::rival_key, in_rival);
            Entry& e = all_[out];
            if (std::exchange(e.rival_key, std::max(e.used, e.rival_key)) < e.used && looks > 0) {
                --looks;
                continue;
            }
            e.in_rival = false;
            if (e.place != Place::absent) extra_.push_back(out);
        }
    }

    std::uint64_t budget_;
    std::size_t looks_;
    std::uint64_t window_;
    std::uint64_t now_ = 1;
    std::uint64_t in_use_ = 0;
    std::vector<Entry> all_;
    std::deque<std::size_t> refused_, extra_;
};

}  // namespace

// Hit rates

TEST_CASE("Policy: hits no more than 3 points less often than the better of LRU and a fixed set, on each trace") {
    // A quick run takes one of the five seeds. SAFEMAP_RATES=1 prints the table.
    const bool prints = std::getenv("SAFEMAP_RATES") != nullptr;
    const unsigned first = soak::whole() ? 0 : soak::seed(0) % 5;
    soak::Sample sample(3);
    for (unsigned i = 0; i < static_cast<unsigned>(soak::rounds(5, 5)); ++i) {
        const unsigned seed = 1 + (first + i) % 5;
        for (const Case& one : make_cases(seed)) {
            if (!sample.next()) continue;
            const double got = hit_rate(one, Tested(one));
            const double lru = hit_rate(one, Ranked(one, false));
            const double fixed = hit_rate(one, Ranked(one, true));
            CAPTURE(seed);
            CAPTURE(one.name);
            CHECK(got >= std::max(lru, fixed) - 3);
            if (prints) std::printf("%u | %s | %.1f | %.1f | %.1f\n", seed, one.name.c_str(), got, lru, fixed);
        }
    }
}

TEST_CASE("Policy: ARC and S3-FIFO hit nothing in a cycle of twice the budget, where the policy hits nearly half") {
    const Case one = {"cycle", cycle(128), std::vector<std::uint64_t>(128, expert), 64 * expert};
    CHECK(hits_of_arc(one.trace, 64) == 0);
    CHECK(hits_of_s3_fifo(one.trace, 64) == 0);
    CHECK(hit_rate(one, Tested(one)) > 47);
    // They are no straw men.
    const Trace picks = zipf(256, 1);
    CHECK(hits_of_arc(picks, 64) > picks.size() * 6 / 10);
    CHECK(hits_of_s3_fifo(picks, 64) > picks.size() * 6 / 10);
}

// Random runs

TEST_CASE("Policy: decides as its twin does in random runs with random sizes") {
    const unsigned seed = soak::seed(20261215);
    CAPTURE(seed);
    for (unsigned round = 0; round < static_cast<unsigned>(soak::rounds_of_one_thread(120)); ++round) {
        CAPTURE(round);
        Random random(seed + round);
        const std::size_t count = 2 + random.below(60);
        const std::uint64_t largest = std::uint64_t{1} << (4 + random.below(30));
        const std::uint64_t budget = largest + random.below(largest * count / 2);
        std::vector<std::uint64_t> sizes(count);
        for (auto& size : sizes) size = random.below(largest + 1);
        // Few looks, so that searches end before they have seen all uses.
        const std::size_t looks = round % 2 == 0 ? Policy::usual_looks : 1 + random.below(8);
        Policy policy(budget, looks);
        std::vector<Use> uses(count);
        Twin twin(budget, count, looks);
        const auto number = [&](const Use* use) {
            return use == nullptr ? none : static_cast<std::size_t>(use - uses.data());
        };
        std::vector<bool> resident(count), busy(count);
        std::uint64_t taken = 0;
        const std::size_t often_busy = random.below(3);
        Zipf pick(count, random);
        for (std::size_t step = 0; step < 600; ++step) {
            const std::size_t at = step % 100 < 60 ? pick() : step % count;
            if (step % 7 == 0)
                for (std::size_t i = 0; i < count; ++i) busy[i] = often_busy > 0 && random.below(4) < often_busy;
            if (const std::size_t kind = random.below(40); resident[at] && kind == 0) {
                policy.let_go_first(uses[at]);
                twin.let_go_first(at);
                continue;
            } else if (kind <= 2) {
                if (kind == 1) policy.forget(uses[at]), twin.forget(at);
                else policy.left(uses[at]), twin.left(at);
                if (kind == 1) uses[at].~Use(), new (&uses[at]) Use();
                if (resident[at]) taken -= sizes[at];
                resident[at] = false;
                continue;
            }
            if (resident[at]) {
                policy.hit(uses[at]);
                twin.hit(at);
                continue;
            }
            std::vector<std::size_t> chosen;
            std::uint64_t free = budget - taken;
            bool found = true;
            while (found && free < sizes[at]) {
                std::vector<bool> asked(count);
                const std::size_t victim = number(policy.victim(sizes[at], [&](Use& use) {
                    REQUIRE_FALSE(asked[number(&use)]);
                    asked[number(&use)] = true;
                    return !busy[number(&use)];
                }));
                REQUIRE(victim == twin.victim(sizes[at], [&](std::size_t i) { return !busy[i]; }));
                found = victim != none;
                if (!found) {
                    // Nothing can go: all that is left was asked for.
                    for (std::size_t i = 0; i < count; ++i)
                        CHECK((!resident[i] || asked[i] || std::ranges::count(chosen, i) > 0));
                    break;
                }
                REQUIRE(resident[victim]);
                REQUIRE_FALSE(std::ranges::count(chosen, victim) > 0);
                chosen.push_back(victim);
                free += sizes[victim];
            }
            const bool stay = !found || random.below(10) == 0;
            for (const std::size_t victim : chosen) {
                if (stay) policy.stays(uses[victim]), twin.stays(victim);
                else policy.left(uses[victim]), twin.left(victim);
                if (!stay) taken -= sizes[victim];
                if (!stay) resident[victim] = false;
            }
            if (stay && !chosen.empty()) continue;
            if (!found) continue;
            const bool demanded = random.below(5) > 0;
            policy.came(uses[at], sizes[at], demanded);
            twin.came(at, sizes[at], demanded);
            resident[at] = true;
            taken += sizes[at];
            REQUIRE(policy.window() == twin.window());
        }
    }
}

// Single promises

TEST_CASE("Policy: what is to go first goes first, unless it is used meanwhile") {
    Policy policy(10);
    std::array<Use, 10> uses;
    for (Use& use : uses) policy.came(use, 1, true);
    policy.let_go_first(uses[4]);
    policy.let_go_first(uses[7]);
    policy.hit(uses[7]);
    Use* const first = policy.victim(1, [](Use&) { return true; });
    CHECK(first == &uses[4]);
    Use* const second = policy.victim(1, [](Use&) { return true; });
    CHECK(second != nullptr);
    CHECK(second != &uses[7]);
    policy.stays(*second);
    policy.stays(*first);
    CHECK(policy.victim(1, [](Use&) { return true; }) == &uses[4]);
}

TEST_CASE("Policy: a search asks for each entry once, and finds nothing if all are refused") {
    Policy policy(100);
    std::vector<Use> uses(100);
    CHECK(policy.victim(1, [](Use&) { return true; }) == nullptr);
    for (Use& use : uses) policy.came(use, 1, true);
    for (int i = 0; i < 3; ++i) {
        std::vector<Use*> asked;
        CHECK(policy.victim(1, [&](Use& use) { return asked.push_back(&use), false; }) == nullptr);
        CHECK(asked.size() == 100);
        std::ranges::sort(asked);
        CHECK(std::ranges::adjacent_find(asked) == asked.end());
    }
    // An entry that is free again is found, wherever it is.
    CHECK(policy.victim(1, [&](Use& use) { return &use == &uses[57]; }) == &uses[57]);
}

TEST_CASE("Policy: a use is recorded at most once between two arrivals") {
    Policy policy(4);
    Use one, other;
    policy.came(one, 1, false);
    const std::uint64_t before = policy.now();
    CHECK(one.used() == before);
    policy.came(other, 1, true);
    CHECK(policy.now() > before);
    CHECK(one.used() == before);
    policy.hit(one);
    policy.hit(one);
    CHECK(one.used() == policy.now());
    policy.forget(one);
    policy.forget(other);
}

TEST_CASE("Policy: threads record hits while others come and go") {
    constexpr std::size_t count = 64;
    Policy policy(count);
    std::vector<Use> uses(count);
    std::mutex mutex;
    const auto work = [&](unsigned seed) {
        Random random(seed);
        for (int i = 0; i < soak::rounds(20'000); ++i) {
            for (int j = 0; j < 4; ++j) policy.hit(uses[random.below(count)]);
            const std::lock_guard lock(mutex);
            Use& use = uses[random.below(count)];
            policy.left(use);
            if (random.below(3) == 0) policy.forget(use);
            if (Use* const victim = policy.victim(1, [&](Use&) { return random.below(4) > 0; })) policy.left(*victim);
            policy.came(use, 1, random.below(2) == 0);
        }
    };
    std::thread first(work, 1), second(work, 2);
    first.join();
    second.join();
    // No entry was lost: all that are there can go.
    std::size_t left = 0;
    while (Use* const victim = policy.victim(1, [](Use&) { return true; })) {
        policy.left(*victim);
        ++left;
    }
    CHECK(left > 0);
    CHECK(left <= count);
}

}  // namespace policy_test
