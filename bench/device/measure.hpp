// Measures for benchmarks with a main of their own: times, medians, memory of a child process, and rows of a table.
#pragma once

#include <malloc.h>
#include <sys/utsname.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <ctime>
#include <exception>
#include <fstream>
#include <functional>
#include <stdexcept>
#include <string>
#include <string_view>
#include <system_error>
#include <thread>
#include <utility>
#include <vector>

namespace measure {

[[noreturn]] inline void fail(const std::string& what) {
    throw std::system_error(errno, std::generic_category(), what);
}

template <class Work> double seconds(Work&& work) {
    const auto start = std::chrono::steady_clock::now();
    work();
    return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

/// Returns the processor time of all threads of this process, in seconds.
inline double processor_time() {
    timespec now{};
    ::clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &now);
    return static_cast<double>(now.tv_sec) + static_cast<double>(now.tv_nsec) / 1e9;
}

template <class Work> double processor_seconds(Work&& work) {
    const double start = processor_time();
    work();
    return processor_time() - start;
}

/// Numbers that were measured in the same way.
class Sample {
public:
    void add(double value) { values_.insert(std::ranges::upper_bound(values_, value), value); }
    bool empty() const noexcept { return values_.empty(); }
    std::size_t size() const noexcept { return values_.size(); }
    double median() const { return values_.at(values_.size() / 2); }
    double least() const { return values_.at(0); }
    double most() const { return values_.back(); }

private:
    std::vector<double> values_;  // sorted
};

// ---- Memory

/// Returns a field of /proc/self/status, in bytes.
inline double status_bytes(const std::string& field) {
    std::ifstream status("/proc/self/status");
    for (std::string line; std::getline(status, line);)
        if (line.starts_with(field + ":")) return std::strtod(line.c_str() + field.size() + 1, nullptr) * 1024;
    throw std::runtime_error("/proc/self/status has no " + field);
}

/// Runs `work` in a child process, and returns what it returns. The caller has no other threads.
inline double in_child(const std::function<double()>& work) {
    int ends[2];
    if (::pipe(ends) != 0) fail("pipe");
    std::fflush(stdout);
    ::malloc_trim(0);  // or the child could use memory that is counted already
    const pid_t child = ::fork();
    if (child < 0) fail("fork");
    if (child == 0) {
        try {
            const double result = work();
            ::_exit(::write(ends[1], &result, sizeof(result)) == sizeof(result) ? 0 : 1);
        } catch (const std::exception& error) {
            std::fprintf(stderr, "in a child: %s\n", error.what());
            ::_exit(1);
        }
    }
    ::close(ends[1]);
    double result = 0;
    const bool complete = ::read(ends[0], &result, sizeof(result)) == sizeof(result);
    ::close(ends[0]);
    int status = 0;
    if (::waitpid(child, &status, 0) != child || status != 0 || !complete) throw std::runtime_error("a child failed");
    return result;
}

/// Returns by how many bytes the anonymous memory of a child process grows at most while it runs `work`, less the bytes
/// that `work` returns.
inline double peak_growth(const std::function<double()>& work) {
    return in_child([&] {
        const auto others = [] { return status_bytes("RssFile") + status_bytes("RssShmem"); };
        // A child's peak begins with what it has at birth. Memory of files only grows here.
        const double before = status_bytes("RssAnon");
        const double exempt = work();
        return status_bytes("VmHWM") - others() - before - exempt;
    });
}

// ---- The table

inline void print_machine(int rounds, std::uint64_t size) {
    utsname system{};
    ::uname(&system);
    char date[32] = "";
    const std::time_t now = std::time(nullptr);
    std::strftime(date, sizeof(date), "%Y-%m-%d", std::gmtime(&now));
    std::printf("%s, %u cores, Linux %s, %d rounds, %llu MiB in layers\n\n", date, std::thread::hardware_concurrency(),
                system.release, rounds, static_cast<unsigned long long>(size >> 20));
}

inline void print_head() {
    std::printf("%-58s %9s %9s  %-26s %-10s %-14s %s\n", "", "safemap", "limit", "median (least to most)", "processor",
                "aim", "met");
}

/// Times of the same work by the clock and of all processors, in seconds.
struct Times {
    Sample clock = {};
    Sample processor = {};
};

/// Prints a row of work beside a limit of the machine: GB/s of `bytes`, the ratios of pairs by the clock, and the ratio
/// of the medians of processor time. A ratio is the limit's time by that of the work.
inline void print_ratio(const std::string& what, double bytes, const Times& work, const Times& limit,
                        const Sample& ratio, double aim) {
    char range[64];
    std::snprintf(range, sizeof(range), "%.2f (%.2f to %.2f)", ratio.median(), ratio.least(), ratio.most());
    std::printf("%-58s %9.2f %9.2f  %-26s %-10.2f at least %-5.2g %s\n", (what + ", GB/s").c_str(),
                bytes / work.clock.median() / 1e9, bytes / limit.clock.median() / 1e9, range,
                limit.processor.median() / work.processor.median(), aim, ratio.median() >= aim ? "yes" : "NO");
    std::fflush(stdout);
}

/// Prints a row of numbers that should be at most `aim`.
inline void print_at_most(const std::string& what, const Sample& numbers, double aim) {
    char range[64];
    std::snprintf(range, sizeof(range), "%.4g (%.4g to %.4g)", numbers.median(), numbers.least(), numbers.most());
    char limit[32];
    std::snprintf(limit, sizeof(limit), "at most %.4g", aim);
    std::printf("%-58s %9s %9s  %-26s %-10s %-14s %s\n", what.c_str(), "", "", range, "", limit,
                numbers.median() <= aim ? "yes" : "NO");
    std::fflush(stdout);
}

/// Runs both in turn, `rounds` times and once before that without counting.
struct Pairs {
    Times ours = {};
    Times limit = {};
    Sample ratio = {};

    template <class Ours, class Limit> Pairs(int rounds, Ours&& run_ours, Limit&& run_limit) {
        for (int i = 0; i <= rounds; ++i) {
            const bool first = i % 2 == 0;
            if (first) add(ours, run_ours, i > 0);
            const double other = add(limit, run_limit, i > 0);
            if (!first) add(ours, run_ours, i > 0);
            if (i > 0) ratio.add(other / last_);
        }
    }
    void print(const std::string& what, std::uint64_t bytes) const {
        print_ratio(what, static_cast<double>(bytes), ours, limit, ratio, 0.9);
    }

private:
    template <class Work> double add(Times& times, Work&& work, bool counts) {
        const double processor = processor_time();
        const double clock = work();
        if (counts) {
            times.processor.add(processor_time() - processor);
            times.clock.add(clock);
        }
        if (&times == &ours) last_ = clock;
        return clock;
    }
    double last_ = 0;  // seconds by the clock
};

// ---- The command line

/// Calls the function of each option with its value.
using OptionTable = std::vector<std::pair<std::string, std::function<void(const std::string& value)>>>;
inline void parse(int argc, char** argv, const OptionTable& known) {
    std::string names;
    for (const auto& [name, set] : known) names += (names.empty() ? "" : ", ") + name;
    for (int i = 1; i < argc; i += 2) {
        const std::string name = argv[i];
        const auto found = std::ranges::find(known, name, [](const auto& option) { return option.first; });
        if (found == known.end()) throw std::runtime_error("unknown option " + name + "; expected one of " + names);
        if (i + 1 == argc) throw std::runtime_error(name + " needs a value");
        found->second(argv[i + 1]);
    }
}

/// Calls `run`, and returns the exit code of the program.
template <class Run> int exit_code(const char* program, Run&& run) {
    try {
        run();
    } catch (const std::exception& error) {
        std::fprintf(stderr, "%s: %s\n", program, error.what());
        return 2;
    }
    return 0;
}

/// Reads "1GiB" or "64MiB".
inline std::uint64_t bytes_of_text(const std::string& text) {
    char* end = nullptr;
    const double number = std::strtod(text.c_str(), &end);
    const std::string_view unit = end;
    if (unit == "GiB") return static_cast<std::uint64_t>(number * 0x1p30);
    if (unit == "MiB") return static_cast<std::uint64_t>(number * 0x1p20);
    throw std::runtime_error("--size " + text + ": expected a number of MiB or GiB, such as 1GiB");
}

}  // namespace measure
