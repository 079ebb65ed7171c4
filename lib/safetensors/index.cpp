// Reads and writes the index of a sharded checkpoint.
#include "safetensors/index.hpp"

#include "base/json.hpp"
#include "base/name_index.hpp"
#include "base/text.hpp"
#include "safetensors/metadata.hpp"

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <map>
#include <variant>
#include <vector>

namespace safemap::SAFEMAP_ABI::safetensors {

namespace {

/// Far above any existing index: a million tensors take 100 MB, and their shards have headers of that size. Reading
/// takes about five times the size in memory.
constexpr std::uint64_t max_index_bytes = 512_MiB;

std::string read_text(const Source& source) {
    return json::read_text(source, max_index_bytes, Errc::index_not_json, "an index");
}

/// Reads total_size. Some writers give a double: 13476835328.0.
std::optional<std::uint64_t> read_total_size(const json::Value& value) {
    if (const auto whole = value.unsigned_integer()) return whole;
    const auto number = value.number();
    constexpr double exact = 9007199254740992;  // 2^53: beyond it, not every integer is a double
    if (!number || *number < 0 || *number > exact || std::trunc(*number) != *number) return std::nullopt;
    return static_cast<std::uint64_t>(*number);
}

void read_metadata(const json::Value& value, Index& index) {
    const json::Value::Object* members = value.object();
    if (members == nullptr) return;
    if (const json::Value* total = value.find("total_size")) index.total_size = read_total_size(*total);
    for (const json::Member& member : *members)
        if (const std::string* text = member.value.string()) index.metadata.emplace_back(member.key, *text);
    static_cast<void>(sort_by_key(index.metadata, [](const auto& pair) -> const std::string& { return pair.first; }));
}

/// Returns the normal spelling of a name: "./a" is "a", "b//a" is "b/a". If that differs, the result is in `storage`.
std::string_view plain_name(std::string_view shard, std::string& storage) {
    if (shard.find("./") == shard.npos && shard.find("//") == shard.npos) return shard;
    return storage = std::filesystem::path(shard).lexically_normal().native();
}

/// Returns true if the name would leave the folder on some system, in its own or its normal spelling: "./C:x" is "C:x".
/// A single dot is allowed.
bool outside_folder(std::string_view shard, std::string_view plain) {
    const bool has_drive = plain.size() >= 2 && plain[1] == ':';  // C:model.safetensors
    const bool portable = shard.find('\\') == shard.npos && shard.find('\0') == shard.npos;
    return shard.empty() || has_drive || !portable || !stays_below(shard);
}

/// Appends the keys that an object has more than once.
void add_repeated_keys(const json::Value& value, std::vector<std::string>& repeated) {
    const json::Value::Object* members = value.object();
    if (members == nullptr) return;
    std::map<std::string_view, std::size_t> counts;
    for (const json::Member& member : *members)
        if (++counts[member.key] == 2) repeated.push_back(member.key);
}

class WeightMapReader {
public:
    WeightMapReader(Index& index, FaultSink& faults) : index_(index), faults_(faults) {}

    void member(std::string_view tensor, std::optional<std::string_view> shard) {
        if (!shard) return fault(tensor, Errc::index_bad_field, "its shard in weight_map is not a string");
        const std::string_view plain = plain_name(*shard, plain_);
        if (outside_folder(*shard, plain))
            return fault(tensor, Errc::shard_outside_folder,
                         "the shard " + safemap::quoted(*shard) + " is not in the folder of the index");
        const std::uint32_t shard_number = number_of(plain);
        // As in Python, the last entry of a name counts, in the place of the first.
        const auto next = static_cast<std::uint32_t>(index_.weight_map.size());
        const std::uint32_t number = tensors_.add(
            tensor, next, [this](std::uint32_t i) { return std::string_view(index_.weight_map[i].tensor); });
        if (number == next) {
            index_.weight_map.push_back({std::string(tensor), shard_number});
            return;
        }
        index_.weight_map[number].shard = shard_number;
        index_.repeated.push_back(number);
    }

private:
    void fault(std::string_view tensor, Errc code, std::string message) {
        faults_.fault(std::move(Error(code, std::move(message)).with_tensor(tensor)));
    }

    std::uint32_t number_of(std::string_view shard) {
        const auto next = static_cast<std::uint32_t>(index_.shards.size());
        const std::uint32_t number = shards_.add(shard, next, NamesOf(index_.shards));
        if (number == next) index_.shards.emplace_back(shard);
        return number;
    }

    Index& index_;
    FaultSink& faults_;
    NameIndex tensors_;
    NameIndex shards_;
    std::string plain_;
};

std::string_view checked_utf8(std::string_view text) {
    if (!is_utf8(text))
        throw Error(Errc::invalid_argument, safemap::quoted(text) + " is not UTF-8, as an index must be");
    return text;
}

/// Writes {"metadata": {…}, "weight_map": {…}} as Python's json.dump(indent=2) does, one level at a time.
class Writer {
public:
    /// Reserves memory for `entries`, which are most of the text, so that the text is not copied while it grows.
    explicit Writer(WeightMapView entries) {
        std::size_t size = 1024;
        for (const auto& [tensor, shard] : entries) size += tensor.size() + shard.size() + 12;
        text_.reserve(size);
        text_ = "{";
    }

    void open(std::string_view key) {
        member(key);
        text_ += '{';
        empty_ = true;
        ++depth_;
    }
    void close() {
        --depth_;
        if (!empty_) line();
        text_ += '}';
        empty_ = false;
    }
    void member(std::string_view key) {
        if (!empty_) text_ += ',';
        line();
        empty_ = false;
        json::append_string(text_, key, json::Charset::ascii);
        text_ += ": ";
    }
    void member(std::string_view key, std::string_view value) {
        member(checked_utf8(key));
        json::append_string(text_, checked_utf8(value), json::Charset::ascii);
    }
    void value(std::uint64_t number) { json::append_number(text_, number); }

    std::string take() {
        close();
        return std::move(text_);
    }

private:
    void line() {
        text_ += '\n';
        text_.append(2 * depth_, ' ');
    }

    std::string text_;
    std::size_t depth_ = 1;
    bool empty_ = true;
};

}  // namespace

bool is_index(const Source& source) {
    try {
        return json::parse(read_text(source), Errc::index_not_json).find("weight_map") != nullptr;
    } catch (const Error& error) {
        if (error.code() != Errc::index_not_json) throw;
        return false;
    }
}

Index read_index(const Source& source, FaultSink& faults) {
    Index index;
    try {
        WeightMapReader weight_map(index, faults);
        const json::Value root = json::parse(
            read_text(source), Errc::index_not_json, "weight_map",
            [&](std::string_view tensor, std::optional<std::string_view> shard) { weight_map.member(tensor, shard); });
        const json::Value* map = root.find("weight_map");
        if (map == nullptr) throw Error(Errc::index_bad_field, "weight_map is missing");
        if (map->object() == nullptr) throw Error(Errc::index_bad_field, "weight_map is not an object");
        add_repeated_keys(root, index.repeated_keys);
        if (const json::Value* metadata = root.find("metadata")) {
            read_metadata(*metadata, index);
            add_repeated_keys(*metadata, index.repeated_keys);
        }
    } catch (Error& error) {
        if (error.code() != Errc::index_not_json && error.code() != Errc::index_bad_field) throw;
        faults.fault(std::move(error));
    }
    return index;
}

std::string write_index(std::uint64_t total_size, MetadataView metadata, WeightMapView weight_map) {
    Writer writer(weight_map);
    writer.open("metadata");
    writer.member("total_size");
    writer.value(total_size);
    for (const auto& [key, text] : metadata) writer.member(key, text);
    writer.close();
    writer.open("weight_map");
    for (const auto& [tensor, shard] : weight_map) writer.member(tensor, shard);
    writer.close();
    return writer.take();
}

std::string write_transformers_index(std::uint64_t total_size, std::uint64_t total_parameters, MetadataView metadata,
                                     WeightMapView weight_map) {
    // Python sorts by code points; bytes of UTF-8 sort the same way.
    std::map<std::string_view, std::variant<std::uint64_t, std::string_view>> members;
    for (const auto& [key, text] : metadata) members.emplace(key, std::string_view(text));
    members.emplace("total_parameters", total_parameters);
    members.emplace("total_size", total_size);
    std::vector<std::pair<std::string_view, std::string_view>> sorted(weight_map.begin(), weight_map.end());
    std::sort(sorted.begin(), sorted.end());

    Writer writer(weight_map);
    writer.open("metadata");
    for (const auto& [key, value] : members) {
        if (const auto* number = std::get_if<std::uint64_t>(&value)) {
            writer.member(key);
            writer.value(*number);
        } else {
            writer.member(key, std::get<std::string_view>(value));
        }
    }
    writer.close();
    writer.open("weight_map");
    for (const auto& [tensor, shard] : sorted) writer.member(tensor, shard);
    writer.close();
    std::string text = writer.take();
    text += '\n';
    return text;
}

}  // namespace safemap::SAFEMAP_ABI::safetensors
