// Reads the structure document of a safetensors checkpoint: see docs/format.md.
#pragma once

#include "open/readers.hpp"

namespace safemap::SAFEMAP_ABI::open {

/// Moves the document, if there is one, from the metadata and the tensors to `tree`, and removes its digest from the
/// metadata. Reports bad_structure and checksum_mismatch. The lenient policy drops a document with such a fault and
/// adds a note. A digest without a document stays in the metadata.
void take_structure(Contents& contents, Policy policy, FaultSink& faults);

}  // namespace safemap::SAFEMAP_ABI::open
