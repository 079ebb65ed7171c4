// Reads the folders of training frameworks that save torch files. Hugging Face shards are in read_hf_shards.cpp.
#include "base/text.hpp"
#include "distributed/dcp/read_dcp.hpp"
#include "distributed/ranks/read_rank_files.hpp"
#include "distributed/zero/read_zero.hpp"
#include "names/zero_files.hpp"
#include "names/file_names.hpp"
#include "open/readers.hpp"

#include <safemap/advanced/file.hpp>

#include <algorithm>
#include <filesystem>
#include <system_error>

namespace safemap::SAFEMAP_ABI::open {

namespace {

/// Returns the name of the folder at a path, also if the path ends in "." or is a link; an empty text if it has none.
std::string name_of_folder(const std::string& path) {
    std::error_code failed;
    const std::filesystem::path real = std::filesystem::canonical(path, failed);
    return failed ? std::string() : real.filename().string();
}

/// Returns the folder of the tag: the one that the shape names, or the folder itself.
distributed::ZeroTag tag_of(const std::shared_ptr<const Folder>& folder, const FolderShape& shape) {
    if (!shape.inside) return {.folder = folder, .tag = name_of_folder(folder->name())};
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

Contents read_rank_files(const RankSet& set, const OpenOptions& options, const RankSet& model) {
    distributed::RankFiles files{.folder = set.folder, .files = set.files};
    if (!options.manifest.empty()) files.manifest = open_file(options.manifest, mapping_of(options.access));
    if (model.folder)
        files.model = std::make_shared<distributed::RankFiles>(
            distributed::RankFiles{.folder = model.folder, .files = model.files});
    return distributed::read_rank_files(files, options);
}

FileNames optimizer_files(const Folder& folder, const FileNames& files) {
    const auto model = files.empty() ? std::nullopt : names::rank_file(files.front());
    FileNames found = folder.list();
    std::erase_if(found, [&](const std::string& file) {
        const auto one = names::rank_file(file);
        if (!model || !one) return true;
        const auto pair = names::model_and_optimizer({model->set, one->set});
        return !pair || pair->optimizer != one->set;
    });
    return found;
}

Contents read_dcp(const std::shared_ptr<const Folder>& folder, const FolderShape& shape, const OpenOptions& options,
                  FaultSink& faults) {
    return distributed::read_dcp(folder, shape.files, options, faults);
}

std::optional<std::string> note_of_deepspeed_file(std::string_view name) {
    const auto parsed = names::zero_name(name);
    if (!parsed) return std::nullopt;
    if (parsed->kind == names::NameKind::zero_optimizer || parsed->kind == names::NameKind::zero_ranked_model)
        return "this is the part of rank " + std::to_string(parsed->rank) +
               " of a DeepSpeed checkpoint; open its folder, which gives whole tensors";
    return "this is one file of a DeepSpeed checkpoint; open its folder, which gives all tensors";
}

}  // namespace safemap::SAFEMAP_ABI::open
