// A product is a source of F32 elements. A read becomes boxes of numbers. For each box:
//   numbers -> read -> F32 -> times the scales of the box -> bytes of the source
#include "lazy/scaled.hpp"

#include "lazy/boxes_of_range.hpp"
#include "lazy/gatherer.hpp"
#include "lazy/page_cache.hpp"
#include "lazy/stored_tensor.hpp"
#include "tensor/convert.hpp"
#include "tensor/scale.hpp"

#include <safemap/advanced/stored_tensor.hpp>
#include <safemap/error.hpp>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <string>
#include <utility>
#include <vector>

namespace safemap::SAFEMAP_ABI {

namespace {

constexpr std::uint64_t numbers_at_once = 64U << 10;
constexpr std::size_t f32_size = sizeof(float);
// The numbers are F8, the scales at most F64; there are no more scales than numbers.
static_assert(numbers_at_once * (1 + f32_size + sizeof(double) + f32_size) + Gatherer::most_memory <=
              scaled_read_memory);

std::size_t to_size(std::uint64_t count) { return static_cast<std::size_t>(count); }

/// The F32 values of a box of a tensor, and a buffer for its stored elements.
struct F32Box {
    std::vector<std::byte> stored = {};
    std::vector<std::byte> values = {};

    void read(const LazyTensor& tensor, const Box& box, Gatherer& gatherer) {
        const std::uint64_t count = *element_count(box.extent);
        values.resize(to_size(count) * f32_size);
        if (tensor.dtype() == Dtype::f32) return gatherer.fill(tensor, box, values);
        stored.resize(to_size(count) * element_size(tensor.dtype()));
        gatherer.fill(tensor, box, stored);
        if (tensor.dtype() == Dtype::f8_e8m0) decode_e8m0(stored, values);
        else convert(tensor.dtype(), stored, Dtype::f32, values);
    }
};

class ScaledSource final : public Source {
public:
    explicit ScaledSource(ScaledNumbers of)
        : of_(std::move(of)), count_(of_.numbers.element_count()), name_(of_.numbers.name() + ", times its scales") {}

    const ScaledNumbers& of() const noexcept { return of_; }
    const std::string& name() const noexcept override { return name_; }
    std::uint64_t size() const noexcept override { return count_ * f32_size; }
    void require_unchanged() const override {
        safemap::require_unchanged({&of_.numbers, 1});
        safemap::require_unchanged({&of_.scales, 1});
    }

    void read_at(std::uint64_t offset, std::span<std::byte> into) const override {
        if (!Extent{offset, into.size()}.inside(size()))
            throw Error(Errc::file_truncated, "a read outside the " + std::to_string(count_) + " products")
                .with_path(name_);
        Gatherer gatherer;
        F32Box numbers;
        F32Box scales;
        while (!into.empty()) {
            const std::uint64_t first = offset / f32_size;
            const std::uint64_t last = (offset + into.size() + f32_size - 1) / f32_size;
            const std::uint64_t count = std::min(last - first, numbers_at_once);
            const std::uint64_t end = std::min(offset + into.size(), (first + count) * f32_size);
            std::uint64_t begin = first * f32_size;  // where the next box begins
            each_box_of_range(of_.numbers.shape(), first, count, [&](const Box& box, std::uint64_t) {
                numbers.read(of_.numbers, box, gatherer);
                const Box of_scales = scales_of(box);
                scales.read(of_.scales, of_scales, gatherer);
                multiply_box(box, of_scales, numbers.values, scales.values);
                // A caller may read a part of an element.
                const std::uint64_t from = std::max(begin, offset);
                const std::uint64_t to = std::min(begin + numbers.values.size(), end);
                std::memcpy(into.data() + (from - offset), numbers.values.data() + (from - begin), to_size(to - from));
                begin += numbers.values.size();
            });
            into = into.subspan(to_size(end - offset));
            offset = end;
        }
    }

private:
    Box scales_of(const Box& box) const {
        Box scales = box;
        for (std::size_t d = 0; d < box.start.size(); ++d) {
            scales.start[d] = box.start[d] / of_.block[d];
            scales.extent[d] = (box.start[d] + box.extent[d] - 1) / of_.block[d] - scales.start[d] + 1;
        }
        return scales;
    }

    /// Multiplies row after row of a box. All buffers are row-major.
    void multiply_box(const Box& box, const Box& of_scales, std::span<std::byte> values,
                      std::span<const std::byte> scales) const {
        const std::size_t rank = box.start.size();
        if (scales.size() == f32_size) return multiply(values, f32(scales, 0));
        const std::uint64_t length = box.extent[rank - 1];
        std::vector<std::uint64_t> at(rank, 0);  // in the box
        for (; !values.empty(); values = values.subspan(to_size(length) * f32_size)) {
            std::uint64_t row = 0;  // number of the row of scales
            for (std::size_t d = 0; d + 1 < rank; ++d)
                row = row * of_scales.extent[d] + (box.start[d] + at[d]) / of_.block[d] - of_scales.start[d];
            multiply_row(box.start[rank - 1], values.first(to_size(length) * f32_size),
                         scales.subspan(to_size(row * of_scales.extent[rank - 1]) * f32_size));
            for (std::size_t d = rank - 1; d-- > 0;) {
                if (++at[d] < box.extent[d]) break;
                at[d] = 0;
            }
        }
    }

    /// Multiplies elements of one row, from index `first` of the last dimension on. `scales` begins with the scale of
    /// the first of them.
    void multiply_row(std::uint64_t first, std::span<std::byte> values, std::span<const std::byte> scales) const {
        const std::uint64_t block = of_.block.back();
        if (block == 1) return multiply(values, scales.first(values.size()));
        for (std::size_t i = 0; !values.empty(); ++i) {
            const std::uint64_t left = block - first % block;
            const std::size_t size = to_size(std::min<std::uint64_t>(left, values.size() / f32_size)) * f32_size;
            multiply(values.first(size), f32(scales, i));
            values = values.subspan(size);
            first += left;
        }
    }

    static float f32(std::span<const std::byte> values, std::size_t i) noexcept {
        float value;
        std::memcpy(&value, values.data() + i * f32_size, f32_size);
        return value;
    }

    ScaledNumbers of_;
    std::uint64_t count_;
    std::string name_;
};

void require_shapes(const ScaledNumbers& of) {
    const Shape& shape = of.numbers.shape();
    const Shape& scales = of.scales.shape();
    bool fit = scales.size() == shape.size() && of.block.size() == shape.size();
    for (std::size_t d = 0; fit && d < shape.size(); ++d)
        fit = of.block[d] > 0 && (shape[d] == 0 || (shape[d] - 1) / of.block[d] < scales[d]);
    if (!fit)
        throw Error(Errc::invalid_argument, "scales of shape " + to_string(scales) + " in blocks of " +
                                                to_string(of.block) + " do not fit shape " + to_string(shape))
            .with_tensor(of.numbers.name());
}

}  // namespace

LazyTensor scaled(ScaledNumbers numbers) {
    require_shapes(numbers);
    const std::string name = numbers.numbers.name();
    const Shape shape = numbers.numbers.shape();
    if (!byte_size(Dtype::f32, numbers.numbers.element_count()))
        throw Error(Errc::shape_overflow, "as F32 its size does not fit in 64 bits").with_tensor(name);
    const auto source = std::make_shared<const ScaledSource>(std::move(numbers));
    return {name, stored_run(Dtype::f32, shape, source, 0)};
}

const ScaledNumbers* scaled_numbers(const LazyTensor& tensor) noexcept {
    const StoredTensor& stored = *tensor.stored();
    if (stored.dtype() != Dtype::f32 || !stored.in_one_run()) return nullptr;
    const auto* const source = dynamic_cast<const ScaledSource*>(&stored.source(0));
    return source == nullptr ? nullptr : &source->of();
}

}  // namespace safemap::SAFEMAP_ABI
