// Tells saves apart: by all that is written but the values, and by where each value is read.
#include "write/job.hpp"

#include "base/checksum.hpp"
#include "lazy/stored_tensor.hpp"

#include <safemap/structure.hpp>

#include <unordered_map>

namespace safemap::SAFEMAP_ABI::write {

namespace {

class Job {
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

    void tensor(const LazyTensor& tensor) {
        const StridedView view = tensor.strided_view();
        numbers(view.shape);
        number(static_cast<std::uint64_t>(view.offset));
        for (const std::int64_t stride : view.strides) number(static_cast<std::uint64_t>(stride));
        const Decoding decoding = tensor.decoding();
        for (const bool flag : {decoding.byte_swap, decoding.conj, decoding.neg}) number(flag ? 1 : 0);
        stored(*tensor.stored());
    }

    /// False where a source does not know what it is.
    bool source(const Source& source) {
        const auto [known, is_new] = sources_.try_emplace(&source);
        if (is_new) known->second = source.identity();
        text(known->second);
        return !known->second.empty();
    }

    std::string hex() const { return hash_.hex(); }

private:
    void stored(const StoredTensor& stored) {
        text(name(stored.dtype()));
        numbers(stored.shape());
        const std::uint64_t units = *byte_size(stored.dtype(), stored.element_count()) / stored.unit_size();
        for (std::uint64_t unit = 0; unit < units;) {
            const auto place = stored.locate(unit);
            number(place.source);
            number(place.offset);
            number(place.count);
            number(static_cast<std::uint64_t>(place.stride));
            unit += place.count;
        }
    }

    Xxh3 hash_;
    std::unordered_map<const Source*, std::string> sources_;
};

}  // namespace

std::string job_of(std::span<const LazyTensor> tensors, const Layout& layout) {
    Job job;
    for (const PlannedFile& file : layout.files) {
        job.text(file.name);
        job.text(file.head);
        for (const PlannedTensor& planned : file.tensors) {
            const LazyTensor& tensor = tensors[planned.number];
            job.tensor(tensor);
            // Comes from memory; the metadata, which is in a head, has its digest.
            if (layout.has_structure_tensor && tensor.name() == structure_tensor) continue;
            for (const auto& source : tensor.stored()->sources())
                if (!job.source(*source)) return {};
        }
    }
    return job.hex();
}

}  // namespace safemap::SAFEMAP_ABI::write
