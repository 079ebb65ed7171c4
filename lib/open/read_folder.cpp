// Reads the checkpoint of a folder: recognises it by the names of files, then calls its reader.
#include "base/faults.hpp"
#include "base/folder.hpp"
#include "base/text.hpp"
#include "open/layouts.hpp"
#include "open/readers.hpp"

#include <algorithm>
#include <utility>

namespace safemap::SAFEMAP_ABI::open {

namespace {

std::shared_ptr<const Source> opened(const Folder& folder, const std::string& name) {
    auto source = folder.open(name);
    if (!source) throw Error(Errc::not_a_checkpoint, excerpt(name) + " cannot be opened as a file");
    return source;
}

Contents read_indexed(const Folder& folder, const FolderShape& shape, const OpenOptions& options, FaultSink& faults) {
    return read_shards(folder, opened(folder, shape.files.front()), options, faults);
}

Contents read_only_file(const Folder& folder, const FolderShape& shape, const OpenOptions& options, FaultSink& faults) {
    return read_file(opened(folder, shape.files.front()), options, faults);
}

Contents read_megatron(const Folder& folder, const FolderShape& shape, const OpenOptions& options, FaultSink& faults) {
    return read_ranks(folder, shape.files, options, faults);
}

/// The reader of a shape. A shape without a row is not read.
struct Reader {
    ShapeKind kind;
    Contents (*read)(const Folder&, const FolderShape&, const OpenOptions&, FaultSink&);
};

constexpr Reader readers[] = {
    {ShapeKind::index, read_indexed},
    {ShapeKind::file, read_only_file},
    {ShapeKind::megatron_ranks, read_megatron},
};

/// Throws if all tensors of a model are empty and training state is beside it. A trainer that did not gather its
/// tensors writes such a model.
void require_gathered(const Contents& contents, const FolderShape& shape, const FolderNames& names,
                      const Folder& folder) {
    const auto is_empty = [](const LazyTensor& tensor) { return tensor.nbytes() == 0; };
    if (!shape.finished || contents.tensors.empty() ||
        !std::all_of(contents.tensors.begin(), contents.tensors.end(), is_empty))
        return;
    const FolderShape beside = state::shape_beside_model(names);
    if (beside.kind != ShapeKind::nothing) refuse(beside, names, folder.name());
}

void note_others(const FolderShape& shape, Contents& contents) {
    FileNames others = shape.others;
    std::erase_if(others, [&contents](const std::string& name) {
        return std::find(contents.files.begin(), contents.files.end(), name) != contents.files.end();
    });
    if (!others.empty()) contents.notes.push_back("read " + shape.files.front() + "; not read: " + listed(others));
}

Contents read_shape(const Folder& folder, const FolderShape& shape, const FolderNames& names,
                    const OpenOptions& options, FaultSink& faults) {
    for (const Reader& reader : readers) {
        if (reader.kind != shape.kind) continue;
        Contents contents = reader.read(folder, shape, options, faults);
        require_gathered(contents, shape, names, folder);
        if (shape.finished) contents.model_file = shape.files.front();
        note_others(shape, contents);
        return contents;
    }
    refuse(shape, names, folder.name());
}

/// Recognises the shape of the folder. Returns false if a folder in it is to be read instead; `found` then refers to
/// that folder.
bool is_here(Located& found, bool may_descend) {
    found.names = state::names_in(*found.folder);
    found.shape = state::shape_of(found.names);
    if (found.shape.kind != ShapeKind::folder) return true;
    const std::string& name = found.shape.files.front();
    auto below = may_descend ? found.folder->folder(name) : nullptr;
    if (!below) throw Error(Errc::not_a_checkpoint, excerpt(name) + " cannot be opened as a folder");
    std::string note = "read the checkpoint in " + excerpt(name);
    if (!found.shape.others.empty()) note += "; unfinished: " + listed(found.shape.others);
    found.notes.push_back(std::move(note));
    found.folder = std::move(below);
    return false;
}

}  // namespace

Located locate(std::shared_ptr<const Folder> folder) {
    constexpr int most_levels = 4;  // a link may lead back
    Located found{.folder = std::move(folder)};
    for (int levels = 0;; ++levels) {
        const std::shared_ptr<const Folder> here = found.folder;
        if (about_file(here->name(), [&] { return is_here(found, levels < most_levels); })) return found;
    }
}

Contents read_located(const Located& found, const OpenOptions& options, FaultSink& faults) {
    return about_file(found.folder->name(), [&] {
        Contents contents = read_shape(*found.folder, found.shape, found.names, options, faults);
        contents.notes.insert(contents.notes.begin(), found.notes.begin(), found.notes.end());
        contents.folder = found.folder;
        return contents;
    });
}

}  // namespace safemap::SAFEMAP_ABI::open
