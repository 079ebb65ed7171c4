// Tells formats by content.
#pragma once

#include <safemap/source.hpp>

#include <cstdint>
#include <string>

namespace safemap::checkpoint {

enum class Content : std::uint8_t { safetensors, zip, json, unknown };

struct Sniffed {
    Content content = Content::unknown;
    /// For what we do not read: what it looks like, "a git-lfs pointer", and what can be done about it.
    std::string looks_like = {};
    std::string hint = {};
};

/// Looks at the first bytes, and at the last of a zip. A header length inside the file and a `{` behind it (after
/// whitespace) are safetensors before anything else is tried.
Sniffed sniff(const Source& source);

}  // namespace safemap::checkpoint
