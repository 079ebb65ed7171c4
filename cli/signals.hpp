// Ctrl-C and SIGTERM end the program with exit code 130; while something is being written, they ask for it to be
// undone first.
#pragma once

namespace safemap::cli {

/// Takes over SIGINT and SIGTERM, and makes a reader that goes away an error instead of a signal. Called once, before
/// there are threads. `json`: what a cancelled run says, it says as an object on stdout.
void install_signals(bool json);

/// While one lives, a signal is noted and the work goes on; otherwise a signal ends the program at once, which is
/// right wherever nothing has been written.
class DeferSignals {
public:
    DeferSignals();
    ~DeferSignals();
    DeferSignals(const DeferSignals&) = delete;
    DeferSignals& operator=(const DeferSignals&) = delete;

    /// Whether one came.
    static bool cancelled() noexcept;
};

/// From here on stdout holds a result: a signal adds nothing to it.
void output_begins() noexcept;

}  // namespace safemap::cli
