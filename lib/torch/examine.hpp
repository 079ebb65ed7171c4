// Looks for pickles in bytes of any kind, and judges them as far as they can be read: in files that no reader opens, in
// records that readers skip, and inside other pickles.
#pragma once

#include "pickle/pickle.hpp"
#include "pickle/zip.hpp"
#include "state/findings.hpp"

#include <safemap/bytes.hpp>
#include <safemap/source.hpp>

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>

namespace safemap::SAFEMAP_ABI::torch {

/// The kind of what was examined.
enum class Looked : std::uint8_t {
    at_pickles,    ///< also in a damaged container
    at_fragments,  ///< something that reads like the beginning of an old pickle, which some texts do, too
    at_other_data
};

/// Adds findings about all pickles in `part` of a source: a zip, also one with a damaged directory; a tar; pickles that
/// follow each other; an array of objects of NumPy. `record` names them. Throws what reading throws. A part that cannot
/// be read is a finding.
Looked examine(const std::shared_ptr<const Source>& source, Extent part, const std::string& record,
               state::FindingList& findings);

/// Adds findings about the records of a zip other than `read`, but for those whose names or first bytes show that they
/// hold no pickle.
void examine_records(const ZipDirectory& zip, const ZipRecord& read, state::FindingList& findings);

/// Adds findings about pickles in the texts and bytes of a pickle.
void examine_inside(const PickleGraph& pickle, std::string_view record, state::FindingList& findings);

/// Returns true if the name of a record, or of a file, is one of a pickle, or of a file that holds pickles.
bool names_pickle(std::string_view name) noexcept;

}  // namespace safemap::SAFEMAP_ABI::torch
