// Reads the folders of training frameworks: the only file here that knows the layer of distributed checkpoints.
#include "base/text.hpp"
#include "distributed/read_zero.hpp"
#include "distributed/zero_files.hpp"
#include "open/readers.hpp"

namespace safemap::SAFEMAP_ABI::open {

namespace {

/// Returns the last part of a path.
std::string last_part(std::string path) {
    while (path.size() > 1 && path.back() == '/') path.pop_back();
    return path.substr(path.rfind('/') + 1);
}

/// Returns the folder of the tag: the one that the shape names, or the folder itself.
distributed::ZeroTag tag_of(const std::shared_ptr<const Folder>& folder, const FolderShape& shape) {
    if (!shape.inside) return {.folder = folder, .tag = last_part(folder->name())};
    const std::string& name = shape.files.front();
    auto inner = folder->folder(name);
    if (!inner) throw Error(Errc::bad_tag, excerpt(name) + " cannot be opened as a folder");
    return {.folder = std::move(inner), .tag = name, .prefix = name + '/'};
}

}  // namespace

Contents read_deepspeed(const std::shared_ptr<const Folder>& folder, const FolderShape& shape,
                        const OpenOptions& options) {
    return distributed::read_zero(tag_of(folder, shape), options);
}

Contents read_universal(const std::shared_ptr<const Folder>& folder, const FolderShape& shape,
                        const OpenOptions& options) {
    return distributed::read_universal_tag(tag_of(folder, shape), options);
}

std::optional<std::string> note_of_deepspeed_file(std::string_view name) {
    using Kind = distributed::ZeroName::Kind;
    const auto parsed = distributed::zero_name(name);
    if (!parsed) return std::nullopt;
    if (parsed->kind == Kind::optimizer || parsed->kind == Kind::ranked_model)
        return "this is the part of rank " + std::to_string(parsed->rank) +
               " of a DeepSpeed checkpoint; open its folder, which gives whole tensors";
    return "this is one file of a DeepSpeed checkpoint; open its folder, which gives all tensors";
}

}  // namespace safemap::SAFEMAP_ABI::open
