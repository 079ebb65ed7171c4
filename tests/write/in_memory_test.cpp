// Tests that a checkpoint in memory is saved as a file with the same tensors is, with every option about the files.
#include "doctest_safemap.hpp"
#include "write/everywhere.hpp"
#include "write/samples.hpp"

#include <safemap/advanced/strides.hpp>
#include <safemap/checkpoint.hpp>

#include <memory>
#include <utility>

namespace in_memory_test {

using namespace safemap;
using namespace samples;

namespace {

/// Returns a tensor over random bytes in memory, seen through `view`.
LazyTensor in_memory(std::string name, Dtype dtype, StridedView view, std::uint64_t seed) {
    const auto bytes = std::make_shared<const std::vector<std::byte>>(random_bytes(4096, seed));
    return LazyTensor(std::move(name), TensorView(dtype, {*bytes, bytes, false}, std::move(view)));
}

/// Returns tensors in the order in which a file has them.
std::vector<LazyTensor> tensors() {
    return {in_memory("scale", Dtype::f64, {{}, {}, 3}, 3),
            in_memory("embed.weight", Dtype::f32, {{24, 32}, {1, 24}, 0}, 2),
            in_memory("down.weight", Dtype::bf16, {{16, 32}, {-32, 1}, 480}, 1),
            in_memory("up.weight", Dtype::bf16, {{40, 8}, {8, 1}, 1}, 4)};
}

}  // namespace

TEST_CASE("a checkpoint in memory is saved as a file with its tensors, ties and metadata is") {
    const std::vector<AliasGroup> ties{{"embed.weight", "lm_head.weight"}};
    const Checkpoint memory = Checkpoint::of(tensors(), {{"who", "me"}}, ties);
    const TempDir dir;
    save_everywhere(dir / "one.safetensors", memory);
    CHECK(metadata_of(dir / "one.safetensors") ==
          std::map<std::string, std::string>{{"format", "pt"}, {"lm_head.weight", "embed.weight"}, {"who", "me"}});
    const Checkpoint file = Checkpoint::open(dir / "one.safetensors");
    CHECK(file.aliases() == ties);

    const std::pair<const char*, SaveOptions> saves[]{
        {"checksums", {.checksums = true}},
        {"cast", {.dtype = Dtype::f16}},
        {"exact", {.metadata = {{"a", "b"}}, .exact_metadata = true}},
        {"untied", {.untie = true}},
        {"shards", {.max_shard_size = 1000}},
        {"ranks", {.ranks = 2}},
    };
    for (const auto& each : saves) {  // not a structured binding: Clang 14 cannot capture those
        CAPTURE(each.first);
        SaveOptions of_memory = each.second;
        SaveOptions of_file = each.second;
        of_memory.folders.emplace("ema", memory);
        of_file.folders.emplace("ema", file);
        save(dir / "memory", memory, of_memory);
        save(dir / "file", file, of_file);
        CHECK(contents_of(dir / "memory") == contents_of(dir / "file"));
        if (each.second.ranks == 0) CHECK(contents_of(dir / "memory/ema") == contents_of(dir / "file/ema"));
        fs::remove_all(dir / "memory");
        fs::remove_all(dir / "file");
    }
}

}  // namespace in_memory_test
