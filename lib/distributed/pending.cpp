// TEMPORARY: functions whose files have not landed. Delete a function here when its file lands, and the file with the
// last one.
#include "distributed/slices.hpp"
#include "distributed/universal.hpp"

#include <safemap/error.hpp>

namespace safemap::SAFEMAP_ABI::distributed {

Universal read_universal(const Folder&, const std::vector<ModelFile>&, const UniversalInfo*, const UniversalOptions&) {
    throw Error(Errc::unsupported_layout, "universal");
}

}  // namespace safemap::SAFEMAP_ABI::distributed
