// Whole tensors out of parts: those that the files of many ranks hold, or regions that one rank needs of a tensor. This
// is the only place that makes a tensor of the pieces of others, and the only one that decides whether parts fit
// together.
#pragma once

#include <safemap/advanced/stored_tensor.hpp>
#include <safemap/lazy_tensor.hpp>

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <unordered_map>
#include <vector>

namespace safemap::SAFEMAP_ABI {

/// The region of the whole tensor that begins at `start` is `value`.
struct Part {
    Shape start;
    LazyTensor value;
};

/// Elements [first, first + count) of the flattened whole are those of the flattened `value` from `from` on.
struct FlatPart {
    std::uint64_t first = 0;
    std::uint64_t count = 0;
    const LazyTensor* value = nullptr;
    std::uint64_t from = 0;
};

/// The sources of all parts, numbered once: tensors that are made with it share one table.
class PartSources {
public:
    /// Adds a source, or those that hold elements of `value`. No tensor may have been made yet.
    void add(const std::shared_ptr<const Source>& source);
    void add(const LazyTensor& value);
    /// Returns the table of all sources that were added. add() must not be called afterwards.
    const std::shared_ptr<const SourceTable>& table() const;
    /// Returns the number of a source in the table. The source must have been added.
    std::uint32_t number(const Source& source) const;

private:
    std::vector<std::shared_ptr<const Source>> sources_;
    std::unordered_map<const Source*, std::uint32_t> numbers_;
    mutable std::shared_ptr<const SourceTable> table_;
};

/// Returns the tensor that the parts make up. Parts may be in any order, and parts without elements are passed by. The
/// result refers to the pieces of the parts' files themselves, never to a piece of a piece. Throws, with the tensor's
/// name and the file of the part:
///
/// - piece_mismatch if a part has another dtype or rank than the whole, or fewer elements than it should give
/// - piece_outside if a part reaches past the whole
/// - piece_mismatch if a part that is not contiguous is flat, or in several runs and strided backwards
/// - pieces_overlap, with the first element concerned; not_covered, with it, or with the number of elements for boxes
/// - shape_overflow
///
/// Linear in the number of pieces for parts in ascending order.
LazyTensor whole(std::string name, Dtype dtype, const Shape& shape, std::span<const FlatPart> parts,
                 const PartSources& sources);
LazyTensor whole(std::string name, Dtype dtype, const Shape& shape, std::span<const Part> parts,
                 const PartSources& sources);
/// Makes a table of sources for this tensor alone.
LazyTensor whole(std::string name, Dtype dtype, const Shape& shape, std::span<const Part> parts);

}  // namespace safemap::SAFEMAP_ABI
