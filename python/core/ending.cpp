// Threads at the end of the interpreter. CPython ends a thread that wants the GIL then, by unwinding its stack, which
// ends the process where C++ is on the stack. Here such a thread waits until the process has ended.
#include "core.hpp"

#include <atomic>
#include <chrono>
#include <thread>

#include <pthread.h>
#include <unistd.h>

namespace safemap::python {
namespace {

std::atomic<bool> ending{false};
std::atomic<int> acquiring{0};  ///< threads that may be about to take the GIL
std::thread::id last_thread;    ///< the thread that ends the interpreter; set before `ending`

/// Returns true if Python knows of other threads. At the end these are daemons.
bool has_daemons() {
    const nb::object threading = nb::steal(PyImport_GetModule(nb::str("threading").ptr()));
    PyErr_Clear();
    return threading.is_valid() && nb::cast<int>(nb::object(threading.attr("active_count")())) > 1;
}

/// Lets threads take the GIL that had asked for it before the end began, and lets daemons run on until they wait here.
void let_others_finish(std::chrono::milliseconds grace) {
    using std::chrono::steady_clock;
    const auto begin = steady_clock::now();
    PyThreadState* const state = PyEval_SaveThread();
    while (steady_clock::now() < begin + grace ||
           (acquiring != 0 && steady_clock::now() < begin + std::chrono::seconds(2)))
        std::this_thread::sleep_for(std::chrono::milliseconds(1));
    PyEval_RestoreThread(state);
}

void begin_end() {
    const bool daemons = has_daemons();
    // Their readers may be in a file object, and are joined: daemons could keep them there.
    if (!daemons) close_uploaders();
    last_thread = std::this_thread::get_id();
    ending = true;
    let_others_finish(std::chrono::milliseconds(daemons ? 100 : 0));
}

}  // namespace

void begin_to_acquire() noexcept {
    ++acquiring;
    if (!ending || std::this_thread::get_id() == last_thread) return;
    --acquiring;
    for (;;) ::pause();
}

void has_acquired() noexcept { --acquiring; }

bool is_ending() noexcept { return ending; }

void bind_ending(nb::module_& module) {
    // The other threads of a parent are not in its child.
    ::pthread_atfork(nullptr, nullptr, [] { acquiring = 0; });
    module.def("_begin_end", begin_end);
    nb::module_::import_("atexit").attr("register")(module.attr("_begin_end"));
}

}  // namespace safemap::python
