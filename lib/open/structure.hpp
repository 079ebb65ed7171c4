// The structure document of what was read, and where it stands in safetensors: see docs/format.md.
#pragma once

#include "open/readers.hpp"

namespace safemap::SAFEMAP_ABI::open {

/// Moves the document from the metadata and the tensors to `tree`, where there is one, and its digest out of the
/// metadata: bad_structure, checksum_mismatch. The lenient policy drops a document with such a fault, with a note. A
/// digest without a document stays in the metadata.
void take_structure(Contents& contents, Policy policy, FaultSink& faults);

}  // namespace safemap::SAFEMAP_ABI::open
