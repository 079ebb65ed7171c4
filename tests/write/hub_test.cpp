// Tests that save() writes the same bytes as huggingface_hub. tests/data/write/make.py made the files.
#include <safemap/advanced/small_floats.hpp>
#include <safemap/advanced/stored_tensor.hpp>

#include "doctest_safemap.hpp"
#include "write/samples.hpp"

namespace hub_test {

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

TEST_CASE("shards and index are byte for byte those of huggingface_hub") {
    const TempDir dir;
    save(dir / "out", state_dict(), {.max_shard_size = 1'000, .metadata = {{"zz.tied", "wte.weight"}}});
    CHECK(names_in(dir / "out") == names_in(data / "shards"));
    for (const auto& name : names_in(data / "shards")) {
        CAPTURE(name);
        CHECK(TempDir::read(dir / "out" / name) == TempDir::read(data / "shards" / name));
    }
}

TEST_CASE("one file is byte for byte that of huggingface_hub") {
    const TempDir dir;
    save(dir / "out", state_dict());
    CHECK(names_in(dir / "out") == names_in(data / "whole"));
    CHECK(TempDir::read(dir / "out/model.safetensors") == TempDir::read(data / "whole/model.safetensors"));
}

TEST_CASE("empty tensors go to the shard of the first of them, as in huggingface_hub") {
    const TempDir dir;
    const std::vector<LazyTensor> tensors = {
        tensor("a", Dtype::u8, {10}),    tensor("none", Dtype::f32, {0, 4}), tensor("b", Dtype::u8, {10}),
        tensor("empty", Dtype::u8, {0}), tensor("c", Dtype::u8, {10}),       tensor("void", Dtype::bf16, {3, 0}),
    };
    const auto shard_of = [](const fs::path& out, const char* name) {
        for (const std::string& file : names_in(out))
            if (file.ends_with(".safetensors") && read_file(out / file).count(name) != 0) return file;
        return std::string();
    };
    save(dir / "out", tensors, {.max_shard_size = 10});
    for (const char* name : {"a", "none", "empty", "void"}) {
        CAPTURE(name);
        CHECK(shard_of(dir / "out", name) == "model-00001-of-00003.safetensors");
    }
    CHECK(shard_of(dir / "out", "b") == "model-00002-of-00003.safetensors");
    // Cast tensors too.
    save(dir / "cast", tensors, {.dtype = Dtype::f16, .max_shard_size = 10, .overwrite = true});
    CHECK(shard_of(dir / "cast", "none") == shard_of(dir / "cast", "void"));
    // Empty tensors of different layers do not join these layers.
    const std::vector<LazyTensor> layers = {tensor("h.0.w", Dtype::u8, {10}), tensor("h.0.b", Dtype::u8, {0}),
                                            tensor("h.1.w", Dtype::u8, {10}), tensor("h.1.b", Dtype::u8, {0})};
    save(dir / "layers", layers, {.max_shard_size = 10, .strategy = ShardStrategy::by_prefix});
    CHECK(shard_of(dir / "layers", "h.1.b") == shard_of(dir / "layers", "h.1.w"));
    CHECK(shard_of(dir / "layers", "h.0.b") != shard_of(dir / "layers", "h.1.b"));
}

}  // namespace hub_test
