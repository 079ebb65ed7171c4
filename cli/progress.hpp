// A progress bar: one line on stderr.
#pragma once

#include "output.hpp"

#include <safemap/progress.hpp>

#include <chrono>
#include <cstddef>
#include <string>
#include <string_view>

namespace safemap::cli {

/// Returns "converting  42%  6.2 GB of 14.5 GB  1.2 GB/s  7 s left  [##########              ]", at most `columns`
/// wide.
std::string progress_line(const Progress& progress, std::size_t columns);

/// A progress bar that appears once the work has taken `delay`, if Console::shows_progress(). It is erased when it is
/// destroyed, and before the console prints anything.
class ProgressBar {
public:
    explicit ProgressBar(const Console& console, std::chrono::milliseconds delay = std::chrono::seconds(1));
    ~ProgressBar();
    ProgressBar(const ProgressBar&) = delete;
    ProgressBar& operator=(const ProgressBar&) = delete;

    /// Shows progress. Redraws at most ten times a second, so it may be called often.
    void show(const Progress& progress);
    /// Shows a line in place of the bar, likewise.
    void show(std::string_view line);
    /// Returns a monitor that shows progress here, and cancels the work after a deferred signal.
    Monitor monitor();
    /// Returns true once the work has taken `delay`.
    bool is_due() const { return Clock::now() - start_ >= delay_; }
    /// Returns the seconds since construction.
    double seconds() const;

private:
    bool may_draw();
    using Clock = std::chrono::steady_clock;

    StatusLine& line_;
    bool enabled_;
    std::chrono::milliseconds delay_;
    Clock::time_point start_ = Clock::now();
    Clock::time_point drawn_ = {};
};

}  // namespace safemap::cli
