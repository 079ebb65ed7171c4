// Places the structure document in the metadata of safetensors, or in a tensor that the metadata names.
#include "state/structure.hpp"

#include <span>

namespace safemap::SAFEMAP_ABI::state {
namespace {

constexpr std::string_view apart_head = R"({"v":1,"tensor":)";

}  // namespace

std::string structure_apart(const Digest& document) {
    return std::string(apart_head) + '"' + std::string(state::structure_tensor) + R"(","xxh3_128":")" + hex(document) +
           "\"}";
}

bool is_structure_apart(std::string_view metadata) noexcept { return metadata.starts_with(apart_head); }

std::optional<std::string> structure_digest(std::string_view metadata) {
    if (!is_structure_apart(metadata)) return digest_of_structure(metadata);
    constexpr std::size_t digits = 32;
    constexpr std::size_t after = 2;  // the length of "}
    if (metadata.size() < digits + after) return std::nullopt;
    const auto digest = digest_of_hex(metadata.substr(metadata.size() - digits - after, digits));
    return digest && structure_apart(*digest) == metadata ? std::optional(hex(*digest)) : std::nullopt;
}

std::string digest_of_structure(std::string_view document) { return hex(xxh3(std::as_bytes(std::span(document)))); }

}  // namespace safemap::SAFEMAP_ABI::state
