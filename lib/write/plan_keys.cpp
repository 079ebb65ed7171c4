// Computes the key of a save: a hash of all that is written except the values, and of the place that each value is read
// from. Digests for teams are tested by tests/write/team_test.cpp.
#include "write/plan_keys.hpp"

#include "base/checksum.hpp"
#include "lazy/scaled.hpp"
#include "lazy/stored_tensor.hpp"
#include "state/structure.hpp"
#include "write/together.hpp"

#include <safemap/advanced/stored_tensor.hpp>
#include <safemap/advanced/strides.hpp>
#include <safemap/error.hpp>

#include <string_view>
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

namespace {

/// Returns the digest of `before` followed by what `add` packs.
template <class Add> std::string hashed(const std::string& before, Add&& add) {
    Packer all;
    all.text(before);
    add(all);
    Xxh3 hash;
    const std::string bytes = all.take();
    hash.update(std::as_bytes(std::span(bytes)));
    return hash.hex();
}

}  // namespace

void PlanDigest::add(std::span<const LazyTensor> written, const Layout& layout) {
    tensors = hashed(tensors, [&](Packer& all) {
        for (const PlannedFile& file : layout.files)
            for (const PlannedTensor& planned : file.tensors) {
                const LazyTensor& tensor = written[planned.number];
                all.text(tensor.name()).text(name(planned.dtype)).text(to_string(tensor.shape()));
            }
    });
    files = hashed(files, [&](Packer& all) {
        for (const PlannedFile& file : layout.files) {
            all.text(file.name).number(file.size).text(file.head);
            for (const PlannedTensor& planned : file.tensors) all.number(planned.offset);
        }
    });
    // Without identities, as in memory, it is empty and says nothing.
    sources = hashed(sources, [&](Packer& all) { all.text(resume_key_of(written, layout)); });
}

void PlanDigest::add(const SaveOptions& given) {
    options = hashed(options, [&](Packer& all) {
        for (const bool flag : {given.one_file, given.checksums, given.overwrite, given.resume, given.durable,
                                given.drop_cache, given.plan_only})
            all.number(flag ? 1 : 0);
        all.number(given.ranks).number(given.rank_dimension).number(given.alignment);
    });
}

std::string PlanDigest::text() const { return Packer().text(tensors).text(files).text(options).text(sources).take(); }

void PlanDigest::require_equal(std::string_view other, unsigned rank) const {
    Unpacker from(other);
    const auto require = [&](const std::string& own, std::string_view what) {
        if (from.text() == own) return;
        Error error(Errc::invalid_argument,
                    "rank " + std::to_string(rank) + " has another plan than rank 0: " + std::string(what) + " differ");
        throw std::move(error.with_hint("start all processes with the same command, on files that all of them share"));
    };
    require(tensors, "names, dtypes or shapes of tensors");
    require(files, "the files to write");
    require(options, "the options");
    require(sources, "the source files");
}

}  // namespace safemap::SAFEMAP_ABI::write
