// The calls of a program, as the stub and the relay note them, and those of them that fail.
#pragma once

#include "drivers/cuda_api.hpp"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <map>
#include <string>
#include <vector>

/// The owner guards it with a lock.
struct Ledger {
    using CuResult = safemap::drivers::CuResult;

    struct Failure {
        std::string call;  ///< empty: any
        std::uint64_t nth = 0;
        CuResult result = CuResult::success;
    };

    std::vector<std::string> findings = {};
    std::vector<const char*> calls = {};
    std::map<std::string, std::uint64_t> counts = {};
    std::vector<Failure> failures = {};
    CuResult dead = CuResult::success;  ///< the error of all calls

    void find(const std::string& text) {
        if (findings.size() < 100) findings.push_back(text);
    }
    void count(const std::string& what, std::uint64_t more = 1) { counts[what] += more; }
    void raise_peak() {
        std::uint64_t& peak = counts["peak_memory"];
        peak = std::max(peak, counts["live_memory"]);
    }
    /// Counts a call. Returns the error that a test wants of it.
    CuResult note_call(const char* name) {
        calls.push_back(name);
        count(name);
        CuResult fails = CuResult::success;
        for (Failure& failure : failures)
            if (failure.nth > 0 && (failure.call.empty() || failure.call == name) && --failure.nth == 0)
                fails = failure.result;
        return fails;
    }
    /// Returns the number of objects of any kind that exist.
    std::uint64_t live() {
        std::uint64_t sum = counts["retained"];
        for (const auto& [name, count] : counts)
            if (name.starts_with("live_") && name != "live_memory") sum += count;
        return sum;
    }
    /// Returns the name of a call, by its number, or null.
    const char* call(std::uint64_t number) const { return number < calls.size() ? calls[number] : nullptr; }
    /// Copies a finding, by its number, to `text`. Returns false if there is no such finding.
    bool copy_finding(std::uint64_t number, char* text, std::size_t size) const {
        if (number >= findings.size()) return false;
        std::strncpy(text, findings[number].c_str(), size - 1);
        text[size - 1] = 0;
        return true;
    }
};

/// Returns true if a real context does nothing more after this error.
inline bool is_sticky(safemap::drivers::CuResult result) {
    using safemap::drivers::CuResult;
    return result >= CuResult::illegal_address && result <= CuResult::launch_failed &&
           result != CuResult::host_memory_already_registered;
}
