// Tests that save() writes tensors in memory from where they are: which of them, that the files are those of a save
// that reads through a buffer, and what happens if a system call fails or writes less.
#include <safemap/advanced/stored_tensor.hpp>
#include <safemap/advanced/strides.hpp>
#include <safemap/sink.hpp>
#include <safemap/verify.hpp>

#include "doctest_safemap.hpp"
#include "io/scripted_calls.hpp"
#include "lazy/stored_tensor.hpp"
#include "soak.hpp"
#include "write/samples.hpp"

#include <cstring>
#include <functional>
#include <mutex>
#include <random>

namespace memory_test {

using namespace safemap;
using namespace samples;
using namespace safemap::literals;

namespace {

bool is_inside(std::span<const std::byte> part, std::span<const std::byte> whole) {
    const std::less_equal<const std::byte*> before;
    return before(whole.data(), part.data()) && before(part.data() + part.size(), whole.data() + whole.size());
}

/// Saves a tensor, and returns how many bytes are written from addresses inside `memory`.
std::uint64_t written_from(std::span<const std::byte> memory, const LazyTensor& tensor,
                           const SaveOptions& options = {}) {
    std::mutex mutex;
    std::uint64_t bytes = 0;
    const auto sink = callback_sink("s", [&](std::uint64_t, std::span<const std::byte> part) {
        const std::lock_guard lock(mutex);
        if (is_inside(part, memory)) bytes += part.size();
    });
    save(*sink, std::vector{tensor}, options);
    return bytes;
}

/// Returns the same tensor, whose bytes are read by a function.
LazyTensor through_callback(const LazyTensor& tensor) {
    const auto source = tensor.stored()->shared_source(0);
    const auto read = [source](std::uint64_t offset, std::span<std::byte> into) { source->read_at(offset, into); };
    const auto stored =
        stored_run(tensor.stored()->dtype(), tensor.stored()->shape(), callback_source("c", source->size(), read), 0);
    const LazyTensor same(tensor.name(), stored, tensor.strided_view(), tensor.decoding());
    return same.cast(tensor.dtype());
}

}  // namespace

TEST_CASE("a tensor in memory is written from where it is; files, casts, views and small tensors are read") {
    const auto bytes = std::make_shared<std::vector<std::byte>>(random_bytes(3'000'000, 1));
    const auto source = memory_source("m", SharedBytes{*bytes, bytes});
    const LazyTensor matrix("w", stored_run(Dtype::f32, {300, 2'500}, source, 0));
    CHECK(written_from(*bytes, matrix) == 3'000'000);
    CHECK(written_from(*bytes, matrix, {.checksums = true}) == 3'000'000);
    CHECK(written_from(*bytes, matrix.slice({{.start = 100, .stop = 200}})) == 1'000'000);
    CHECK(written_from(*bytes, LazyTensor("w", stored_run(Dtype::f4, {1000, 6'000}, source, 0))) == 3'000'000);
    CHECK(written_from(*bytes, matrix.cast(Dtype::bf16)) == 0);
    CHECK(written_from(*bytes, matrix, {.dtype = Dtype::f16}) == 0);
    CHECK(written_from(*bytes, matrix.slice({Slice{}, {.stop = 2'000}})) == 0);
    CHECK(written_from(*bytes, LazyTensor("w", matrix.stored(), Decoding{.byte_swap = true})) == 0);
    CHECK(written_from(*bytes, LazyTensor("w", stored_run(Dtype::u8, {1'000}, source, 0))) == 0);

    const TempDir dir;
    dir.write("file", {reinterpret_cast<const char*>(bytes->data()), bytes->size()});
    const LazyTensor in_file("w", stored_run(Dtype::u8, {3'000'000}, open_file(dir / "file", Mapping::allowed), 0));
    const TensorView view = in_file.view();
    CHECK(written_from(view.bytes(), in_file) == 0);
}

TEST_CASE("random tensors in memory give the files of tensors that are read by a function") {
    const unsigned seed = soak::seed(20261129);
    CAPTURE(seed);
    std::mt19937_64 random(seed);
    constexpr Dtype dtypes[] = {Dtype::u8, Dtype::bf16, Dtype::f32, Dtype::f64, Dtype::c64, Dtype::f6_e2m3};
    for (int round = 0; round < soak::rounds(80); ++round) {
        CAPTURE(round);
        const TempDir dir;
        std::vector<LazyTensor> memory;
        std::vector<LazyTensor> read;
        for (std::size_t i = random() % 8; i < 12; ++i) {
            const std::uint64_t most = random() % 3 == 0 ? 2'500'000 : random() % 2 == 0 ? 200'000 : 1'000;
            const Dtype dtype = dtypes[random() % std::size(dtypes)];
            const std::uint64_t columns = 4 * (1 + random() % 16);
            const std::uint64_t rows = random() % (most / (columns * 8) + 2);
            const LazyTensor made = tensor("t" + std::to_string(i), dtype, {rows, columns}, random());
            memory.push_back(random() % 4 == 0 ? made.slice({{.start = 1, .step = 1 + std::int64_t(random() % 2)}})
                                               : made);
            read.push_back(through_callback(memory.back()));
        }
        SaveOptions options{.max_shard_size = 1'000'000 + random() % 5'000'000,
                            .checksums = random() % 2 == 0,
                            .work = {.threads = 1 + static_cast<unsigned>(random() % 3)}};
        if (random() % 3 == 0) options.dtype = Dtype::bf16;
        std::optional<ShrunkMemory> direct;
        if (random() % 3 == 0) direct.emplace();  // writes past the page cache
        save(dir / "memory", memory, options);
        save(dir / "read", read, options);
        CHECK(contents_of(dir / "memory") == contents_of(dir / "read"));
        if (options.checksums) CHECK(verify(dir / "memory").faults.empty());
    }
}

TEST_CASE("every system call of a save from memory may fail, and short ones make no difference") {
    const TempDir dir;
    const std::vector<LazyTensor> tensors = {tensor("a", Dtype::f32, {50'000}, 1), tensor("b", Dtype::u8, {100}, 2),
                                             tensor("c", Dtype::u8, {90'001}, 3)};
    const SaveOptions options{.checksums = true, .work = {.threads = 1}};
    save(dir / "plain.safetensors", tensors, options);
    bool survived = false;
    for (int nth = soak::step(3); !survived; nth += soak::step(3)) {
        CAPTURE(nth);
        REQUIRE(nth < 200);
        const auto failure = fail_at(nth, EIO, [&] { save(dir / "out.safetensors", tensors, options); });
        survived = failure.which.empty();
        if (!survived) CHECK(names_in(dir.path()) == std::vector<std::string>{"plain.safetensors"});
    }
    {
        ScriptedCalls calls;
        calls.stutter(10'007);
        save(dir / "short.safetensors", tensors, options);
    }
    CHECK(TempDir::read(dir / "short.safetensors") == TempDir::read(dir / "plain.safetensors"));
}

}  // namespace memory_test
