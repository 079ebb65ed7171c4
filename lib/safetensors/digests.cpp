// Writes, reads and overwrites lists of digests in metadata. Computes the digest of a whole checkpoint, and finds
// dropped names.
#include "safetensors/digests.hpp"

#include "base/encodings.hpp"
#include "base/faults.hpp"
#include "base/json.hpp"
#include "base/text.hpp"

#include <safemap/error.hpp>

#include <algorithm>
#include <utility>

namespace safemap::SAFEMAP_ABI::safetensors {

namespace {

void append_entry(std::string& text, std::string_view name, const Digest& digest) {
    json::append_string(text, name, json::Charset::utf8);
    text += ":\"" + hex(digest) + '"';
}

/// Returns the position of the value of a metadata key, at its opening quote, in a header or index that safemap wrote.
/// Throws header_bad_metadata if the key is missing.
std::size_t place_of(std::string_view head, std::string_view key) {
    std::string found;
    json::append_string(found, key, json::Charset::utf8);
    found += ':';
    // Metadata comes before all tensors. A quote with a backslash before it is inside a string, so it does not begin a
    // key.
    std::size_t at = head.find(found);
    while (at != head.npos && at > 0 && head[at - 1] == '\\') at = head.find(found, at + 1);
    const std::size_t value = at == head.npos ? at : head.find('"', at + found.size());
    if (value == head.npos) throw Error(Errc::header_bad_metadata, safemap::quoted(key) + " is missing");
    return value;
}

/// Overwrites the characters at `at`. Throws header_bad_metadata if fewer are left.
void overwrite(std::string& head, std::size_t at, std::string_view text) {
    if (at > head.size() || text.size() > head.size() - at)
        throw Error(Errc::header_bad_metadata, "not enough room for the digests");
    std::copy(text.begin(), text.end(), head.begin() + static_cast<std::ptrdiff_t>(at));
}

}  // namespace

std::string write_digests(std::span<const std::pair<std::string_view, Digest>> tensors) {
    std::string text = "{";
    for (const auto& [name, digest] : tensors) {
        if (text.back() != '{') text += ',';
        append_entry(text, name, digest);
    }
    text += '}';
    return text;
}

void read_digests(std::string_view text, const std::function<void(std::string_view, const Digest&)>& on_tensor) {
    const auto add = [](Error& error) { error.during("the digests in " + safemap::quoted(digests_key)); };
    adding(add, [&] {
        json::parse_members(
            text, Errc::header_bad_metadata, [&](std::string_view name, std::optional<std::string_view> value) {
                const auto digest = value ? digest_of_hex(*value) : std::nullopt;
                if (!digest)
                    throw Error(Errc::header_bad_metadata, "expected 32 hex digits for " + safemap::quoted(name));
                on_tensor(name, *digest);
            });
    });
}

void put_metadata(std::string& head, std::string_view key, std::string_view value) {
    std::string text;
    json::append_string(text, value, json::Charset::utf8);
    overwrite(head, place_of(head, key), text);
}

void put_digests(std::string& head, std::span<const std::pair<std::string_view, Digest>> tensors) {
    std::size_t at = place_of(head, digests_key) + 1;
    std::string entry;
    std::string text;
    for (const auto& [name, digest] : tensors) {
        entry = entry.empty() ? "{" : ",";
        append_entry(entry, name, digest);
        text.clear();
        json::append_string(text, entry, json::Charset::utf8);
        const std::string_view within = std::string_view(text).substr(1, text.size() - 2);
        overwrite(head, at, within);
        at += within.size();
    }
}

std::string metadata_in(std::string_view head, std::string_view key) {
    const std::size_t begin = place_of(head, key);
    std::size_t end = begin + 1;
    while (end < head.size() && head[end] != '"') end += head[end] == '\\' ? 2 : 1;
    if (end >= head.size()) throw Error(Errc::header_bad_metadata, safemap::quoted(key) + " is missing");
    const json::Value value = json::parse(head.substr(begin, end + 1 - begin), Errc::header_bad_metadata);
    return *value.string();  // Text between quotes is always a string.
}

namespace {

std::string line_of(const NamedDigest& tensor) {
    std::string line(tensor.name);
    line += '\0';
    line += name(tensor.dtype);
    line += '\0';
    for (std::size_t d = 0; d < tensor.shape->size(); ++d)
        line += (d > 0 ? "," : "") + std::to_string((*tensor.shape)[d]);
    line += '\0';
    line += hex(tensor.digest);
    line += '\n';
    return line;
}

/// Compares the lines of two tensors. Builds lines only if one name is a prefix of the other: there may be very many
/// lines, and names almost always decide.
bool before(const NamedDigest& a, const NamedDigest& b) {
    return a.name.starts_with(b.name) || b.name.starts_with(a.name) ? line_of(a) < line_of(b) : a.name < b.name;
}

template <class Hash> auto hash_of(std::vector<NamedDigest> tensors) {
    std::sort(tensors.begin(), tensors.end(), before);
    Hash hash;
    for (const NamedDigest& tensor : tensors) {
        const std::string line = line_of(tensor);
        hash.update(std::as_bytes(std::span(line)));
    }
    return hash.digest();
}

}  // namespace

Digest digest_of_all(std::vector<NamedDigest> tensors) { return hash_of<Xxh3>(std::move(tensors)); }
Sha256Digest sha256_of_all(std::vector<NamedDigest> tensors) { return hash_of<Sha256>(std::move(tensors)); }

void for_each_alias(std::span<const std::pair<std::string, std::string>> metadata,
                    const std::function<std::optional<std::uint32_t>(std::string_view)>& number_of,
                    const std::function<void(const std::string& dropped, std::uint32_t number)>& alias) {
    for (const auto& [dropped, kept] : metadata) {
        const auto number = number_of(kept);
        if (!number || dropped == "format" || safetensors::is_digest_key(dropped) || number_of(dropped)) continue;
        alias(dropped, *number);
    }
}

}  // namespace safemap::SAFEMAP_ABI::safetensors
