// Reads the files of several ranks side by side. Each tensor's name begins with the folder of its rank. Nothing is
// merged, because the files do not say how to merge them.
#include "base/folder.hpp"
#include "base/text.hpp"
#include "open/readers.hpp"

#include <utility>

namespace safemap::SAFEMAP_ABI::open {

namespace {

void add_prefix(const std::string& prefix, Contents& contents) {
    for (LazyTensor& tensor : contents.tensors) tensor = tensor.renamed(prefix + tensor.name());
    for (SkippedObject& object : contents.skipped) object.name.insert(0, prefix);
    for (AliasGroup& group : contents.aliases)
        for (std::string& name : group) name.insert(0, prefix);
}

}  // namespace

Contents read_ranks(const Folder& folder, const FileNames& files, const OpenOptions& options, FaultSink& faults) {
    Joined joined;
    OpenOptions parts = options;
    parts.as_parts = true;
    for (const std::string& file : files) {
        const auto source = folder.open(file);
        if (!source) throw Error(Errc::rank_missing, excerpt(file) + " cannot be opened as a file");
        Contents one = read_file(source, parts, faults);
        add_prefix(file.substr(0, file.rfind('/') + 1), one);
        state::move_to_end(one.tensors, joined.contents.tensors);
        state::move_to_end(one.aliases, joined.contents.aliases);
        joined.add(one, file);
    }
    joined.contents.layout = TrainingLayout{.kind = "megatron", .world_size = files.size()};
    joined.contents.notes.insert(
        joined.contents.notes.begin(),
        std::to_string(files.size()) +
            " Megatron ranks, listed one by one and never merged: each tensor is the part of its "
            "rank");
    return std::move(joined.contents);
}

}  // namespace safemap::SAFEMAP_ABI::open
