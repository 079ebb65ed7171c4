// Lists of digests in metadata.
#include "safetensors/digests.hpp"

#include "base/json.hpp"
#include "base/text.hpp"

#include <safemap/error.hpp>

#include <algorithm>
#include <cassert>

namespace safemap::safetensors {

std::string write_digests(std::span<const std::pair<std::string_view, Digest>> tensors) {
    std::string text = "{";
    for (const auto& [name, digest] : tensors) {
        if (text.back() != '{') text += ',';
        json::append_string(text, name, json::Charset::utf8);
        text += ":\"" + hex(digest) + '"';
    }
    text += '}';
    return text;
}

void read_digests(std::string_view text, const std::function<void(std::string_view, const Digest&)>& on_tensor) {
    try {
        json::parse_members(
            text, Errc::header_bad_metadata, [&](std::string_view name, std::optional<std::string_view> value) {
                const auto digest = value ? digest_of_hex(*value) : std::nullopt;
                if (!digest)
                    throw Error(Errc::header_bad_metadata, "of " + safemap::quoted(name) + " it has no 32 hex digits");
                on_tensor(name, *digest);
            });
    } catch (Error& error) {
        throw std::move(error.during("the digests in " + safemap::quoted(digests_key)));
    }
}

void put_metadata(std::string& head, std::string_view key, std::string_view value) {
    std::string found;
    json::append_string(found, key, json::Charset::utf8);
    // Metadata stands before all tensors, and quotes within a text have a backslash before them: this is the key.
    const std::size_t at = head.find('"', head.find(found + ':') + found.size());
    std::string text;
    json::append_string(text, value, json::Charset::utf8);
    assert(at < head.size() && text.size() <= head.size() - at && head[at + text.size() - 1] == '"');
    std::copy(text.begin(), text.end(), head.begin() + static_cast<std::ptrdiff_t>(at));
}

}  // namespace safemap::safetensors
