// Tells formats by content.
#pragma once

#include <safemap/source.hpp>

#include <cstdint>
#include <string>
#include <string_view>

namespace safemap::SAFEMAP_ABI::open {

enum class Content : std::uint8_t {
    safetensors,
    zip,     ///< of torch.save, or of TorchScript
    legacy,  ///< of torch.save before 1.6
    pickle,
    tar,  ///< of torch 0.1
    json,
    unknown,
};

struct Sniffed {
    Content content = Content::unknown;
    /// What it looks like, "a git-lfs pointer", and what can be done about it where we do not read it.
    std::string looks_like = {};
    std::string hint = {};
};

/// Looks at the first bytes, and where they say nothing at the last, for a zip behind something else. A header length
/// inside the file and a `{` behind it (after whitespace) are safetensors before anything else is tried.
Sniffed sniff(const Source& source);

/// Returns what torch.load takes a file for whose content is safetensors: "a zip", "a tar archive" or "a pickle", which
/// may run code. Empty where torch.load refuses it before anything is looked up. Reads 16 MiB at most.
std::string_view torch_takes_for(const Source& source);

}  // namespace safemap::SAFEMAP_ABI::open
