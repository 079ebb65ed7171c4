// The table of dtypes. The names of the first 22 are those of safetensors 0.8 (tensor.rs). Torch's names are those of
// torch 2.13 and its safetensors bindings.
#include <safemap/dtype.hpp>

#include <safemap/advanced/dtypes.hpp>
#include <safemap/advanced/small_floats.hpp>
#include <safemap/bytes.hpp>

#include <array>
#include <cctype>
#include <ostream>
#include <string>

namespace safemap::SAFEMAP_ABI {
namespace {

struct Row {
    Dtype dtype;
    std::string_view name;        // in safetensors headers; empty if it has no name there
    std::string_view torch_name;  // empty if torch does not have it
    DtypeKind kind;
};

using enum DtypeKind;

constexpr std::array table{
    Row{Dtype::boolean, "BOOL", "bool", boolean},
    Row{Dtype::f4, "F4", "float4_e2m1fn_x2", real},
    Row{Dtype::f6_e2m3, "F6_E2M3", "", real},
    Row{Dtype::f6_e3m2, "F6_E3M2", "", real},
    Row{Dtype::u8, "U8", "uint8", integer},
    Row{Dtype::i8, "I8", "int8", integer},
    Row{Dtype::f8_e5m2, "F8_E5M2", "float8_e5m2", real},
    Row{Dtype::f8_e4m3, "F8_E4M3", "float8_e4m3fn", real},
    Row{Dtype::f8_e8m0, "F8_E8M0", "float8_e8m0fnu", real},
    Row{Dtype::f8_e4m3fnuz, "F8_E4M3FNUZ", "float8_e4m3fnuz", real},
    Row{Dtype::f8_e5m2fnuz, "F8_E5M2FNUZ", "float8_e5m2fnuz", real},
    Row{Dtype::i16, "I16", "int16", integer},
    Row{Dtype::u16, "U16", "uint16", integer},
    Row{Dtype::f16, "F16", "float16", real},
    Row{Dtype::bf16, "BF16", "bfloat16", real},
    Row{Dtype::i32, "I32", "int32", integer},
    Row{Dtype::u32, "U32", "uint32", integer},
    Row{Dtype::f32, "F32", "float32", real},
    Row{Dtype::c64, "C64", "complex64", complex},
    Row{Dtype::f64, "F64", "float64", real},
    Row{Dtype::i64, "I64", "int64", integer},
    Row{Dtype::u64, "U64", "uint64", integer},
    Row{Dtype::c32, "", "complex32", complex},
    Row{Dtype::c128, "", "complex128", complex},
    Row{Dtype::qint8, "", "qint8", opaque},
    Row{Dtype::quint8, "", "quint8", opaque},
    Row{Dtype::qint32, "", "qint32", opaque},
    Row{Dtype::quint4x2, "", "quint4x2", opaque},
    Row{Dtype::quint2x4, "", "quint2x4", opaque},
    Row{Dtype::bits8, "", "bits8", opaque},
    Row{Dtype::bits16, "", "bits16", opaque},
    Row{Dtype::bits1x8, "", "bits1x8", opaque},
    Row{Dtype::bits2x4, "", "bits2x4", opaque},
    Row{Dtype::bits4x2, "", "bits4x2", opaque},
};

constexpr bool complete() {
    for (std::size_t i = 0; i < table.size(); ++i) {
        if (table[i].dtype != static_cast<Dtype>(i)) return false;
        if (in_safetensors(table[i].dtype) == table[i].name.empty()) return false;
    }
    return table.size() == static_cast<std::size_t>(Dtype::bits4x2) + 1 &&
           std::size(detail::dtype_bits) == table.size();
}
static_assert(complete(), "every Dtype has its row, in the order of the enum");

const Row& row(Dtype dtype) noexcept { return table[static_cast<std::size_t>(dtype)]; }

std::string upper(std::string_view text) {
    std::string out(text);
    for (char& c : out) c = static_cast<char>(std::toupper(static_cast<unsigned char>(c)));
    return out;
}

}  // namespace

std::string_view name(Dtype dtype) noexcept { return in_safetensors(dtype) ? row(dtype).name : row(dtype).torch_name; }

std::string_view torch_name(Dtype dtype) noexcept {
    return row(dtype).torch_name.empty() ? row(dtype).name : row(dtype).torch_name;
}

DtypeKind kind(Dtype dtype) noexcept { return row(dtype).kind; }

unsigned swap_size(Dtype dtype) noexcept {
    if (!whole_bytes(dtype)) return 1;
    return kind(dtype) == complex ? element_size(dtype) / 2 : element_size(dtype);
}

std::optional<Dtype> dtype_from_safetensors(std::string_view name) noexcept {
    for (int i = 0; i < safetensors_dtypes; ++i)
        if (table[static_cast<std::size_t>(i)].name == name) return table[static_cast<std::size_t>(i)].dtype;
    return std::nullopt;
}

std::optional<Dtype> dtype_from_torch(std::string_view name) noexcept {
    constexpr std::string_view prefix = "torch.";
    if (name.substr(0, prefix.size()) == prefix) name.remove_prefix(prefix.size());
    if (name.empty()) return std::nullopt;
    for (const Row& r : table)
        if (r.torch_name == name) return r.dtype;
    return std::nullopt;
}

std::optional<Dtype> parse_dtype(std::string_view name) noexcept {
    if (const auto dtype = dtype_from_torch(name)) return dtype;
    return dtype_from_safetensors(upper(name));
}

std::ostream& operator<<(std::ostream& out, Dtype dtype) { return out << name(dtype); }

}  // namespace safemap::SAFEMAP_ABI
