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

NB_MODULE(_core, module) {
    // A process may end while its tensors live.
    nanobind::set_leak_warnings(false);
    safemap::python::bind_all(module);
}
