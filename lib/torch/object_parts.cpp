// Collects and names the parts of opaque objects. Tested by tests/torch/rebuild_test.cpp.
#include "torch/object_parts.hpp"

#include "state/names.hpp"
#include "torch/globals.hpp"
#include "torch/storage_id.hpp"

#include <algorithm>
#include <utility>

namespace safemap::SAFEMAP_ABI::torch {

namespace {

using Kind = PickleGraph::Kind;

}  // namespace

std::string attribute_name(const PickleGraph& pickle, PickleGraph::Id key, std::size_t place) {
    if (pickle.kind(key) == Kind::integer) return std::to_string(pickle.integer(key));
    if (pickle.kind(key) == Kind::text) {
        const std::string_view text = pickle.text(key);
        if (text.size() <= max_key_bytes && (state::verbatim_name(text) || text == "__metadata__"))
            return std::string(text);
    }
    return "key" + std::to_string(place);
}

std::string class_name(const PickleGraph& pickle, PickleGraph::Id id) {
    id = class_of(pickle, id);
    return pickle.kind(id) == Kind::global ? dotted(pickle.global(id)) : "a class without a name";
}

StateTree::Opaque ObjectParts::call(std::string type, std::string why, const PickleGraph::Call& said) {
    Opaque out{.type = std::move(type), .why = std::move(why)};
    auto arguments = pickle_.items(said.arguments);
    if (out.type == "copyreg._reconstructor" && !arguments.empty()) {
        out.type = class_name(pickle_, arguments[0]);
        arguments = arguments.subspan(1);
    }
    add_arguments(out, arguments);
    if (said.keywords != PickleGraph::nothing) add_state(out, said.keywords);
    for (const Id state : said.states) add_state(out, state);
    add_entries(out, said.items);
    for (std::size_t i = 0; i < said.appends.size(); ++i) add(out, std::to_string(i), said.appends[i]);
    return out;
}

void ObjectParts::add(Opaque& out, std::string name, Id id) {
    draft_.spend(child_cost + 2 * name.size());
    out.children.emplace_back(unique(std::move(name)), draft_.refer(id, {self_, out.children.size()}));
}

void ObjectParts::add_value(Opaque& out, std::string name, StateTree::Node value) {
    draft_.spend(child_cost + sizeof(StateTree::Node));
    out.children.emplace_back(unique(std::move(name)), draft_.add(std::move(value), {self_}));
}

void ObjectParts::add_itself(Opaque& out, StateTree::Node tensor) {
    if (!std::holds_alternative<StateTree::Tensor>(tensor)) return;
    draft_.spend(tensor_cost + child_cost + sizeof(StateTree::Node));
    out.children.emplace_back(std::string(), draft_.add(std::move(tensor), {self_, out.children.size()}));
}

void ObjectParts::add_named(Opaque& out, std::initializer_list<std::string_view> names, std::span<const Id> parts) {
    for (std::size_t i = 0; i < std::min(names.size(), parts.size()); ++i)
        add(out, std::string(names.begin()[i]), parts[i]);
}

void ObjectParts::add_arguments(Opaque& out, std::span<const Id> arguments) {
    draft_.spend(argument_cost * arguments.size());
    out.arguments = static_cast<std::uint32_t>(arguments.size());
    for (std::size_t i = 0; i < arguments.size(); ++i)
        out.children.emplace_back(unique(std::to_string(i)), draft_.refer(arguments[i], {self_, i}));
}

void ObjectParts::add_state(Opaque& out, Id state) {
    const Kind kind = pickle_.kind(state);
    const auto items = pickle_.items(state);
    if (kind == Kind::dict) return add_entries(out, items);
    const auto is = [this](Id id, Kind wanted) { return pickle_.kind(id) == wanted; };
    if (kind == Kind::tuple && items.size() == 2 && (is(items[0], Kind::dict) || is(items[0], Kind::none)) &&
        is(items[1], Kind::dict)) {
        for (const Id part : items)
            if (is(part, Kind::dict)) add_state(out, part);
    } else if ((kind == Kind::tuple || kind == Kind::list) && out.arguments == 0) {
        for (std::size_t i = 0; i < items.size(); ++i) add(out, std::to_string(i), items[i]);
    } else if (kind != Kind::none) {
        add(out, "state", state);
    }
}

void ObjectParts::add_entries(Opaque& out, std::span<const Id> items) {
    for (std::size_t i = 0; i + 1 < items.size(); i += 2)
        add(out, attribute_name(pickle_, items[i], i / 2), items[i + 1]);
}

void ObjectParts::remove(Opaque& out, const std::string& name) {
    std::erase_if(out.children, [&](const auto& part) { return part.first == name; });
    names_.erase(name);
}

std::string ObjectParts::unique(std::string name) {
    std::string free = name;
    while (!names_.insert(free).second) free = name + "~" + std::to_string(++repeated_names_);
    return free;
}

}  // namespace safemap::SAFEMAP_ABI::torch
