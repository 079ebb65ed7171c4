// Computes the digest of a whole checkpoint, and finds dropped names.
#include "safetensors/checkpoint_digest.hpp"

#include "base/hex.hpp"
#include "safetensors/digests.hpp"

#include <algorithm>
#include <utility>

namespace safemap::SAFEMAP_ABI::safetensors {
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
