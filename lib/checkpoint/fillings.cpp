// Makes tensors of any size over a source that repeats a few bytes.
#include "checkpoint/load_plan.hpp"

#include <safemap/advanced/dtypes.hpp>
#include <safemap/advanced/small_floats.hpp>
#include <safemap/advanced/stored_tensor.hpp>

#include <algorithm>
#include <array>
#include <cstring>
#include <span>
#include <utility>

namespace safemap::SAFEMAP_ABI::checkpoint {

namespace {

/// A pattern of `width` bytes, repeated without end.
struct Pattern {
    std::array<std::byte, 8> bytes;
    std::size_t width;

    void fill(std::uint64_t offset, std::span<std::byte> into) const {
        const std::size_t first = std::min(into.size(), width);
        for (std::size_t i = 0; i < first; ++i) into[i] = bytes[(offset + i) % width];
        // Doubles the filled part by copying it behind itself: its size is always a multiple of `width`.
        for (std::size_t done = first; done < into.size();) {
            const std::size_t more = std::min(done, into.size() - done);
            std::memcpy(into.data() + done, into.data(), more);
            done += more;
        }
    }
};

Pattern pattern_of(std::uint64_t bits, std::size_t width) {
    Pattern pattern{.bytes = {}, .width = width};
    std::memcpy(pattern.bytes.data(), &bits, sizeof bits);
    return pattern;
}

LazyTensor filled(std::string name, Dtype dtype, const Shape& shape, const char* source_name, Pattern pattern) {
    const std::uint64_t size = *byte_size(dtype, *element_count(shape));
    auto source = callback_source(
        source_name, size, [pattern](std::uint64_t offset, std::span<std::byte> into) { pattern.fill(offset, into); });
    return LazyTensor(std::move(name), stored_run(dtype, shape, std::move(source), 0));
}

}  // namespace

std::optional<std::uint64_t> nan_bits(Dtype dtype) noexcept {
    switch (dtype) {
        case Dtype::f8_e5m2:
        case Dtype::f8_e4m3: return 0x7f;
        case Dtype::f8_e8m0: return 0xff;
        case Dtype::f8_e4m3fnuz:
        case Dtype::f8_e5m2fnuz: return 0x80;
        case Dtype::f16:
        case Dtype::c32: return 0x7e00;
        case Dtype::bf16: return 0x7fc0;
        case Dtype::f32:
        case Dtype::c64: return 0x7fc0'0000;
        case Dtype::f64:
        case Dtype::c128: return 0x7ff8'0000'0000'0000;
        default: return std::nullopt;
    }
}

LazyTensor zeros(std::string name, Dtype dtype, const Shape& shape) {
    return filled(std::move(name), dtype, shape, "zeros", pattern_of(0, 8));
}

LazyTensor nans(std::string name, Dtype dtype, const Shape& shape) {
    return filled(std::move(name), dtype, shape, "NaN", pattern_of(*nan_bits(dtype), swap_size(dtype)));
}

}  // namespace safemap::SAFEMAP_ABI::checkpoint
