// Ctrl-C, SIGTERM and SIGHUP end the program with exit code 130. While it is writing, they first cancel the work, which
// removes the unfinished output, or keeps what --resume can continue from.
#pragma once

#include <array>
#include <csignal>
#include <string_view>

namespace safemap::cli {

/// Handles SIGINT, SIGTERM and SIGHUP, and ignores SIGPIPE, so that a closed pipe is an error, for its lifetime. Then
/// the signals do what they did before. Make it once at a time, before threads start. If `json` is true, a cancelled
/// run prints its error as an object on stdout.
class SignalHandlers {
public:
    explicit SignalHandlers(bool json) noexcept;
    ~SignalHandlers();
    SignalHandlers(const SignalHandlers&) = delete;
    SignalHandlers& operator=(const SignalHandlers&) = delete;

private:
    std::array<struct sigaction, 5> before_;
};

/// A scope in which a signal is only recorded and the work goes on. Outside of it, a signal ends the program at once,
/// which is safe while nothing is written.
class DeferSignals {
public:
    DeferSignals();
    ~DeferSignals();
    DeferSignals(const DeferSignals&) = delete;
    DeferSignals& operator=(const DeferSignals&) = delete;

    /// Returns true if a signal was received.
    static bool cancelled() noexcept;
};

/// Gives the handler a hint to print with its message. Call it on the thread of the handlers, at most once for them.
void hint_for_signals(std::string_view hint);

/// Tells the handler that a result or an error has been printed: a signal then prints nothing. With false, a signal
/// prints again.
void output_begins(bool begun = true) noexcept;

}  // namespace safemap::cli
