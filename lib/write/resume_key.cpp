// Computes the key of a save: a hash of all that is written except the values, and of the place that each value is read
// from.
#include "write/resume_key.hpp"

#include <safemap/advanced/stored_tensor.hpp>
#include <safemap/advanced/strides.hpp>

#include "base/checksum.hpp"
#include "lazy/scaled.hpp"
#include "lazy/stored_tensor.hpp"
#include "state/structure.hpp"

#include <unordered_map>

namespace safemap::SAFEMAP_ABI::write {

namespace {

/// A hash over everything that identifies a save.
class ResumeKeyHasher {
public:
    void text(std::string_view text) {
        number(text.size());
        hash_.update(std::as_bytes(std::span(text)));
    }
    void number(std::uint64_t number) { hash_.update(std::as_bytes(std::span(&number, 1))); }
    void numbers(std::span<const std::uint64_t> numbers) {
        number(numbers.size());
        hash_.update(std::as_bytes(numbers));
    }

    /// Returns false if a source does not know its identity.
    bool tensor(const LazyTensor& tensor) {
        const StridedView view = tensor.strided_view();
        numbers(view.shape);
        number(static_cast<std::uint64_t>(view.offset));
        for (const std::int64_t stride : view.strides) number(static_cast<std::uint64_t>(stride));
        const Decoding decoding = tensor.decoding();
        for (const bool flag : {decoding.byte_swap, decoding.conj, decoding.neg}) number(flag ? 1 : 0);
        if (const ScaledNumbers* const product = scaled_numbers(tensor)) {
            numbers(product->block);
            const bool known = this->tensor(product->numbers);
            return this->tensor(product->scales) && known;
        }
        return stored(*tensor.stored());
    }

    std::string hex() const { return hash_.hex(); }

private:
    struct Met {
        std::uint64_t number;
        bool has_checkpoint_digest;
    };

    bool stored(const StoredTensor& stored) {
        text(name(stored.dtype()));
        numbers(stored.shape());
        bool known = true;
        stored.each_piece([&](const StoredTensor::Piece& piece, std::size_t dimensions) {
            known &= source(stored.source(piece.source));
            number(piece.offset);
            numbers({piece.start, dimensions});
            numbers({piece.extent, dimensions});
            for (std::size_t d = 0; d < dimensions; ++d) number(static_cast<std::uint64_t>(piece.strides[d]));
        });
        return known;
    }

    // Sources are numbered in the order in which they are met. Their numbers in a table would also depend on files that
    // nothing is read from.
    bool source(const Source& source) {
        const auto [at, is_new] = sources_.try_emplace(&source, Met{sources_.size(), false});
        if (is_new) {
            const std::string identity = source.identity();
            text(identity);
            at->second.has_checkpoint_digest = !identity.empty();
        }
        number(at->second.number);
        return at->second.has_checkpoint_digest;
    }

    Xxh3 hash_;
    std::unordered_map<const Source*, Met> sources_;
};

}  // namespace

std::string resume_key_of(std::span<const LazyTensor> tensors, const Layout& layout) {
    ResumeKeyHasher job;
    for (const PlannedFile& file : layout.files) {
        job.text(file.name);
        job.text(file.head);
        for (const PlannedTensor& planned : file.tensors) {
            const LazyTensor& tensor = tensors[planned.number];
            const bool known = job.tensor(tensor);
            // The structure document comes from memory. Its digest is in the metadata, which is in a head.
            const bool is_structure = layout.has_structure_tensor && tensor.name() == state::structure_tensor;
            if (!known && !is_structure) return {};
        }
    }
    return job.hex();
}

}  // namespace safemap::SAFEMAP_ABI::write
