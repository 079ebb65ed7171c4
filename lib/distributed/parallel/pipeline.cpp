// Joins the stages of a pipeline, reads the files of its layers, and matches tied layers with their masters.
#include "distributed/parallel/pipeline.hpp"

#include "base/faults.hpp"
#include "base/text.hpp"
#include "distributed/agree.hpp"
#include "names/zero_files.hpp"

#include <safemap/error.hpp>

#include <algorithm>
#include <cstddef>
#include <iterator>
#include <set>
#include <unordered_map>
#include <unordered_set>
#include <utility>

namespace safemap::SAFEMAP_ABI::distributed {

using names::ZeroFile;

namespace {

using WeightKind = ModelWeights::Weight::Kind;

/// A weight that is listed, and the file of its stage.
struct Listed {
    std::size_t number = 0;
    std::string file = {};
};

/// Throws ranks_differ if the weights of a tied layer have other dtypes or shapes in two stages.
void require_alike(const LazyTensor& first, const std::string& first_file, const LazyTensor& other,
                   const std::string& file) {
    about_tensor(first.name(), [&] {
        const Agreement agree(first_file, file);
        agree("the dtype", first.dtype(), other.dtype());
        agree("the shape", first.shape(), other.shape());
    });
}

void add_name(std::vector<std::string>& names, const std::string& name) {
    if (std::find(names.begin(), names.end(), name) == names.end()) names.push_back(name);
}

bool is_shared(const ZeroFile& file) { return file.name.kind == names::NameKind::zero_shared_layer; }

/// Returns the files of one tensor rank. Without tensor parallelism, names have none.
std::vector<ZeroFile> layer_files(const Folder& folder, std::uint64_t tensor_rank) {
    std::vector<ZeroFile> files = names::zero_files(folder.list()).layers;
    const bool shared = std::any_of(files.begin(), files.end(), is_shared);
    std::erase_if(
        files, [&](const ZeroFile& file) { return shared ? !is_shared(file) : file.name.model_rank != tensor_rank; });
    return files;
}

}  // namespace

ModelWeights join_stages(std::vector<ModelRank> stages) {
    ModelWeights joined;
    std::unordered_set<std::string> state_names;
    std::unordered_map<std::string, Listed> listed;
    for (ModelRank& stage : stages) {
        for (ModelWeights::Weight& weight : stage.joined.weights) {
            const auto [place, is_new] = listed.try_emplace(weight.name, Listed{joined.weights.size(), stage.file});
            if (is_new) {
                joined.weights.push_back(std::move(weight));
                continue;
            }
            const LazyTensor& first = joined.weights[place->second.number].tensor;
            require_alike(first, place->second.file, weight.tensor, stage.file);
            joined.replicas.push_back({weight.name, first, std::move(weight.tensor), place->second.file, stage.file});
        }
        std::move(stage.joined.aliases.begin(), stage.joined.aliases.end(), std::back_inserter(joined.aliases));
        for (const std::string& note : stage.joined.notes) add_name(joined.notes, note);
        std::move(stage.joined.replicas.begin(), stage.joined.replicas.end(), std::back_inserter(joined.replicas));
        for (const std::string& name : stage.joined.state_names)
            if (state_names.insert(name).second) joined.state_names.push_back(name);
    }
    return joined;
}

ModelWeights join_model_ranks(std::vector<ModelRank> ranks, std::uint64_t tensor_ranks, const UniversalInfo* info) {
    if (tensor_ranks == 0 || ranks.size() % tensor_ranks != 0)
        throw Error(Errc::world_mismatch, "there are " + std::to_string(ranks.size()) +
                                              " model ranks; expected a multiple of the " +
                                              std::to_string(tensor_ranks) + " ranks of tensor parallelism")
            .with_path(ranks.front().file);
    std::vector<ModelRank> stages;
    for (std::size_t first = 0; first < ranks.size(); first += tensor_ranks) {
        const auto begin = std::make_move_iterator(ranks.begin() + static_cast<std::ptrdiff_t>(first));
        std::vector<ModelRank> stage(begin, begin + static_cast<std::ptrdiff_t>(tensor_ranks));
        const std::uint64_t number = stage.front().number;
        std::string file = stage.front().file;
        stages.push_back({number, std::move(file), merge(std::move(stage), info)});
    }
    return join_stages(std::move(stages));
}

LayerFiles read_layers(const Folder& folder, std::uint64_t tensor_rank, const Work& work, FoundGlobals* globals) {
    const std::vector<ZeroFile> files = layer_files(folder, tensor_rank);
    LayerFiles read;
    std::vector<std::string> prefixes;
    for (const ZeroFile& file : files) {
        read.files.push_back(file.file);
        prefixes.push_back(std::to_string(file.name.layer) + '.');
        read.numbers.push_back(file.name.layer);
        read.shared = is_shared(file);
    }
    read.weights = read_tensors(folder, read.files, work, globals, prefixes);
    return read;
}

std::string layer_name(std::uint64_t layer, std::optional<std::uint64_t> tensor_rank) {
    return names::spelled({.kind = tensor_rank ? names::NameKind::zero_layer : names::NameKind::zero_shared_layer,
                           .model_rank = tensor_rank.value_or(0),
                           .layer = layer});
}

std::optional<std::uint64_t> layer_of(std::string_view name) {
    const std::size_t end = name.find('.');
    if (end == name.npos || end == 0 || name.find_first_not_of("0123456789") != end) return std::nullopt;
    return decimal(name.substr(0, end));
}

namespace {

/// Returns the path of the file that a tensor rank has a layer in.
std::string layer_path(const LayerFiles& files, std::uint64_t layer, const std::string& folder) {
    const auto found = std::find(files.numbers.begin(), files.numbers.end(), layer);
    if (found == files.numbers.end()) return folder;
    return folder + '/' + files.files[static_cast<std::size_t>(found - files.numbers.begin())];
}

void require_layer_files(const std::vector<LayerFiles>& ranks, const std::string& folder) {
    std::set<std::uint64_t> layers;
    for (const LayerFiles& rank : ranks) layers.insert(rank.numbers.begin(), rank.numbers.end());
    std::string missing;
    for (std::size_t rank = 0; rank < ranks.size(); ++rank) {
        const std::set<std::uint64_t> own(ranks[rank].numbers.begin(), ranks[rank].numbers.end());
        for (const std::uint64_t layer : layers)
            if (!own.contains(layer) && missing.size() < 1024)
                missing += (missing.empty() ? "" : ", ") + layer_name(layer, rank);
    }
    if (!missing.empty()) throw Error(Errc::rank_missing, "files of layers are missing: " + missing).with_path(folder);
}

/// Throws if `other` lacks a name of `has`.
void require_names(const LayerFiles& has, const LayerFiles& other, const std::string& folder) {
    std::unordered_set<std::string_view> names;
    for (const auto& each : other.weights) names.insert(each.first);
    for (const auto& each : has.weights) {
        if (names.contains(each.first)) continue;
        const std::uint64_t layer = layer_of(each.first).value_or(0);
        throw Error(Errc::ranks_differ, "the file lacks " + excerpt(each.first) + ", which " +
                                            excerpt(layer_path(has, layer, folder)) + " has")
            .with_path(layer_path(other, layer, folder))
            .with_tensor(each.first);
    }
}

std::uint64_t stage_of(const LayerStages& stages, std::uint64_t layer) {
    if (stages.empty()) return 0;
    const auto next = stages.upper_bound(layer);
    return next == stages.begin() ? next->second : std::prev(next)->second;
}

}  // namespace

void require_same_layers(const std::vector<LayerFiles>& ranks, const std::string& folder) {
    require_layer_files(ranks, folder);
    for (std::size_t rank = 1; rank < ranks.size(); ++rank) {
        require_names(ranks.front(), ranks[rank], folder);
        require_names(ranks[rank], ranks.front(), folder);
    }
}

ModelWeights merge_layers(std::vector<LayerFiles> ranks, const LayerStages& stages, const std::string& folder,
                          const UniversalInfo* info) {
    std::map<std::uint64_t, std::vector<ModelRank>> by_stage;
    for (std::size_t rank = 0; rank < ranks.size(); ++rank)
        for (auto& [name, tensor] : ranks[rank].weights) {
            const std::uint64_t layer = layer_of(name).value_or(0);
            const std::uint64_t stage = stage_of(stages, layer);
            std::vector<ModelRank>& own = by_stage[stage];
            own.resize(ranks.size());
            own[rank].number = stage * ranks.size() + rank;
            if (own[rank].file.empty()) own[rank].file = layer_path(ranks[rank], layer, folder);
            own[rank].joined.weights.push_back({name, std::move(tensor), {}, {}});
        }
    std::vector<ModelRank> merged;
    for (auto& [stage, own] : by_stage) {
        std::string file = own.front().file;
        merged.push_back({stage, std::move(file), merge(std::move(own), info)});
    }
    return join_stages(std::move(merged));
}

namespace {

constexpr std::size_t compared_ties = 1024;
constexpr std::uint64_t compared_block = 32 << 10;

/// Returns "mp_rank_00/" of a weight that is listed by its model rank, and nothing of others.
std::string_view rank_prefix_of(std::string_view name) {
    return name.starts_with("mp_rank_") ? name.substr(0, name.find('/') + 1) : std::string_view();
}

/// Returns the master `tied_modules.MODULE.KEY` of a tied layer's weight `LAYER.KEY`; null unless exactly one fits.
const LazyTensor* tied_master(const std::vector<LazyTensor>& tied, const std::string& name, const LazyTensor& tensor) {
    const std::string_view prefix = rank_prefix_of(name);
    const std::string key = name.substr(std::min(name.find('.', prefix.size()), name.size()));
    const LazyTensor* found = nullptr;
    for (const LazyTensor& master : tied) {
        const bool fits = master.name().ends_with(key) && rank_prefix_of(master.name()) == prefix;
        if (!fits || !(master.shape() == tensor.shape())) continue;
        if (found != nullptr) return nullptr;
        found = &master;
    }
    return found;
}

/// Returns true if the beginning, middle and end of two tensors of one dtype and shape are equal.
bool have_same_samples(const LazyTensor& one, const LazyTensor& other) {
    const std::uint64_t bytes = one.nbytes();
    const std::uint64_t size = std::min(bytes, compared_block);
    std::vector<std::byte> blocks[2] = {std::vector<std::byte>(size), std::vector<std::byte>(size)};
    const std::uint64_t last = bytes - size;
    for (const std::uint64_t offset : {std::uint64_t{0}, last / 2 / compared_block * compared_block, last}) {
        one.read(offset, blocks[0]);
        other.read(offset, blocks[1]);
        if (blocks[0] != blocks[1]) return false;
    }
    return true;
}

/// Returns the masters of tied layers. Models have few; of more than a thousand, none is looked at.
std::vector<LazyTensor> tied_masters(const ModelWeights& joined) {
    std::vector<LazyTensor> tied;
    for (const ModelWeights::Weight& weight : joined.weights) {
        const std::string_view name = std::string_view(weight.name).substr(rank_prefix_of(weight.name).size());
        if (weight.kind == WeightKind::master && name.starts_with("tied_modules."))
            tied.push_back(weight.tensor.renamed(weight.name));
    }
    if (tied.size() > 1000) tied.clear();
    return tied;
}

void add_alias(ModelWeights& joined, const std::string& master, const std::string& name) {
    for (AliasGroup& group : joined.aliases)
        if (group.front() == master) return group.push_back(name);
    joined.aliases.push_back({master, name});
}

/// Adds a weight as an alias of its master. Returns false if it has no master, or other values.
bool add_tied(ModelWeights& joined, const std::vector<LazyTensor>& tied, const std::string& name,
              const LazyTensor& tensor, std::size_t& compares_left) {
    const LazyTensor* const master = tied_master(tied, name, tensor);
    if (master == nullptr || compares_left == 0 || !can_cast(master->dtype(), tensor.dtype())) return false;
    --compares_left;
    const LazyTensor cast = master->dtype() == tensor.dtype() ? *master : master->cast(tensor.dtype());
    if (!have_same_samples(cast, tensor)) return false;
    add_alias(joined, master->name(), name);
    joined.replicas.push_back({name, cast, tensor, "the fp32 weight of the tied layer", "the file of the layer"});
    return true;
}

}  // namespace

void add_layers(ModelWeights& joined, const Named& layers, const std::vector<std::string>& buffers) {
    std::unordered_set<std::string> names;
    for (const ModelWeights::Weight& weight : joined.weights) names.insert(weight.name);
    const std::vector<LazyTensor> tied = tied_masters(joined);
    const std::unordered_set<std::string> of_buffers(buffers.begin(), buffers.end());
    std::size_t compares_left = compared_ties;
    for (const auto& [name, tensor] : layers) {
        if (!names.insert(name).second) continue;
        const bool is_buffer = of_buffers.contains(name.substr(rank_prefix_of(name).size()));
        if (!is_buffer && add_tied(joined, tied, name, tensor, compares_left)) continue;
        joined.weights.push_back({name, tensor, is_buffer ? WeightKind::buffer : WeightKind::frozen, {}});
    }
}

}  // namespace safemap::SAFEMAP_ABI::distributed
