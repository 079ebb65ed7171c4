// Reads the checkpoint of a folder: recognises it by the names of files, then calls its reader.
#include "base/faults.hpp"
#include "base/folder.hpp"
#include "base/text.hpp"
#include "io/file_folder.hpp"
#include "names/model_names.hpp"
#include "names/rank_names.hpp"
#include "open/formats.hpp"
#include "open/layouts.hpp"
#include "open/read.hpp"
#include "safetensors/shard_files.hpp"

#include <algorithm>
#include <filesystem>
#include <iterator>
#include <optional>
#include <system_error>
#include <utility>

namespace safemap::SAFEMAP_ABI::open {

namespace {

std::string last_name(const std::string& path) { return std::filesystem::path(path).filename().native(); }

std::shared_ptr<const Source> opened(const Folder& folder, const std::string& name) {
    auto source = folder.open(name);
    if (!source) throw Error(Errc::not_a_checkpoint, excerpt(name) + " cannot be opened as a file");
    return source;
}

Contents read_indexed(const std::shared_ptr<const Folder>& folder, const FolderShape& shape, const OpenOptions& options,
                      FaultSink& faults) {
    return read_shards(*folder, opened(*folder, shape.files.front()), options, faults);
}

Contents read_only_file(const std::shared_ptr<const Folder>& folder, const FolderShape& shape,
                        const OpenOptions& options, FaultSink& faults) {
    Contents contents = read_file(opened(*folder, shape.files.front()), options, faults);
    if (auto note = note_of_parts(contents, shape.files.front())) contents.notes.push_back(std::move(*note));
    return contents;
}

/// Reads all shards of a set. There is no index to say which tensors they must have.
Contents read_numbered(const std::shared_ptr<const Folder>& folder, const FolderShape& shape,
                       const OpenOptions& options, FaultSink& faults) {
    std::vector<std::shared_ptr<const Source>> sources;
    for (const std::string& file : shape.files) sources.push_back(opened(*folder, file));
    Contents contents = read_files(sources, options, faults);
    contents.notes.push_back("there is no index: the " + std::to_string(shape.files.size()) +
                             " shards are read by the numbers in their names, " + excerpt(shape.files.front()) +
                             " first");
    return contents;
}

std::optional<std::string> note_of_numbered_shard(const std::filesystem::path& file, const Contents& /*contents*/) {
    const auto set = names::set_of_shard(file.filename().native());
    if (!set) return std::nullopt;
    return "this is one of " + std::to_string(set->name.shards) + " shards; the whole checkpoint is in the files " +
           excerpt(set->text());
}

std::optional<std::string> note_of_rank_file(const std::filesystem::path& file, const Contents& /*contents*/) {
    const auto one = names::rank_file(file.filename().native());
    if (!one) return std::nullopt;
    std::uint64_t ranks = 0;
    try {
        const auto folder = open_folder(file.has_parent_path() ? file.parent_path() : ".", Mapping::never);
        ranks = names::ranks_in_set(*one, folder->list());
    } catch (const Error&) {  // the folder cannot be listed
    }
    if (ranks < 2) return std::nullopt;
    return "this is rank " + std::to_string(one->rank) + " of " + std::to_string(ranks) +
           "; the whole checkpoint is in the files " + excerpt(one->set);
}

FileNames list_set(const Folder& /*folder*/, const FolderShape& shape) { return shape.files; }

/// Adds the torch files in a folder, and in `levels` levels of folders below it, as paths that begin with `prefix`.
void add_files(const Folder& folder, const std::string& prefix, int levels, FileNames& files) {
    for (const std::string& name : folder.list())
        if (name.ends_with(".pt")) files.push_back(prefix + name);
    if (levels == 0) return;
    for (const std::string& name : folder.folders())
        if (const auto below = folder.folder(name)) add_files(*below, prefix + name + '/', levels - 1, files);
}

FileNames list_tag(const Folder& folder, const FolderShape& shape) {
    FileNames files;
    // The state of a parameter is in a folder of its own: TAG/zero/PARAMETER/fp32.pt.
    const int levels = shape.kind == ShapeKind::universal ? 2 : 0;
    const auto tag = shape.inside ? folder.folder(shape.files.front()) : nullptr;
    if (tag) add_files(*tag, shape.files.front() + '/', levels, files);
    else add_files(folder, "", levels, files);
    return files;
}

/// A kind of folder that is read. layouts.cpp refuses the others.
struct FolderKind {
    ShapeKind kind;
    FolderReader* read;
    /// Lists the files whose records verify() checks if the folder cannot be opened. Null: none.
    FileNames (*list_run)(const Folder& folder, const FolderShape& shape) = nullptr;
    NoteOfFile* note_of_file = nullptr;  ///< if several rows give a note, the first one counts
};

constexpr FolderKind kinds[] = {
    {ShapeKind::index, read_indexed},
    {ShapeKind::file, read_only_file},
    {ShapeKind::deepspeed, read_deepspeed, list_tag, note_of_deepspeed_file},
    {ShapeKind::universal, read_deepspeed, list_tag},
    {ShapeKind::hf_shards, read_hf_shards, nullptr, note_of_hf_shard},
    {ShapeKind::shards, read_numbered, nullptr, note_of_numbered_shard},
    {ShapeKind::rank_files, read_rank_sets, list_set, note_of_rank_file},
    {ShapeKind::megatron_ranks, read_megatron},
    {ShapeKind::dcp, read_dcp},
};

/// Returns null for a kind that is not read.
const FolderKind* kind_of(const FolderShape& shape) {
    for (const FolderKind& row : kinds)
        if (row.kind == shape.kind) return &row;
    return nullptr;
}

bool is_deepspeed(const FolderShape& shape) {
    return shape.kind == ShapeKind::deepspeed || shape.kind == ShapeKind::universal;
}

/// Returns true if all tensors of a model are empty. A trainer that did not gather its tensors writes such a model.
bool is_not_gathered(const Contents& contents) {
    const auto is_empty = [](const LazyTensor& tensor) { return tensor.nbytes() == 0; };
    return !contents.tensors.empty() && std::all_of(contents.tensors.begin(), contents.tensors.end(), is_empty);
}

void note_others(const FolderShape& shape, Contents& contents) {
    FileNames others = shape.others;
    std::erase_if(others, [&contents](const std::string& name) { return has(contents.files, name); });
    if (others.empty()) return;
    const auto rank = shape.kind == ShapeKind::rank_files ? names::rank_file(shape.files.front()) : std::nullopt;
    const bool lacks = rank && names::ranks_in_set(*rank, shape.files) > shape.files.size();  // the set is not read
    contents.notes.push_back((lacks ? "" : "read " + shape.files.front() + "; ") + "not read: " + listed(others));
}

/// A sink for the faults of a folder. Says what a file is that is of another kind than its name says, and adds hints.
class OfFolder final : public FaultSink {
public:
    OfFolder(FaultSink& next, const Folder& folder) : next_(next), folder_(folder) {}
    void fault(Error error) override { next_.fault(told(std::move(error))); }

    Error told(Error error) const {
        constexpr Errc truncated[] = {Errc::file_truncated, Errc::pickle_truncated, Errc::piece_missing};
        if (std::find(std::begin(truncated), std::end(truncated), error.code()) != std::end(truncated))
            error.with_hint(interrupted);
        if (error.code() == Errc::rank_missing) error.with_hint("copy the files of all ranks into one folder");
        const bool may_be_other = names_file(error.code()) && !error.message().starts_with("this is ");
        const std::shared_ptr<const Source> file = may_be_other ? file_of(error.path()) : nullptr;
        if (!file || sniff(*file).read != nullptr) return error;
        return described(error, *file, Content::pickle, "a pickle of a checkpoint, because of its name");
    }

private:
    /// Returns true if a file of another kind may have this fault.
    static bool names_file(Errc code) {
        return name(code).starts_with("pickle_") || code == Errc::unknown_format || code == Errc::unsupported_layout;
    }

    std::shared_ptr<const Source> file_of(std::string_view path) const {
        const std::string folder = folder_.name() + '/';
        if (!path.starts_with(folder)) return nullptr;
        try {
            return folder_.open(path.substr(folder.size()));
        } catch (const Error&) {  // a file that cannot be opened has its own error
            return nullptr;
        }
    }

    FaultSink& next_;
    const Folder& folder_;
};

/// Reads the folder itself, or throws the error of a kind that is not read.
Contents read_known(const std::shared_ptr<const Folder>& folder, const FolderShape& shape, const FolderNames& names,
                    const OpenOptions& options, FaultSink& faults) {
    const FolderKind* const kind = kind_of(shape);
    if (kind == nullptr) refuse(shape, names, *folder);
    OfFolder own(faults, *folder);
    Contents contents =
        adding([&](Error& error) { error = own.told(error); }, [&] { return kind->read(folder, shape, options, own); });
    if (shape.finished) contents.model_file = shape.files.front();
    note_others(shape, contents);
    return contents;
}

/// Reads the training state beside a finished model that has no values, or beside one that is not wanted.
Contents read_beside(const std::shared_ptr<const Folder>& folder, const FolderShape& shape, const FolderShape& model,
                     const FolderNames& names, const OpenOptions& options, FaultSink& faults) {
    Contents contents = read_known(folder, shape, names, options, faults);
    contents.notes.push_back("read " + listed(shape.files) + "; not read: " + listed(model.files));
    return contents;
}

Contents read_shape(const std::shared_ptr<const Folder>& folder, const FolderShape& shape, const FolderNames& names,
                    const OpenOptions& options, FaultSink& faults) {
    const FolderShape beside = shape.finished ? names::shape_beside_model(names) : FolderShape();
    const bool wants_state = options.weights != Weights::automatic || options.deepspeed_compat;
    if (wants_state && is_deepspeed(beside)) return read_beside(folder, beside, shape, names, options, faults);
    Contents contents = read_known(folder, shape, names, options, faults);
    if (beside.kind != ShapeKind::nothing && is_not_gathered(contents))
        return read_beside(folder, beside, shape, names, options, faults);
    return contents;
}

/// Takes files of any name as Hugging Face shards if their content says so. Names alone do not show that.
void find_shards(Located& found, std::uint64_t max_header_bytes) {
    FolderShape& shape = found.shape;
    const bool indexed = shape.finished && shape.kind != ShapeKind::shards;
    if (indexed || shape.kind == ShapeKind::index || shape.kind == ShapeKind::hf_shards) return;
    FileNames shards = safetensors::shard_files(*found.folder, found.names.files, max_header_bytes);
    if (shards.empty()) return;
    shape = {.kind = ShapeKind::hf_shards, .files = std::move(shards)};
    for (const std::string& name : found.names.files)
        if ((names::is_weights(name) || name == ".metadata") && !has(shape.files, name)) shape.others.push_back(name);
}

/// Opens a folder by its path in another one: a name, or two with a slash between them. Returns null if it is not
/// there.
std::shared_ptr<const Folder> folder_at(std::shared_ptr<const Folder> folder, std::string_view path) {
    for (std::size_t slash = 0; folder && slash != path.npos;) {
        slash = path.find('/');
        folder = folder->folder(path.substr(0, slash));
        path.remove_prefix(std::min(slash, path.size() - 1) + 1);
    }
    return folder;
}

/// Recognises the shape of the folder. Returns false if a folder in it is to be read instead; `found` then refers to
/// that folder.
bool recognise_or_descend(Located& found, bool may_descend, std::uint64_t max_header_bytes) {
    found.names = names::names_in(*found.folder);
    found.shape = names::shape_of(found.names);
    find_shards(found, max_header_bytes);
    if (found.shape.kind != ShapeKind::several)
        for (std::string& name : models_that_are_no_files(*found.folder)) found.shape.others.push_back(std::move(name));
    if (!found.shape.optimizer_inside.empty()) found.optimizer = found.folder->folder(found.shape.optimizer_inside);
    if (found.shape.kind != ShapeKind::folder) return true;
    const std::string& name = found.shape.files.front();
    auto below = may_descend ? folder_at(found.folder, name) : nullptr;
    if (!below) throw Error(Errc::not_a_checkpoint, excerpt(name) + " cannot be opened as a folder");
    std::string note = "read the checkpoint in " + excerpt(name);
    if (!found.shape.others.empty()) note += "; not read: " + listed(found.shape.others);
    if (!found.shape.unfinished.empty()) note += "; unfinished: " + listed(found.shape.unfinished);
    found.notes.push_back(std::move(note));
    if (!found.shape.optimizer.empty()) found.optimizer = found.folder->folder(found.shape.optimizer.front());
    found.around.insert(found.around.begin(), std::exchange(found.folder, std::move(below)));
    return false;
}

/// Reads the optimizer in a folder beside the model. If both are files of ranks, those of the model can say of which
/// parameters the state is.
Contents read_optimizer(const std::shared_ptr<const Folder>& folder, const RunFiles& model,
                        const OpenOptions& options) {
    const Located found = locate(folder, options.max_header_bytes);
    if (found.shape.kind == ShapeKind::rank_files && found.shape.optimizer.empty() && model.folder) {
        Contents contents = about_file(found.folder->name(), [&] {
            return read_rank_set({found.folder, found.shape.files}, options, model);
        });
        contents.folder = found.folder;
        return contents;
    }
    ThrowFirst first;
    return read_located(found, options, first);
}

}  // namespace

void add_optimizer(Contents& contents, const std::string& where, std::function<Contents()> optimizer) {
    if (contents.optimizer) return;
    contents.skipped.push_back(
        {.name = names::optimizer_folder,
         .type = "the state of the optimizer",
         .why = "it is in " + where + "; Checkpoint::optimizer() gives it, --optimizer converts it"});
    contents.notes.push_back("the state of the optimizer is in " + where);
    contents.optimizer = std::move(optimizer);
}

std::optional<std::string> note_of_file(const std::filesystem::path& file, const Contents& contents) {
    for (const FolderKind& kind : kinds)
        if (auto note = kind.note_of_file != nullptr ? kind.note_of_file(file, contents) : std::nullopt) return note;
    return std::nullopt;
}

RunFiles files_of_run(const std::filesystem::path& path) {
    std::error_code ignored;
    if (!std::filesystem::is_directory(path, ignored)) return {};
    CollectFaults unused;
    RunFiles run;
    reporting(unused, [&] {
        const Located found = locate(open_folder(path, Mapping::never));
        const FolderKind* const kind = kind_of(found.shape);
        if (kind != nullptr && kind->list_run != nullptr)
            run = {found.folder, kind->list_run(*found.folder, found.shape)};
    });
    return run;
}

Located locate(std::shared_ptr<const Folder> folder, std::uint64_t max_header_bytes) {
    constexpr int most_levels = 4;  // a link may lead back
    Located found{.folder = std::move(folder)};
    for (int levels = 0;; ++levels) {
        const std::shared_ptr<const Folder> here = found.folder;
        if (about_file(here->name(),
                       [&] { return recognise_or_descend(found, levels < most_levels, max_header_bytes); }))
            return found;
    }
}

Contents read_located(const Located& found, const OpenOptions& options, FaultSink& faults) {
    return about_file(found.folder->name(), [&] {
        Contents contents = read_shape(found.folder, found.shape, found.names, options, faults);
        contents.notes.insert(contents.notes.begin(), found.notes.begin(), found.notes.end());
        contents.folder = found.folder;
        contents.around = found.around;
        if (!found.optimizer) return contents;
        contents.optimizer_path = found.optimizer->name();
        RunFiles model;
        if (found.shape.kind == ShapeKind::rank_files) model = {found.folder, found.shape.files};
        add_optimizer(contents, last_name(found.optimizer->name()) + '/',
                      [folder = found.optimizer, model, options] { return read_optimizer(folder, model, options); });
        return contents;
    });
}

}  // namespace safemap::SAFEMAP_ABI::open
