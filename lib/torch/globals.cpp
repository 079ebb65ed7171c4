// Compares and spells the names of globals. Tested by tests/torch/globals_test.cpp.
#include "torch/globals.hpp"

#include <algorithm>

namespace safemap::SAFEMAP_ABI::torch {

using Global = PickleGraph::Global;

bool is_named(const Global& global, std::string_view name) noexcept {
    const std::size_t dot = global.module.size();
    return name.size() == dot + 1 + global.name.size() && name[dot] == '.' && name.starts_with(global.module) &&
           name.ends_with(global.name) && global.name.find('.') == global.name.npos;
}

bool is_global(const PickleGraph& pickle, PickleGraph::Id id, std::string_view name) {
    return pickle.kind(id) == PickleGraph::Kind::global && is_named(pickle.global(id), name);
}

bool names_global(const PickleGraph& pickle, std::string_view name) {
    const auto globals = pickle.globals();
    return std::any_of(globals.begin(), globals.end(), [&](const Global& global) { return is_named(global, name); });
}

bool is_call_of(const PickleGraph& pickle, PickleGraph::Id id, std::string_view name) {
    return pickle.kind(id) == PickleGraph::Kind::call && is_global(pickle, pickle.call(id).callee, name);
}

std::string dotted(const Global& global) {
    std::string name(global.module);
    name += '.';
    name += global.name;
    return name;
}

}  // namespace safemap::SAFEMAP_ABI::torch
