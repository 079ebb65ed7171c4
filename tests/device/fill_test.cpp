// Tests filling memory of the caller.
#include "check_error.hpp"
#include "device/cache_fixture.hpp"
#include "device/counted.hpp"
#include "device/fake_device.hpp"
#include "device/random_tensors.hpp"
#include "device/schedule.hpp"
#include "doctest_safemap.hpp"
#include "soak.hpp"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

namespace fill_test {

using namespace safemap;

namespace {

std::vector<std::byte> contents(Device& device, const DeviceMemory& memory) {
    std::vector<std::byte> bytes(memory.size());
    device.copy_to_host(bytes, memory, 0);
    return bytes;
}

/// Random tensors, each with a target in one of a few blocks of memory, in random order and with gaps between them.
struct Targets {
    Targets(Device& device, unsigned seed) {
        random_tensors::Maker maker(seed, 3, 4'000'000);
        std::vector<LazyTensor> tensors;
        for (std::size_t n = 1 + maker.below(30); n > 0; --n) {
            const auto kind = random_tensors::kinds[maker.below(std::size(random_tensors::kinds))];
            tensors.push_back(maker.make(kind, 1 + maker.below(maker.below(4) == 0 ? 200'000 : 2'000)).tensor);
        }
        tensors.push_back(tensors[maker.below(tensors.size())]);  // one tensor, two targets
        std::vector<std::uint64_t> sizes(3, 0);
        std::vector<std::size_t> blocks;
        for (const LazyTensor& tensor : tensors) {
            const std::size_t block = maker.below(sizes.size());
            sizes[block] += maker.below(100);
            blocks.push_back(block);
            all.push_back({tensor, nullptr, 0, sizes[block]});
            sizes[block] += tensor.nbytes();
        }
        for (const std::uint64_t size : sizes) {
            memory.push_back(device.allocate(size + 7));
            expected.push_back(contents(device, *memory.back()));
        }
        for (std::size_t i = 0; i < all.size(); ++i) {
            all[i].address = memory[blocks[i]]->handle();
            all[i].size = memory[blocks[i]]->size();
            const auto value = value_of(all[i].tensor);
            std::ranges::copy(value, expected[blocks[i]].begin() + static_cast<std::ptrdiff_t>(all[i].offset));
        }
        std::shuffle(all.begin(), all.end(), maker.random());
    }

    std::vector<FillTarget> all;
    std::vector<std::shared_ptr<DeviceMemory>> memory;
    std::vector<std::vector<std::byte>> expected;  // each block, with what was there in the gaps
};

/// A tensor and memory for it on a fake device.
struct One {
    const Bytes bytes = Bytes("t", 20'000);
    const std::shared_ptr<FakeDevice> fake = std::make_shared<FakeDevice>();
    FakeDevice::Stream stream;
    const std::shared_ptr<DeviceMemory> memory = fake->allocate(20'000);
    const std::vector<FillTarget> targets = {{bytes.tensor, memory->handle(), 20'000}};
    const CacheFixture cache = CacheFixture(fake, {.device_budget = 100'000, .staging_bytes = 8192, .readers = 2});
};

}  // namespace

TEST_CASE("targets have the values of their tensors, and nothing else changes") {
    const unsigned first = soak::seed(0) % 1'000'000;
    for (const bool staged : {false, true})
        for (unsigned i = 0; i < static_cast<unsigned>(soak::rounds(20)); ++i) {
            CAPTURE(staged);
            CAPTURE(first + i);
            const auto fake = std::make_shared<FakeDevice>();
            const std::shared_ptr<Device> device = staged ? fake : Device::open("host");
            const Targets targets(*device, first + i);
            const std::uint64_t staging = i % 2 == 0 ? 4'096 : 100'000;
            const CacheFixture cache(device, {.device_budget = 1'000, .staging_bytes = staging, .readers = 2});
            cache.fill(targets.all)->wait();
            for (std::size_t block = 0; block < targets.memory.size(); ++block)
                CHECK(contents(*device, *targets.memory[block]) == targets.expected[block]);
            CHECK(fake->was_used_well());
        }
}

TEST_CASE("each target has memory of its own, which counts against no budget") {
    const Counted file(1, 100'000);
    const auto host = Device::open("host");
    const CacheFixture cache(host, {.device_budget = 1'000, .staging_bytes = 1_MiB, .readers = 1});
    std::vector<FillTarget> targets;
    std::vector<std::vector<std::byte>> memory(100, std::vector<std::byte>(1'000));
    for (std::uint64_t i = 0; i < 100; ++i) {
        const LazyTensor tensor("t" + std::to_string(i), stored_run(Dtype::u8, {1'000}, file.source(), i * 1'000));
        targets.push_back({tensor, memory[i].data(), 1'000});
    }
    std::ranges::reverse(targets);
    cache.fill(targets)->wait();
    for (const FillTarget& target : targets)
        CHECK(std::ranges::equal(std::span(static_cast<std::byte*>(target.address), 1'000), value_of(target.tensor)));
    CHECK(cache.stats().bytes_pread == 100'000);
    CHECK(cache.stats().peak_device_bytes == 0);
}

TEST_CASE("memory that the caller allocated is borrowed, not owned") {
    const auto host = Device::open("host");
    std::vector<std::byte> own(1'000);
    const Bytes bytes("t", 1'000);
    const CacheFixture cache(host, 1'000);
    cache.fill({{bytes.tensor, own.data(), own.size()}})->wait();
    CHECK(own == value_of(bytes.tensor));
    CHECK_FAULT(host->borrow(nullptr, 1), Errc::invalid_argument);
    FakeDevice fake;
    CHECK_FAULT(fake.Device::borrow(own.data(), 1), Errc::invalid_argument);  // as a device that does not override it
}

TEST_CASE("targets that the host can write to are filled without staging, wherever they begin") {
    random_tensors::Maker maker(7, 3, 8'000'000);
    const auto host = Device::open("host");
    for (const auto kind : random_tensors::kinds) {
        CAPTURE(static_cast<int>(kind));
        const LazyTensor tensor = maker.make(kind, 350'000).tensor;
        const auto value = value_of(tensor);
        for (const std::uint64_t before : {0U, 1U, 4'097U}) {
            const auto untouched = std::byte{0xEE};
            std::vector<std::byte> own(before + tensor.nbytes() + 3, untouched);
            const CacheFixture cache(host, {.device_budget = 1'000, .staging_bytes = 100'000, .readers = 2});
            cache.fill({{tensor, own.data(), own.size(), before}})->wait();
            std::vector<std::byte> want(before, untouched);
            want.insert(want.end(), value.begin(), value.end());
            want.insert(want.end(), 3, untouched);
            CHECK(own == want);
            CHECK(cache.stats().peak_staging_bytes == 0);
        }
    }
}

TEST_CASE("a target has the value of the last fill, even if copies of one before are still to come") {
    One one;
    one.fake->writable = true;
    const Bytes first("first", 100);
    const Bytes later("later", 100);
    const auto memory = one.fake->allocate(100);
    const CacheFixture cache(one.fake, {.device_budget = 1'000, .staging_bytes = 64_MiB, .readers = 1});
    cache.fill({{first.tensor, memory->handle(), 100}}, one.stream.native());
    const auto event = cache.fill({{later.tensor, memory->handle(), 100}});
    one.stream.finish();
    event->wait();
    CHECK(contents(*one.fake, *memory) == value_of(later.tensor));
    CHECK(one.fake->was_used_well());
}

TEST_CASE("a target that work of a stream may use is not written to by the host") {
    One one;
    one.fake->writable = true;
    const Bytes few("few", 10);
    const auto small = one.fake->allocate(10);
    const auto before = contents(*one.fake, *small);
    const auto event = one.cache.fill({{few.tensor, small->handle(), 10}}, one.stream.native());
    CHECK(contents(*one.fake, *small) == before);
    one.stream.finish();
    event->wait();
    CHECK(contents(*one.fake, *small) == value_of(few.tensor));
}

TEST_CASE("a fill happens after the work of a stream, and the host does not wait for it") {
    One one;
    const auto before = contents(*one.fake, *one.memory);
    const auto small = one.fake->allocate(10);
    const Bytes few("few", 10);
    const auto event = one.cache.fill({{few.tensor, small->handle(), 10}}, one.stream.native());
    CHECK(one.stream.records == 1);
    CHECK_FALSE(event->done());
    CHECK_FALSE(event->wait_until(std::chrono::steady_clock::now() + std::chrono::milliseconds(5)));
    CHECK(contents(*one.fake, *small) != value_of(few.tensor));
    one.stream.finish();
    event->wait();
    CHECK(contents(*one.fake, *small) == value_of(few.tensor));
    CHECK(contents(*one.fake, *one.memory) == before);
}

TEST_CASE("a fill without targets, and of tensors without elements, is done") {
    One one;
    CHECK_OK(one.cache.fill({})->wait());
    const Bytes empty("empty", 0);
    CHECK_OK(one.cache.fill({{empty.tensor, one.memory->handle(), 20'000, 20'000}, {empty.tensor}})->wait());
    CHECK(one.fake->copies == 0);
}

TEST_CASE("targets outside their memory, and streams that cannot be ordered, are refused before anything is read") {
    One one;
    check_error(error_of([&] {
                    one.cache.fill({{one.bytes.tensor, one.memory->handle(), 20'000, 1}});
                }),
                {Errc::invalid_argument}, {}, {.tensor = "t"});
    CHECK_FAULT(one.cache.fill({{one.bytes.tensor, one.memory->handle(), 20'000, UINT64_MAX}}), Errc::invalid_argument);
    CHECK_FAULT(one.cache.fill({{one.bytes.tensor, nullptr, 20'000}}), Errc::invalid_argument);
    CHECK_FAULT(one.cache.fill(one.targets, NativeStream::opencl(nullptr)), Errc::invalid_argument);
    one.stream.captured = true;
    CHECK_FAULT(one.cache.fill(one.targets, one.stream.native()), Errc::invalid_argument);
    CHECK(one.bytes.counted.reads() == 0);
}

TEST_CASE("memory that safemap lends is never filled") {
    const auto host = Device::open("host");
    const CacheFixture cache(host, 100'000);
    const Bytes one("one", 10'000);
    const Bytes other("other", 100);
    const Held held = cache.acquire(one.tensor);
    const auto value = value_of(one.tensor);
    const auto& memory = held[0].memory();
    CHECK_FAULT(cache.fill({{other.tensor, memory->handle(), memory->size(), held[0].offset()}}),
                Errc::invalid_argument);
    std::byte* const inside = held[0].host_bytes().data() + 50;
    CHECK_FAULT(cache.fill({{other.tensor, inside, 100}}), Errc::invalid_argument);
    CHECK_FAULT(cache.fill({{other.tensor, held[0].host_bytes().data() - 50, 100}}), Errc::invalid_argument);
    CHECK(read_back(*host, held[0]) == value);
    std::vector<std::byte> own(100);
    CHECK_OK(cache.fill({{other.tensor, own.data(), own.size()}}));
}

TEST_CASE("a read or a copy that fails is thrown when nothing is in progress any more, and the next fill works") {
    for (int nth = 0; nth < 3; ++nth) {
        for (const bool reads : {true, false}) {
            CAPTURE(nth);
            CAPTURE(reads);
            One one;
            one.fake->copy_microseconds = 200;
            if (reads) one.bytes.counted.fail_after(nth);
            else one.fake->fail_copy = nth;
            check_error(error_of([&] { one.cache.fill(one.targets); }), {Errc::io_error}, {}, {.tensor = "t"});
            one.cache.fill(one.targets)->wait();
            CHECK(contents(*one.fake, *one.memory) == value_of(one.bytes.tensor));
            CHECK(one.fake->was_used_well());
        }
    }
}

TEST_CASE("a fill keeps neither memory nor sources when it is over, even if no reader thread looks at its queue") {
    One one;
    const NoMoreThreads none;
    one.cache.fill(one.targets)->wait();
    CHECK(one.memory.use_count() == 1);
    CHECK(contents(*one.fake, *one.memory) == value_of(one.bytes.tensor));
}

TEST_CASE("a device that fails during a fill is lost") {
    One one;
    one.fake->fail_device = 1;
    try {
        one.cache.fill(one.targets)->wait();
        one.cache.fill(one.targets);
        FAIL("no error");
    } catch (Error& error) {
        error.with_hint("an error is of the thread that gets it, which may add to it");
    }
    const auto next = error_of([&] { one.cache.fill(one.targets); });
    REQUIRE(next);
    CHECK(next->code() == Errc::device_failed);
    CHECK(next->hint().empty());
    CHECK_FAULT(one.cache.acquire(one.bytes.tensor), Errc::device_failed);
}

}  // namespace fill_test
