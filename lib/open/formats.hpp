// Which format a file is: one table says how each is told, what it is called and who reads it.
#pragma once

#include "open/readers.hpp"

#include <cstdint>
#include <string>
#include <string_view>

namespace safemap::SAFEMAP_ABI::open {

enum class Content : std::uint8_t {
    unknown,
    safetensors,
    zip,     ///< of torch.save, or of TorchScript
    legacy,  ///< of torch.save before 1.6
    pickle,
    tar,  ///< of torch 0.1
    json,
};

using FileReader = Contents (*)(const std::shared_ptr<const Source>& source, const OpenOptions& options,
                                FaultSink& faults);

struct Sniffed {
    Content content = Content::unknown;
    /// What it looks like, "a git-lfs pointer", and what can be done about it where we do not read it.
    std::string looks_like = {};
    std::string_view hint = {};
    Format format = {};
    FileReader read = nullptr;  ///< null: we do not
};

/// Looks at the first bytes, and where they say nothing at the last, for a zip behind something else. A header length
/// inside the file and a `{` behind it (after whitespace) are safetensors before anything else is tried.
Sniffed sniff(const Source& source);
/// The same, except that a name in ".safetensors" says so, whatever the content.
Sniffed recognise(const Source& source);
/// An index by name, so that one that is damaged is told as such; else by content, whatever its name.
bool is_index(const Source& source);

/// Returns what torch.load takes a file for whose content is safetensors: "a zip", "a tar archive" or "a pickle", which
/// may run code. Empty where torch.load refuses it before anything is looked up. Reads 16 MiB at most.
std::string_view torch_takes_for(const Source& source);

/// As safemap::name(format).
std::string_view name_of(Format format) noexcept;

}  // namespace safemap::SAFEMAP_ABI::open
