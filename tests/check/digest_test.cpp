// Tests digests: the same in every container and with any number of threads, and as the definition says.
#include <safemap/digest.hpp>

#include <safemap/advanced/small_floats.hpp>

#include "base/checksum.hpp"
#include "check_error.hpp"
#include "forge/containers.hpp"

#include <atomic>
#include <chrono>
#include <cstring>
#include <map>
#include <memory>
#include <set>
#include <thread>

namespace digest_test {

using namespace safemap;
using namespace containers;

namespace {

constexpr const char* of_nothing = "99aa06d3014798d86001c324468d497f";  // the empty input, as `xxhsum -H2` prints it

std::string xxh3(std::string_view bytes) {
    Xxh3 hash;
    hash.update(std::as_bytes(std::span(bytes.data(), bytes.size())));
    return hash.hex();
}

/// Computes the digest by the definition: lines, sorted, in one string.
std::string slow_digest(const std::vector<Sample>& samples) {
    std::vector<std::string> lines;
    for (const Sample& sample : samples)
        lines.push_back(sample.name + '\0' + std::string(name(sample.dtype)) + '\0' + shape_text(sample.shape) + '\0' +
                        xxh3(sample.bytes) + '\n');
    std::sort(lines.begin(), lines.end());
    std::string all;
    for (const std::string& line : lines) all += line;
    return xxh3(all);
}

std::map<std::string, std::string> as_map(const CheckpointDigests& report) {
    std::map<std::string, std::string> digests;
    for (const TensorDigest& tensor : report.tensors) CHECK(digests.emplace(tensor.name, tensor.digest).second);
    return digests;
}

void check(const Checkpoint& checkpoint, const std::vector<Sample>& samples) {
    for (const unsigned threads : {1U, 3U, 8U}) {
        DigestOptions options;
        options.work.threads = threads;
        const auto report = digests(checkpoint, options);
        CHECK(report.checkpoint == slow_digest(samples));
        const auto digests = as_map(report);
        CHECK(digests.size() == samples.size());
        for (const Sample& sample : samples) {
            CAPTURE(sample.name);
            CHECK(digests.at(sample.name) == xxh3(sample.bytes));
        }
    }
}

/// Returns a source that calls `before` at each read, to count reads or to fail.
std::shared_ptr<const Source> slow_source(std::string bytes, std::function<void(std::uint64_t)> before) {
    const auto shared = std::make_shared<const std::string>(std::move(bytes));
    return callback_source("slow", shared->size(), [=](std::uint64_t offset, std::span<std::byte> into) {
        before(offset);
        std::memcpy(into.data(), shared->data() + offset, into.size());
    });
}

}  // namespace

TEST_CASE("the same tensors have the same digests in one file, in shards, in a .pt and in memory") {
    std::random_device device;
    for (int round = 0; round < 20; ++round) {
        const unsigned seed = device();
        CAPTURE(seed);
        std::mt19937 random(seed);
        const auto samples =
            random_samples(random, {Dtype::f32, Dtype::bf16, Dtype::f64, Dtype::i64, Dtype::u8, Dtype::boolean});
        const TempDir dir;
        check(checkpoint_of(containers::safetensors(samples)), samples);
        check(Checkpoint::open(write_shards(dir, samples)), samples);
        check(checkpoint_of(pt(samples)), samples);
        check(in_memory(samples), samples);
    }
}

TEST_CASE("sub-byte elements are hashed in their packed form") {
    std::mt19937 random(7);
    const auto samples = random_samples(random, {Dtype::f4, Dtype::f6_e2m3, Dtype::f6_e3m2, Dtype::f8_e8m0});
    check(checkpoint_of(containers::safetensors(samples)), samples);
}

TEST_CASE("a checkpoint without tensors, empty tensors and 0-d tensors have digests too") {
    check(checkpoint_of(containers::safetensors({})), {});
    CHECK(digests(checkpoint_of(containers::safetensors({}))).checkpoint == of_nothing);
    const std::vector<Sample> samples = {{"none", Dtype::f32, {3, 0}, ""}, {"one", Dtype::u8, {}, "x"}};
    check(checkpoint_of(containers::safetensors(samples)), samples);
    CHECK(digests(checkpoint_of(containers::safetensors(samples))).tensors.front().digest == of_nothing);
}

TEST_CASE("the digest covers names, dtypes and shapes, not metadata or the order of tensors") {
    const std::vector<Sample> samples = {{"a", Dtype::u8, {4}, "1234"}, {"b", Dtype::u8, {4}, "5678"}};
    const auto digest = [](const std::vector<Sample>& of, std::string_view more = {}) {
        return digests(checkpoint_of(containers::safetensors(of, more))).checkpoint;
    };
    const std::string whole = digest(samples);
    CHECK(digest(samples, R"("__metadata__":{"x":"y"},)") == whole);
    CHECK(digest({samples[1], samples[0]}) == whole);
    CHECK(digest({{"a", Dtype::i8, {4}, "1234"}, samples[1]}) != whole);
    CHECK(digest({{"a", Dtype::u8, {2, 2}, "1234"}, samples[1]}) != whole);
    CHECK(digest({{"c", Dtype::u8, {4}, "1234"}, samples[1]}) != whole);
    CHECK(digest({samples[0]}) != whole);
}

TEST_CASE("a name with a NUL does not change the order of the lines") {
    std::vector<Sample> samples = {{"a", Dtype::u8, {1}, "1"},
                                   {"a\\u0000Z", Dtype::u8, {1}, "2"},
                                   {"a\\u0001", Dtype::u8, {1}, "3"},
                                   {"a\\u0000A", Dtype::u8, {1}, "4"}};
    const auto report = digests(checkpoint_of(containers::safetensors(samples)));
    using namespace std::string_literals;
    samples[1].name = "a\0Z"s;
    samples[2].name = "a\1"s;
    samples[3].name = "a\0A"s;
    CHECK(report.checkpoint == slow_digest(samples));
}

TEST_CASE("each name of a tied tensor counts as a tensor, and is hashed once") {
    const std::vector<Sample> samples = {{"w", Dtype::f32, {2}, "12345678"}, {"x", Dtype::f32, {1}, "1234"}};
    auto expanded = samples;
    expanded.push_back({"head", Dtype::f32, {2}, "12345678"});
    SUBCASE("in a .pt") {
        const auto model = checkpoint_of(pt(samples, {{"head", "w"}}));
        REQUIRE(model.size() == 2);
        check(model, expanded);
        CHECK(digests(model).bytes == 12);
    }
    SUBCASE("in metadata") {
        const auto model = checkpoint_of(containers::safetensors(samples, R"("__metadata__":{"head":"w"},)"));
        check(model, expanded);
        CHECK(digests(model).bytes == 12);
    }
}

TEST_CASE("only selected tensors are hashed") {
    const std::vector<Sample> samples = {{"a", Dtype::u8, {4}, "1234"}, {"b", Dtype::u8, {4}, "5678"}};
    DigestOptions options;
    options.selection = Selection::glob("b");
    const auto report = digests(checkpoint_of(containers::safetensors(samples)), options);
    REQUIRE(report.tensors.size() == 1);
    CHECK(report.checkpoint == slow_digest({samples[1]}));
    CHECK(report.bytes == 4);
}

TEST_CASE("large tensors are read in parallel and hashed in order") {
    std::mt19937 random(3);
    const Shape shape{1400, 1700};  // 9.5 MB: several blocks for any number of workers
    const std::vector<Sample> samples = {
        {"a", Dtype::f32, shape, random_bytes(random, 9'520'000)},
        {"small", Dtype::f32, {}, "1234"},
        {"z", Dtype::f32, {2'500'000}, random_bytes(random, 10'000'000)},
    };
    check(checkpoint_of(pt(samples)), samples);

    std::mutex mutex;
    std::set<std::thread::id> readers;
    const std::string file = containers::safetensors(samples);
    const auto source = slow_source(file, [&](std::uint64_t) {
        std::this_thread::sleep_for(std::chrono::milliseconds(2));
        const std::lock_guard lock(mutex);
        readers.insert(std::this_thread::get_id());
    });
    check(Checkpoint::open(source), samples);
    CHECK(readers.size() > 1);
}

TEST_CASE("slices and casts have the digest of what they load") {
    std::mt19937 random(11);
    const Shape shape{900, 1500};
    const auto model = checkpoint_of(pt({{"w", Dtype::f32, shape, random_bytes(random, 5'400'000)}}));
    const LazyTensor whole = model["w"];
    const auto loaded = [](const LazyTensor& tensor) {
        const TensorView view = tensor.load();
        Xxh3 hash;
        hash.update(view.bytes());
        return hash.hex();
    };
    for (const LazyTensor& tensor :
         {whole, whole.cast(Dtype::bf16), whole.slice({{.start = 3, .stop = 800, .step = 2}, {.step = -1}}),
          whole.slice({{}, Slice::at(7)}).cast(Dtype::f64), whole.slice({{.stop = 0}}),
          whole.slice({Slice::at(0), Slice::at(0)})})
        CHECK(digest(tensor) == loaded(tensor));
}

TEST_CASE("a failed read ends the digest with its error, even if another thread waits for that block") {
    const std::string file = containers::safetensors({{"w", Dtype::u8, {20'000'000}, std::string(20'000'000, 'x')}});
    std::atomic<bool> open_already = false;
    const auto source = slow_source(file, [&](std::uint64_t offset) {
        if (open_already && offset > 8'000'000 && offset < 14'000'000) {
            std::this_thread::sleep_for(std::chrono::milliseconds(20));
            throw Error(Errc::io_error, "the disk is on fire");
        }
    });
    const auto model = Checkpoint::open(source);
    open_already = true;
    for (const unsigned threads : {1U, 2U, 8U}) {
        DigestOptions options;
        options.work.threads = threads;
        check_error(error_of([&] { return digests(model, options); }), {Errc::io_error}, {}, {.tensor = "w"});
    }
}

TEST_CASE("a stop request also stops threads that wait for their turn") {
    const std::string file = containers::safetensors({{"w", Dtype::u8, {20'000'000}, std::string(20'000'000, 'x')}});
    for (int round = 0; round < 16; ++round) {  // a block, at most 4 MiB, begins after the last of these offsets
        std::stop_source stop;
        bool opened = false;
        const auto model = Checkpoint::open(slow_source(file, [&](std::uint64_t offset) {
            if (opened && offset > static_cast<std::uint64_t>(round) * 1'000'000) stop.request_stop();
        }));
        opened = true;
        DigestOptions options;
        options.work.threads = 8;
        options.work.monitor.stop = stop.get_token();
        CHECK_FAULT(digests(model, options), Errc::cancelled);
    }
}

TEST_CASE("digests report progress and can be stopped") {
    const std::string file = containers::safetensors({{"w", Dtype::u8, {20'000'000}, std::string(20'000'000, 'x')}});
    const auto model = Checkpoint::open(
        slow_source(file, [](std::uint64_t) { std::this_thread::sleep_for(std::chrono::milliseconds(5)); }));
    const auto caller = std::this_thread::get_id();
    std::vector<std::uint64_t> seen;
    DigestOptions options;
    options.work.threads = 8;
    options.work.monitor.on_progress = [&](const Progress& progress) {
        CHECK(std::this_thread::get_id() == caller);
        CHECK(progress.stage == "hashing");
        CHECK(progress.bytes_total == 20'000'000);
        seen.push_back(progress.bytes_done);
        return true;
    };
    static_cast<void>(digests(model, options));
    REQUIRE_FALSE(seen.empty());
    CHECK(seen.back() == 20'000'000);
    CHECK(std::is_sorted(seen.begin(), seen.end()));

    options.work.monitor.on_progress = [](const Progress& progress) { return progress.bytes_done == 0; };
    CHECK_FAULT(digests(model, options), Errc::cancelled);
    std::stop_source stop;
    options.work.monitor = {.stop = stop.get_token()};
    stop.request_stop();
    CHECK_FAULT(digests(model, options), Errc::cancelled);
}

}  // namespace digest_test
