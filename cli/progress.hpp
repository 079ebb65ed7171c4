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

/// Shows itself once the work has taken `delay`, where Console::shows_progress(). Erased when it is destroyed, and
/// before the console prints anything.
class ProgressBar {
public:
    explicit ProgressBar(const Console& console, std::chrono::milliseconds delay = std::chrono::seconds(1));
    ~ProgressBar();
    ProgressBar(const ProgressBar&) = delete;
    ProgressBar& operator=(const ProgressBar&) = delete;

    /// May be called as often as one likes: it redraws ten times a second.
    void show(const Progress& progress);
    /// Shows all progress here. A signal that is deferred cancels the work.
    Monitor monitor();
    double seconds() const;

private:
    using Clock = std::chrono::steady_clock;

    StatusLine& line_;
    bool enabled_;
    std::chrono::milliseconds delay_;
    Clock::time_point start_ = Clock::now();
    Clock::time_point drawn_ = {};
};

}  // namespace safemap::cli
