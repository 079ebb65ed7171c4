// TEMPORARY: functions whose files have not landed. Delete a function here when its file lands, and the file with the
// last one.
#include "distributed/experts.hpp"
#include "distributed/pipeline.hpp"
#include "distributed/slices.hpp"
#include "distributed/universal.hpp"

#include <safemap/error.hpp>

namespace safemap::SAFEMAP_ABI::distributed {

std::vector<ExpertShare> expert_shares(const Group& parameters, std::uint64_t data_ranks, std::uint64_t, bool,
                                       const std::string&) {
    ExpertShare share{.parameters = parameters};
    for (std::uint64_t rank = 0; rank < data_ranks; ++rank) share.ranks.push_back(rank);
    return {share};
}
ExpertFiles read_experts(const Folder&, std::uint64_t, const std::vector<std::uint64_t>&, const Work&) { return {}; }
void throw_autoep(const std::string& file) { throw Error(Errc::unsupported_layout, "AutoEP").with_path(file); }
Gathered join_model_ranks(std::vector<ModelRank> ranks, std::uint64_t, const UniversalInfo* info) {
    return merge(std::move(ranks), info);
}
LayerFiles read_layers(const Folder&, std::uint64_t, const Work&) { return {}; }
void add_layers(Gathered&, const Named&, const std::vector<std::string>&) {}
UniversalInfo read_universal_info(const StateTree&, StateTree::NodeId) { return {}; }
Gathered merge(std::vector<ModelRank> ranks, const UniversalInfo*) {
    if (ranks.size() > 1) throw Error(Errc::unsupported_layout, "tensor parallelism");
    return std::move(ranks.front().gathered);
}
Universal read_universal(const Folder&, const std::vector<ModelFile>&, const UniversalInfo*, const UniversalOptions&) {
    throw Error(Errc::unsupported_layout, "universal");
}

}  // namespace safemap::SAFEMAP_ABI::distributed
