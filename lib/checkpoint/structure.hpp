// The structure document of a checkpoint, and where it stands in safetensors: see docs/format.md.
#pragma once

#include "base/checksum.hpp"
#include "base/faults.hpp"
#include "checkpoint/contents.hpp"

#include <functional>
#include <optional>
#include <string>
#include <string_view>

namespace safemap::SAFEMAP_ABI::checkpoint {

/// What the metadata says of a document that stands in the tensor `~structure`.
std::string structure_apart(const Digest& document);
/// Whether it says so.
bool is_structure_apart(std::string_view metadata) noexcept;
/// The digest of the document that the metadata has, or of the one that stands apart, as the metadata gives it: 32 hex
/// digits. Nothing where the metadata is not as structure_apart() writes it.
std::optional<std::string> structure_digest(std::string_view metadata);

/// Returns safemap::structure_of(checkpoint) in which tensors that `stored` refuses are opaque objects too.
std::string document_of(const Checkpoint& checkpoint, const std::function<bool(const LazyTensor&)>& stored);

/// Moves the document from the metadata and the tensors to `tree`, where there is one, and its digest out of the
/// metadata: bad_structure, checksum_mismatch. The lenient policy drops a document with such a fault, with a note. A
/// digest without a document stays in the metadata.
void take_structure(Contents& contents, Policy policy, FaultSink& faults);

}  // namespace safemap::SAFEMAP_ABI::checkpoint
