// Handles signals. The handler touches only lock-free atomics, and calls only write() and _exit().
#include "signals.hpp"

#include <safemap/advanced/text.hpp>

#include <fmt/core.h>

#include <array>
#include <atomic>
#include <csignal>
#include <cstddef>
#include <cstring>
#include <string>

#include <fcntl.h>
#include <unistd.h>

namespace safemap::cli {
namespace {

constexpr int cancelled_exit = 130;  // 128 + SIGINT, as shells count

// A signal handler may access only lock-free atomics.
std::atomic<bool> deferred{false};
std::atomic<bool> requested{false};
std::atomic<bool> has_output{false};
std::atomic<bool> says_json{false};
std::atomic<bool> on_terminal{false};  // true if the terminal echoes ^C before the message
constexpr const char* plain_text = "safemap: error: cancelled by a signal\n";
constexpr const char* json_text = "{\"error\": {\"code\": \"cancelled\", \"message\": \"cancelled by a signal\"}}\n";
std::atomic<const char*> plain_answer{plain_text};
std::atomic<const char*> json_answer{json_text};
static_assert(std::atomic<bool>::is_always_lock_free && std::atomic<const char*>::is_always_lock_free);

void say(int descriptor, const char* text) noexcept {
    [[maybe_unused]] const ssize_t ignored = ::write(descriptor, text, std::strlen(text));
}

void on_signal(int) {
    requested = true;
    if (deferred) return;
    if (!has_output && says_json) {
        say(STDOUT_FILENO, json_answer);
    } else if (!has_output) {
        if (on_terminal) say(STDERR_FILENO, "\n");
        say(STDERR_FILENO, plain_answer);
    }
    ::_exit(cancelled_exit);
}

struct Handled {
    int signal;
    void (*handler)(int);
};
/// A file larger than `ulimit -f` (SIGXFSZ) is then an error, and the unfinished output is removed.
const std::array<Handled, 5> handled{
    {{SIGINT, on_signal}, {SIGTERM, on_signal}, {SIGHUP, on_signal}, {SIGPIPE, SIG_IGN}, {SIGXFSZ, SIG_IGN}}};

/// Opens /dev/null in place of closed standard descriptors. Otherwise a file opened later could get the number of
/// stdout or stderr, and messages would be written into it. It is opened for reading, so that writing still fails.
void occupy_standard_descriptors() {
    for (const int descriptor : {STDIN_FILENO, STDOUT_FILENO, STDERR_FILENO})
        if (::fcntl(descriptor, F_GETFD) == -1) [[maybe_unused]]
            const int opened = ::open("/dev/null", O_RDONLY);
}

}  // namespace

SignalHandlers::SignalHandlers(bool json) noexcept {
    deferred = false;
    requested = false;
    says_json = json;
    plain_answer = plain_text;
    json_answer = json_text;
    occupy_standard_descriptors();
    on_terminal = ::isatty(STDERR_FILENO) == 1;
    for (std::size_t i = 0; i < handled.size(); ++i) {
        ::sigaction(handled[i].signal, nullptr, &before_[i]);
        // The terminal is closed. Under nohup this signal is ignored and stays so.
        if (handled[i].signal == SIGHUP && before_[i].sa_handler == SIG_IGN) continue;
        struct sigaction action = {};
        action.sa_handler = handled[i].handler;
        action.sa_flags = SA_RESTART;
        ::sigaction(handled[i].signal, &action, nullptr);
    }
}

SignalHandlers::~SignalHandlers() {
    for (std::size_t i = 0; i < handled.size(); ++i) ::sigaction(handled[i].signal, &before_[i], nullptr);
    output_begins(false);
}

DeferSignals::DeferSignals() { deferred = true; }
DeferSignals::~DeferSignals() { deferred = false; }
bool DeferSignals::cancelled() noexcept { return requested; }

void hint_for_signals(std::string_view hint) {
    // Never destroyed: a signal may come while the program exits.
    static std::string& plain = *new std::string;
    static std::string& json = *new std::string;
    plain = fmt::format("{}hint: {}\n", plain_text, printable(hint));
    json = fmt::format(
        "{{\"error\": {{\"code\": \"cancelled\", \"message\": \"cancelled by a signal\", \"hint\": {}}}}}\n",
        json_quoted(hint));
    plain_answer = plain.c_str();
    json_answer = json.c_str();
}

void output_begins(bool begun) noexcept { has_output = begun; }

}  // namespace safemap::cli
