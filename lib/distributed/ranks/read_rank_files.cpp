// From the files of a set to the contents of a checkpoint. The order of the steps:
//
//   read_set          all files, in parallel; the first one decides the layout, and the others are compared with it
//   contents_of_…     whole tensors in a tree, for each layout
//   add_differences   values in which ranks differ, below rank_1, rank_2, …
#include "distributed/ranks/read_rank_files.hpp"

#include "base/faults.hpp"
#include "base/text.hpp"
#include "distributed/flat/flat_params.hpp"
#include "distributed/flat/manifest.hpp"
#include "distributed/flat/olmo_optimizer.hpp"
#include "distributed/flat/olmo_ranks.hpp"
#include "distributed/flat/unnamed_optimizer.hpp"
#include "distributed/pickles.hpp"
#include "distributed/ranks/rank_tensors.hpp"
#include "distributed/ranks/shard_lists.hpp"
#include "distributed/ranks/tree_values.hpp"
#include "names/file_names.hpp"
#include "state/names.hpp"
#include "state/path_tree.hpp"
#include "torch/parts.hpp"

#include <safemap/error.hpp>

#include <algorithm>
#include <iterator>
#include <optional>
#include <string_view>
#include <unordered_map>
#include <utility>

namespace safemap::SAFEMAP_ABI::distributed {

namespace {

using NodeId = StateTree::NodeId;
using state::Contents;

enum class Layout : std::uint8_t { tensors, flat, chunks, olmo };

/// The files of a set, read.
struct ReadSet {
    explicit ReadSet(RankNames names) : ranks(std::make_shared<RankFileSet>(std::move(names))) {}

    std::shared_ptr<RankFileSet> ranks;
    Layout layout = Layout::tensors;
    std::optional<Manifest> manifest = {};
    std::vector<OlmoRank> olmo = {};
    std::vector<std::string> notes = {};
    bool beside_flat = false;  ///< the files of an optimizer, whose model has flat parameters
    /// Paths of optimizers whose state is left out: parts without names. Set by the first file.
    std::vector<std::string> unnamed = {};
};

// Reading.

std::optional<Manifest> find_manifest(const RankFiles& set) {
    if (set.manifest) return read_manifest(*set.manifest);
    const auto source = set.folder->open(manifest_name);
    return source ? std::optional(read_manifest(*source)) : std::nullopt;
}

Manifest require_manifest(const RankFiles& set, std::string_view what) {
    if (auto manifest = find_manifest(set)) return *std::move(manifest);
    throw Error(Errc::manifest_missing, "the file holds " + std::string(what) +
                                            " without names and shapes, and there is no " + std::string(manifest_name) +
                                            " in the folder")
        .with_hint("--manifest FILE gives a manifest that is elsewhere; docs/fsdp.md describes it");
}

Skeleton::RoleOf same_role(TensorRole role) {
    return [role](std::string_view, const LazyTensor&) { return role; };
}

/// Leaves out the state of optimizers that has no names.
void drop_unnamed(const std::vector<std::string>& unnamed, StateTree& tree) {
    for (const std::string& path : unnamed) tree.erase(state_path(path));
    if (!unnamed.empty()) tree = tree.subtree(tree.root());
}

/// Leaves out the state of optimizers beside flat parameters, which is flat as well. Its parts have one length in all
/// ranks, so that they look like copies of one tensor.
void drop_flat_states(ReadSet& read, StateTree& tree) {
    for (std::string& path : local_states(tree))
        if (std::find(read.unnamed.begin(), read.unnamed.end(), path) == read.unnamed.end())
            read.unnamed.push_back(std::move(path));
    for (const std::string& path : read.unnamed)
        if (path.empty()) throw unnamed_state(path);
    drop_unnamed(read.unnamed, tree);
}

/// Decides the layout. Unless it is OLMo's, sets the skeleton, which takes the tree.
void begin(ReadSet& read, StateTree& tree, const RankFiles& set, const ShardLists* lists) {
    RankFileSet& ranks = *read.ranks;
    Skeleton::RoleOf role_of = same_role(TensorRole::replica);
    if (is_olmo_rank(tree)) {
        read.layout = Layout::olmo;
        return;
    }
    if (read.beside_flat || has_flat_parameters(tree)) drop_flat_states(read, tree);
    else drop_unnamed(read.unnamed, tree);
    if (has_flat_parameters(tree)) {
        read.layout = Layout::flat;
        read.manifest = require_manifest(set, "flat parameters of FSDP1");
        check_flat_parameters(*read.manifest, ranks.names.size());
        role_of = roles_beside_flat(*read.manifest);
    } else if (is_list_of_chunks(tree)) {
        // Without a manifest, it may be a list that is the same in all ranks.
        read.manifest = find_manifest(set);
        if (read.manifest) read.layout = Layout::chunks;
        if (read.manifest) role_of = same_role(TensorRole::piece);
    }
    ranks.skeleton.emplace(std::move(tree), ranks.names, ranks.meshes, role_of, lists);
}

/// Returns the rank of another file under whose name this one was saved: torch names the folder in the zip after it.
std::optional<std::uint64_t> saved_as_rank(const std::string& saved_as, const std::string& file) {
    const auto own = names::rank_file(file);
    const std::size_t dot = file.rfind('.');
    if (!own || saved_as.empty() || dot == file.npos) return std::nullopt;
    const auto then = names::rank_file(saved_as + file.substr(dot));
    if (!then || then->set != own->set || then->rank == own->rank) return std::nullopt;
    return then->rank;
}

/// How much of plain tensors is compared: a little of each, and in all files no more than 64 MiB.
SampleSizes sample_sizes(std::size_t files) {
    constexpr std::uint64_t each = 4 << 10;
    constexpr std::uint64_t all = 64 << 20;
    constexpr std::uint64_t least = 64 << 10;
    return {.each = each, .all = std::max(least, all / std::max<std::size_t>(1, files))};
}

void read_file_with(ShardLists* lists, ReadSet& read, const RankFiles& set, std::size_t i,
                    const std::shared_ptr<const Source>& source, torch::NamedGlobals& globals) {
    RankFileSet& ranks = *read.ranks;
    torch::Parts parts = torch::read_whole(source, &globals, lists);
    if (lists != nullptr) lists->place_in(parts.tree, parts.taken_lists);
    if (i == 0) read.notes = std::move(parts.notes);
    const bool first = i == 0;
    const StateTree* tree = &parts.tree;
    if (!first) drop_unnamed(read.unnamed, parts.tree);
    if (first) {
        begin(read, parts.tree, set, lists);
        if (ranks.skeleton) tree = &ranks.skeleton->tree();
    }
    if (read.layout == Layout::olmo) {
        if (lists != nullptr && !lists->empty()) throw TakenValue();
        read.olmo[i] = read_olmo_rank(*tree);
        if (!first) compare_and_drop(read.olmo.front(), ranks.names.file(0), read.olmo[i]);
        return;
    }
    SampleSizes samples = sample_sizes(ranks.names.size());
    if (ranks.skeleton->has_parts()) samples.each = 0;
    ranks.shares[i] = share_of(*ranks.skeleton, *tree, ranks.names, i, source, ranks.meshes, samples, lists);
    RankShare& share = ranks.shares[i];
    if (!share.foreign && !share.states_rank) share.foreign = saved_as_rank(parts.saved_as, ranks.names.file(i));
}

/// Reads a file without nodes for its lists of shards. If anything is wrong, reads it again with them: the error, if
/// there is one, is that of the whole pickle.
void read_file(ReadSet& read, const RankFiles& set, std::size_t i, const std::shared_ptr<const Source>& source,
               torch::NamedGlobals& globals) {
    if (!set.takes_lists) return read_file_with(nullptr, read, set, i, source, globals);
    const torch::NamedGlobals before = globals;
    std::optional<ShardLists> lists(std::in_place);
    try {
        return read_file_with(&*lists, read, set, i, source, globals);
    } catch (const std::exception&) {
        if (lists->empty()) throw;
    }
    lists.reset();
    globals = before;
    if (i == 0) {
        read.ranks->skeleton.reset();
        read.layout = Layout::tensors;
        read.manifest.reset();
    }
    read_file_with(nullptr, read, set, i, source, globals);
}

void read_set(ReadSet& read, const RankFiles& set, const OpenOptions& options, FoundGlobals& globals) {
    const RankNames& names = read.ranks->names;
    read.ranks->shares.resize(names.size());
    read.olmo.resize(names.size());
    for_each_pickle(*set.folder, names.files(), options.work, &globals,
                    [&](std::size_t i, const std::shared_ptr<const Source>& source, torch::NamedGlobals& own) {
                        read_file(read, set, i, source, own);
                    });
}

/// Throws if the last ranks of a layout without meshes are missing. If the names say how many ranks there are, all are
/// there.
void require_last_ranks(const ReadSet& read) {
    const RankNames& names = read.ranks->names;
    if (names.world_size()) return;
    if (read.layout == Layout::olmo) names.require_first(ranks_wanted(read.olmo.front()), "the model");
    if (read.layout == Layout::chunks)
        if (const auto count = ranks_wanted(*read.manifest)) names.require_first(*count, "the manifest");
}

/// Throws if the names give another number of ranks than the files that are there, and say what the files say of it.
void require_ranks(const RankFiles& set, const RankNames& names, const OpenOptions& options) {
    try {
        names.require_named_ranks();
    } catch (const Error& error) {
        if (error.code() != Errc::rank_missing || !names.world_size() || names.size() == 0) throw;
        // All files of a smaller run may be there, under names of a larger one.
        ReadSet alone(names.without_world_size());
        FoundGlobals globals(options.strict_globals, {}, is_known_in_rank_files);
        bool complete = false;
        try {
            alone.ranks->shares.resize(1);
            alone.olmo.resize(1);
            for_each_pickle(*set.folder, std::span(names.files()).first(1), options.work, &globals,
                            [&](std::size_t i, const auto& source, torch::NamedGlobals& own) {
                                read_file(alone, set, i, source, own);
                            });
            complete = alone.ranks->skeleton && alone.ranks->skeleton->has_meshes();
        } catch (const Error&) {  // the first error says what is wrong
        }
        if (!complete) throw;
        throw Error(Errc::world_mismatch, "the names of the files say that there are " +
                                              std::to_string(*names.world_size()) + " ranks; the meshes in " +
                                              excerpt(names.file(0)) + " have no more ranks than the " +
                                              std::to_string(names.size()) + " files that are there")
            .with_hint("the files were renamed, or are of different runs");
    }
}

// One file by itself.

[[noreturn]] void refuse_part(const RankFileSet& ranks, const std::string& what) {
    const RankNames& names = ranks.names;
    std::string text = "this is the file of rank " + std::to_string(names.rank(0));
    if (const auto world = names.world_size()) text += " of " + std::to_string(*world);
    throw Error(Errc::rank_missing, text + ", and it holds parts of tensors: " + what);
}

/// Returns how a tensor of the file is only a part; an empty text if it is whole.
std::string part_text(const RankFileSet& ranks, std::size_t i) {
    const SkeletonTensor& tensor = ranks.skeleton->tensors()[i];
    if (tensor.role == TensorRole::dtensor) {
        const Mesh& mesh = ranks.meshes[tensor.mesh];
        for (std::size_t m = 0; m < mesh.shape.size(); ++m)
            if (mesh.shape[m] > 1 && tensor.said.placements[m].cuts())
                return excerpt(tensor.name) + " has the placements " + to_string(tensor.said.placements) +
                       " on the mesh " + to_string(mesh);
        return {};
    }
    if (tensor.role != TensorRole::sharded) return {};
    const LocalPart& part = ranks.shares.front().parts[i];
    const std::size_t own = part.state == LocalPart::State::run ? 1 : part.count;
    const auto& shards = tensor.said.shards;
    const auto with_values = static_cast<std::size_t>(std::count_if(
        shards.begin(), shards.end(), [](const StatedShard& one) { return element_count(one.extent) != 0; }));
    if (with_values <= own) return {};
    return excerpt(tensor.name) + " has " + std::to_string(with_values) + " shards, and " + std::to_string(own) +
           (own == 1 ? " is" : " are") + " in the file";
}

/// Throws rank_missing if the only file holds a part of a tensor, and notes why the others are not needed.
void require_whole(ReadSet& read) {
    const RankFileSet& ranks = *read.ranks;
    if (!ranks.skeleton) return;  // OLMo's lists say how many ranks there are
    if (read.layout == Layout::flat) return;
    const auto& tensors = ranks.skeleton->tensors();
    const Mesh* replicated = nullptr;
    for (std::size_t i = 0; i < tensors.size(); ++i) {
        if (const std::string text = part_text(ranks, i); !text.empty()) refuse_part(ranks, text);
        if (tensors[i].role != TensorRole::dtensor) continue;
        const Mesh& mesh = ranks.meshes[tensors[i].mesh];
        if (mesh.ranks.size() > 1) replicated = &mesh;
    }
    if (replicated != nullptr)
        read.notes.push_back("this is the file of rank " + std::to_string(ranks.names.rank(0)) + " of the mesh " +
                             to_string(*replicated) + "; its tensors are replicated, so that they are whole");
}

/// Reads a file by itself. Its name need not give the rank that it states.
void read_alone(ReadSet& read, const RankFiles& set, const OpenOptions& options, FoundGlobals& globals) {
    FoundGlobals own = globals.another();
    read_set(read, set, options, own);
    RankShare& share = read.ranks->shares.front();
    if (const auto stated = std::exchange(share.foreign, std::nullopt); stated && share.states_rank) {
        read = ReadSet(RankNames::alone(set.files.front(), stated));
        own = globals.another();
        read_set(read, set, options, own);
    }
    globals.add(std::move(own));
    require_whole(read);
}

// Contents.

/// Sets the mesh, if all tensors have one of the same form.
void set_mesh(TrainingLayout& layout, const RankFileSet& ranks) {
    const Mesh* found = nullptr;
    for (const SkeletonTensor& tensor : ranks.skeleton->tensors()) {
        if (tensor.role != TensorRole::dtensor) continue;
        const Mesh& mesh = ranks.meshes[tensor.mesh];
        if (found != nullptr && (mesh.shape != found->shape || mesh.names != found->names)) return;
        found = &mesh;
    }
    if (found == nullptr) return;
    layout.mesh = found->shape;
    layout.mesh_names = found->names;
}

/// Builds the dictionary of the values of one rank that differ. Returns its node.
NodeId dict_of_differences(state::PathTree& tree, const RankShare& share) {
    const NodeId root = tree.add(StateTree::Dict{});
    std::unordered_map<std::string, NodeId> other_keys;  // neither texts nor integers, by their segments
    const auto key_of = [&](const std::string& segment) {
        auto key = state::key_of(segment);
        if (!key) return tree.key(segment);
        if (const auto* const text = std::get_if<std::string>(&*key)) return tree.key(*text);
        if (const auto* const number = std::get_if<std::int64_t>(&*key)) return tree.key(*number);
        const auto [known, is_new] = other_keys.try_emplace(segment, StateTree::no_node);
        if (is_new) known->second = tree.add(*std::move(key));
        return known->second;
    };
    TreeCopy copy(share.objects, tree.tree());
    for (const auto& [path, node, key] : share.different) {
        NodeId parent = root;
        std::size_t begin = 0;
        for (std::size_t slash; (slash = path.find('/', begin)) != path.npos; begin = slash + 1)
            parent = tree.dict_below(parent, key_of(path.substr(begin, slash - begin)));
        const NodeId value = copy.copy(node);
        const NodeId own_key = key == StateTree::no_node ? key_of(path.substr(begin)) : copy.copy(key);
        std::get<StateTree::Dict>(tree.tree()[parent]).items.emplace_back(own_key, value);
    }
    return root;
}

/// Returns a key that the dictionary does not have.
std::string free_key(const StateTree& tree, const StateTree::Dict& dict, std::string key) {
    const auto taken = [&](const std::string& wanted) {
        return std::any_of(dict.items.begin(), dict.items.end(), [&](const auto& item) {
            const auto* const text = std::get_if<std::string>(&tree[item.first]);
            return text != nullptr && *text == wanted;
        });
    };
    while (taken(key)) key += '~';
    return key;
}

/// Adds the values that differ between ranks to the root of the tree.
void add_differences(StateTree& tree, const RankFileSet& ranks, std::vector<std::string>& notes) {
    std::size_t values = 0;
    std::string first;
    std::string lacking;
    std::size_t ranks_with = 0;
    for (const RankShare& share : ranks.shares) {
        if (!share.lacking.empty() && lacking.empty())
            lacking = excerpt(ranks.names.file(0)) + " has values that the file of rank " + std::to_string(share.rank) +
                      " lacks, for example " + excerpt(share.lacking.front());
        if (share.different.empty()) continue;
        values += share.different.size();
        ++ranks_with;
        if (first.empty()) first = share.different.front().path;
        if (!std::holds_alternative<StateTree::Dict>(tree[tree.root()])) continue;
        state::PathTree grown(std::move(tree));
        const NodeId own = dict_of_differences(grown, share);
        tree = grown.take();
        const auto& root = std::get<StateTree::Dict>(tree[tree.root()]);
        const NodeId key = tree.add(free_key(tree, root, "rank_" + std::to_string(share.rank)));
        std::get<StateTree::Dict>(tree[tree.root()]).items.emplace_back(key, own);
    }
    if (values > 0)
        notes.push_back(counted(values, "value of ", "values of ") + counted(ranks_with, "rank") +
                        " differ from those of rank " + std::to_string(ranks.names.rank(0)) + ", for example " +
                        excerpt(first.empty() ? std::string(state::root_name) : first) +
                        (std::holds_alternative<StateTree::Dict>(tree[tree.root()])
                             ? "; they are listed below rank_N, where N is the rank"
                             : "; they are not listed"));
    if (!lacking.empty()) notes.push_back(std::move(lacking));
}

/// Puts whole tensors in the places of distributed ones.
StateTree tree_of_wholes(RankFileSet& ranks, const RankTensors& tensors) {
    StateTree tree = ranks.skeleton->take_tree();
    const auto& all = ranks.skeleton->tensors();
    for (std::size_t i = 0; i < all.size(); ++i)
        if (all[i].role == TensorRole::dtensor || all[i].role == TensorRole::sharded)
            tree[all[i].node] = StateTree::Tensor{.tensor = tensors.tensor(i).renamed({}),
                                                  .parameter = all[i].parameter,
                                                  .requires_grad = all[i].requires_grad};
    return tree;
}

/// Frees what is not needed to make replicas.
void drop_values(RankFileSet& ranks) {
    for (RankShare& share : ranks.shares) {
        share.objects = {};
        share.different = {};
        share.fits = {};
        share.lacking = {};
    }
}

/// Says that the state of optimizers was left out. Throws optimizer_unnamed if the files are those of an optimizer.
void add_unnamed(const ReadSet& read, bool is_optimizer, Contents& contents) {
    if (!read.unnamed.empty() && (is_optimizer || contents.tensors.empty()))
        throw unnamed_state(read.unnamed.front()).with_path(read.ranks->names.file(0));
    for (const std::string& path : read.unnamed) {
        const Error error = unnamed_state(path);
        contents.skipped.push_back(
            {.name = state_path(path), .type = "the state of the optimizer", .why = error.message()});
        contents.notes.push_back(excerpt(read.ranks->names.file(0)) + ": not read: " + error.message());
    }
    if (read.unnamed.empty()) return;
    contents.optimizer = [path = read.unnamed.front(), file = read.ranks->names.file(0)]() -> Contents {
        throw unnamed_state(path).with_path(file);
    };
}

StateTree tensors_of(ReadSet& read, const OpenOptions& options, Contents& contents) {
    const auto tensors = std::make_shared<RankTensors>(read.ranks);
    tensors->make(options.work);
    if (read.layout == Layout::chunks) {
        if (read.manifest->layers.empty())
            throw Error(Errc::manifest_mismatch, "the files hold layers as chunks, but the manifest has no layers")
                .with_path(read.manifest->path);
        return parameters_of_chunks(*read.ranks, *tensors, *read.manifest);
    }
    StateTree tree = tree_of_wholes(*read.ranks, *tensors);
    if (read.layout == Layout::flat) replace_flat_parameters(tree, *read.ranks, *tensors, *read.manifest);
    add_differences(tree, *read.ranks, contents.notes);
    drop_values(*read.ranks);
    contents.replicas.more = [tensors](const std::function<void(const state::Replica&)>& visit) {
        tensors->each_replica(visit);
    };
    set_mesh(*contents.layout, *read.ranks);
    return tree.subtree(tree.root());
}

Contents begin_contents(const ReadSet& read) {
    Contents contents;
    contents.format = Format::fsdp;
    contents.files = read.ranks->names.files();
    contents.notes = read.notes;
    contents.layout = TrainingLayout{
        .kind = read.layout == Layout::tensors ? "rank_files" : "flat_parameters",
        .world_size = read.ranks->names.size(),
    };
    return contents;
}

/// Returns the path of the optimizer whose state is the reason why files of ranks contradict each other.
std::optional<std::string> unnamed_state_of(const ReadSet& read, const Error& error) {
    if (error.code() != Errc::ranks_differ || !read.ranks->skeleton || !read.unnamed.empty()) return std::nullopt;
    return optimizer_around(read.ranks->skeleton->tree(), error.tensor());
}

/// The kinds of models that say something about the state of their optimizer.
enum class ModelKind : std::uint8_t { olmo, flat, other };

ModelKind kind_of_model(const RankFiles& set, const OpenOptions& options) {
    ModelKind kind = ModelKind::other;
    const RankNames names(set.files);
    for_each_file(*set.folder, std::span(names.files()).first(1), options.work, [&](std::size_t, const auto& source) {
        const StateTree tree = torch::read_whole(source, nullptr).tree;
        if (is_olmo_rank(tree)) kind = ModelKind::olmo;
        else if (has_flat_parameters(tree)) kind = ModelKind::flat;
    });
    return kind;
}

/// Reads the state of an optimizer beside local shards of OLMo.
Contents read_olmo_optimizer(const RankFiles& set, const OpenOptions& options) {
    const RankNames names(set.files);
    FoundGlobals globals(options.strict_globals, {}, is_known_in_rank_files);
    ReadSet model{RankNames(set.model->files)};
    FoundGlobals of_model = globals.another();
    read_set(model, *set.model, options, of_model);
    names.require_first(model.ranks->names.size(), "the model");
    if (names.size() != model.olmo.size())
        throw Error(Errc::world_mismatch, "there are files of " + std::to_string(names.size()) +
                                              " ranks, and the model has " + std::to_string(model.olmo.size()));
    std::vector<OlmoState> states(names.size());
    StateTree first;
    for_each_pickle(*set.folder, names.files(), options.work, &globals,
                    [&](std::size_t i, const std::shared_ptr<const Source>& source, torch::NamedGlobals& own) {
                        torch::Parts parts = torch::read_whole(source, &own);
                        if (!is_named_optimizer(parts.tree)) throw unnamed_state({});
                        if (const auto rank = saved_as_rank(parts.saved_as, names.file(i)))
                            throw Error(Errc::ranks_differ,
                                        "the file was saved as that of rank " + std::to_string(*rank));
                        states[i] = read_olmo_state(parts.tree, names.file(i));
                        if (i == 0) first = std::move(parts.tree);
                        else compare_groups(first, names.file(0), parts.tree);
                    });
    Contents contents;
    contents.format = Format::fsdp;
    contents.files = names.files();
    contents.folder = set.folder;
    contents.layout = TrainingLayout{.kind = "flat_parameters", .world_size = names.size()};
    state::set_tree(contents, optimizer_of_olmo(std::move(first), states, model.olmo, contents.replicas));
    globals.move_to(contents);
    return contents;
}

}  // namespace

bool holds_parts(const StateTree& tree) {
    if (is_olmo_rank(tree) || has_flat_parameters(tree)) return true;
    for (NodeId id = 0; id < tree.size(); ++id)
        if (distributed_kind(tree[id])) return true;
    return false;
}

bool is_known_in_rank_files(const PickleGraph::Global& global) {
    constexpr std::string_view classes[] = {"DTensor",
                                            "DTensorSpec",
                                            "TensorMeta",
                                            "ShardOrderEntry",
                                            "Shard",
                                            "Replicate",
                                            "_StridedShard",
                                            "Partial",
                                            "_Partial",
                                            "_MaskPartial",
                                            "_NormPartial",
                                            "DeviceMesh",
                                            "_MeshLayout",
                                            "_FlatLayout",
                                            "ShardedTensor",
                                            "ShardedTensor.ProcessGroupState",
                                            "ShardedTensorMetadata",
                                            "ShardMetadata",
                                            "TensorProperties",
                                            "MEM_FORMAT_ENCODING",
                                            "ChunkShardingSpec",
                                            "EnumerableShardingSpec",
                                            "_remote_device",
                                            "_ShardParamInfo"};
    const bool is_module = global.module.starts_with("torch.distributed.");
    return is_module && std::find(std::begin(classes), std::end(classes), global.name) != std::end(classes);
}

Contents read_rank_files(const RankFiles& set, const OpenOptions& options) {
    if (set.files.empty()) throw Error(Errc::rank_missing, "there are no files of ranks");
    const ModelKind model = set.model ? kind_of_model(*set.model, options) : ModelKind::other;
    if (model == ModelKind::olmo) return read_olmo_optimizer(set, options);
    const RankNames names = set.alone ? RankNames::alone(set.files.front()) : RankNames(set.files);
    require_ranks(set, names, options);
    FoundGlobals globals(options.strict_globals, {}, is_known_in_rank_files);
    ReadSet read(names);
    read.beside_flat = model == ModelKind::flat;
    const auto read_all = [&] {
        if (set.alone) read_alone(read, set, options, globals);
        else read_set(read, set, options, globals);
        require_last_ranks(read);
        Contents contents = begin_contents(read);
        state::set_tree(contents, read.layout == Layout::olmo ? parameters_of_olmo(read.olmo)
                                                              : tensors_of(read, options, contents));
        add_unnamed(read, set.model != nullptr, contents);
        globals.move_to(contents);
        return contents;
    };
    try {
        return read_all();
    } catch (Error& error) {
        if (const auto path = unnamed_state_of(read, error)) {
            const bool named = is_named_optimizer(read.ranks->skeleton->tree());
            if (path->empty()) throw unnamed_state(*path, named).with_path(error.path()).with_tensor(error.tensor());
            read = ReadSet(names);
            read.unnamed.push_back(*path);
            globals = FoundGlobals(options.strict_globals, {}, is_known_in_rank_files);
            return read_all();
        }
        // A list of plain tensors that is not the same in all ranks.
        const bool lists =
            read.ranks->skeleton && read.layout == Layout::tensors && is_list_of_chunks(read.ranks->skeleton->tree());
        if (error.code() == Errc::ranks_differ && read.layout == Layout::flat && !error.tensor().empty())
            error.with_hint("if the tensor is a parameter, the manifest lacks it");
        if (error.code() != Errc::ranks_differ || !lists) throw;
        throw Error(Errc::manifest_missing,
                    "the files hold lists of tensors in one dimension that differ between "
                    "ranks, and there is no " +
                        std::string(manifest_name) + " in the folder")
            .with_path(error.path())
            .with_hint("--manifest FILE gives a manifest that is elsewhere; docs/fsdp.md describes it");
    }
}

}  // namespace safemap::SAFEMAP_ABI::distributed
