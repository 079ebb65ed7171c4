// TEMPORARY: functions whose files have not landed. Delete a function here when its file lands, and the file with the
// last one.
#include "distributed/pipeline.hpp"
#include "distributed/slices.hpp"
#include "distributed/universal.hpp"

#include <safemap/error.hpp>

namespace safemap::SAFEMAP_ABI::distributed {

Gathered join_model_ranks(std::vector<ModelRank> ranks, std::uint64_t, const UniversalInfo* info) {
    return merge(std::move(ranks), info);
}
LayerFiles read_layers(const Folder&, std::uint64_t, const Work&) { return {}; }
void add_layers(Gathered&, const Named&, const std::vector<std::string>&) {}
Universal read_universal(const Folder&, const std::vector<ModelFile>&, const UniversalInfo*, const UniversalOptions&) {
    throw Error(Errc::unsupported_layout, "universal");
}

}  // namespace safemap::SAFEMAP_ABI::distributed
