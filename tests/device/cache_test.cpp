// Tests the cache on the host and on a fake device: values of every kind of tensor, residency and shared memory, budget
// and eviction. cache_faults_test.cpp tests faults and the end of a cache, cache_prefetch_test.cpp prefetches, and
// cache_memory_test.cpp the use of device memory and copies.
#include "device/cache.hpp"

#include "check_error.hpp"
#include "device/cache_fixture.hpp"
#include "device/counted.hpp"
#include "device/fake_device.hpp"
#include "doctest_safemap.hpp"
#include "soak.hpp"

#include <safemap/advanced/small_floats.hpp>
#include <safemap/advanced/stored_tensor.hpp>
#include <safemap/advanced/strides.hpp>
#include <safemap/device.hpp>

#include <future>
#include <vector>

namespace cache_test {

using namespace safemap;

namespace {

struct Sources {
    Counted large{1, 20_MiB + 12};
    Counted square{2, 900 * 1100 * 4};
    Counted small{3, 4096};

    std::uint64_t bytes_read() const { return large.bytes() + square.bytes() + small.bytes(); }
};

/// Returns one tensor of each kind that is cut into blocks in a different way.
std::vector<LazyTensor> all_kinds(const Sources& sources = {}) {
    const auto& [large, square, small] = sources;
    const auto floats = large.tensor("range", Dtype::f32, {(5_MiB + 3)});
    const auto matrix = square.tensor("matrix", Dtype::f32, {900, 1100});
    const LazyTensor transposed("transposed", matrix.stored(), StridedView{{1100, 900}, {1, 1100}, 0});
    return {
        floats,
        floats.cast(Dtype::bf16).renamed("cast"),
        transposed,
        transposed.cast(Dtype::f16).renamed("transposed_cast"),
        transposed.slice({{.start = 3, .stop = 1000, .step = 3}, {.start = 800, .stop = 2, .step = -1}}).renamed("odd"),
        matrix.slice({{.start = 10, .stop = 20}}).renamed("rows"),
        matrix.slice({Slice::at(7), Slice::at(9)}).renamed("scalar"),
        LazyTensor("broadcast", matrix.stored(), StridedView{{600, 900}, {0, 1}, 5}),
        LazyTensor("swapped", matrix.stored(), Decoding{.byte_swap = true}),
        small.tensor("f4", Dtype::f4, {3, 8}),
        small.tensor("f6", Dtype::f6_e2m3, {5, 4}),
        small.tensor("empty", Dtype::f32, {0, 7}),
    };
}

}  // namespace

TEST_CASE("tensors of every kind arrive on the host, at aligned places of one memory") {
    const auto host = Device::open("host");
    const CacheFixture cache(host, 200_MiB);
    const Sources sources;
    const auto tensors = all_kinds(sources);
    const Held held = cache.acquire(cache.bundle(tensors));
    const std::uint64_t read = sources.bytes_read();
    REQUIRE(held.tensors().size() == tensors.size());
    std::uint64_t total = 0;
    for (std::size_t i = 0; i < tensors.size(); ++i) {
        CAPTURE(tensors[i].name());
        const DeviceTensor& tensor = held[i];
        CHECK(tensor.name() == tensors[i].name());
        CHECK(tensor.dtype() == tensors[i].dtype());
        CHECK(tensor.shape() == tensors[i].shape());
        CHECK(tensor.nbytes() == tensors[i].nbytes());
        CHECK(tensor.memory() == held[0].memory());
        CHECK(tensor.offset() % 256 == 0);
        CHECK(reinterpret_cast<std::uintptr_t>(tensor.memory()->handle()) % 256 == 0);
        CHECK(tensor.host_bytes().size() == tensor.nbytes());
        CHECK(read_back(*host, tensor) == value_of(tensors[i]));
        total += tensor.nbytes();
    }
    const auto stats = cache.stats();
    CHECK(stats.uploaded_bytes == total);
    CHECK(stats.resident_bytes == held.bundle().device_bytes);
    CHECK(stats.resident_bytes >= total);
    CHECK(stats.resident_bytes < total + 256 * tensors.size());
    CHECK(stats.peak_device_bytes == held.bundle().device_bytes);
    CHECK(held[0].memory()->size() == held.bundle().device_bytes);
    CHECK(stats.peak_staging_bytes == 0);
    CHECK(stats.bytes_direct == 0);
    CHECK(stats.stalled.count() > 0);
    CHECK(stats.bytes_pread == read);
    // A cast reads the stored elements: 20 MiB for 10 MiB of bf16.
    CHECK(read > tensors[0].nbytes() + 2 * tensors[1].nbytes());
}

TEST_CASE("tensors of every kind arrive on a device without direct access, alone and together") {
    const auto fake = std::make_shared<FakeDevice>();
    fake->copy_microseconds = 5;
    const auto tensors = all_kinds();
    for (const std::uint64_t staging : {4_KiB, 300_KB, 16_MiB}) {
        CAPTURE(staging);
        const CacheFixture cache(fake, {.device_budget = 200_MiB, .staging_bytes = staging, .readers = 3});
        // Small buffers mean many copies, so only small tensors are used then.
        std::vector<LazyTensor> chosen;
        for (int i = soak::step(2) - 1; i < static_cast<int>(tensors.size()); i += soak::step(3))
            if (staging > 4_KiB || tensors[static_cast<std::size_t>(i)].nbytes() <= 1_MB)
                chosen.push_back(tensors[static_cast<std::size_t>(i)]);
        for (const LazyTensor& tensor : chosen) {
            CAPTURE(tensor.name());
            const Held held = cache.acquire(cache.bundle(tensor));
            CHECK(read_back(*fake, held[0]) == value_of(tensor));
        }
        const Held all = cache.acquire(cache.bundle(chosen));
        for (std::size_t i = 0; i < chosen.size(); ++i) {
            CAPTURE(chosen[i].name());
            CHECK(read_back(*fake, all[i]) == value_of(chosen[i]));
            CHECK(all[i].host_bytes().empty());
        }
        CHECK(cache.stats().peak_staging_bytes <= staging);
        if (cache.stats().uploaded_bytes > 0) CHECK(cache.stats().peak_staging_bytes > 0);
    }
    CHECK(fake->was_used_well());
    CHECK(fake->allocated == 0);
}

TEST_CASE("tensors without elements are inside the memory of their bundle, in whatever order") {
    const auto host = Device::open("host");
    const CacheFixture cache(host, 1000);
    const Bytes empty("empty", 0);
    const Bytes none("none", 0);
    const Bytes some("some", 100);
    for (const auto& tensors : {std::vector{some.tensor, empty.tensor, none.tensor},
                                std::vector{empty.tensor, some.tensor, none.tensor}, std::vector{none.tensor}}) {
        const BundlePtr bundle = cache.bundle(tensors);
        const Held held = cache.acquire(bundle);
        CHECK(held[0].memory()->size() == bundle->device_bytes);
        for (const DeviceTensor& tensor : held.tensors()) {
            CHECK(tensor.offset() <= tensor.memory()->size());
            CHECK(tensor.offset() % 256 == 0);
            CHECK(tensor.host_bytes().size() == tensor.nbytes());
            CHECK_OK(read_back(*host, tensor));
        }
    }
}

TEST_CASE("a resident tensor is read once, and a lease finds its tensors by name") {
    const CacheFixture cache(Device::open("host"), 100);
    const Bytes a("a", 40);
    const Bytes b("b", 60);
    const Held first = cache.acquire(a.tensor);
    const Held second = cache.acquire(b.tensor);
    const Held both = cache.acquire(cache.bundle({b.tensor, a.tensor}));
    CHECK(a.counted.bytes() == 40);
    CHECK(b.counted.bytes() == 60);
    CHECK(both.find("a")->memory() == first.find("a")->memory());
    CHECK(both.find("b") == &both[0]);
    CHECK(both.find("c") == nullptr);
    CHECK(first.find("b") == nullptr);
    CHECK(cache.stats().uploaded_bytes == 100);
}

TEST_CASE("tied tensors share memory, each under its name") {
    const CacheFixture cache(Device::open("host"), 100);
    const Bytes embed("embed", 100);
    const Held held = cache.acquire(cache.bundle({embed.tensor, embed.tensor.renamed("lm_head")}));
    REQUIRE(held.find("embed") != nullptr);
    REQUIRE(held.find("lm_head") != nullptr);
    CHECK(held.find("embed")->memory() == held.find("lm_head")->memory());
    CHECK(held.find("embed")->offset() == held.find("lm_head")->offset());
    CHECK(held[1].name() == "lm_head");
    CHECK(embed.counted.bytes() == 100);
    CHECK(cache.stats().peak_device_bytes == 100);
}

TEST_CASE("a different view, dtype or decoding of the same bytes is a different tensor") {
    const CacheFixture cache(Device::open("host"), 10'000);
    const Counted counted(1, 64);
    const auto whole = counted.tensor("t", Dtype::f32, {4, 4});
    const std::vector<LazyTensor> tensors = {
        whole,
        whole.cast(Dtype::f16),
        whole.slice({{.start = 0, .stop = 2}}),
        whole.slice({{.start = 2, .stop = 4}}),
        LazyTensor("t", whole.stored(), StridedView{{4, 4}, {1, 4}, 0}),
        LazyTensor("t", whole.stored(), Decoding{.neg = true}),
        LazyTensor("t", whole.stored(), StridedView{{2, 2, 4}, {8, 4, 1}, 0}),
    };
    const Held together = cache.acquire(cache.bundle(tensors));
    for (std::size_t i = 0; i < tensors.size(); ++i)
        for (std::size_t j = 0; j < i; ++j) CHECK(together[i].offset() != together[j].offset());
}

TEST_CASE("a bundle leases and counts the bundle that owns one of its tensors") {
    const CacheFixture cache(Device::open("host"), 1000);
    const Bytes a("a", 200);
    const Bytes b("b", 100);
    const Bytes c("c", 300);
    const Bytes large("large", 500);
    const BundlePtr owner = cache.bundle({a.tensor, b.tensor});
    const BundlePtr user = cache.bundle({c.tensor, b.tensor.renamed("tied")});
    CHECK(owner->device_bytes == 256 + 100);
    CHECK(user->device_bytes == owner->device_bytes + 300);
    Held held = cache.acquire(user);
    CHECK(a.counted.bytes() == 200);
    CHECK(held.tensors().size() == 2);
    CHECK(held.find("tied")->host_bytes().size() == 100);
    CHECK(cache.stats().resident_bytes == 656);

    cache.evict(owner);
    CHECK_FAULT(cache.acquire(large.tensor), Errc::budget_exceeded);
    CHECK(cache.stats().evictions == 0);
    {
        const Held also = cache.acquire(owner);
        CHECK(also.find("b")->memory() == held.find("tied")->memory());
        CHECK(also.find("b")->offset() == held.find("tied")->offset());
        held.reset();
        cache.evict(user);  // only what it owns: the owner is leased
        CHECK(cache.stats().resident_bytes == 356);
        CHECK_OK(cache.acquire(large.tensor));
    }
    CHECK(b.counted.bytes() == 100);
}

TEST_CASE("of the bundles that are not leased, those that were made last are evicted first") {
    const CacheFixture cache(Device::open("host"), 30);
    const Bytes a("a", 10);
    const Bytes b("b", 10);
    const Bytes c("c", 10);
    const Bytes d("d", 10);
    cache.acquire(a.tensor);
    Held b_held = cache.acquire(b.tensor);
    cache.acquire(c.tensor);
    cache.acquire(a.tensor);
    cache.acquire(d.tensor);  // evicts c: b is leased, and a was made first
    cache.acquire(a.tensor);
    CHECK(a.counted.bytes() == 10);
    cache.acquire(c.tensor);  // evicts d
    CHECK(c.counted.bytes() == 20);
    b_held.reset();
    cache.acquire(b.tensor);
    CHECK(b.counted.bytes() == 10);
    CHECK(cache.stats().evictions == 2);
    CHECK(cache.stats().peak_device_bytes == 30);
}

TEST_CASE("the budget can be filled to the last byte, and empty tensors always fit") {
    const CacheFixture cache(Device::open("host"), 100);
    const Bytes exact("exact", 100);
    const Bytes empty("empty", 0);
    const Bytes one("one", 1);
    const Held all = cache.acquire(exact.tensor);
    CHECK_OK(cache.acquire(empty.tensor));
    CHECK(cache.acquire(empty.tensor)[0].memory() != nullptr);
    CHECK(cache.acquire(cache.bundle(std::vector<LazyTensor>())).tensors().empty());
    CHECK_FAULT(cache.acquire(one.tensor), Errc::budget_exceeded);
}

TEST_CASE("acquire does not wait for leased memory, and the error states how much is leased") {
    const CacheFixture cache(Device::open("host"), 100);
    const Bytes a("a", 60);
    const Bytes b("b", 50);
    Held held = cache.acquire(a.tensor);
    check_error(error_of([&] { cache.acquire(b.tensor); }), {Errc::budget_exceeded}, {},
                {.message = "50 bytes needed at once, 60 bytes already leased, but the budget is 100 bytes"});
    CHECK(b.counted.reads() == 0);
    held.reset();
    CHECK_OK(cache.acquire(b.tensor));
    CHECK(cache.stats().resident_bytes == 50);
}

TEST_CASE("a tensor larger than the budget is refused with its name, and a bundle with its total size") {
    const CacheFixture cache(Device::open("host"), 300);
    const Bytes large("large", 301);
    check_error(error_of([&] { cache.acquire(large.tensor); }), {Errc::budget_exceeded}, {}, {.tensor = "large"});

    const Bytes a("a", 160);
    const Bytes b("b", 150);
    {
        const BundlePtr both = cache.bundle({a.tensor, b.tensor});
        const auto refused = error_of([&] { cache.acquire(both); });
        REQUIRE(refused);
        CHECK(refused->message() == "406 bytes needed at once, but the budget is 300 bytes");
    }
    CHECK(a.counted.reads() == 0);
    CHECK_OK(cache.acquire(a.tensor));  // nothing is still leased
    CHECK_OK(cache.acquire(b.tensor));
    CHECK_FAULT(cache.acquire(cache.bundle({a.tensor, b.tensor})), Errc::budget_exceeded);
}

TEST_CASE("a total size beyond 64 bits is refused: by bundle(), or by acquire() if there are several owners") {
    const CacheFixture cache(Device::open("host"), 1_MiB);
    const Counted counted(1, 1);
    // Broadcast from one byte, so that nothing but the budget limits their size.
    std::vector<LazyTensor> tensors;
    for (std::uint64_t i = 0; i < 20; ++i)
        tensors.emplace_back("huge", counted.tensor("base", Dtype::u8, {1}).stored(),
                             StridedView{{(std::uint64_t{1} << 60) - i}, {0}, 0});
    CHECK_FAULT(cache.bundle(tensors), Errc::budget_exceeded);
    std::vector<BundlePtr> owners;
    for (const LazyTensor& tensor : tensors) owners.push_back(cache.bundle(tensor));
    CHECK(owners[0]->device_bytes == std::uint64_t{1} << 60);
    const BundlePtr all = cache.bundle(tensors);
    CHECK(all->device_bytes == UINT64_MAX);
    CHECK_FAULT(cache.acquire(all), Errc::budget_exceeded);
    CHECK(counted.reads() == 0);
}

TEST_CASE("two threads that acquire the same tensor read it once") {
    const CacheFixture cache(Device::open("host"), 30_MiB, 1);
    const Bytes large("large", 20_MiB);
    large.counted.slow(1000);
    std::vector<std::future<const void*>> handles;
    for (int i = 0; i < 4; ++i)
        handles.push_back(std::async(std::launch::async, [&] {
            return static_cast<const void*>(cache.acquire(large.tensor)[0].memory()->handle());
        }));
    const void* const first = handles[0].get();
    for (std::size_t i = 1; i < handles.size(); ++i) CHECK(handles[i].get() == first);
    CHECK(large.counted.bytes() == 20_MiB);
}

}  // namespace cache_test
