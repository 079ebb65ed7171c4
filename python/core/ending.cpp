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

thread_local bool has_released = false;  ///< true while this thread, one of Python, works without the GIL

bool is_for_others() noexcept { return ending && std::this_thread::get_id() != last_thread; }

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

bool is_ending() noexcept { return ending; }

bool has_gil() noexcept { return !has_released && PyGILState_GetThisThreadState() != nullptr; }

GilRelease::GilRelease() noexcept : state_(PyEval_SaveThread()) { has_released = true; }

GilRelease::~GilRelease() {
    ++acquiring;
    if (is_for_others()) {
        --acquiring;
        for (;;) ::pause();  // until the process has ended
    }
    PyEval_RestoreThread(state_);
    --acquiring;
    has_released = false;
}

GilAcquire::GilAcquire() : GilAcquire(std::nothrow) {
    if (!holds_) throw Error(Errc::cancelled, "the interpreter ends");
}

GilAcquire::GilAcquire(const std::nothrow_t&) noexcept : had_released_(has_released) {
    const bool nested = has_gil();
    ++acquiring;
    if (Py_IsInitialized() && (nested || !is_for_others())) {
        state_ = PyGILState_Ensure();
        holds_ = true;
        has_released = false;
    }
    --acquiring;
}

GilAcquire::~GilAcquire() {
    if (!holds_) return;
    has_released = had_released_;
    PyGILState_Release(state_);
}

void bind_ending(nb::module_& module) {
    // The other threads of a parent are not in its child.
    ::pthread_atfork(nullptr, nullptr, [] { acquiring = 0; });
    module.def("_begin_end", begin_end);
    nb::module_::import_("atexit").attr("register")(module.attr("_begin_end"));
}

}  // namespace safemap::python
