// The extension `safemap._core`.
#include "core.hpp"

namespace safemap::python {
namespace {

void bind_all(nb::module_& module) {
    module.attr("__version__") = SAFEMAP_VERSION;
    bind_errors(module);
    bind_ending(module);
    bind_tensor(module);
    bind_checkpoint(module);
    bind_saving(module);
    bind_shard_writer(module);
    bind_checking(module);
    bind_plan(module);
    bind_device(module);
    bind_sha256(module);
    bind_command_line(module);
    bind_drop_in(module);
    bind_tree(module);
}

}  // namespace
}  // namespace safemap::python

// nanobind keeps the types of one interpreter, and would lose them with a second one.
#define PyInit__core safemap_python_init
NB_MODULE(_core, module) {
    // A process may end while its tensors live.
    nanobind::set_leak_warnings(false);
    safemap::python::bind_all(module);
}
#undef PyInit__core

extern "C" NB_EXPORT PyObject* PyInit__core(void);
extern "C" PyObject* PyInit__core(void) {
    if (PyInterpreterState_GetID(PyInterpreterState_Get()) == 0) return safemap_python_init();
    PyErr_SetString(PyExc_ImportError, "safemap cannot be used in a subinterpreter");
    return nullptr;
}
