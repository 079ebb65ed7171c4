// Formats the line of a progress bar, and draws it at most ten times a second.
#include "progress.hpp"

#include "signals.hpp"

#include <fmt/core.h>

#include <algorithm>

#include <unistd.h>

namespace safemap::cli {
namespace {

using namespace std::chrono_literals;

constexpr std::size_t bar_width = 24;

}  // namespace

std::string progress_line(const Progress& progress, std::size_t columns) {
    const double done = static_cast<double>(progress.bytes_done);
    const double total = static_cast<double>(progress.bytes_total);
    const double share = total > 0 ? std::min(done / total, 1.0) : 1.0;
    const double rate = progress.bytes_per_second;
    const auto filled = static_cast<std::size_t>(share * bar_width);

    std::string line = fmt::format("{} {:3}%", progress.stage, static_cast<int>(share * 100));
    // On a narrow terminal, parts that do not fit are left out.
    const auto add = [&](const std::string& part) {
        if (line.size() + part.size() <= columns) line += part;
    };
    add(fmt::format("  {} of {}", bytes_text(progress.bytes_done), bytes_text(progress.bytes_total)));
    add(fmt::format("  {}/s", bytes_text(static_cast<std::uint64_t>(rate))));
    if (rate > 0) add(fmt::format("  {} left", duration_text(std::max(total - done, 0.0) / rate)));
    add(fmt::format("  [{}{}]", std::string(filled, '#'), std::string(bar_width - filled, ' ')));
    return line.substr(0, columns);
}

ProgressBar::ProgressBar(const Console& console, std::chrono::milliseconds delay)
    : line_(console.status()), enabled_(console.shows_progress()), delay_(delay) {}

ProgressBar::~ProgressBar() { line_.erase(); }

Monitor ProgressBar::monitor() {
    return {.on_progress = [this](const Progress& progress) {
        show(progress);
        return !DeferSignals::cancelled();
    }};
}

bool ProgressBar::may_draw() {
    const auto now = Clock::now();
    if (!enabled_ || !is_due() || now - drawn_ < 100ms) return false;
    drawn_ = now;
    return true;
}

void ProgressBar::show(std::string_view line) {
    if (may_draw()) line_.draw(line.substr(0, columns_of_terminal(STDERR_FILENO) - 1));
}

void ProgressBar::show(const Progress& progress) {
    if (!may_draw()) return;
    // Leaves the last column free: some terminals wrap the line after writing there.
    line_.draw(progress_line(progress, columns_of_terminal(STDERR_FILENO) - 1));
}

double ProgressBar::seconds() const { return std::chrono::duration<double>(Clock::now() - start_).count(); }

}  // namespace safemap::cli
