// The table of classes, and the attributes of their objects. The reference is
// torch/distributed/checkpoint/{metadata,filesystem}.py, 2.13, and torch/distributed/_shard/checkpoint, 1.13. Tested by
// tests/distributed/dcp_metadata_test.cpp.
#include "distributed/dcp/objects.hpp"

#include "base/text.hpp"
#include "distributed/values.hpp"
#include "pickle/words.hpp"
#include "torch/globals.hpp"
#include "torch/named_globals.hpp"

#include <safemap/error.hpp>

#include <algorithm>
#include <iterator>

namespace safemap::SAFEMAP_ABI::distributed {

namespace {

using Id = PickleGraph::Id;
using Kind = PickleGraph::Kind;
using Global = PickleGraph::Global;

/// Most times that the state of an object is set; torch sets it once.
constexpr std::size_t most_states = 4;

struct ClassRow {
    std::string_view module;
    std::string_view name;
    DcpClass is = DcpClass::other;
};

constexpr std::string_view in_checkpoint = "torch.distributed.checkpoint.metadata";
constexpr std::string_view in_checkpoint_1 = "torch.distributed._shard.checkpoint.metadata";  // torch 1.13
constexpr std::string_view in_shards = "torch.distributed._shard.sharded_tensor.metadata";
constexpr std::string_view in_megatron = "megatron.core.dist_checkpointing.strategies.torch";

constexpr ClassRow class_rows[] = {
    {in_checkpoint, "Metadata", DcpClass::metadata},
    {in_checkpoint, "TensorStorageMetadata", DcpClass::tensor},
    {in_checkpoint, "BytesStorageMetadata", DcpClass::bytes},
    {in_checkpoint, "ChunkStorageMetadata", DcpClass::chunk},
    {in_checkpoint, "MetadataIndex", DcpClass::index},
    {in_checkpoint, "TensorProperties", DcpClass::properties},
    {in_checkpoint, "StorageMeta"},
    {in_checkpoint, "_MEM_FORMAT_ENCODING"},
    {"torch.distributed.checkpoint.filesystem", "_StorageInfo", DcpClass::stored},
    {"torch", "Size", DcpClass::size},
    {in_shards, "TensorProperties", DcpClass::properties},
    {in_shards, "MEM_FORMAT_ENCODING"},
    {in_megatron, "MCoreMetadata", DcpClass::metadata},
    {in_megatron, "MCoreSavePlan"},
    {in_checkpoint_1, "Metadata", DcpClass::metadata},
    {in_checkpoint_1, "TensorStorageMetadata", DcpClass::tensor},
    {in_checkpoint_1, "BytesStorageMetadata", DcpClass::bytes},
    {in_checkpoint_1, "ChunkStorageMetadata", DcpClass::chunk},
    {in_checkpoint_1, "MetadataIndex", DcpClass::index},
    {"torch.distributed._shard.checkpoint.filesystem", "_StorageInfo", DcpClass::stored},
};

const ClassRow* class_row(const Global& global) {
    const auto* const found = std::find_if(std::begin(class_rows), std::end(class_rows), [&](const ClassRow& row) {
        return row.name == global.name && row.module == global.module;
    });
    return found == std::end(class_rows) ? nullptr : found;
}

bool is_path_class(const Global& global) {
    constexpr auto names = rows_of<1, 4>("PosixPath PurePosixPath WindowsPath PureWindowsPath");
    if (global.module != "pathlib" && global.module != "pathlib._local") return false;
    return std::any_of(names.begin(), names.end(), [&](const auto& row) { return row[0] == global.name; });
}

std::string_view text_of_kind(Kind kind) {
    switch (kind) {
        case Kind::none: return "None";
        case Kind::boolean: return "a boolean";
        case Kind::integer:
        case Kind::big_integer: return "an integer";
        case Kind::real: return "a number";
        case Kind::text: return "a text";
        case Kind::bytes:
        case Kind::bytearray: return "bytes";
        case Kind::list: return "a list";
        case Kind::tuple: return "a tuple";
        case Kind::dict: return "a dictionary";
        case Kind::set:
        case Kind::frozenset: return "a set";
        case Kind::global: return "a class or function";
        case Kind::persistent: return "a persistent id";
        case Kind::call: break;
    }
    return "an object";
}

}  // namespace

bool is_known_in_dcp(const Global& global) {
    return class_row(global) != nullptr || is_path_class(global) || torch::is_known(global);
}

DcpClass DcpObjects::class_of(Id id) {
    if (pickle_.kind(id) != Kind::call) return DcpClass::other;
    const Id callee = pickle_.call(id).callee;
    const auto [known, unmet] = classes_.try_emplace(callee, DcpClass::other);
    if (unmet && pickle_.kind(callee) == Kind::global)
        if (const ClassRow* const row = class_row(pickle_.global(callee))) known->second = row->is;
    return known->second;
}

std::string DcpObjects::described(Id id) const {
    if (pickle_.kind(id) == Kind::call) {
        const Id callee = pickle_.call(id).callee;
        if (pickle_.kind(callee) == Kind::global)
            return "an object of the class " + excerpt(torch::dotted(pickle_.global(callee)));
    }
    return std::string(text_of_kind(pickle_.kind(id)));
}

std::optional<Id> DcpObjects::attribute(Id object, std::string_view name) const {
    const auto states = pickle_.call(object).states;
    if (states.size() > most_states)
        throw Error(Errc::field_missing,
                    "the state of " + described(object) + " is set " + std::to_string(states.size()) + " times");
    for (std::size_t i = states.size(); i-- > 0;)
        if (const auto found = in_state(states[i], name)) return found;
    return std::nullopt;
}

Id DcpObjects::require(Id object, std::string_view name) const {
    if (const auto found = attribute(object, name)) return *found;
    throw Error(Errc::field_missing, described(object) + " has no " + std::string(name));
}

std::optional<Id> DcpObjects::in_state(Id state, std::string_view name) const {
    // The state of a class with slots is a pair: the attributes in the dictionary, and those in slots.
    if (pickle_.kind(state) == Kind::tuple && pickle_.items(state).size() == 2)
        for (const Id part : pickle_.items(state))
            if (const auto found = in_dictionary(part, name)) return found;
    return in_dictionary(state, name);
}

std::optional<Id> DcpObjects::in_dictionary(Id dict, std::string_view name) const {
    if (pickle_.kind(dict) != Kind::dict) return std::nullopt;
    const auto items = pickle_.items(dict);
    if (items.size() > 2 * most_attributes)
        throw Error(Errc::field_missing, "an object has " + std::to_string(items.size() / 2) +
                                             " attributes; the limit is " + std::to_string(most_attributes));
    // A later value of a repeated key replaces an earlier one.
    for (std::size_t i = items.size(); i >= 2; i -= 2)
        if (pickle_.kind(items[i - 2]) == Kind::text && pickle_.text(items[i - 2]) == name) return items[i - 1];
    return std::nullopt;
}

std::optional<std::span<const Id>> DcpObjects::entries(Id id) const {
    if (pickle_.kind(id) == Kind::dict) return pickle_.items(id);
    if (torch::is_call_of(pickle_, id, "collections.OrderedDict")) return pickle_.call(id).items;
    return std::nullopt;
}

DcpObjects::Integers DcpObjects::integers(Id id, const std::function<void()>& larger) {
    Id held = id;
    if (class_of(id) == DcpClass::size) {
        const auto arguments = pickle_.items(pickle_.call(id).arguments);
        if (arguments.size() == 1) held = arguments[0];
    }
    const Kind kind = pickle_.kind(held);
    if (kind != Kind::tuple && kind != Kind::list)
        throw Error(Errc::field_missing, "expected a torch.Size, found " + described(id));
    const auto items = pickle_.items(held);
    if (items.size() > most_dimensions)
        throw Error(Errc::bad_tensor,
                    std::to_string(items.size()) + " dimensions; the limit is " + std::to_string(most_dimensions));
    Integers numbers;
    for (const Id item : items) {
        const bool is_large = pickle_.kind(item) == Kind::big_integer;
        if (is_large) larger();
        if (!is_large && pickle_.kind(item) != Kind::integer)
            throw Error(Errc::field_missing, "expected an integer, found " + described(item));
        numbers.push_back(is_large ? -1 : pickle_.integer(item));
    }
    return numbers;
}

std::string shape_text(const DcpObjects::Integers& numbers) {
    std::string text = "[";
    for (const std::int64_t number : numbers) text += (text.size() > 1 ? ", " : "") + std::to_string(number);
    return text + ']';
}

}  // namespace safemap::SAFEMAP_ABI::distributed
