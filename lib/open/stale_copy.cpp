// Compares the fingerprints of a `.pt` and the safetensors file that it was converted to, side by side: a note says if
// one is stale, and neither is preferred. Tested by tests/open/stale_copy_test.cpp.
#include "open/read.hpp"

#include "base/text.hpp"
#include "names/file_names.hpp"
#include "safetensors/header.hpp"
#include "state/fingerprint.hpp"

#include <safemap/advanced/file.hpp>

#include <optional>
#include <system_error>

namespace safemap::SAFEMAP_ABI::open {

namespace {

namespace fs = std::filesystem;

std::string stale_note(const fs::path& safetensors, const fs::path& torch) {
    const std::string source = safemap::quoted(torch.filename().native());
    return safemap::quoted(safetensors.filename().native()) + " was not converted from " + source + ", or " + source +
           " has changed since: one of the two files is stale";
}

/// Compares with the file that this one was converted from, which may have any of the endings.
void note_of_safetensors(const fs::path& path, Contents& contents) {
    const std::string* const stored = state::find_value(contents.metadata, state::source_key);
    if (stored == nullptr) return;
    std::optional<fs::path> stale;
    for (const std::string_view ending : names::torch_endings) {
        fs::path other = path;
        other.replace_extension(ending);
        std::error_code ignored;
        if (!fs::is_regular_file(other, ignored)) continue;
        if (state::fingerprint(*open_file(other, Mapping::never)) == *stored) return;
        if (!stale) stale = std::move(other);
    }
    if (!stale) return;
    contents.notes.push_back(stale_note(path, *stale));
}

void note_of_torch(const fs::path& path, const OpenOptions& options, Contents& contents) {
    fs::path other = path;
    other.replace_extension(".safetensors");
    std::error_code ignored;
    if (other == path || !fs::is_regular_file(other, ignored)) return;
    ThrowFirst faults;
    const auto header =
        read_header(*open_file(other, Mapping::never), safetensors::Rules::lenient, options.max_header_bytes, faults);
    const std::string* const stored = state::find_value(header.metadata, state::source_key);
    if (stored == nullptr || *stored == state::fingerprint(*contents.sources.front())) return;
    contents.notes.push_back(stale_note(other, path));
}

}  // namespace

void note_stale_copy(const fs::path& path, const OpenOptions& options, Contents& contents) {
    try {
        if (contents.format == Format::safetensors) note_of_safetensors(path, contents);
        else note_of_torch(path, options, contents);
    } catch (const Error&) {  // a fault of the other file, or of a file that is being written
    }
}

}  // namespace safemap::SAFEMAP_ABI::open
