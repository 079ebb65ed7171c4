// Tests of evictions.hpp, and of saves that evict their sources: what is evicted and when. From top to bottom: files
// that record requests, the plan, saves, real files.
#include "write/evictions.hpp"

#include <safemap/advanced/shard_writer.hpp>
#include <safemap/advanced/stored_tensor.hpp>
#include <safemap/advanced/strides.hpp>

#include "doctest_safemap.hpp"
#include "soak.hpp"
#include "write/killed_save.hpp"
#include "write/samples.hpp"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <mutex>
#include <random>

namespace evictions_test {

using namespace safemap;
using namespace samples;
using namespace safemap::literals;

namespace {

constexpr std::uint64_t page = 4096;

/// A file of zeros that records in which order its bytes are read and evicted.
class Recorder final : public Source {
public:
    explicit Recorder(std::uint64_t size, bool file = true) : size_(size), file_(file) {}

    const std::string& name() const noexcept override { return name_; }
    std::uint64_t size() const noexcept override { return size_; }
    bool is_file() const noexcept override { return file_; }
    void read_at(std::uint64_t offset, std::span<std::byte> into) const override {
        std::memset(into.data(), 0, into.size());
        const std::lock_guard lock(mutex_);
        for (const Extent& extent : evicted) {
            // Only whole pages are evicted.
            const std::uint64_t begin = (extent.offset + page - 1) / page * page;
            const std::uint64_t end = extent.end() == size_ ? size_ : extent.end() / page * page;
            if (offset < end && begin < offset + into.size()) read_again = true;
        }
    }
    void evict(Extent extent) const override {
        const std::lock_guard lock(mutex_);
        evicted.push_back(extent);
        if (fails) throw Error(Errc::file_changed, "on request");
    }

    /// Returns true if whole pages of [begin, end), but not the pages before and behind it, are evicted.
    bool evicted_exactly(std::uint64_t begin, std::uint64_t end) const {
        std::vector<bool> pages((size_ + page - 1) / page);
        for (const Extent& extent : evicted)
            for (std::uint64_t at = extent.offset / page; at * page < extent.end(); ++at)
                if (at * page >= extent.offset && std::min(size_, (at + 1) * page) <= extent.end()) pages[at] = true;
        for (std::uint64_t at = 0; at < pages.size(); ++at)
            if (pages[at] != (at * page < end && (at + 1) * page > begin)) return false;
        return true;
    }

    mutable std::vector<Extent> evicted;
    mutable bool read_again = false;
    bool fails = false;

private:
    std::string name_ = "recorder";
    std::uint64_t size_;
    bool file_;
    mutable std::mutex mutex_;
};

LazyTensor part(std::string name, const std::shared_ptr<Recorder>& file, std::uint64_t offset, std::uint64_t size) {
    return {std::move(name), stored_run(Dtype::u8, {size}, file, offset)};
}

}  // namespace

TEST_CASE("after each step, a file is evicted up to the first byte that a later step reads") {
    const auto file = std::make_shared<Recorder>(1_MiB);
    const std::vector<LazyTensor> tensors = {part("a", file, 5'000, 100'000), part("b", file, 400'000, 100'000),
                                             part("c", file, 105'000, 295'000), part("d", file, 600'000, 100'001)};
    write::Evictions evictions(5'000);  // each tensor is a step
    for (const LazyTensor& tensor : tensors) {
        const std::uint64_t unit = evictions.add_units(1);
        evictions.add(tensor, unit);
    }
    evictions.plan();
    CHECK(file->evicted.empty());
    evictions.done(0);
    CHECK(file->evicted_exactly(5'000, 105'000 / page * page));
    evictions.done(1);  // the next step reads bytes that lie before it
    CHECK(file->evicted_exactly(5'000, 105'000 / page * page));
    evictions.done(2);
    CHECK(file->evicted_exactly(5'000, 500'000));
    evictions.done(3);
    std::vector<Extent> expected = {{5'000, 495'000}, {600'000, 100'001}};
    std::uint64_t pages = 0;
    for (const Extent& extent : expected) pages += (extent.end() - 1) / page - extent.offset / page + 1;
    std::uint64_t found = 0;
    for (std::uint64_t at = 0; at < 1_MiB; at += page)
        found += std::any_of(file->evicted.begin(), file->evicted.end(),
                             [&](const Extent& e) { return e.offset <= at && at + page <= e.end(); });
    CHECK(found == pages);
}

TEST_CASE("units that are done out of order evict nothing before the earlier ones are done") {
    const auto file = std::make_shared<Recorder>(800'000);
    std::vector<LazyTensor> tensors;
    for (std::uint64_t i = 0; i < 8; ++i) tensors.push_back(part("t", file, i * 100'000, 100'000));
    write::Evictions evictions(100'000);
    for (const LazyTensor& tensor : tensors) {
        const std::uint64_t first = evictions.add_units(2);
        evictions.add(tensor, first + 1);
    }
    evictions.plan();
    for (const std::uint64_t unit : {1U, 2U, 3U}) evictions.done(unit);
    CHECK(file->evicted.empty());
    evictions.done(0);
    CHECK(file->evicted_exactly(0, 200'000 / page * page));
    for (std::uint64_t unit = 15; unit > 3; --unit) evictions.done(unit);
    CHECK(file->evicted_exactly(0, 800'000));
}

TEST_CASE("sources that are no files are not evicted, and empty tensors do not matter") {
    const auto memory = std::make_shared<Recorder>(100'000, false);
    const std::vector<LazyTensor> tensors = {part("a", memory, 0, 100'000), part("b", memory, 0, 0)};
    write::Evictions evictions(10);
    evictions.add(tensors[1], 0);
    evictions.add(tensors[0], evictions.add_units(1));
    evictions.plan();
    evictions.done(0);
    CHECK(memory->evicted.empty());
    write::Evictions nothing;
    nothing.plan();
    nothing.done(0);
}

TEST_CASE("random tensors are evicted completely, and never before they are read") {
    std::mt19937_64 random(11);
    for (int round = 0; round < soak::rounds_of_one_thread(100); ++round) {
        CAPTURE(round);
        std::vector<std::shared_ptr<Recorder>> files;
        for (std::uint64_t f = 1 + random() % 5; f > 0; --f) files.push_back(std::make_shared<Recorder>(300'000));
        std::vector<LazyTensor> tensors;
        for (std::uint64_t t = 1 + random() % 30; t > 0; --t) {
            std::vector<RunPiece> runs;
            std::uint64_t first = 0;
            for (std::uint64_t r = 1 + random() % 4; r > 0; --r) {
                const std::uint64_t size = 1 + random() % 9'000;
                runs.push_back({files[random() % files.size()], random() % 291'000, first, size});
                first += size;
            }
            tensors.emplace_back("t", stored_runs(Dtype::u8, {first}, runs));
        }
        write::Evictions evictions(1 + random() % 100'000);
        std::vector<std::uint64_t> last;  // the last unit of each tensor
        std::uint64_t units = evictions.add_units(1) + 1;
        for (const LazyTensor& tensor : tensors) {
            const std::uint64_t count = random() % 3;
            evictions.add_units(count);
            units += count;
            last.push_back(units - 1);
            evictions.add(tensor, last.back());
        }
        evictions.plan();
        for (std::uint64_t unit = 0; unit < units; ++unit) {
            for (std::size_t i = 0; i < tensors.size(); ++i)
                if (last[i] >= unit) static_cast<void>(tensors[i].load());
            evictions.done(unit);
        }
        for (const auto& file : files) CHECK_FALSE(file->read_again);
        for (const SourceRange& range : ranges_of(tensors)) {
            const auto& evicted = static_cast<const Recorder*>(range.source)->evicted;
            for (std::uint64_t at = range.extent.offset; at < range.extent.end(); at += 97)
                REQUIRE(std::any_of(evicted.begin(), evicted.end(),
                                    [&](const Extent& e) { return e.offset <= at && at < e.end(); }));
        }
    }
}

TEST_CASE("a save evicts what it reads, on request, and nothing before it is read for the last time") {
    const TempDir dir;
    for (const bool drop : {false, true})
        for (const unsigned threads : {1U, 4U}) {
            const auto file = std::make_shared<Recorder>(130'000'000);
            std::vector<LazyTensor> tensors;
            for (std::uint64_t i = 0; i < 60; ++i)
                tensors.push_back(part("t" + std::to_string(i), file, 4'096 + i * 2'000'000, 2'000'000));
            // A transposed matrix, and a second reader of the first bytes.
            tensors.emplace_back("z", stored_run(Dtype::u8, {2'000, 3'000}, file, 4'096),
                                 StridedView{.shape = {3'000, 2'000}, .strides = {1, 3'000}});
            save(dir / "out.safetensors", tensors,
                 {.overwrite = true, .durable = false, .drop_cache = drop, .work = {.threads = threads}});
            CHECK_FALSE(file->read_again);
            CHECK(file->evicted.empty() == !drop);
            if (drop) CHECK(file->evicted_exactly(4'096, 120'004'096));
        }
}

TEST_CASE("saves to sinks and writers of declared tensors evict too, and failures do not matter") {
    const TempDir dir;
    const auto file = std::make_shared<Recorder>(100'000);
    file->fails = true;
    const std::vector<LazyTensor> tensors = {part("a", file, 0, 50'000)};
    const std::vector<LazyTensor> others = {part("b", file, 50'000, 50'000)};
    save(dir / "model.safetensors", tensors, {.drop_cache = true});
    CHECK(file->evicted_exactly(0, 50'000));
    file->evicted.clear();
    std::vector<std::byte> bytes;
    save(*memory_sink("memory", bytes), others, {.drop_cache = true});
    CHECK(file->evicted_exactly(50'000, 100'000));
    file->evicted.clear();
    const std::vector<Declaration> declared = {{"a", Dtype::u8, {50'000}}};
    ShardWriter writer(dir / "declared.safetensors", declared, {.drop_cache = true});
    writer.write("a", tensors[0]);
    writer.commit();
    CHECK(file->evicted.size() == 1);
}

TEST_CASE("a killed save that evicts is continued, and only the rest is read") {
    const TempDir dir = TempDir::in_memory();
    std::vector<LazyTensor> tensors;
    for (std::uint64_t i = 0; i < 8; ++i) tensors.push_back(tensor("t" + std::to_string(i), Dtype::u8, {20'000}, i));
    save(dir / "in", tensors);
    SaveOptions options{.max_shard_size = 20'000, .resume = true, .drop_cache = true};
    options.work.threads = 1;
    save(dir / "expected", Checkpoint::open(dir / "in"), options);
    bool resumed = false;
    for (int nth = 20; killed_at(nth, dir / "in", dir / "out", options); nth += 9) {
        const SaveReport report = save(dir / "out", Checkpoint::open(dir / "in"), options);
        resumed = resumed || (!report.resumed.empty() && report.resumed.size() < 8);
        for (const std::string& file : report.files)
            REQUIRE(TempDir::read(dir / "out" / file) == TempDir::read(dir / "expected" / file));
        fs::remove_all(dir / "out");
    }
    CHECK(resumed);
}

TEST_CASE("the pages of a file are in memory before a save that evicts it, and not afterwards") {
    const TempDir dir;
    const auto bytes = random_bytes(3'000'000, 5);
    dir.write("in", {reinterpret_cast<const char*>(bytes.data()), bytes.size()});
    const int descriptor = ::open((dir / "in").c_str(), O_RDONLY);
    REQUIRE(::fsync(descriptor) == 0);  // pages that are not on the disk yet stay
    ::close(descriptor);
    const auto file = open_file(dir / "in");
    std::vector<LazyTensor> tensors;
    for (std::uint64_t i = 0; i < 100; ++i)
        tensors.emplace_back("t" + std::to_string(i), stored_run(Dtype::u8, {30'000}, file, i * 30'000));
    const Extent all = {0, bytes.size()};
    file->prefetch(all);
    const Residency before = file->residency(all);
    file->evict(all);
    const Residency evicted = file->residency(all);
    if (before.total == 0 || before.resident != before.total || evicted.resident != 0) {
        MESSAGE("skipped: this file system does not evict files, or does not report it");
        return;
    }
    file->prefetch(all);
    save(dir / "kept", tensors);
    CHECK(file->residency(all).resident > 0);
    save(dir / "out", tensors, {.drop_cache = true});
    CHECK(file->residency(all).resident == 0);
    CHECK(TempDir::read(dir / "out/model.safetensors") == TempDir::read(dir / "kept/model.safetensors"));
}

}  // namespace evictions_test
