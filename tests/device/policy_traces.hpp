// Traces of groups that are used one after the other, which policy_test.cpp replays.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <numeric>
#include <random>
#include <string>
#include <utility>
#include <vector>

namespace policy_test {

inline constexpr std::size_t none = SIZE_MAX;
inline constexpr std::size_t per_token = 8;
inline constexpr std::size_t tokens = 3'000;
inline constexpr std::uint64_t expert = 320 * 1'024;

/// Random numbers that are the same everywhere.
class Random {
public:
    explicit Random(unsigned seed) : engine_(seed) {}
    std::size_t below(std::size_t end) { return engine_() % end; }
    double part() { return static_cast<double>(engine_() >> 11) * 0x1p-53; }
    void shuffle(std::vector<std::size_t>& order) {
        for (std::size_t i = order.size(); i > 1; --i) std::swap(order[i - 1], order[below(i)]);
    }
    /// Returns the numbers below `count` in a random order.
    std::vector<std::size_t> order(std::size_t count) {
        std::vector<std::size_t> made(count);
        std::iota(made.begin(), made.end(), std::size_t{0});
        shuffle(made);
        return made;
    }

private:
    std::mt19937_64 engine_;
};

using Trace = std::vector<std::size_t>;

/// Adds one token, which uses distinct experts.
template <class Pick> void add_token(Trace& trace, Pick pick) {
    const std::size_t begin = trace.size();
    while (trace.size() < begin + per_token) {
        const std::size_t next = pick();
        if (std::find(trace.begin() + static_cast<std::ptrdiff_t>(begin), trace.end(), next) == trace.end())
            trace.push_back(next);
    }
}

/// Picks with weights of 1/rank in a shuffled order.
class Zipf {
public:
    Zipf(std::size_t experts, Random& random) : random_(random), order_(random.order(experts)) {
        double sum = 0;
        for (std::size_t i = 1; i <= experts; ++i) sums_.push_back(sum += 1.0 / static_cast<double>(i));
    }
    std::size_t operator()() {
        const auto at = std::lower_bound(sums_.begin(), sums_.end(), random_.part() * sums_.back());
        return order_[std::min(static_cast<std::size_t>(at - sums_.begin()), order_.size() - 1)];
    }
    void change() { random_.shuffle(order_); }

private:
    Random& random_;
    std::vector<std::size_t> order_;
    std::vector<double> sums_;
};

/// Picks 70 % among the experts that were used last, and the others among all.
class Recent {
public:
    Recent(std::size_t experts, std::size_t last, Random& random)
        : random_(random), last_(last), order_(random.order(experts)) {}
    void add_token_to(Trace& trace) {
        const std::size_t begin = trace.size();
        add_token(trace,
                  [&] { return random_.part() < 0.7 ? order_[random_.below(last_)] : random_.below(order_.size()); });
        for (std::size_t i = begin; i < trace.size(); ++i) {
            const auto at = std::ranges::find(order_, trace[i]);
            std::rotate(order_.begin(), at, at + 1);
        }
    }

private:
    Random& random_;
    std::size_t last_;
    std::vector<std::size_t> order_;
};

/// A trace to replay: the groups that are used, one after the other.
struct Case {
    std::string name;
    Trace trace;
    std::vector<std::uint64_t> sizes;
    std::uint64_t budget;
    bool at_once = false;  // the experts of a token are leased together
};

inline Trace zipf(std::size_t experts, unsigned seed, std::size_t change_after = SIZE_MAX) {
    Random random(seed);
    Zipf pick(experts, random);
    Trace trace;
    for (std::size_t i = 0; i < tokens; ++i) {
        if (i > 0 && i % change_after == 0) pick.change();
        add_token(trace, [&] { return pick(); });
    }
    return trace;
}

inline Trace recent(std::size_t experts, std::size_t last, unsigned seed) {
    Random random(seed);
    Recent pick(experts, last, random);
    Trace trace;
    for (std::size_t i = 0; i < tokens; ++i) pick.add_token_to(trace);
    return trace;
}

inline Trace cycle(std::size_t groups) {
    Trace trace(tokens * per_token);
    for (std::size_t i = 0; i < trace.size(); ++i) trace[i] = i % groups;
    return trace;
}

/// Bursts of Zipf over 64 experts, each followed by a scan of all 256.
inline Trace bursts(std::size_t length, unsigned seed) {
    Random random(seed);
    const std::vector<std::size_t> hot = random.order(256);
    Zipf pick(64, random);
    Trace trace;
    while (trace.size() < tokens * per_token) {
        for (std::size_t i = 0; i < length; ++i) add_token(trace, [&] { return hot[pick()]; });
        for (std::size_t i = 0; i < 256; ++i) trace.push_back(i);
    }
    return trace;
}

/// A thousand tokens of recency, of frequency, and of recency again.
inline Trace phases(unsigned seed) {
    Random random(seed);
    Recent recent_pick(256, 48, random);
    Zipf zipf_pick(256, random);
    Trace trace;
    for (std::size_t i = 0; i < tokens; ++i) {
        if (i / 1'000 == 1) add_token(trace, [&] { return zipf_pick(); });
        else recent_pick.add_token_to(trace);
    }
    return trace;
}

/// Zipf, and each fourth token scans 1,024 other groups.
inline Trace zipf_and_scan(unsigned seed) {
    Random random(seed);
    Zipf pick(256, random);
    Trace trace;
    std::size_t scanned = 0;
    for (std::size_t i = 0; i < tokens; ++i) {
        if (i % 4 < 3) add_token(trace, [&] { return pick(); });
        else
            for (std::size_t j = 0; j < per_token; ++j) trace.push_back(256 + scanned++ % 1'024);
    }
    return trace;
}

/// Sizes between 1 and 64 experts.
inline std::vector<std::uint64_t> mixed_sizes(unsigned seed) {
    Random random(seed);
    std::vector<std::uint64_t> sizes(256);
    for (std::uint64_t& size : sizes) size = expert * (1 + static_cast<std::uint64_t>(std::exp2(6 * random.part())));
    return sizes;
}

inline std::vector<Case> make_cases(unsigned seed) {
    std::vector<Case> cases;
    const auto add = [&](std::string name, const Trace& trace, std::size_t fit, bool at_once = false) {
        const std::vector<std::uint64_t> sizes(*std::ranges::max_element(trace) + 1, expert);
        cases.push_back({std::move(name) + ", room for " + std::to_string(fit), trace, sizes, fit * expert, at_once});
    };
    for (const std::size_t fit : {32U, 64U, 128U}) {
        // The traces of the issue.
        add("Zipf", zipf(256, seed), fit);
        add("recent", recent(256, 48, seed), fit);
        add("Zipf that changes", zipf(256, seed, 300), fit);
        add("cycle of 2 B", cycle(2 * fit), fit);
        add("bursts and scans", bursts(100, seed), fit);
        // Others.
        add("short bursts and scans", bursts(25, seed), fit);
        add("Zipf and scan", zipf_and_scan(seed), fit);
        add("phases", phases(seed), fit);
        add("cycle of 1.1 B", cycle(fit * 11 / 10), fit);
        add("Zipf at once", zipf(256, seed), fit, true);
        add("recent at once", recent(256, 48, seed), fit, true);
        add("cycle of 2 B at once", cycle(2 * fit), fit, true);
        const std::vector<std::uint64_t> sizes = mixed_sizes(seed);
        const std::uint64_t all = std::accumulate(sizes.begin(), sizes.end(), std::uint64_t{0});
        const std::uint64_t budget = std::max(all / 256 * fit, 65 * expert);
        const std::string part = ", mixed sizes, room for " + std::to_string(fit) + "/256";
        cases.push_back({"Zipf" + part, zipf(256, seed), sizes, budget});
        cases.push_back({"recent" + part, recent(256, 48, seed), sizes, budget});
    }
    for (const std::size_t fit : {8U, 10U, 12U, 16U}) {  // 8: one token
        for (const bool at_once : {false, true}) {
            const std::string name = at_once ? " of 32 at once" : " of 32";
            add("Zipf" + name, zipf(32, seed), fit, at_once);
            add("recent" + name, recent(32, 12, seed), fit, at_once);
            add("cycle of 2 B" + name, cycle(2 * fit), fit, at_once);
        }
    }
    return cases;
}

}  // namespace policy_test
