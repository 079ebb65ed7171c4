// Notes: small files in a sibling that record what a save is doing. If the process dies, the next one reads them.
#pragma once

#include <safemap/api.hpp>

#include <sys/types.h>

#include <functional>
#include <optional>
#include <string>
#include <string_view>

namespace safemap::SAFEMAP_ABI::io {

/// Reads the open note. Returns an empty text if it is not a regular file, or larger than 256 MiB. Errors call it
/// `what`.
std::string read_note(int note, std::string_view what);
/// Puts a note into the open `sibling`; the note appears complete or not at all. Flushes it to the disk if `durable`.
/// The note is first written under the name `unfinished`, with `mode` if that is given. `text` is called with the open
/// note and returns the note's text.
void put_note(int sibling, const char* name, const char* unfinished, std::optional<mode_t> mode, std::string_view what,
              bool durable, const std::function<std::string(int note)>& text);

}  // namespace safemap::SAFEMAP_ABI::io
