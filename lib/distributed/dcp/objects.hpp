// The objects in the pickle of a `.metadata`: which class each is of, and their attributes. Classes are known by module
// and name; nothing is executed.
#pragma once

#include "pickle/pickle.hpp"

#include <safemap/shape.hpp>

#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>

namespace safemap::SAFEMAP_ABI::distributed {

/// The classes of torch.distributed.checkpoint whose objects are read, those of every version under one name.
enum class DcpClass : std::uint8_t {
    other,
    metadata,    ///< Metadata, also Megatron's
    tensor,      ///< TensorStorageMetadata
    bytes,       ///< BytesStorageMetadata
    chunk,       ///< ChunkStorageMetadata
    index,       ///< MetadataIndex
    stored,      ///< _StorageInfo
    properties,  ///< TensorProperties
    size         ///< torch.Size
};

/// Returns true if a `.metadata` may name the class or function: those of DcpClass, those that go with them, and what
/// files of torch.save name.
bool is_known_in_dcp(const PickleGraph::Global& global);

/// The objects of a graph, which must outlive it.
class DcpObjects {
public:
    using Id = PickleGraph::Id;
    using Integers = Dims<std::int64_t>;
    /// Most attributes of an object; torch writes five.
    static constexpr std::size_t most_attributes = 32;

    explicit DcpObjects(const PickleGraph& pickle) : pickle_(pickle) {}

    /// Returns the class of an object, or DcpClass::other for any other node.
    DcpClass class_of(Id id);
    /// Returns what a node is, for messages: "a list", "an object of the class os.PathLike".
    std::string described(Id id) const;

    /// Returns the value of an attribute, or nothing if it was never set. Throws field_missing if the object has too
    /// many attributes.
    std::optional<Id> attribute(Id object, std::string_view name) const;
    /// Returns the value of an attribute. Throws field_missing.
    Id require(Id object, std::string_view name) const;

    /// Returns the keys and values of a dictionary or OrderedDict in turn; nothing for any other node.
    std::optional<std::span<const Id>> entries(Id id) const;

    /// Reads a torch.Size, or a tuple or list of integers. Calls larger() for an integer beyond 64 bits, and if that
    /// returns, takes it for -1. Throws field_missing for anything else, bad_tensor for more than 64 integers.
    Integers integers(Id id, const std::function<void()>& larger);

private:
    std::optional<Id> in_state(Id state, std::string_view name) const;
    std::optional<Id> in_dictionary(Id dict, std::string_view name) const;

    const PickleGraph& pickle_;
    std::unordered_map<Id, DcpClass> classes_ = {};  ///< by the node of the class
};

/// Returns integers, which may be negative, as a shape is printed.
std::string shape_text(const DcpObjects::Integers& numbers);

}  // namespace safemap::SAFEMAP_ABI::distributed
