// Reads and checks manifests. Tested by tests/distributed/flat_params_test.cpp.
#include "distributed/flat/manifest.hpp"

#include "base/checked.hpp"
#include "base/faults.hpp"
#include "base/json.hpp"
#include "base/text.hpp"
#include "distributed/values.hpp"

#include <safemap/error.hpp>

#include <algorithm>
#include <unordered_set>
#include <utility>

namespace safemap::SAFEMAP_ABI::distributed {

namespace {

constexpr std::uint64_t most_bytes = std::uint64_t{256} << 20;

[[noreturn]] void fail(std::string message) { throw Error(Errc::manifest_mismatch, std::move(message)); }

const json::Value& field(const json::Value& object, std::string_view name, const std::string& where) {
    if (const json::Value* const found = object.find(name)) return *found;
    fail(where + " lacks the field " + std::string(name));
}

std::uint64_t count(const json::Value& object, std::string_view name, const std::string& where) {
    if (const auto number = field(object, name, where).unsigned_integer()) return *number;
    fail("the field " + std::string(name) + " of " + where + " is not an integer from 0 on");
}

const json::Value::Array& list(const json::Value& object, std::string_view name, const std::string& where) {
    if (const auto* const array = field(object, name, where).array()) return *array;
    fail("the field " + std::string(name) + " of " + where + " is not a list");
}

Shape shape_in(const json::Value& object, const std::string& where) {
    const auto& sizes = list(object, "shape", where);
    if (sizes.size() > most_dimensions) fail("the shape of " + where + " has more than 64 dimensions");
    return json::unsigned_integers<Shape>(
        sizes, [&](auto&&...) { fail("the shape of " + where + " is not a list of integers from 0 on"); });
}

std::string text(const json::Value& object, std::string_view name, std::string_view other, const std::string& where) {
    const json::Value* found = object.find(name);
    if (found == nullptr) found = object.find(other);
    if (found == nullptr || found->string() == nullptr) fail(where + " has no text " + std::string(name));
    return *found->string();
}

/// Reads parameters one after another. Those without an offset follow each other.
class Parameters {
public:
    std::vector<FlatParameter> read(const json::Value::Array& list, const std::string& where, bool has_offsets) {
        std::vector<FlatParameter> out;
        std::uint64_t end = 0;
        for (const json::Value& one : list) {
            FlatParameter parameter = read_one(one, where);
            parameter.offset = has_offsets ? count(one, "offset", safemap::quoted(parameter.name)) : end;
            if (parameter.offset < end)
                fail("the parameter " + safemap::quoted(parameter.name) + " begins at element " +
                     std::to_string(parameter.offset) + ", before the end of the one before it, " +
                     std::to_string(end));
            const auto next = checked_add(parameter.offset, parameter.numel);
            if (!next) fail("the offset of " + safemap::quoted(parameter.name) + " does not fit in 64 bits");
            end = *next;
            out.push_back(std::move(parameter));
        }
        return out;
    }

private:
    FlatParameter read_one(const json::Value& one, const std::string& where) {
        FlatParameter out{.name = text(one, "fqn", "name", "a parameter of " + where)};
        if (!names_.insert(out.name).second) fail("the name " + safemap::quoted(out.name) + " occurs twice");
        out.shape = shape_in(one, safemap::quoted(out.name));
        out.numel = count(one, "numel", safemap::quoted(out.name));
        const auto product = element_count(out.shape);
        if (product != out.numel)
            fail("the numel of " + safemap::quoted(out.name) + " is " + std::to_string(out.numel) + ", but its shape " +
                 to_string(out.shape) + " has " + (product ? std::to_string(*product) : "too many") + " elements");
        return out;
    }

    std::unordered_set<std::string> names_ = {};
};

FlatGroup group_in(const json::Value& one, Parameters& parameters) {
    FlatGroup out{.key = text(one, "key", "key", "an item of flat_params")};
    const std::string where = safemap::quoted(out.key);
    if (const json::Value* const dtype = one.find("dtype")) {
        out.dtype = dtype->string() == nullptr ? std::nullopt : parse_dtype(*dtype->string());
        if (!out.dtype) fail("the dtype of " + where + " is not one that safemap knows");
    }
    out.numel = count(one, "numel", where);
    out.parameters = parameters.read(list(one, "params", where), where, true);
    if (out.parameters.empty()) return out;
    const std::uint64_t end = out.parameters.back().offset + out.parameters.back().numel;
    if (end > out.numel)
        fail("the parameters of " + where + " end at element " + std::to_string(end) + ", but its numel is " +
             std::to_string(out.numel));
    return out;
}

ChunkedLayer::Chunk chunk_in(const json::Value& layer, std::string_view kind, const std::string& where,
                             Parameters& parameters) {
    const json::Value& one = field(layer, kind, where);
    const std::string name = std::string(kind) + " of " + where;
    return {.size = count(one, "chunk", name), .parameters = parameters.read(list(one, "params", name), name, false)};
}

Manifest manifest_in(const json::Value& root) {
    Manifest out;
    Parameters parameters;
    std::unordered_set<std::string> keys;
    if (root.find("flat_params") == nullptr && root.find("layers") == nullptr)
        fail("the manifest has neither flat_params nor layers");
    if (root.find("flat_params") != nullptr)
        for (const json::Value& one : list(root, "flat_params", "the manifest")) {
            out.groups.push_back(group_in(one, parameters));
            if (!keys.insert(out.groups.back().key).second)
                fail("the key " + safemap::quoted(out.groups.back().key) + " occurs twice");
        }
    if (root.find("layers") != nullptr)
        for (const json::Value& one : list(root, "layers", "the manifest")) {
            const std::string where = "layer " + std::to_string(out.layers.size());
            ChunkedLayer layer;
            layer.trainable = chunk_in(one, "trainable", where, parameters);
            layer.frozen = chunk_in(one, "frozen", where, parameters);
            out.layers.push_back(std::move(layer));
        }
    return out;
}

/// Returns a / b, rounded up.
std::uint64_t parts(std::uint64_t a, std::uint64_t b) { return a / b + (a % b != 0 ? 1 : 0); }

}  // namespace

std::optional<std::uint64_t> ranks_wanted(const Manifest& manifest) {
    std::vector<const ChunkedLayer::Chunk*> chunks;
    for (const ChunkedLayer& layer : manifest.layers)
        for (const auto* const chunk : {&layer.trainable, &layer.frozen})
            if (chunk->size > 0) chunks.push_back(chunk);
    std::uint64_t ranks = 0;
    for (const auto* const chunk : chunks) ranks = std::max(ranks, parts(chunk->numel(), chunk->size));
    for (const auto* const chunk : chunks)
        if (ranks == 0 || parts(chunk->numel(), ranks) != chunk->size) return std::nullopt;
    return ranks == 0 ? std::nullopt : std::optional(ranks);
}

Manifest read_manifest(const Source& source) {
    return about_file(source.name(), [&] {
        const std::string text = json::read_text(source, most_bytes, Errc::manifest_mismatch, "a manifest");
        Manifest out = manifest_in(json::parse(text, Errc::manifest_mismatch));
        out.path = source.name();
        return out;
    });
}

}  // namespace safemap::SAFEMAP_ABI::distributed
