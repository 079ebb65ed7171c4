// Reads {"modules": [{"name", "handles": [{"flat_param.data", "flat_param._fqns", …}]}]}, as LocalShardedCheckpointer
// of OLMo writes it. Tested by tests/distributed/olmo_ranks_test.cpp.
#include "distributed/flat/olmo_ranks.hpp"

#include "base/checked.hpp"
#include "base/faults.hpp"
#include "base/text.hpp"
#include "distributed/agree.hpp"
#include "distributed/values.hpp"
#include "lazy/whole.hpp"
#include "state/path_tree.hpp"

#include <safemap/error.hpp>

#include <algorithm>
#include <optional>
#include <string_view>
#include <utility>

namespace safemap::SAFEMAP_ABI::distributed {

namespace {

/// Returns the path of a module without the parts that FSDP puts between.
std::string module_path(std::string_view name) {
    constexpr std::string_view wrapper = "_fsdp_wrapped_module";
    std::string path(name);
    for (auto at = path.find(wrapper); at != path.npos; at = path.find(wrapper, at)) {
        const std::size_t end = at + wrapper.size();
        path.erase(at, wrapper.size() + (end < path.size() && path[end] == '.' ? 1 : 0));
    }
    if (path.ends_with('.')) path.pop_back();
    return path;
}

/// Which elements of a parameter a rank has: (in_shard, offset_in_shard, numel_in_shard, start, end), the end
/// inclusive. It is a named tuple, which is an object here, or a plain tuple.
std::optional<OlmoSlice> slice_of(const Value& info) {
    const std::string where = info.where();
    const std::vector<Value> fields = info.parts();
    if (fields.size() != 5) throw Error(Errc::field_missing, "the field " + excerpt(where) + " is not of five values");
    if (!fields[0].boolean().value_or(false)) return std::nullopt;
    const auto number = [&](std::size_t i) { return fields[i].count(); };
    OlmoSlice slice{.first = number(3), .count = number(2), .from = number(1)};
    if (slice.count == 0 || number(4) != slice.first + slice.count - 1)
        throw Error(Errc::field_missing, "the field " + excerpt(where) +
                                             " contradicts itself: " + std::to_string(slice.count) + " elements from " +
                                             std::to_string(slice.first) + " to " + std::to_string(number(4)));
    return slice;
}

class Handle {
public:
    Handle(const Value& handle, std::string module) : handle_(handle), module_(std::move(module)) {}

    void read(OlmoRank& out) {
        const Value data = handle_.at("flat_param.data");
        if (data.tensor() == nullptr || data.tensor()->shape().size() != 1)
            throw Error(Errc::field_missing,
                        "the field " + excerpt(data.where()) + " is not a tensor in one dimension");
        OlmoHandle handle{.data = *data.tensor()};
        const auto first = static_cast<std::uint32_t>(out.parameters.size());
        const auto names = handle_.at("flat_param._fqns").items();
        const auto shapes = handle_.at("flat_param._shapes").items();
        if (names.size() != shapes.size())
            throw Error(Errc::field_missing, "flat_param._fqns and flat_param._shapes have different lengths");
        for (std::size_t i = 0; i < names.size(); ++i) {
            const auto name = names[i].text();
            if (!name) throw Error(Errc::field_missing, "the field " + excerpt(names[i].where()) + " is not a text");
            out.parameters.push_back(
                {module_.empty() ? std::string(*name) : module_ + '.' + std::string(*name), shapes[i].shape()});
            handle.elements = checked_add(handle.elements, element_count(out.parameters.back().shape).value_or(0))
                                  .value_or(handle.elements);
        }
        if (const auto infos = handle_.find("flat_param._shard_param_infos")) read_infos(*infos, first, out, handle);
        else read_offsets(first, out, handle);
        out.handles.push_back(std::move(handle));
    }

private:
    static void add(OlmoSlice slice, std::uint32_t parameter, const OlmoRank& out, OlmoHandle& handle) {
        const OlmoParameter& whole = out.parameters[parameter];
        const std::uint64_t elements = element_count(whole.shape).value_or(0);
        slice.parameter = parameter;
        if (!Extent{slice.first, slice.count}.inside(elements) ||
            !Extent{slice.from, slice.count}.inside(handle.data.element_count()))
            throw Error(Errc::piece_outside, std::to_string(slice.count) + " elements from " +
                                                 std::to_string(slice.first) + " are not inside the " +
                                                 std::to_string(elements) + " of the parameter, or not from " +
                                                 std::to_string(slice.from) + " on inside the flat tensor of " +
                                                 std::to_string(handle.data.element_count()))
                .with_tensor(whole.name);
        if (!handle.slices.empty() && slice.from < handle.slices.back().from + handle.slices.back().count)
            throw Error(Errc::pieces_overlap, "the elements from " + std::to_string(slice.from) +
                                                  " on of the flat tensor are also those of " +
                                                  excerpt(out.parameters[handle.slices.back().parameter].name))
                .with_tensor(whole.name);
        handle.slices.push_back(slice);
    }

    void read_infos(const Value& infos, std::uint32_t first, OlmoRank& out, OlmoHandle& handle) const {
        const auto items = infos.items();
        if (first + items.size() != out.parameters.size())
            throw Error(Errc::field_missing, "flat_param._shard_param_infos has another length than flat_param._fqns");
        for (std::size_t i = 0; i < items.size(); ++i)
            if (const auto slice = slice_of(items[i])) add(*slice, first + static_cast<std::uint32_t>(i), out, handle);
    }

    /// Reads the fields of torch 2.0: the first and the last parameter of the rank, and for each the first and the last
    /// element. They follow each other in the flat tensor.
    void read_offsets(std::uint32_t first, OlmoRank& out, OlmoHandle& handle) const {
        const auto offsets = handle_.at("flat_param._shard_param_offsets").items();
        if (offsets.empty()) return;
        const auto indices = handle_.at("flat_param._shard_indices").items();
        const std::uint64_t begin = indices.empty() ? 0 : indices.front().count();
        if (begin + offsets.size() > out.parameters.size() - first)
            throw Error(Errc::field_missing, "flat_param._shard_param_offsets has more items than parameters");
        std::uint64_t from = 0;
        for (std::size_t i = 0; i < offsets.size(); ++i) {
            const auto range = offsets[i].items();
            if (range.size() != 2 || range[1].count() < range[0].count())
                throw Error(Errc::field_missing, "the field " + excerpt(offsets[i].where()) + " is not a range");
            const std::uint64_t count = range[1].count() - range[0].count() + 1;
            add({.first = range[0].count(), .count = count, .from = from},
                first + static_cast<std::uint32_t>(begin + i), out, handle);
            from += count;  // no more than the flat tensor has
        }
    }

    const Value& handle_;
    std::string module_;
};

}  // namespace

bool is_olmo_rank(const StateTree& tree) {
    if (tree.size() == 0) return false;
    const auto modules = Value(tree).find("modules");
    if (!modules || !modules->is_list()) return false;
    const auto items = modules->items();
    return !items.empty() && items.front().has("handles");
}

OlmoRank read_olmo_rank(const StateTree& tree) {
    OlmoRank out;
    for (const Value& module : Value(tree).at("modules").items()) {
        const auto name = module.at("name").text();
        if (!name) throw Error(Errc::field_missing, "the name of a module is not a text");
        for (const Value& handle : module.at("handles").items()) Handle(handle, module_path(*name)).read(out);
    }
    return out;
}

void compare_and_drop(const OlmoRank& first, const std::string& first_file, OlmoRank& rank) {
    const Agreement agree(first_file);
    agree("the number of flat parameters", first.handles.size(), rank.handles.size());
    agree("the number of parameters", first.parameters.size(), rank.parameters.size());
    for (std::size_t i = 0; i < rank.parameters.size(); ++i) {
        agree("the name of a parameter", first.parameters[i].name, rank.parameters[i].name);
        agree([&] { return "the shape of " + excerpt(first.parameters[i].name); }, first.parameters[i].shape,
              rank.parameters[i].shape);
    }
    for (std::size_t h = 0; h < rank.handles.size(); ++h)
        agree("the dtype", first.handles[h].data.dtype(), rank.handles[h].data.dtype());
    rank.parameters = {};
}

std::uint64_t ranks_wanted(const OlmoRank& rank) {
    std::uint64_t most = 0;
    for (const OlmoHandle& handle : rank.handles) {
        const std::uint64_t own = handle.data.element_count();
        if (own > 0) most = std::max(most, handle.elements / own + (handle.elements % own != 0 ? 1 : 0));
    }
    return most;
}

StateTree parameters_of_olmo(const std::vector<OlmoRank>& ranks) {
    PartSources sources;
    const std::vector<OlmoParameter>& parameters = ranks.front().parameters;
    std::vector<std::vector<FlatPart>> parts(parameters.size());
    std::vector<Dtype> dtypes(parameters.size(), Dtype::f32);
    for (const OlmoRank& rank : ranks)
        for (const OlmoHandle& handle : rank.handles) {
            sources.add(handle.data);
            for (const OlmoSlice& one : handle.slices) {
                parts[one.parameter].push_back({one.first, one.count, &handle.data, one.from});
                dtypes[one.parameter] = handle.data.dtype();
            }
        }
    state::PathTree tree;
    for (std::size_t i = 0; i < parameters.size(); ++i) {
        const LazyTensor tensor = whole(parameters[i].name, dtypes[i], parameters[i].shape, parts[i], sources);
        if (!tree.put(tree.root(), parameters[i].name, tree.add_tensor(tensor)))
            throw Error(Errc::field_missing, "two parameters have the name " + safemap::quoted(parameters[i].name));
    }
    return tree.take();
}

}  // namespace safemap::SAFEMAP_ABI::distributed
