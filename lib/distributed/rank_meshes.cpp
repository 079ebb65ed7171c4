// Reads the grids of ranks that DeviceMesh objects state. From the top:
//
//   numbers    the ranks that a tensor of the file lists
//   layouts    sizes and strides over such a list, since torch 2.10
//   fields     names of dimensions, the rank and its coordinates, for the rank that saved the file
//   parts      the parts of objects, for all readers of this layer
//   meshes     each mesh is kept once
//
// The reference is torch/distributed/device_mesh.py and _mesh_layout.py, 2.13. Tested by
// tests/distributed/rank_tensors_test.cpp and rank_faults_test.cpp.
#include "distributed/rank_meshes.hpp"

#include "base/checked.hpp"
#include "base/text.hpp"
#include "distributed/values.hpp"

#include <safemap/error.hpp>
#include <safemap/lazy_tensor.hpp>

#include <algorithm>
#include <cstring>
#include <utility>
#include <variant>

namespace safemap::SAFEMAP_ABI::distributed {

namespace {

using NodeId = StateTree::NodeId;
using Numbers = std::vector<std::uint64_t>;

/// More ranks than any run has. Sizes of meshes up to it can be multiplied without an overflow.
constexpr std::uint64_t most_ranks = std::uint64_t{1} << 24;

[[noreturn]] void malformed(std::string_view field, std::string_view expected) {
    throw Error(Errc::field_missing,
                "the field " + std::string(field) + " of a device mesh is not " + std::string(expected));
}

NodeId require_mesh_part(const StateTree& tree, NodeId node, std::string_view name) {
    if (const auto found = part_of(tree, node, name)) return *found;
    throw Error(Errc::field_missing, "a device mesh lacks the field " + std::string(name));
}

// The numbers of a tensor.

template <class Int> void append(const std::vector<std::byte>& bytes, Numbers& out) {
    for (std::size_t at = 0; at + sizeof(Int) <= bytes.size(); at += sizeof(Int)) {
        Int number;
        std::memcpy(&number, bytes.data() + at, sizeof number);
        if (number < 0) malformed("mesh", "a list of ranks: one of them is negative");
        out.push_back(static_cast<std::uint64_t>(number));
    }
}

/// Throws if a device mesh lists more ranks than a set of these files can have. A small file can state a huge tensor.
void require_fewer_ranks(std::uint64_t count, const RankNames& names) {
    constexpr std::uint64_t most_listed = 1 << 16;  // with some files missing, and no number of ranks in their names
    const std::string found = "a device mesh lists " + std::to_string(count) + " ranks";
    if (const auto world = names.world_size(); world && count > *world)
        throw Error(Errc::world_mismatch,
                    found + ", but the names of the files say that there are " + std::to_string(*world));
    if (count <= std::max<std::uint64_t>(names.size(), most_listed)) return;
    throw Error(Errc::world_mismatch, found + "; there are " + std::to_string(names.size()) + " files");
}

/// Reads the ranks that a tensor lists.
Numbers ranks_in(const StateTree& tree, NodeId node, std::string_view field, const RankNames& names) {
    const auto* const leaf = std::get_if<StateTree::Tensor>(&tree[node]);
    if (leaf == nullptr) malformed(field, "a tensor");
    const LazyTensor& tensor = leaf->tensor;
    require_fewer_ranks(tensor.element_count(), names);
    std::vector<std::byte> bytes(static_cast<std::size_t>(tensor.nbytes()));
    if (!bytes.empty()) tensor.read(0, bytes);
    Numbers ranks;
    ranks.reserve(static_cast<std::size_t>(tensor.element_count()));
    if (tensor.dtype() == Dtype::i32) append<std::int32_t>(bytes, ranks);
    else if (tensor.dtype() == Dtype::i64) append<std::int64_t>(bytes, ranks);
    else malformed(field, "a tensor of I32 or I64");
    return ranks;
}

// Layouts: numbers at distances, as in a strided tensor.

/// A dimension of a layout, or a part of one.
struct Mode {
    std::uint64_t size;
    std::uint64_t stride;
};
using Axis = std::vector<Mode>;

/// Appends the integers of a nest of tuples, from left to right.
void append_integers(const StateTree& tree, NodeId node, std::string_view field, Numbers& out) {
    std::vector<NodeId> open = {node};
    while (!open.empty()) {
        const NodeId next = open.back();
        open.pop_back();
        if (const auto* const tuple = std::get_if<StateTree::Sequence>(&tree[next])) {
            if (tuple->items.size() + open.size() > most_dimensions) malformed(field, "of at most 64 dimensions");
            open.insert(open.end(), tuple->items.rbegin(), tuple->items.rend());
        } else {
            out.push_back(count_of(tree, next, field));
        }
        if (out.size() > most_dimensions) malformed(field, "of at most 64 dimensions");
    }
}

Axis axis_of(const StateTree& tree, NodeId shape, NodeId stride) {
    Numbers sizes;
    Numbers strides;
    append_integers(tree, shape, "_layout/shape", sizes);
    append_integers(tree, stride, "_layout/stride", strides);
    if (sizes.size() != strides.size()) malformed("_layout", "of one stride for each size");
    Axis axis;
    for (std::size_t i = 0; i < sizes.size(); ++i)
        if (sizes[i] != 1) axis.push_back({sizes[i], strides[i]});
    return axis;
}

/// Returns the axes of a layout: objects of their own (torch 2.13), or the items of two tuples (2.10).
std::vector<Axis> axes_of(const StateTree& tree, NodeId layout) {
    std::vector<Axis> axes;
    if (const auto list = part_of(tree, layout, "axes")) {
        for (const NodeId axis : items_of(tree, *list, "_layout/axes"))
            axes.push_back(
                axis_of(tree, require_mesh_part(tree, axis, "shape"), require_mesh_part(tree, axis, "stride")));
    } else {
        const NodeId shape = require_mesh_part(tree, layout, "shape");
        const NodeId stride = require_mesh_part(tree, layout, "stride");
        const bool one = !std::holds_alternative<StateTree::Sequence>(tree[shape]);
        const std::vector<NodeId> shapes = one ? std::vector{shape} : items_of(tree, shape, "_layout/shape");
        const std::vector<NodeId> strides = one ? std::vector{stride} : items_of(tree, stride, "_layout/stride");
        if (shapes.size() != strides.size()) malformed("_layout", "of one stride for each size");
        for (std::size_t i = 0; i < shapes.size(); ++i) axes.push_back(axis_of(tree, shapes[i], strides[i]));
    }
    if (axes.size() > most_dimensions) malformed("_layout", "of at most 64 dimensions");
    return axes;
}

std::uint64_t size_of(const Axis& axis) {
    std::uint64_t size = 1;
    for (const Mode& mode : axis) {
        const auto product = checked_mul(size, mode.size);
        if (!product || *product > most_ranks)
            throw Error(Errc::world_mismatch, "a device mesh has more than " + std::to_string(most_ranks) + " ranks");
        size = *product;
    }
    return size;
}

/// Returns how far from the first number of a layout the number is that stands in its copy at `place`, which covers
/// the numbers from 0 on together with its other copies. Layouts are orthogonal: each stride divides the next one.
std::uint64_t offset_in(const std::vector<Axis>& axes, std::uint64_t place) {
    std::uint64_t offset = 0;
    for (const Axis& axis : axes)
        for (const Mode& mode : axis)
            if (mode.stride > 0 && mode.size > 0) offset += place / mode.stride % mode.size * mode.stride;
    return offset;
}

/// Appends the numbers of a layout, from `base` on, in row-major order.
void append_numbers(const std::vector<Axis>& axes, std::uint64_t base, const Numbers& map, Numbers& out) {
    std::vector<Mode> modes;
    for (const Axis& axis : axes) modes.insert(modes.end(), axis.begin(), axis.end());
    Numbers at(modes.size(), 0);
    std::uint64_t number = base;
    for (;;) {
        if (number >= map.size()) malformed("_layout", "a layout of the ranks in _rank_map");
        out.push_back(map[static_cast<std::size_t>(number)]);
        std::size_t d = modes.size();
        for (; d > 0; --d) {
            number += modes[d - 1].stride;
            if (++at[d - 1] < modes[d - 1].size) break;
            number -= modes[d - 1].stride * modes[d - 1].size;
            at[d - 1] = 0;
        }
        if (d == 0) return;
    }
}

/// Reads the grid from a layout: the copy of it that has the rank which saved the file.
void read_layout(const StateTree& tree, NodeId node, NodeId layout, const RankNames& names, std::uint64_t rank,
                 Mesh& mesh) {
    const Numbers map = ranks_in(tree, require_mesh_part(tree, node, "_rank_map"), "_rank_map", names);
    const std::vector<Axis> axes = axes_of(tree, layout);
    std::uint64_t size = 1;
    std::uint64_t reach = 0;
    for (const Axis& axis : axes) {
        mesh.shape.push_back(size_of(axis));
        size *= mesh.shape.back();  // no more than most_ranks each time
        if (size > map.size())
            throw Error(Errc::world_mismatch, "a device mesh has more ranks than its list _rank_map, which has " +
                                                  std::to_string(map.size()));
        for (const Mode& mode : axis) {
            if (mode.stride > map.size()) malformed("_layout", "a layout of the ranks in _rank_map");
            reach += mode.size == 0 ? 0 : (mode.size - 1) * mode.stride;
        }
    }
    if (size == 0 || reach >= map.size()) malformed("_layout", "a layout of the ranks in _rank_map");
    std::uint64_t base = 0;
    if (size < map.size()) {
        const auto found = std::find(map.begin(), map.end(), rank);
        if (found == map.end())
            throw Error(Errc::world_mismatch, "rank " + std::to_string(rank) + " is not in the list of ranks of its " +
                                                  "device mesh, which has " + std::to_string(map.size()));
        const auto place = static_cast<std::uint64_t>(found - map.begin());
        base = place - offset_in(axes, place);
    }
    append_numbers(axes, base, map, mesh.ranks);
}

void read_tensor_of_ranks(const StateTree& tree, NodeId tensor, const RankNames& names, Mesh& mesh) {
    mesh.ranks = ranks_in(tree, tensor, "mesh", names);
    const Shape& shape = std::get<StateTree::Tensor>(tree[tensor]).tensor.shape();
    if (shape.size() > most_dimensions) malformed("mesh", "of at most 64 dimensions");
    mesh.shape.assign(shape.begin(), shape.end());
    if (mesh.ranks.empty()) malformed("mesh", "a list of at least one rank");
}

/// Returns the value of a field whose name got an underscore in later versions.
std::optional<NodeId> field(const StateTree& tree, NodeId node, const std::string& name) {
    const auto found = part_of(tree, node, name);
    return found ? found : part_of(tree, node, "_" + name);
}

std::vector<std::string> names_in(const StateTree& tree, NodeId node, std::size_t dimensions) {
    const auto found = field(tree, node, "mesh_dim_names");
    if (!found || std::holds_alternative<StateTree::None>(tree[*found])) return {};
    std::vector<std::string> names;
    for (const NodeId item : items_of(tree, *found, "mesh_dim_names")) {
        const auto* const text = std::get_if<std::string>(&tree[item]);
        if (text == nullptr || names.size() == dimensions) malformed("mesh_dim_names", "one text for each dimension");
        names.push_back(*text);
    }
    if (names.size() != dimensions) malformed("mesh_dim_names", "one text for each dimension");
    return names;
}

std::optional<std::uint64_t> stated_rank(const StateTree& tree, NodeId node) {
    const auto found = part_of(tree, node, "_rank");
    if (!found || std::holds_alternative<StateTree::None>(tree[*found])) return std::nullopt;
    return count_of(tree, *found, "_rank");
}

/// Returns the rank at the coordinates that the mesh states for the process that saved it.
std::optional<std::uint64_t> rank_at_coordinates(const StateTree& tree, NodeId node, const Mesh& mesh) {
    const auto found = part_of(tree, node, "_coordinate_on_dim");
    if (!found || std::holds_alternative<StateTree::None>(tree[*found])) return std::nullopt;
    const auto& items = items_of(tree, *found, "_coordinate_on_dim");
    if (items.size() != mesh.shape.size()) malformed("_coordinate_on_dim", "one number for each dimension");
    std::uint64_t place = 0;
    for (std::size_t d = 0; d < items.size(); ++d) {
        const std::uint64_t at = count_of(tree, items[d], "_coordinate_on_dim");
        if (at >= mesh.shape[d]) malformed("_coordinate_on_dim", "inside the mesh");
        place = place * mesh.shape[d] + at;
    }
    return mesh.ranks[static_cast<std::size_t>(place)];
}

void require_distinct(const Mesh& mesh) {
    Numbers sorted = mesh.ranks;
    std::sort(sorted.begin(), sorted.end());
    const auto twice = std::adjacent_find(sorted.begin(), sorted.end());
    if (twice == sorted.end()) return;
    throw Error(Errc::world_mismatch,
                "the device mesh " + to_string(mesh) + " has rank " + std::to_string(*twice) + " twice");
}

std::uint64_t digest_of(const Mesh& mesh) {
    std::uint64_t digest = 0xcbf2'9ce4'8422'2325;
    const auto mix = [&digest](std::uint64_t number) { digest = (digest ^ number) * 0x9E37'79B9'7F4A'7C15U; };
    for (const std::uint64_t size : mesh.shape) mix(size);
    for (const std::uint64_t rank : mesh.ranks) mix(rank);
    return digest;
}

}  // namespace

std::optional<NodeId> part_of(const StateTree& tree, NodeId node, std::string_view name) {
    const auto* const object = std::get_if<StateTree::Opaque>(&tree[node]);
    if (object == nullptr) return std::nullopt;
    for (const auto& [own, part] : object->children)
        if (own == name) return part;
    return std::nullopt;
}

const std::vector<NodeId>& items_of(const StateTree& tree, NodeId node, std::string_view name) {
    const auto* const sequence = std::get_if<StateTree::Sequence>(&tree[node]);
    if (sequence == nullptr || sequence->kind == StateTree::Sequence::Kind::set ||
        sequence->kind == StateTree::Sequence::Kind::frozenset)
        throw Error(Errc::field_missing, "the field " + excerpt(name) + " is not a list");
    return sequence->items;
}

std::uint64_t count_of(const StateTree& tree, NodeId node, std::string_view name) {
    const auto* const number = std::get_if<std::int64_t>(&tree[node]);
    if (number == nullptr || *number < 0)
        throw Error(Errc::field_missing, "the field " + excerpt(name) + " is not in the range from 0 to 2^63 - 1");
    return static_cast<std::uint64_t>(*number);
}

std::optional<std::uint32_t> RankMeshes::find(const Mesh& mesh, std::uint64_t digest) const {
    const auto [begin, end] = by_digest_.equal_range(digest);
    for (auto one = begin; one != end; ++one)
        if (meshes_[one->second] == mesh) return one->second;
    return std::nullopt;
}

std::uint32_t RankMeshes::add(Mesh mesh, const std::function<void(const Mesh&)>& check) {
    const std::uint64_t digest = digest_of(mesh);
    {
        const std::lock_guard lock(mutex_);
        if (const auto known = find(mesh, digest)) return *known;
    }
    check(mesh);
    const std::lock_guard lock(mutex_);
    if (const auto known = find(mesh, digest)) return *known;  // another thread has added it
    const auto number = static_cast<std::uint32_t>(meshes_.size());
    meshes_.push_back(std::move(mesh));
    by_digest_.emplace(digest, number);
    return number;
}

const Mesh& RankMeshes::operator[](std::uint32_t number) const {
    const std::lock_guard lock(mutex_);
    return meshes_[number];
}

StatedMesh read_mesh(const StateTree& tree, NodeId node, const RankNames& names, std::uint64_t rank,
                     RankMeshes& meshes) {
    Mesh mesh;
    StatedMesh stated{.rank = stated_rank(tree, node)};
    const auto tensor = part_of(tree, node, "mesh");
    if (tensor) read_tensor_of_ranks(tree, *tensor, names, mesh);
    else read_layout(tree, node, require_mesh_part(tree, node, "_layout"), names, stated.rank.value_or(rank), mesh);
    mesh.names = names_in(tree, node, mesh.shape.size());
    if (!stated.rank) stated.rank = rank_at_coordinates(tree, node, mesh);
    stated.number = meshes.add(std::move(mesh), [&](const Mesh& fresh) {
        require_distinct(fresh);
        names.require_files_of(fresh.ranks, "the device mesh " + to_string(fresh));
    });
    return stated;
}

}  // namespace safemap::SAFEMAP_ABI::distributed
