// Loops that the compiler vectorises. F32 values may have any alignment, so they are loaded and stored as bytes.
#include "tensor/scale.hpp"

#include <cstdint>
#include <cstring>

namespace safemap::SAFEMAP_ABI {

void multiply(std::span<std::byte> values, float scale) noexcept {
    std::byte* const out = values.data();
    const std::size_t count = values.size() / sizeof(float);
    for (std::size_t i = 0; i < count; ++i) {
        float value;
        std::memcpy(&value, out + i * sizeof(float), sizeof(float));
        value *= scale;
        std::memcpy(out + i * sizeof(float), &value, sizeof(float));
    }
}

void multiply(std::span<std::byte> values, std::span<const std::byte> scales) noexcept {
    std::byte* __restrict const out = values.data();
    const std::byte* __restrict const in = scales.data();
    const std::size_t count = values.size() / sizeof(float);
    for (std::size_t i = 0; i < count; ++i) {
        float value;
        float scale;
        std::memcpy(&value, out + i * sizeof(float), sizeof(float));
        std::memcpy(&scale, in + i * sizeof(float), sizeof(float));
        value *= scale;
        std::memcpy(out + i * sizeof(float), &value, sizeof(float));
    }
}

void decode_e8m0(std::span<const std::byte> in, std::span<std::byte> out) noexcept {
    for (std::size_t i = 0; i < in.size(); ++i) {
        const auto exponent = static_cast<std::uint32_t>(in[i]);
        const std::uint32_t bits = exponent == 0 ? 0x0040'0000U : exponent == 0xFF ? 0x7FC0'0000U : exponent << 23;
        std::memcpy(out.data() + 4 * i, &bits, sizeof bits);
    }
}

}  // namespace safemap::SAFEMAP_ABI
