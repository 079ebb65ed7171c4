// Tests the cache on a CUDA device: the stub of the driver finds work that is not in order, and slabs and memory that
// are used too early or freed too early.
#include "cuda/fixture.hpp"
#include "cuda/stub_cuda.hpp"
#include "device/cache_fixture.hpp"
#include "device/counted.hpp"
#include "doctest_safemap.hpp"
#include "soak.hpp"

#include <safemap/advanced/device_dlpack.hpp>
#include <safemap/uploader.hpp>

#include <cstdint>
#include <memory>
#include <random>
#include <string>
#include <thread>
#include <vector>

namespace cuda_cache_test {

using namespace safemap::literals;
using safemap::Device;
using safemap::Errc;
using safemap::NativeStream;
using safemap::drivers::CuResult;

namespace {

constexpr std::uint64_t budget = 1'300'000;

/// Bundles of two tensors each, of which about half fit into the budget. Some are small enough to share memory, and the
/// others have the same size, so that they get the memory of each other.
struct Model {
    explicit Model(StubCuda& stub) {
        for (int i = 0; i < 8; ++i) {
            const std::uint64_t size = i % 3 == 0 ? 5'000 : 150'000;
            tensors.push_back(std::make_unique<Bytes>("a" + std::to_string(i), size));
            tensors.push_back(std::make_unique<Bytes>("b" + std::to_string(i), size));
        }
        for (const auto& one : tensors) sums.push_back(stub.checksum(value_of(one->tensor)));
    }
    std::vector<BundlePtr> bundles(const CacheFixture& cache) const {
        std::vector<BundlePtr> all;
        for (std::size_t i = 0; i < tensors.size(); i += 2)
            all.push_back(cache.bundle({tensors[i]->tensor, tensors[i + 1]->tensor}));
        return all;
    }
    std::vector<std::unique_ptr<Bytes>> tensors;
    std::vector<std::uint64_t> sums;
};

/// Leases bundles in random order on a stream, and reads them with kernels. Waits for the stream only now and then.
void use(StubCuda& stub, const Model& model, const CacheFixture& cache, const std::vector<BundlePtr>& bundles,
         std::uint64_t seed, int times) {
    std::mt19937_64 random(seed);
    void* const stream = stub.make_stream();
    std::vector<std::unique_ptr<std::uint64_t>> sums;
    std::vector<std::uint64_t> expected;
    for (int i = 0; i < times; ++i) {
        const std::size_t chosen = random() % bundles.size();
        {
            const Held held = cache.acquire(bundles[chosen], NativeStream::cuda(stream));
            for (std::size_t one = 0; one < 2; ++one) {
                const safemap::DeviceTensor& tensor = held[one];
                sums.push_back(std::make_unique<std::uint64_t>(0));
                const bool reads = stub.kernel_read(stream, tensor.address(), tensor.nbytes(), *sums.back());
                CHECK(reads);
                expected.push_back(model.sums[2 * chosen + one]);
            }
        }
        if (random() % 4 == 0) cache.prefetch(bundles[random() % bundles.size()]);
        if (random() % 8 == 0) cache.evict(bundles[random() % bundles.size()]);
        if (random() % 16 == 0) stub.synchronize(stream);
    }
    stub.synchronize(stream);
    for (std::size_t i = 0; i < sums.size(); ++i) CHECK(*sums[i] == expected[i]);
}

}  // namespace

TEST_CASE("kernels of several streams see the tensors that they leased, under random evictions") {
    for (const std::uint64_t lag : {0U, 50U}) {
        StubCuda stub;
        stub.set("lag", lag);
        const Model model(stub);
        {
            const CacheFixture cache(Device::open("cuda"), budget);
            const auto bundles = model.bundles(cache);
            std::vector<std::thread> threads;
            for (std::uint64_t seed = 0; seed < 3; ++seed)
                threads.emplace_back([&, seed] { use(stub, model, cache, bundles, seed, 100); });
            for (std::thread& thread : threads) thread.join();
            CHECK(stub.get("peak_memory") <= budget);
        }
        CHECK(stub.take_findings() == "");
        CHECK(stub.live() == 0);
    }
}

TEST_CASE("a cache survives each call of the driver that fails, and frees nothing too early") {
    std::uint64_t sum = 0;  // outlives the kernels of a device that failed
    // A whole run fails every third call.
    for (std::uint64_t n = soak::stride(3);; n += 3 * soak::stride(3)) {
        StubCuda stub;
        CAPTURE(n);
        const Model model(stub);
        stub.fail_nth("", n, n % 2 == 0 ? CuResult::unknown : CuResult::launch_failed);
        const auto error = error_of([&] {
            const CacheFixture cache(Device::open("cuda"), budget);
            const auto bundles = model.bundles(cache);
            void* const stream = stub.make_stream();
            for (std::size_t i = 0; i < bundles.size(); ++i) {
                const Held held = cache.acquire(bundles[i], NativeStream::cuda(stream));
                if (i % 2 == 0) stub.kernel_read(stream, held[0].address(), held[0].nbytes(), sum);
            }
            static_cast<void>(cache.acquire(bundles[0]));
            stub.synchronize(stream);
        });
        const std::vector<std::string> names = stub.calls();
        if (names.size() < n) break;
        const std::string& name = names[n - 1];
        CAPTURE(name);
        if (error) CHECK((error->code() == Errc::device_failed || error->code() == Errc::no_such_device));
        if (name != "cuCtxPopCurrent_v2" && name != "cuThreadExchangeStreamCaptureMode")
            CHECK(stub.take_findings() == "");
    }
}

TEST_CASE("a DLPack tensor waits for its copies, and its memory waits for the consumer and the default stream") {
    StubCuda stub;
    stub.set("lag", 50);
    const char* const name = other_device(stub);
    const int ordinal = name == std::string("cuda:1") ? 1 : 0;
    const Bytes one("one", 100'000);
    const Bytes other("other", 100'000);
    {
        safemap::Uploader uploader(Device::open(name), no_tensors(), {.device_budget = 100'000, .readers = 1});
        const auto bundle = uploader.bundle({&one.tensor, 1});
        const auto next = uploader.bundle({&other.tensor, 1});
        void* const stream = stub.make_stream(ordinal);
        const NativeStream consumer = NativeStream::cuda(stream);
        auto lease = std::make_shared<safemap::Lease>(uploader.acquire(bundle, consumer));
        auto* const out = safemap::dlpack::export_versioned(lease, lease->tensors()[0], consumer);
        lease.reset();
        CHECK(out->dl_tensor.device.type == safemap::dlpack::DeviceType::cuda);
        CHECK(out->dl_tensor.device.id == ordinal);
        std::uint64_t sum = 0;
        CHECK(stub.kernel_read(stream, out->dl_tensor.data, 100'000, sum));
        out->deleter(out);
        void* const second = stub.make_stream(ordinal);
        const auto there = uploader.acquire(next, NativeStream::cuda(second));
        std::uint64_t after = 0;
        CHECK(stub.kernel_read(second, there.tensors()[0].address(), 100'000, after));
        stub.synchronize(second);
        stub.synchronize(stream);
        CHECK(sum == stub.checksum(value_of(one.tensor)));
        CHECK(after == stub.checksum(value_of(other.tensor)));
    }
    CHECK(stub.take_findings() == "");
    CHECK(stub.live() == 0);
}

}  // namespace cuda_cache_test
