// Tests the dtype table.
#include "doctest_safemap.hpp"

#include <safemap/advanced/dtypes.hpp>
#include <safemap/advanced/small_floats.hpp>

#include <set>
#include <sstream>
#include <vector>

namespace dtype_test {

using namespace safemap;

namespace {
const auto all = [] {
    std::vector<Dtype> out;
    for (int i = 0; i <= static_cast<int>(Dtype::bits4x2); ++i) out.push_back(static_cast<Dtype>(i));
    return out;
}();
}  // namespace

TEST_CASE("the 22 names of safetensors and their bits, as the reference has them") {
    struct Row {
        const char* name;
        unsigned bits;
    };
    // safetensors 0.8, tensor.rs, in the order of its enum.
    constexpr Row rows[] = {{"BOOL", 8},        {"F4", 4},      {"F6_E2M3", 6}, {"F6_E3M2", 6}, {"U8", 8},
                            {"I8", 8},          {"F8_E5M2", 8}, {"F8_E4M3", 8}, {"F8_E8M0", 8}, {"F8_E4M3FNUZ", 8},
                            {"F8_E5M2FNUZ", 8}, {"I16", 16},    {"U16", 16},    {"F16", 16},    {"BF16", 16},
                            {"I32", 32},        {"U32", 32},    {"F32", 32},    {"C64", 64},    {"F64", 64},
                            {"I64", 64},        {"U64", 64}};
    static_assert(std::size(rows) == safetensors_dtypes);
    for (int i = 0; i < safetensors_dtypes; ++i) {
        const auto dtype = static_cast<Dtype>(i);
        CHECK(name(dtype) == rows[i].name);
        CHECK(bits(dtype) == rows[i].bits);
        CHECK(dtype_from_safetensors(rows[i].name) == dtype);
    }
}

TEST_CASE("headers accept exact names only, and people may type other spellings") {
    CHECK_FALSE(dtype_from_safetensors("f32"));
    CHECK_FALSE(dtype_from_safetensors(""));
    CHECK_FALSE(dtype_from_safetensors("F32 "));
    CHECK_FALSE(dtype_from_safetensors("complex128"));
    for (const char* text : {"bf16", "BF16", "bfloat16", "torch.bfloat16"}) CHECK(parse_dtype(text) == Dtype::bf16);
    CHECK(parse_dtype("f8_e4m3") == Dtype::f8_e4m3);
    CHECK_FALSE(parse_dtype(""));
    CHECK_FALSE(parse_dtype("float"));
}

TEST_CASE("names are unique and map back to their dtype") {
    std::set<std::string_view> names;
    for (const Dtype dtype : all) {
        CHECK(names.insert(name(dtype)).second);
        CHECK(parse_dtype(name(dtype)) == dtype);
        CHECK(parse_dtype(torch_name(dtype)) == dtype);
        CHECK((dtype_from_torch(torch_name(dtype)) == dtype || torch_name(dtype) == name(dtype)));
        std::ostringstream out;
        out << dtype;
        CHECK(out.str() == name(dtype));
    }
}

TEST_CASE("byte sizes are computed from bits, without partial bytes or overflow") {
    CHECK(byte_size(Dtype::f4, 3) == std::nullopt);
    CHECK(byte_size(Dtype::f4, 4) == 2);
    CHECK(byte_size(Dtype::f6_e2m3, 4) == 3);
    CHECK(byte_size(Dtype::f6_e2m3, 2) == std::nullopt);
    CHECK(byte_size(Dtype::f64, UINT64_MAX / 64) == UINT64_MAX / 64 * 8);
    CHECK(byte_size(Dtype::f64, UINT64_MAX / 64 + 1) == std::nullopt);
    CHECK(element_size(Dtype::f4) == 0);
    CHECK(element_size(Dtype::c128) == 16);
    CHECK(swap_size(Dtype::c64) == 4);
    CHECK(swap_size(Dtype::c32) == 2);
    CHECK(swap_size(Dtype::f64) == 8);
    CHECK(swap_size(Dtype::f4) == 1);
}

}  // namespace dtype_test
