// Finds the layers of each stage in the names of its parameters, and checks that each parameter has a file.
#include "distributed/zero/layers.hpp"

#include "base/text.hpp"
#include "distributed/parallel/pipeline.hpp"

#include <safemap/error.hpp>

#include <algorithm>
#include <set>
#include <string_view>
#include <unordered_set>
#include <utility>

namespace safemap::SAFEMAP_ABI::distributed {

namespace {

/// Calls visit(stage, tensor_rank, file, parameter) for all parameters that the stages list.
template <class Visit> void each_listed(const ZeroRun& run, Visit&& visit) {
    for (std::size_t rank = 0; rank < run.sets.size(); ++rank) {
        const ModelFile& file = run.sets[rank].models.front();
        for (const Group& group : file.groups)
            for (const Parameter& parameter : group)
                visit(rank / run.tensor_ranks, rank % run.tensor_ranks, file, parameter);
    }
}

[[noreturn]] void throw_no_files(const ZeroRun& run) {
    std::set<std::pair<std::uint64_t, std::uint64_t>> layers;
    each_listed(run, [&](std::uint64_t, std::uint64_t rank, const ModelFile&, const Parameter& parameter) {
        if (const auto layer = layer_of(parameter.name)) layers.emplace(*layer, rank);
    });
    std::string missing;
    for (const auto& each : layers) {
        if (missing.size() >= 1024) break;
        missing += (missing.empty() ? "" : ", ") +
                   layer_name(each.first, run.tensor_ranks > 1 ? std::optional(each.second) : std::nullopt);
    }
    throw Error(Errc::rank_missing,
                "the file has no module, as files of a pipeline; the files of its layers, which "
                "hold the weights, are missing: " +
                    (missing.empty() ? "layer_LL-model_states.pt" : missing))
        .with_path(run.first_model().file);
}

/// Throws if a parameter of a stage is in no file of a layer. Parameters of tied layers are not named after a layer.
void require_parameters(const ZeroRun& run, const std::vector<LayerFiles>& ranks) {
    std::vector<std::unordered_set<std::string_view>> names(ranks.size());
    for (std::size_t rank = 0; rank < ranks.size(); ++rank)
        for (const auto& each : ranks[rank].weights) names[rank].insert(each.first);
    each_listed(run, [&](std::uint64_t, std::uint64_t rank, const ModelFile& file, const Parameter& parameter) {
        const auto layer = layer_of(parameter.name);
        if (!layer || names[rank].contains(parameter.name)) return;
        throw Error(Errc::rank_missing, "no file of a layer holds the parameter; expected it in " +
                                            layer_name(*layer, ranks[rank].shared ? std::nullopt : std::optional(rank)))
            .with_path(file.file)
            .with_tensor(parameter.name);
    });
}

LayerStages stages_of(const ZeroRun& run) {
    LayerStages stages;
    each_listed(run, [&](std::uint64_t stage, std::uint64_t, const ModelFile&, const Parameter& parameter) {
        if (const auto layer = layer_of(parameter.name)) stages.emplace(*layer, stage);
    });
    return stages;
}

void drop_trained(const ZeroRun& run, std::vector<LayerFiles>& ranks) {
    std::unordered_set<std::string_view> trained;
    each_listed(run, [&](std::uint64_t, std::uint64_t, const ModelFile&, const Parameter& parameter) {
        trained.insert(parameter.name);
    });
    for (LayerFiles& rank : ranks)
        std::erase_if(rank.weights, [&](const auto& each) { return trained.contains(each.first); });
}

}  // namespace

ModelWeights pipeline_layers(const Folder& folder, const ZeroRun& run, LayerWeights wanted, const Work& work,
                             FoundGlobals& found, std::vector<std::string>& files) {
    if (run.files.layers.empty()) throw_no_files(run);
    std::vector<LayerFiles> ranks;
    for (std::uint64_t rank = 0; rank < run.tensor_ranks; ++rank) {
        ranks.push_back(read_layers(folder, rank, work, &found));
        for (const std::string& file : ranks.back().files)
            if (std::find(files.begin(), files.end(), file) == files.end()) files.push_back(file);
    }
    require_same_layers(ranks, folder.name());
    require_parameters(run, ranks);
    if (wanted == LayerWeights::untrained) drop_trained(run, ranks);
    return merge_layers(std::move(ranks), stages_of(run), folder.name(), run.info ? &*run.info : nullptr);
}

}  // namespace safemap::SAFEMAP_ABI::distributed
