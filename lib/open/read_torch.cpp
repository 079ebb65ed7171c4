// What torch reads of a file becomes names and tensors.
#include "open/read_torch.hpp"

#include <utility>

namespace safemap::SAFEMAP_ABI::open {

void add_globals(const torch::NamedGlobals& globals, const std::string& prefix, Contents& contents) {
    for (const torch::NamedGlobal& named : globals.all())
        contents.globals.push_back({.module = named.module,
                                    .name = named.name,
                                    .record = prefix + named.record,
                                    .known = named.known,
                                    .called = named.called});
    if (const auto note = globals.note()) contents.notes.push_back(prefix + *note);
    contents.asks_for_code = contents.asks_for_code || globals.asks_for_code();
}

Contents contents_of(torch::Archive archive, const torch::NamedGlobals& globals) {
    Contents contents;
    contents.notes = std::move(archive.notes);
    state::set_tree(contents, std::move(archive.tree));
    add_globals(globals, {}, contents);
    for (RecordData& storage : archive.storages)
        contents.storages.push_back({std::move(storage.source), storage.extent});
    contents.checksums.reserve(archive.records.size());
    for (torch::Archive::Record& record : archive.records)
        contents.checksums.push_back({std::move(record.source), record.extent, record.crc32, std::move(record.name)});
    return contents;
}

}  // namespace safemap::SAFEMAP_ABI::open
