// A progress bar of one line on stderr.
#pragma once

#include "output.hpp"

#include <safemap/progress.hpp>

#include <chrono>
#include <cstddef>
#include <string>

namespace safemap::cli {

/// "converting  42%  6.2 GB of 14.5 GB  1.2 GB/s  7 s left  [##########              ]", at most `columns` wide.
std::string progress_line(const Progress& progress, double seconds, std::size_t columns);

/// Shows itself once the work has taken a second and where Console::shows_progress(); gone when destroyed.
class ProgressBar {
public:
    explicit ProgressBar(const Console& console);
    ~ProgressBar();
    ProgressBar(const ProgressBar&) = delete;
    ProgressBar& operator=(const ProgressBar&) = delete;

    /// As often as one likes: it redraws ten times a second.
    void show(const Progress& progress);
    double seconds() const;

private:
    using Clock = std::chrono::steady_clock;

    bool enabled_;
    Clock::time_point start_ = Clock::now();
    Clock::time_point drawn_ = {};
    std::size_t width_ = 0;  // of what stands on the line now
};

}  // namespace safemap::cli
