// The places of tensors in the memory that they share on a device.
#include "device/layout.hpp"

#include "base/checked.hpp"
#include "lazy/stored_tensor.hpp"

#include <safemap/error.hpp>

#include <algorithm>
#include <cstring>
#include <numeric>
#include <optional>
#include <unordered_map>
#include <utility>

namespace safemap::SAFEMAP_ABI::device {
namespace {

/// A byte of a source, which has the number that Sources gave it. Number 0 stands for none, and comes before all
/// others.
struct FilePlace {
    std::uint32_t source = 0;
    std::uint64_t offset = 0;

    friend auto operator<=>(const FilePlace&, const FilePlace&) = default;
};

/// Numbers sources in the order in which they appear, from 1 on.
class Sources {
public:
    std::uint32_t number(const Source& source) {
        if (&source != last_) {
            const auto next = static_cast<std::uint32_t>(numbers_.size() + 1);
            last_ = &source;
            last_number_ = numbers_.try_emplace(&source, next).first->second;
        }
        return last_number_;
    }

private:
    std::unordered_map<const Source*, std::uint32_t> numbers_;
    const Source* last_ = nullptr;
    std::uint32_t last_number_ = 0;
};

/// Returns the place of the first element. Tensors without elements come first: behind another tensor, their place
/// would be outside the memory.
FilePlace place_of(const LazyTensor& tensor, Sources& sources) {
    if (tensor.element_count() == 0) return {};
    const StoredTensor& stored = *tensor.stored();
    const auto element = static_cast<std::uint64_t>(tensor.strided_view().offset);
    const std::uint64_t unit = whole_bytes(stored.dtype()) ? element : element * bits(stored.dtype()) / 8;
    const StoredTensor::Place place = stored.locate(unit);
    return {sources.number(stored.source(place.source)), place.offset};
}

/// Returns the numbers of the tensors in the order of their places.
std::vector<std::uint32_t> in_file_order(const std::vector<LazyTensor>& tensors) {
    Sources sources;
    std::vector<FilePlace> places;
    places.reserve(tensors.size());
    for (const LazyTensor& tensor : tensors) places.push_back(place_of(tensor, sources));
    std::vector<std::uint32_t> order(tensors.size());
    std::iota(order.begin(), order.end(), 0U);
    const auto before = [&](std::uint32_t a, std::uint32_t b) { return places[a] < places[b]; };
    if (!std::ranges::is_sorted(places)) std::ranges::stable_sort(order, before);
    return order;
}

/// Returns the end of a tensor of `size` bytes at the first aligned place from `at` on, or nothing beyond 64 bits.
std::optional<Extent> next_place(std::uint64_t at, std::uint64_t size) {
    const auto padded = checked_add(at, place_alignment - 1);
    if (!padded) return std::nullopt;
    const std::uint64_t place = *padded / place_alignment * place_alignment;
    if (!checked_add(place, size)) return std::nullopt;
    return Extent{place, size};
}

}  // namespace

Layout lay_out(std::vector<LazyTensor> tensors, std::vector<std::uint32_t>& from) {
    from = in_file_order(tensors);
    Layout layout;
    if (std::ranges::is_sorted(from)) {
        layout.tensors = std::move(tensors);
    } else {
        layout.tensors.reserve(tensors.size());
        for (const std::uint32_t i : from) layout.tensors.push_back(std::move(tensors[i]));
    }
    layout.places.reserve(layout.tensors.size());
    for (const LazyTensor& tensor : layout.tensors) {
        const auto place = next_place(layout.size, tensor.nbytes());
        if (!place)
            throw Error(Errc::budget_exceeded, "the tensors of the bundle need more than 2^64 bytes")
                .with_tensor(tensor.name());
        layout.places.push_back(place->offset);
        if (place->size > 0) layout.size = place->end();
        layout.value_bytes += place->size;
    }
    return layout;
}

void clear_padding(const Layout& layout, Extent range, std::size_t first, std::span<std::byte> picture) noexcept {
    std::uint64_t at = range.offset;
    const auto clear_to = [&](std::uint64_t end) {
        if (end > at) std::memset(picture.data() + (at - range.offset), 0, end - at);
    };
    for (std::size_t i = first; i < layout.tensors.size() && layout.places[i] < range.end(); ++i) {
        clear_to(layout.places[i]);
        at = std::max(at, layout.extent(i).end());
    }
    clear_to(range.end());
}

}  // namespace safemap::SAFEMAP_ABI::device
