// Lists all values of a format in order, and rounds to the nearest by a binary search.
#include "reference/slow_cast.hpp"

#include <safemap/advanced/small_floats.hpp>
#include <safemap/float_types.hpp>

#include <algorithm>
#include <bit>
#include <cmath>
#include <iterator>

namespace reference {
namespace {

template <class T> float decode(std::uint32_t raw) { return T{static_cast<decltype(T::bits)>(raw)}; }

}  // namespace

const SlowFormat& SlowFormat::of(safemap::Dtype dtype) {
    using enum safemap::Dtype;
    static const SlowFormat formats[] = {
        {f16, 0x7C00, 0x7C00, decode<safemap::f16>},
        {bf16, 0x7F80, 0x7F80, decode<safemap::bf16>},
        {f8_e4m3, 0x7F, 0x7E, decode<safemap::f8_e4m3>},
        {f8_e5m2, 0x7C, 0x7C, decode<safemap::f8_e5m2>},
        {f8_e4m3fnuz, 0x80, 0x80, decode<safemap::f8_e4m3fnuz>},
        {f8_e5m2fnuz, 0x80, 0x80, decode<safemap::f8_e5m2fnuz>},
    };
    return *std::find_if(std::begin(formats), std::end(formats), [&](const auto& f) { return f.dtype_ == dtype; });
}

std::uint32_t SlowFormat::to_f32(std::uint32_t raw) const {
    const float value = decode_(raw);
    if (!std::isnan(value)) return std::bit_cast<std::uint32_t>(value);
    const std::uint32_t sign = raw >> (bits() - 1) << 31;
    switch (dtype_) {
        case safemap::Dtype::f16: return sign | 0x7FC0'0000 | (raw & 0x3FF) << 13;
        case safemap::Dtype::bf16: return raw << 16;
        case safemap::Dtype::f8_e4m3: return sign | 0x7FF0'0000;
        case safemap::Dtype::f8_e5m2: return sign | 0x7FC0'0000 | (raw & 3) << 21;
        default: return 0x7F80'0001;
    }
}

Cast SlowFormat::from_f32(std::uint32_t f32) const {
    const auto value = std::bit_cast<float>(f32);
    const std::uint32_t sign = f32 >> 31 << (bits() - 1);
    if (std::isnan(value)) return {nan(f32, sign), false, true};
    if (std::isinf(value)) return {with_sign(beyond_, sign), false, true};
    const std::uint32_t nearest = search(std::abs(static_cast<double>(value)));
    if (nearest == values_.size()) return {with_sign(beyond_, sign), true, false};
    return {with_sign(nearest, sign), false, false};
}

SlowFormat::SlowFormat(safemap::Dtype dtype, std::uint32_t values, std::uint32_t beyond, Decode decoder)
    : dtype_(dtype), beyond_(beyond), decode_(decoder) {
    for (std::uint32_t raw = 0; raw < values; ++raw) values_.push_back(decoder(raw));
}

std::uint32_t SlowFormat::nan(std::uint32_t f32, std::uint32_t sign) const {
    if (fnuz()) return 0x80;
    if (dtype_ == safemap::Dtype::bf16) return 0x7FC0;
    if (dtype_ == safemap::Dtype::f16) return sign | 0x7E00 | (f32 >> 13 & 0x3FF);
    return sign | 0x7F;
}

std::uint32_t SlowFormat::search(double magnitude) const {
    const auto above = std::lower_bound(values_.begin(), values_.end(), magnitude);
    const auto place = static_cast<std::uint32_t>(above - values_.begin());
    if (place == 0) return 0;
    const double below = values_[place - 1];
    const double next = above != values_.end() ? *above : 2 * below - values_[place - 2];
    if (magnitude - below == next - magnitude) return place % 2 == 0 ? place : place - 1;
    return magnitude - below < next - magnitude ? place - 1 : place;
}

Cast slow_cast(safemap::Dtype from, std::uint64_t raw, safemap::Dtype to) {
    using safemap::Dtype;
    Cast first{raw};
    if (from == Dtype::f64) {
        const auto wide = std::bit_cast<double>(raw);
        const auto narrow = static_cast<float>(wide);
        first = {std::bit_cast<std::uint32_t>(narrow), std::isfinite(wide) && std::isinf(narrow), !std::isfinite(wide)};
    } else {
        if (from != Dtype::f32) first.bits = SlowFormat::of(from).to_f32(static_cast<std::uint32_t>(raw));
        first.non_finite = !std::isfinite(std::bit_cast<float>(static_cast<std::uint32_t>(first.bits)));
    }
    const auto f32 = static_cast<std::uint32_t>(first.bits);
    if (to == Dtype::f32) return first;
    if (to == Dtype::f64) {
        first.bits = std::bit_cast<std::uint64_t>(static_cast<double>(std::bit_cast<float>(f32)));
        return first;
    }
    Cast second = SlowFormat::of(to).from_f32(f32);
    if (first.overflowed) second.non_finite = false;
    second.overflowed |= first.overflowed;
    return second;
}

}  // namespace reference
