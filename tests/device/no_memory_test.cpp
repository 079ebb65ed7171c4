// Tests uploads on a thread whose allocations fail: this program replaces operator new.
#include "device/upload_engine.hpp"

#include "device/counted.hpp"
#include "doctest_safemap.hpp"

#include <safemap/device.hpp>

#include <chrono>
#include <cstdlib>
#include <memory>
#include <new>
#include <span>
#include <string>
#include <thread>
#include <utility>

using namespace safemap;

namespace {

/// The number of allocations of this thread that will fail.
thread_local int failing = 0;

void* allocate_or_null(std::size_t size) noexcept {
    if (failing > 0) {
        --failing;
        return nullptr;
    }
    return std::malloc(size == 0 ? 1 : size);
}

/// The host with full memory. After the error it throws, the next allocation of the thread fails.
class FullDevice final : public Device {
public:
    const std::string& name() const noexcept override { return host_->name(); }
    std::uint64_t free_memory() const override { return host_->free_memory(); }
    std::size_t alignment() const noexcept override { return host_->alignment(); }
    std::shared_ptr<DeviceMemory> allocate(std::uint64_t) override {
        Error error(Errc::out_of_memory, "the device is full");
        failing = 1;
        throw std::move(error);
    }
    std::shared_ptr<StagingBuffer> allocate_staging(std::uint64_t size) override {
        return host_->allocate_staging(size);
    }
    std::shared_ptr<DeviceEvent> copy_to_device(const std::shared_ptr<DeviceMemory>& to, std::uint64_t offset,
                                                const std::shared_ptr<StagingBuffer>& from, Extent part) override {
        return host_->copy_to_device(to, offset, from, part);
    }
    void copy_to_host(std::span<std::byte> to, const DeviceMemory& from, std::uint64_t offset) override {
        host_->copy_to_host(to, from, offset);
    }

private:
    const std::shared_ptr<Device> host_ = Device::open("host");
};

}  // namespace

void* operator new(std::size_t size) {
    if (void* const memory = allocate_or_null(size)) return memory;
    throw std::bad_alloc();
}
void* operator new(std::size_t size, const std::nothrow_t&) noexcept { return allocate_or_null(size); }
// Not inlined: GCC would report a mismatch of free() with this operator new.
[[gnu::noinline]] void operator delete(void* memory) noexcept { std::free(memory); }
[[gnu::noinline]] void operator delete(void* memory, std::size_t) noexcept { std::free(memory); }

TEST_CASE("a reader's fault reaches acquire, even if there is no memory for the tensor's name") {
    const auto engine = std::make_shared<device::UploadEngine>(std::make_shared<FullDevice>(),
                                                               UploadOptions{.device_budget = 100, .readers = 1});
    const Bytes bytes("a name that is too long to stand within a string", 100);
    engine->prefetch(std::span(&bytes.tensor, 1));
    std::this_thread::sleep_for(std::chrono::milliseconds(50));  // lets the reader fail first
    const auto error = error_of([&] { engine->acquire(std::span(&bytes.tensor, 1), device::Keep::yes); });
    failing = 0;
    REQUIRE(error);
    CHECK(error->code() == Errc::out_of_memory);
}
