// What huggingface_hub writes and what save() writes are the same bytes. tests/data/write/make.py made the files.
#include "doctest_safemap.hpp"
#include "write/samples.hpp"

using namespace safemap;
using namespace samples;

namespace {

std::vector<std::byte> pattern(unsigned number, std::size_t size, unsigned mask = 0xFF) {
    std::vector<std::byte> bytes(size);
    for (std::size_t k = 0; k < size; ++k) bytes[k] = static_cast<std::byte>((31 * number + 7 * k) % 256 & mask);
    return bytes;
}

std::vector<LazyTensor> state_dict() {
    struct Row {
        const char* name;
        Dtype dtype;
        Shape shape;
    };
    const std::vector<Row> rows = {{"wte.weight", Dtype::f32, {16, 8}}, {"layers.0.big", Dtype::bf16, {40, 20}},
                                   {"layers.0.ids", Dtype::i64, {5}},   {"layers.0.mask", Dtype::boolean, {3, 1}},
                                   {"größe.€.𝄞", Dtype::f16, {33}},     {"empty", Dtype::f32, {0, 4}},
                                   {"scalar", Dtype::f64, {}},          {"layers.10.w", Dtype::f8_e4m3, {2, 3, 5}},
                                   {"layers.9.w", Dtype::c64, {6}},     {"quote\"\\", Dtype::u8, {500}}};
    std::vector<LazyTensor> tensors;
    for (unsigned i = 0; i < rows.size(); ++i) {
        const Row& row = rows[i];
        const auto size = static_cast<std::size_t>(*byte_size(row.dtype, *element_count(row.shape)));
        auto bytes = pattern(i, size, row.dtype == Dtype::boolean ? 1 : 0xFF);
        tensors.emplace_back(row.name, stored_run(row.dtype, row.shape, memory_source(row.name, std::move(bytes)), 0));
    }
    tensors.emplace_back("filler", stored_run(Dtype::u8, {600}, memory_source("filler", pattern(10, 600)), 0));
    return tensors;
}

const fs::path data = fs::path(SAFEMAP_TEST_DATA) / "write";

}  // namespace

TEST_CASE("shards and index are huggingface_hub's, byte for byte") {
    const TempDir dir;
    save(dir / "out", state_dict(), {.max_shard_size = 1'000, .metadata = {{"zz.tied", "wte.weight"}}});
    CHECK(names_in(dir / "out") == names_in(data / "shards"));
    for (const auto& name : names_in(data / "shards")) {
        CAPTURE(name);
        CHECK(TempDir::read(dir / "out" / name) == TempDir::read(data / "shards" / name));
    }
}

TEST_CASE("one file is huggingface_hub's, byte for byte") {
    const TempDir dir;
    save(dir / "out", state_dict());
    CHECK(names_in(dir / "out") == names_in(data / "whole"));
    CHECK(TempDir::read(dir / "out/model.safetensors") == TempDir::read(data / "whole/model.safetensors"));
}
