// More about dtypes: their kinds, their sizes in bits, and their names in safetensors and PyTorch.
#pragma once

#include <safemap/dtype.hpp>

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string_view>

namespace safemap::SAFEMAP_ABI {

/// The number of dtypes that safetensors has a name for. They are the first enumerators of Dtype.
inline constexpr int safetensors_dtypes = 22;

/// How the bits of an element are interpreted. `opaque` dtypes are bytes to safemap: they are copied, not converted.
enum class DtypeKind : std::uint8_t { boolean, integer, real, complex, opaque };

/// Returns true if safetensors has a name for `dtype`.
[[nodiscard]] constexpr bool in_safetensors(Dtype dtype) noexcept {
    return static_cast<int>(dtype) < safetensors_dtypes;
}
/// Returns the size of one element in bits: 4, 6, 8, 16, 32, 64 or 128. F4 and F6 elements are packed. For the packed
/// dtypes of torch (quint4x2, bits1x8, …) one stored byte counts as one element.
[[nodiscard]] constexpr unsigned bits(Dtype dtype) noexcept {
    return detail::dtype_bits[static_cast<std::size_t>(dtype)];
}
/// Returns the kind of `dtype`.
[[nodiscard]] SAFEMAP_API DtypeKind kind(Dtype dtype) noexcept;
/// Returns true if each element fills whole bytes.
[[nodiscard]] constexpr bool whole_bytes(Dtype dtype) noexcept { return bits(dtype) % 8 == 0; }
/// Returns the size, in bytes, of the unit that is reversed to change the byte order: an element, or half of a complex
/// element. Returns 1 for sub-byte dtypes.
[[nodiscard]] SAFEMAP_API unsigned swap_size(Dtype dtype) noexcept;
/// Returns the dtype with this name in safetensors headers, such as "F32". Case matters. Returns nothing for any other
/// text.
[[nodiscard]] SAFEMAP_API std::optional<Dtype> dtype_from_safetensors(std::string_view name) noexcept;
/// Returns the dtype with this name in PyTorch, with or without "torch.": "bfloat16". Returns nothing for any other
/// text.
///
/// Example:
///     std::optional<safemap::Dtype> dtype = safemap::dtype_from_torch("torch.bfloat16");
///     unsigned bits = safemap::bits(*dtype);                          // 16
///     bool real = safemap::kind(*dtype) == safemap::DtypeKind::real;  // true
[[nodiscard]] SAFEMAP_API std::optional<Dtype> dtype_from_torch(std::string_view name) noexcept;

}  // namespace safemap::SAFEMAP_ABI
