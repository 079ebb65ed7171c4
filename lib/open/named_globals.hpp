// Names in pickles, as a checkpoint tells of them.
#pragma once

#include "open/readers.hpp"
#include "torch/globals.hpp"

#include <string>

namespace safemap::SAFEMAP_ABI::open {

/// Adds the names that a file's pickles have, each record behind `prefix`, and the note of the unknown ones.
inline void add_globals(const torch::NamedGlobals& globals, const std::string& prefix, Contents& contents) {
    for (const torch::NamedGlobal& named : globals.all())
        contents.globals.push_back({.module = named.module,
                                    .name = named.name,
                                    .record = prefix + named.record,
                                    .known = named.known,
                                    .called = named.called});
    if (const auto note = globals.note()) contents.notes.push_back(prefix + *note);
    contents.asks_for_code = contents.asks_for_code || globals.asks_for_code();
}

}  // namespace safemap::SAFEMAP_ABI::open
