// Turns the contents of a torch file into names and tensors.
#include "open/read_torch.hpp"

#include <utility>

namespace safemap::SAFEMAP_ABI::open {

void add_globals(const torch::NamedGlobals& globals, const std::string& prefix, Contents& contents) {
    for (NamedGlobal named : globals.all()) {
        named.record.insert(0, prefix);
        contents.globals.push_back(std::move(named));
    }
    if (const auto note = globals.note()) contents.notes.push_back(prefix + *note);
    contents.asks_for_code = contents.asks_for_code || globals.asks_for_code();
}

Contents contents_of(torch::Archive archive, const torch::NamedGlobals& globals) {
    Contents contents;
    contents.notes = std::move(archive.notes);
    if (archive.flat) state::set_flat(contents, std::move(*archive.flat));
    else state::set_tree(contents, std::move(archive.tree));
    add_globals(globals, {}, contents);
    contents.storages = std::move(archive.storages);
    contents.checksums = std::move(archive.records);
    return contents;
}

}  // namespace safemap::SAFEMAP_ABI::open
