// Small files in a sibling that say what a save is doing, for whoever finds it there when the process is dead.
#pragma once

#include <safemap/api.hpp>

#include <sys/types.h>

#include <functional>
#include <optional>
#include <string>
#include <string_view>

namespace safemap::SAFEMAP_ABI::io {

/// Reads the open note. Empty where it is no regular file, or larger than a note can be. Errors call it `what`.
std::string read_note(int note, std::string_view what);
/// Puts a note into the open `sibling`, and on the disk if it is `durable`: whole, or not there. It is written under
/// the name `unfinished`, with the mode `mode` where one is given. `text` gets the open note, and returns what it is to
/// say.
void put_note(int sibling, const char* name, const char* unfinished, std::optional<mode_t> mode, std::string_view what,
              bool durable, const std::function<std::string(int note)>& text);

}  // namespace safemap::SAFEMAP_ABI::io
