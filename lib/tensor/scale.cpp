// Loops that the compiler vectorises. F32 values may have any alignment, so they are loaded and stored as bytes.
#include "tensor/scale.hpp"

#include <bit>
#include <cstdint>
#include <cstring>

namespace safemap::SAFEMAP_ABI {

namespace {

/// Returns the bits of value * scale. Of two NaNs, a processor returns the first operand, and the compiler chooses
/// which that is, otherwise in a vector than in the rest of a row. Here it is always the value, as in torch.
std::uint32_t product(std::uint32_t value, float scale) noexcept {
    constexpr std::uint32_t quiet = 0x0040'0000;
    const auto number = std::bit_cast<float>(value);
    return number != number ? value | quiet : std::bit_cast<std::uint32_t>(number * scale);
}

}  // namespace

void multiply(std::span<std::byte> values, float scale) noexcept {
    std::byte* const out = values.data();
    const std::size_t count = values.size() / sizeof(float);
    for (std::size_t i = 0; i < count; ++i) {
        std::uint32_t value;
        std::memcpy(&value, out + i * sizeof value, sizeof value);
        value = product(value, scale);
        std::memcpy(out + i * sizeof value, &value, sizeof value);
    }
}

void multiply(std::span<std::byte> values, std::span<const std::byte> scales) noexcept {
    std::byte* __restrict const out = values.data();
    const std::byte* __restrict const in = scales.data();
    const std::size_t count = values.size() / sizeof(float);
    for (std::size_t i = 0; i < count; ++i) {
        std::uint32_t value;
        float scale;
        std::memcpy(&value, out + i * sizeof value, sizeof value);
        std::memcpy(&scale, in + i * sizeof scale, sizeof scale);
        value = product(value, scale);
        std::memcpy(out + i * sizeof value, &value, sizeof value);
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
