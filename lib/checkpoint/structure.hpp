// Where the structure document of safetensors stands: see docs/format.md.
#pragma once

#include "base/checksum.hpp"
#include "base/faults.hpp"
#include "checkpoint/contents.hpp"

#include <string>
#include <string_view>

namespace safemap::checkpoint {

/// What the metadata says of a document that stands in the tensor `~structure`.
std::string structure_apart(const Digest& document);
/// Whether it says so.
bool is_structure_apart(std::string_view metadata) noexcept;

/// Moves the document from the metadata and the tensors to `tree`, where there is one. bad_structure, and
/// checksum_mismatch for one that stands apart. The lenient policy drops one that does not fit, with a note.
void take_structure(Contents& contents, Policy policy, FaultSink& faults);

}  // namespace safemap::checkpoint
