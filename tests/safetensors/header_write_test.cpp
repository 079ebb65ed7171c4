// Tests writing headers: byte for byte as the reference does, and readable with the same content.
#include "safetensors/header.hpp"

#include <safemap/advanced/dtypes.hpp>
#include <safemap/advanced/small_floats.hpp>

#include "doctest_safemap.hpp"
#include "forge/files.hpp"
#include "temp_dir.hpp"

#include <algorithm>
#include <random>

namespace header_write_test {

using namespace safemap;
using safetensors::TensorSpec;

namespace {

struct Named {
    std::string name;
    Dtype dtype = {};
    Shape shape = {};
};

std::vector<TensorSpec> specs_of(const std::vector<Named>& tensors) {
    std::vector<TensorSpec> specs;
    for (const Named& tensor : tensors) specs.push_back({tensor.name, tensor.dtype, &tensor.shape});
    return specs;
}

/// Returns the tensors in the reference's order.
std::vector<TensorSpec> in_file_order(const std::vector<Named>& tensors) {
    const auto specs = specs_of(tensors);
    std::vector<TensorSpec> sorted;
    for (const std::uint32_t i : safetensors::file_order(specs)) sorted.push_back(specs[i]);
    return sorted;
}

using Metadata = std::vector<std::pair<std::string, std::string>>;

std::string write(const std::vector<Named>& tensors, std::uint32_t alignment = 8, const Metadata* metadata = nullptr) {
    return safetensors::write_header(in_file_order(tensors), metadata ? *metadata : Metadata{}, metadata != nullptr,
                                     alignment);
}

/// Returns everything before the data in a file of the safetensors package.
std::string header_of(const std::string& file) {
    const std::string bytes = TempDir::read(std::string(SAFEMAP_TEST_DATA "/safetensors/") + file);
    REQUIRE(bytes.size() >= 8);
    std::uint64_t size = 0;
    std::memcpy(&size, bytes.data(), sizeof size);
    return bytes.substr(0, 8 + size);
}

safetensors::Header read(std::string_view file) {
    ThrowFirst faults;
    return safetensors::read_header(*forge::source(file), safetensors::Rules::compatible, 100'000'000, faults);
}

}  // namespace

TEST_CASE("headers are byte for byte those of the safetensors package") {
    SUBCASE("every dtype that torch has, in the reference's order") {
        const std::vector<Named> tensors = {
            {"b", Dtype::boolean, {3}},
            {"f4", Dtype::f4, {2, 4}},
            {"u8", Dtype::u8, {2}},
            {"i8", Dtype::i8, {2}},
            {"e5m2", Dtype::f8_e5m2, {1}},
            {"e4m3", Dtype::f8_e4m3, {1}},
            {"e8m0", Dtype::f8_e8m0, {1}},
            {"e4m3fnuz", Dtype::f8_e4m3fnuz, {1}},
            {"e5m2fnuz", Dtype::f8_e5m2fnuz, {1}},
            {"i16", Dtype::i16, {2}},
            {"u16", Dtype::u16, {2}},
            {"f16", Dtype::f16, {2}},
            {"bf16", Dtype::bf16, {2}},
            {"i32", Dtype::i32, {2}},
            {"u32", Dtype::u32, {2}},
            {"f32", Dtype::f32, {2, 3}},
            {"c64", Dtype::c64, {1}},
            {"f64", Dtype::f64, {1}},
            {"i64", Dtype::i64, {}},
            {"u64", Dtype::u64, {0, 5}},
        };
        const Metadata metadata = {{"format", "pt"}};
        CHECK(write(tensors, 8, &metadata) == header_of("every_dtype.safetensors"));
    }
    SUBCASE("names and metadata that need escapes, and names that sort by bytes") {
        std::vector<Named> tensors;
        for (const char* name : {"\\", "\"", "\b\f\n\r\t", "\x01\x1f", "\x7f", "/", "\u00e9", "\u2028", "\U0001f600",
                                 "", "a.10", "a.2", "B", "b"})
            tensors.push_back({name, Dtype::u8, {1}});
        const Metadata metadata = {{"k\"\n", "v\\\u00e9\U0001f600\x02"}};
        CHECK(write(tensors, 8, &metadata) == header_of("names.safetensors"));
    }
    SUBCASE("no tensors") { CHECK(write({}) == header_of("empty.safetensors")); }
    SUBCASE("no metadata") { CHECK(write({{"w", Dtype::f32, {2, 2}}}) == header_of("no_metadata.safetensors")); }
}

TEST_CASE("the tensors of the package's own writing tests give its bytes") {
    // safetensors 0.8: test_serialization, test_serialization_forced_alignement, test_fp4, test_empty (both) of the
    // Rust core; test_serialization, test_serialization_metadata and test_serialization_order of the Python package.
    struct Row {
        std::vector<Named> tensors;
        bool with_metadata;
        unsigned char size;  // size of the header
        const char* header;
    };
    const std::vector<Row> rows = {
        {{{"attn.0", Dtype::f32, {1, 2, 3}}},
         false,
         64,
         R"({"attn.0":{"dtype":"F32","shape":[1,2,3],"data_offsets":[0,24]}})"},
        {{{"attn0", Dtype::f32, {1, 1, 2, 3}}},
         false,
         72,
         R"({"attn0":{"dtype":"F32","shape":[1,1,2,3],"data_offsets":[0,24]}}       )"},
        {{{"attn.0", Dtype::f4, {1, 2, 2}}},
         false,
         64,
         R"({"attn.0":{"dtype":"F4","shape":[1,2,2],"data_offsets":[0,2]}}  )"},
        {{}, false, 8, "{}      "},
        {{}, true, 40, R"({"__metadata__":{"framework":"pt"}}     )"},
        {{{"test", Dtype::i32, {2, 2}}},
         false,
         64,
         R"({"test":{"dtype":"I32","shape":[2,2],"data_offsets":[0,16]}}    )"},
        {{{"test1", Dtype::i32, {2, 2}}},
         true,
         96,
         R"({"__metadata__":{"framework":"pt"},"test1":{"dtype":"I32","shape":[2,2],"data_offsets":[0,16]}} )"},
        {{{"test2", Dtype::f16, {2, 2}}, {"test3", Dtype::u8, {2, 2}}, {"test", Dtype::f16, {2, 2}}},
         false,
         184,
         R"({"test":{"dtype":"F16","shape":[2,2],"data_offsets":[0,8]},)"
         R"("test2":{"dtype":"F16","shape":[2,2],"data_offsets":[8,16]},)"
         R"("test3":{"dtype":"U8","shape":[2,2],"data_offsets":[16,20]}}     )"},
    };
    const Metadata metadata = {{"framework", "pt"}};
    for (const Row& row : rows) {
        CAPTURE(std::string(row.header));
        CHECK(write(row.tensors, 8, row.with_metadata ? &metadata : nullptr) ==
              std::string(1, static_cast<char>(row.size)) + std::string(7, '\0') + row.header);
    }
}

TEST_CASE("the files of the safetensors package are read") {
    for (const char* file :
         {"every_dtype.safetensors", "names.safetensors", "empty.safetensors", "no_metadata.safetensors"})
        CHECK_OK(read(TempDir::read(std::string(SAFEMAP_TEST_DATA "/safetensors/") + file)));
}

TEST_CASE("the data begins at a multiple of the alignment") {
    for (const std::uint32_t alignment : {8U, 64U, 256U, 4096U}) {
        for (std::size_t length = 0; length < 70; ++length) {
            const std::string file = write({{std::string(length, 'n'), Dtype::u8, {1}}}, alignment);
            CAPTURE(length);
            CHECK(file.size() % alignment == 0);
            CHECK(read(file + "d").data_offset == file.size());
        }
    }
    for (const std::uint32_t alignment : {0U, 1U, 4U, 12U, 16U, 8192U})
        CHECK_FAULT(write({}, alignment), Errc::invalid_argument);
}

TEST_CASE("empty metadata is written, and can be read even without tensors") {
    const Metadata none;
    const auto header = read(write({}, 8, &none));
    CHECK(header.has_metadata);
    CHECK(header.metadata.empty());
}

TEST_CASE("invalid tensors and metadata are refused") {
    CHECK_FAULT(write({{"a", Dtype::u8, {1}}, {"a", Dtype::f32, {1}}}), Errc::name_collision);
    CHECK_FAULT(write({{"__metadata__", Dtype::u8, {1}}}), Errc::name_collision);
    CHECK_FAULT(write({{"a", Dtype::c128, {1}}}), Errc::unnamed_dtype);
    CHECK_FAULT(write({{"a", Dtype::f4, {3}}}), Errc::partial_byte);
    CHECK_FAULT(write({{"a", Dtype::u8, {1ULL << 32, 1ULL << 32}}}), Errc::shape_overflow);
    std::vector<Named> together;
    for (const char* name : {"a", "b", "c", "d", "e", "f", "g", "h", "i"})
        together.push_back({name, Dtype::u8, {UINT64_MAX >> 3}});
    CHECK_FAULT(write(together), Errc::shape_overflow);
    CHECK_FAULT(write({{"\xff", Dtype::u8, {1}}}), Errc::invalid_argument);
    CHECK_FAULT(write({{std::string(100'000'001, 'n'), Dtype::u8, {1}}}), Errc::header_too_large);
}

TEST_CASE("file order is dtype descending, then name") {
    const std::vector<Named> tensors = {
        {"b", Dtype::boolean, {}}, {"z", Dtype::f32, {}}, {"a", Dtype::f32, {}}, {"u", Dtype::u64, {}}};
    CHECK(safetensors::file_order(specs_of(tensors)) == std::vector<std::uint32_t>{3, 2, 1, 0});
}

TEST_CASE("written headers are read back the same") {
    std::mt19937 random(11);  // NOLINT: the same tensors every time
    for (int round = 0; round < 300; ++round) {
        std::vector<Named> tensors(random() % 12);
        for (std::size_t i = 0; i < tensors.size(); ++i) {
            std::string name = std::to_string(i);
            for (auto length = random() % 6; length > 0; --length) name += static_cast<char>(random() % 128);
            Shape shape;
            for (auto rank = random() % 12; rank > 0; --rank) shape.push_back(random() % 4);
            shape.push_back(8);  // makes every dtype fill whole bytes
            tensors[i] = {name, static_cast<Dtype>(random() % safetensors_dtypes), shape};
        }
        const Metadata metadata = {{"a", "\n\u00e9"}, {std::string(random() % 50, 'k') + "z", ""}};
        const auto order = in_file_order(tensors);
        std::string file = write(tensors, 8, &metadata);
        std::uint64_t data = 0;
        for (const auto& spec : order) data += byte_size(spec.dtype, element_count(*spec.shape).value()).value();
        file.append(data, 'd');

        const auto header = read(file);
        CHECK(header.metadata == metadata);
        REQUIRE(header.tensors.size() == order.size());
        for (const auto& tensor : header.tensors) {
            const auto spec =
                std::find_if(order.begin(), order.end(), [&](const auto& s) { return s.name == tensor.name; });
            REQUIRE(spec != order.end());
            CHECK(spec->dtype == tensor.dtype);
            CHECK(*spec->shape == tensor.shape);
        }
    }
}

}  // namespace header_write_test
