// Reads each element by itself, and then swaps, conjugates, negates and casts it.
#include "reference/slow_tensor.hpp"

#include <algorithm>
#include <cstdint>

namespace reference {
namespace {

/// Returns the bytes of base element `index` (dtypes of whole bytes).
std::vector<std::byte> stored_element(const Described& t, std::uint64_t index) {
    const unsigned size = safemap::element_size(t.dtype);
    std::vector<std::byte> out(size);
    for (const auto& run : t.runs)
        if (index >= run.first && index - run.first < run.count)
            run.source->read_at(run.offset + (index - run.first) * size, out);
    if (t.boxes.empty()) return out;
    safemap::Shape at(t.shape.size(), 0);
    std::uint64_t rest = index;
    for (std::size_t d = t.shape.size(); d-- > 0;) {
        at[d] = rest % t.shape[d];
        rest /= t.shape[d];
    }
    for (const auto& box : t.boxes) {
        bool inside = true;
        std::int64_t units = 0;
        for (std::size_t d = 0; d < at.size(); ++d) {
            inside = inside && at[d] >= box.place.start[d] && at[d] < box.place.start[d] + box.place.extent[d];
            units +=
                (static_cast<std::int64_t>(at[d]) - static_cast<std::int64_t>(box.place.start[d])) * box.strides[d];
        }
        if (inside)
            box.source->read_at(static_cast<std::uint64_t>(static_cast<std::int64_t>(box.offset) +
                                                           units * static_cast<std::int64_t>(size)),
                                out);
    }
    return out;
}

}  // namespace

std::vector<std::byte> value_of(const Described& t) {
    std::vector<std::byte> out;
    const std::uint64_t count = *safemap::element_count(t.view.shape);
    for (std::uint64_t i = 0; i < count; ++i) {
        std::int64_t base = t.view.offset;
        std::uint64_t rest = i;
        for (std::size_t d = t.view.shape.size(); d-- > 0;) {
            base += static_cast<std::int64_t>(rest % t.view.shape[d]) * t.view.strides[d];
            rest /= t.view.shape[d];
        }
        auto element = stored_element(t, static_cast<std::uint64_t>(base));
        const unsigned swap = safemap::swap_size(t.dtype);
        if (t.decoding.byte_swap)
            for (std::size_t k = 0; k < element.size(); k += swap)
                std::reverse(element.begin() + static_cast<std::ptrdiff_t>(k),
                             element.begin() + static_cast<std::ptrdiff_t>(k + swap));
        if (t.decoding.conj) safemap::conjugate(t.dtype, element);
        if (t.decoding.neg) safemap::negate(t.dtype, element);
        std::vector<std::byte> converted(safemap::element_size(t.wanted));
        safemap::convert(t.dtype, element, t.wanted, converted);
        out.insert(out.end(), converted.begin(), converted.end());
    }
    return out;
}

}  // namespace reference
