#include "distributed/pipeline.hpp"

#include "base/text.hpp"
#include "distributed/values.hpp"
#include "distributed/zero_files.hpp"
#include "torch/parts.hpp"

#include <safemap/error.hpp>

#include <algorithm>
#include <iterator>
#include <unordered_map>
#include <unordered_set>
#include <utility>

namespace safemap::SAFEMAP_ABI::distributed {

namespace {

using Kind = Gathered::Weight::Kind;

/// A weight that is listed, and the file of its stage.
struct Listed {
    std::size_t number = 0;
    std::string file = {};
};

/// Throws ranks_differ if the weights of a tied layer have other dtypes or shapes in two stages.
void require_alike(const LazyTensor& first, const std::string& first_file, const LazyTensor& other,
                   const std::string& file) {
    if (first.dtype() == other.dtype() && first.shape() == other.shape()) return;
    const auto text = [](const LazyTensor& tensor) {
        return std::string(name(tensor.dtype())) + ' ' + to_string(tensor.shape());
    };
    throw Error(Errc::ranks_differ,
                "the weight is " + text(other) + ", but " + text(first) + " in the stage of " + excerpt(first_file))
        .with_path(file)
        .with_tensor(first.name());
}

/// Returns the files of one tensor rank. Without tensor parallelism, names have none.
std::vector<ZeroFile> layer_files(const Folder& folder, std::uint64_t tensor_rank) {
    std::vector<ZeroFile> files = zero_files(folder.list()).layers;
    const auto is_shared = [](const ZeroFile& file) { return file.file.find("-model_states") == file.file.find('-'); };
    const bool shared = std::any_of(files.begin(), files.end(), is_shared);
    std::erase_if(
        files, [&](const ZeroFile& file) { return shared ? !is_shared(file) : file.name.model_rank != tensor_rank; });
    return files;
}

Named tensors_of(const std::shared_ptr<const Source>& source, std::uint32_t layer, torch::NamedGlobals& globals) {
    const torch::Parts parts = torch::read_parts(source, {}, &globals);
    Named named;
    for (const auto& [key, value] : Value(parts.tree).entries()) {
        const LazyTensor* const tensor = value.tensor();
        if (tensor == nullptr) continue;
        std::string name = std::to_string(layer) + '.' + key;
        named.emplace_back(name, tensor->renamed(name));
    }
    return named;
}

}  // namespace

Gathered join_stages(std::vector<ModelRank> stages) {
    Gathered joined;
    std::unordered_set<std::string> state_names;
    std::unordered_map<std::string, Listed> listed;
    for (ModelRank& stage : stages) {
        for (Gathered::Weight& weight : stage.gathered.weights) {
            const auto [place, is_new] = listed.try_emplace(weight.name, Listed{joined.weights.size(), stage.file});
            if (is_new) {
                joined.weights.push_back(std::move(weight));
                continue;
            }
            const LazyTensor& first = joined.weights[place->second.number].tensor;
            require_alike(first, place->second.file, weight.tensor, stage.file);
            joined.replicas.push_back({weight.name, first, std::move(weight.tensor), place->second.file, stage.file});
        }
        std::move(stage.gathered.aliases.begin(), stage.gathered.aliases.end(), std::back_inserter(joined.aliases));
        std::move(stage.gathered.notes.begin(), stage.gathered.notes.end(), std::back_inserter(joined.notes));
        std::move(stage.gathered.replicas.begin(), stage.gathered.replicas.end(), std::back_inserter(joined.replicas));
        for (const std::string& name : stage.gathered.state_names)
            if (state_names.insert(name).second) joined.state_names.push_back(name);
    }
    return joined;
}

Gathered join_model_ranks(std::vector<ModelRank> ranks, std::uint64_t tensor_ranks, const UniversalInfo* info) {
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
    for (const ZeroFile& file : files) read.files.push_back(file.file);
    std::vector<Named> tensors(files.size());
    for_each_pickle(folder, read.files, work, globals, [&](std::size_t i, const auto& source, auto& named) {
        tensors[i] = tensors_of(source, files[i].name.layer, named);
    });
    for (Named& each : tensors) std::move(each.begin(), each.end(), std::back_inserter(read.weights));
    return read;
}

namespace {

/// Returns the master `tied_modules.MODULE.KEY` of a tied layer's weight `LAYER.KEY`; null unless exactly one fits.
const LazyTensor* tied_master(const std::vector<LazyTensor>& tied, const std::string& name, const LazyTensor& tensor) {
    const std::string key = name.substr(std::min(name.find('.'), name.size()));
    const LazyTensor* found = nullptr;
    for (const LazyTensor& master : tied) {
        if (!master.name().ends_with(key) || !(master.shape() == tensor.shape())) continue;
        if (found != nullptr) return nullptr;
        found = &master;
    }
    return found;
}

/// Returns the masters of tied layers. Models have few; of more than a thousand, none is looked at.
std::vector<LazyTensor> tied_masters(const Gathered& joined) {
    std::vector<LazyTensor> tied;
    for (const Gathered::Weight& weight : joined.weights)
        if (weight.kind == Kind::master && weight.name.starts_with("tied_modules."))
            tied.push_back(weight.tensor.renamed(weight.name));
    if (tied.size() > 1000) tied.clear();
    return tied;
}

void add_alias(Gathered& joined, const std::string& master, const std::string& name) {
    for (AliasGroup& group : joined.aliases)
        if (group.front() == master) return group.push_back(name);
    joined.aliases.push_back({master, name});
}

}  // namespace

void add_layers(Gathered& joined, const Named& layers, const std::vector<std::string>& buffers) {
    std::unordered_set<std::string> names;
    for (const Gathered::Weight& weight : joined.weights) names.insert(weight.name);
    const std::vector<LazyTensor> tied = tied_masters(joined);
    const std::unordered_set<std::string> of_buffers(buffers.begin(), buffers.end());
    for (const auto& [name, tensor] : layers) {
        if (!names.insert(name).second) continue;
        if (const LazyTensor* const master = tied_master(tied, name, tensor)) add_alias(joined, master->name(), name);
        else joined.weights.push_back({name, tensor, of_buffers.contains(name) ? Kind::buffer : Kind::frozen, {}});
    }
}

}  // namespace safemap::SAFEMAP_ABI::distributed
