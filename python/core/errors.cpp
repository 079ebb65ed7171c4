// Errors of the library as exceptions of Python, signals during long calls, and progress.
#include "core.hpp"

#include <chrono>
#include <condition_variable>
#include <exception>
#include <mutex>
#include <thread>

namespace safemap::python {
namespace {

/// Sets the exception of Python that stands for `error`. Fails with the exception of an import that failed.
void set_exception(const Error& error) {
    const nb::object exception = exception_of(error);
    PyErr_SetObject(reinterpret_cast<PyObject*>(Py_TYPE(exception.ptr())), exception.ptr());
}

void translate(const std::exception_ptr& thrown, void*) {
    try {
        std::rethrow_exception(thrown);
    } catch (const Error& error) {
        try {
            set_exception(error);
        } catch (nb::python_error& failed) {
            failed.restore();
        }
    } catch (const std::filesystem::filesystem_error& error) {
        PyErr_SetString(PyExc_OSError, error.what());
    }
}

/// Runs the handlers of signals that have come. Needs the GIL; only the main thread runs them.
void run_signal_handlers() {
    if (PyErr_CheckSignals() != 0) throw nb::python_error();
}

}  // namespace

nb::object exception_of(const Error& error) {
    return nb::module_::import_("safemap._errors")
        .attr("exception_for")(to_python(name(error.code())), to_python(error.what()), to_python(error.message()),
                               to_python(error.path()), to_python(error.tensor()), to_python(error.hint()),
                               exit_code(error.code()));
}

void raise(const Error& error) {
    set_exception(error);
    throw nb::python_error();
}

void wrong_type(const char* wanted, nb::handle found) {
    const std::string type = nb::cast<std::string>(nb::inst_name(found));
    throw nb::type_error(("expected " + std::string(wanted) + ", not " + type).c_str());
}

void interruptible(const std::function<void(const std::stop_token&)>& function) {
    std::mutex mutex;
    std::condition_variable changed;
    bool done = false;
    std::exception_ptr failure;
    std::jthread worker([&](const std::stop_token& stop) {
        try {
            function(stop);
        } catch (...) {
            failure = std::current_exception();
        }
        const std::lock_guard lock(mutex);
        done = true;
        changed.notify_one();
    });
    const auto wait = [&] {
        const GilRelease released;
        std::unique_lock lock(mutex);
        return changed.wait_for(lock, std::chrono::milliseconds(50), [&] { return done; });
    };
    try {
        while (!wait()) run_signal_handlers();
    } catch (...) {
        worker.request_stop();
        const GilRelease released;
        worker.join();
        throw;
    }
    worker.join();
    if (failure) std::rethrow_exception(failure);
}

Monitor monitor_for(nb::object progress) {
    if (progress.is_none() || progress.is(nb::handle(Py_False))) progress = nb::object();
    else if (progress.is(nb::handle(Py_True))) progress = nb::module_::import_("safemap._progress").attr("Bar")();
    if (progress.is_valid() && !PyCallable_Check(progress.ptr()))
        wrong_type("True or a callable for progress", progress);
    // The last copy may go where there is no GIL.
    const auto function = std::make_shared<Kept>(std::move(progress));
    Monitor monitor;
    monitor.on_progress = [function](const Progress& now) {
        const GilAcquire acquired;
        run_signal_handlers();
        if (!function->get().is_valid()) return true;
        return !function->get()(to_python(now.stage), now.bytes_done, now.bytes_total).is(nb::handle(Py_False));
    };
    return monitor;
}

Turn::Turn(Turns& turns) : turns_(turns) {
    std::optional<GilRelease> released;
    if (has_gil()) released.emplace();
    turns_.mutex.lock();
    ++turns_.depth;
}

Turn::~Turn() {
    --turns_.depth;
    turns_.mutex.unlock();
}

void Turn::require_first(const char* what) const {
    if (turns_.depth > 1) throw Error(Errc::invalid_argument, what);
}

Kept::~Kept() {
    if (!object_.is_valid()) return;
    const GilAcquire acquired(std::nothrow);
    if (acquired) object_.reset();
    else static_cast<void>(object_.release());
}

void bind_errors(nb::module_&) { nb::register_exception_translator(translate); }

}  // namespace safemap::python
