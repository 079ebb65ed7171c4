// Reads the grids of ranks that DeviceMesh objects state. From the top:
//
//   numbers    the ranks that a tensor of the file lists
//   layouts    sizes and strides over such a list, since torch 2.10
//   fields     names of dimensions, the rank and its coordinates, for the rank that saved the file
//   meshes     each mesh is kept once
//
// The reference is torch/distributed/device_mesh.py and _mesh_layout.py, 2.13. Tested by
// tests/distributed/rank_tensors_test.cpp and rank_faults_test.cpp.
#include "distributed/ranks/rank_meshes.hpp"

#include "base/checked.hpp"
#include "base/text.hpp"

#include <safemap/error.hpp>
#include <safemap/lazy_tensor.hpp>

#include <algorithm>
#include <cstring>
#include <utility>

namespace safemap::SAFEMAP_ABI::distributed {

namespace {

using Numbers = std::vector<std::uint64_t>;

/// More ranks than any run has. Sizes of meshes up to it can be multiplied without an overflow.
constexpr std::uint64_t most_ranks = std::uint64_t{1} << 24;

[[noreturn]] void malformed(std::string_view field, std::string_view expected) {
    throw Error(Errc::field_missing,
                "the field " + std::string(field) + " of a device mesh is not " + std::string(expected));
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
Numbers ranks_in(const Value& value, std::string_view field, const RankNames& names) {
    if (value.tensor() == nullptr) malformed(field, "a tensor");
    const LazyTensor& tensor = *value.tensor();
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
void append_integers(const Value& nest, std::string_view field, Numbers& out) {
    std::vector<Value> open = {nest};
    while (!open.empty()) {
        const Value next = open.back();
        open.pop_back();
        if (!next.is_list()) out.push_back(next.count());
        if (next.is_list()) {
            const std::vector<Value> items = next.items();
            if (items.size() + open.size() > most_dimensions) malformed(field, "of at most 64 dimensions");
            open.insert(open.end(), items.rbegin(), items.rend());
        }
        if (out.size() > most_dimensions) malformed(field, "of at most 64 dimensions");
    }
}

Axis axis_of(const Value& shape, const Value& stride) {
    Numbers sizes;
    Numbers strides;
    append_integers(shape, "_layout/shape", sizes);
    append_integers(stride, "_layout/stride", strides);
    if (sizes.size() != strides.size()) malformed("_layout", "of one stride for each size");
    Axis axis;
    for (std::size_t i = 0; i < sizes.size(); ++i)
        if (sizes[i] != 1) axis.push_back({sizes[i], strides[i]});
    return axis;
}

/// Returns the axes of a layout: objects of their own (torch 2.13), or the items of two tuples (2.10).
std::vector<Axis> axes_of(const Value& layout) {
    std::vector<Axis> axes;
    if (const auto list = layout.find("axes")) {
        for (const Value& axis : list->items()) axes.push_back(axis_of(axis.at("shape"), axis.at("stride")));
    } else {
        const auto items_of = [](const Value& value) { return value.is_list() ? value.items() : std::vector{value}; };
        const std::vector<Value> shapes = items_of(layout.at("shape"));
        const std::vector<Value> strides = items_of(layout.at("stride"));
        if (shapes.size() != strides.size()) malformed("_layout", "of one stride for each size");
        for (std::size_t i = 0; i < shapes.size(); ++i) axes.push_back(axis_of(shapes[i], strides[i]));
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
void read_layout(const Value& device_mesh, const RankNames& names, std::uint64_t rank, Mesh& mesh) {
    const std::vector<Axis> axes = axes_of(device_mesh.at("_layout"));
    const Numbers map = ranks_in(device_mesh.at("_rank_map"), "_rank_map", names);
    std::uint64_t size = 1;
    for (const Axis& axis : axes) {
        mesh.shape.push_back(size_of(axis));
        size *= mesh.shape.back();  // no more than most_ranks each time
        if (size > map.size())
            throw Error(Errc::world_mismatch, "a device mesh has more ranks than its list _rank_map, which has " +
                                                  std::to_string(map.size()));
        for (const Mode& mode : axis)
            if (mode.stride > map.size()) malformed("_layout", "a layout of the ranks in _rank_map");
    }
    if (size == 0) malformed("_layout", "a layout of the ranks in _rank_map");
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

void read_tensor_of_ranks(const Value& tensor, const RankNames& names, Mesh& mesh) {
    mesh.ranks = ranks_in(tensor, "mesh", names);
    const Shape& shape = tensor.tensor()->shape();
    if (shape.size() > most_dimensions) malformed("mesh", "of at most 64 dimensions");
    mesh.shape.assign(shape.begin(), shape.end());
    if (mesh.ranks.empty()) malformed("mesh", "a list of at least one rank");
}

std::vector<std::string> names_in(const Value& device_mesh, std::size_t dimensions) {
    // Later versions have the underscore.
    auto found = device_mesh.find("mesh_dim_names");
    if (!found) found = device_mesh.find("_mesh_dim_names");
    if (!found) return {};
    std::vector<std::string> names;
    for (const Value& item : found->items()) {
        const auto text = item.text();
        if (!text || names.size() == dimensions) malformed("mesh_dim_names", "one text for each dimension");
        names.emplace_back(*text);
    }
    if (names.size() != dimensions) malformed("mesh_dim_names", "one text for each dimension");
    return names;
}

/// Returns the rank at the coordinates that the mesh states for the process that saved it.
std::optional<std::uint64_t> rank_at_coordinates(const Value& device_mesh, const Mesh& mesh) {
    const auto found = device_mesh.find("_coordinate_on_dim");
    if (!found) return std::nullopt;
    const Numbers coordinates = found->counts();
    if (coordinates.size() != mesh.shape.size()) malformed("_coordinate_on_dim", "one number for each dimension");
    std::uint64_t place = 0;
    for (std::size_t d = 0; d < coordinates.size(); ++d) {
        if (coordinates[d] >= mesh.shape[d]) malformed("_coordinate_on_dim", "inside the mesh");
        place = place * mesh.shape[d] + coordinates[d];
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

StatedMesh read_mesh(const Value& device_mesh, const RankNames& names, std::uint64_t rank, RankMeshes& meshes) {
    Mesh mesh;
    StatedMesh stated;
    if (const auto own = device_mesh.find("_rank")) stated.rank = own->count();
    if (const auto tensor = device_mesh.find("mesh")) read_tensor_of_ranks(*tensor, names, mesh);
    else read_layout(device_mesh, names, stated.rank.value_or(rank), mesh);
    mesh.names = names_in(device_mesh, mesh.shape.size());
    if (!stated.rank) stated.rank = rank_at_coordinates(device_mesh, mesh);
    stated.number = meshes.add(std::move(mesh), [&](const Mesh& fresh) {
        require_distinct(fresh);
        names.require_files_of(fresh.ranks, "the device mesh " + to_string(fresh));
    });
    return stated;
}

}  // namespace safemap::SAFEMAP_ABI::distributed
