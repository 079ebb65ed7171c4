// Recognises the format of a file: one table has the tests, the names and the readers of all formats.
#pragma once

#include "open/read.hpp"

#include <cstdint>
#include <string>
#include <string_view>

namespace safemap::SAFEMAP_ABI::open {

/// The kind of a file's content.
enum class Content : std::uint8_t {
    unknown,
    safetensors,
    zip,     ///< written by torch.save, or TorchScript
    legacy,  ///< written by torch.save before 1.6
    pickle,
    tar,  ///< written by torch 0.1
    json,
};

using FileReader = Contents (*)(const std::shared_ptr<const Source>& source, const OpenOptions& options,
                                FaultSink& faults);

/// The result of recognising a file.
struct Sniffed {
    Content content = Content::unknown;
    /// A description of the file, such as "a git-lfs pointer", and a hint on what to do if safemap does not read it.
    std::string looks_like = {};
    std::string_view hint = {};
    Format format = {};
    FileReader read = nullptr;  ///< null: safemap does not read it
};

/// The hint for a file that is truncated.
inline constexpr std::string_view interrupted =
    "a download or a copy may not have finished: compare the size with that of the original";

/// Recognises a file by its first bytes. If they match nothing, checks the last bytes for a zip behind something else.
/// A header length inside the file, followed by a `{` (after whitespace), means safetensors before anything else is
/// tried.
Sniffed sniff(const Source& source);
/// Returns the error of a file whose name says `wanted`, in words `expected`. If the content is of another kind, the
/// message says which one, and shows nothing of it.
Error described(const Error& error, const Source& source, Content wanted, std::string_view expected);
/// Does the same as sniff(), except that a name that ends in ".safetensors" means safetensors, whatever the content.
Sniffed recognise(const Source& source);
/// Returns true if a file is an index: by name, so that a damaged index is reported as one, else by content, whatever
/// the name.
bool is_index(const Source& source);

/// Returns the kind of file that torch.load sees in a file whose content is safetensors: "a zip", "a tar archive" or "a
/// pickle", which may run code. Returns an empty string if torch.load refuses the file before it looks up any name.
/// Reads 16 MiB at most.
std::string_view torch_takes_for(const Source& source);

/// Returns safemap::name(format).
std::string_view name_of(Format format) noexcept;

}  // namespace safemap::SAFEMAP_ABI::open
