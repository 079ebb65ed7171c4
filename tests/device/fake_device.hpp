// A device that is as different from the host as possible, unless a test says otherwise. The host cannot write to its
// memory, which has no addresses, and its copies take time on another thread. It detects writes to a staging buffer
// whose copy is not done, copies that reach outside, and memory that is freed while it is copied to.
#pragma once

#include <safemap/advanced/device_backend.hpp>
#include <safemap/bytes.hpp>

#include <atomic>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <list>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <thread>
#include <vector>

class FakeDevice final : public safemap::Device {
public:
    FakeDevice();
    ~FakeDevice() override;

    // Behaviour, set by tests.
    std::atomic<bool> maps = false;      ///< memory can be mapped
    std::atomic<bool> writable = false;  ///< the host can write to memory
    std::atomic<int> copy_microseconds = 0;
    std::atomic<std::int64_t> fail_allocation = -1;  ///< fails after so many successful ones; -1: never
    std::atomic<bool> full = false;                  ///< every allocation fails
    std::function<void(std::uint64_t size)> on_allocation = [](std::uint64_t) {};
    std::atomic<std::int64_t> fail_copy = -1;    ///< a copy, or a call of map() or unmap(), that is refused
    std::atomic<std::int64_t> fail_device = -1;  ///< a copy that was queued, and with which the device fails
    std::atomic<std::int64_t> fail_staging = -1;
    /// Called before a staging buffer is freed, on the thread that does it.
    const std::shared_ptr<std::function<void(std::uint64_t size)>> on_free_staging =
        std::make_shared<std::function<void(std::uint64_t)>>([](std::uint64_t) {});
    /// One event fails to report its state after so many more successful reports; -1: none.
    const std::shared_ptr<std::atomic<std::int64_t>> fail_done = std::make_shared<std::atomic<std::int64_t>>(-1);

    /// Holds back copies while paused.
    void pause(bool paused);

    // Observations.
    std::atomic<bool> staging_was_touched = false;  ///< true if a buffer was written before its copy was done
    std::atomic<bool> copied_outside = false;       ///< true if a copy reached outside, or its rows overlapped
    std::atomic<bool> freed_during_copy = false;    ///< true if memory was freed before a copy to it was done
    std::atomic<std::uint64_t> allocated = 0;
    std::atomic<std::uint64_t> peak = 0;
    std::atomic<std::uint64_t> allocations = 0;
    std::atomic<std::uint64_t> staging = 0;  ///< bytes allocated so far
    const std::shared_ptr<std::atomic<std::uint64_t>> live_staging = std::make_shared<std::atomic<std::uint64_t>>(0);
    std::atomic<std::uint64_t> copies = 0;
    std::atomic<std::uint64_t> waits = 0;  ///< calls of wait_for()
    std::atomic<std::uint64_t> mappings = 0;
    std::atomic<bool> used_while_mapped = false;  ///< true if mapped memory was used, or memory in use was mapped

    const std::string& name() const noexcept override { return name_; }
    std::uint64_t free_memory() const override { return 1'000'000; }

    /// Returns true if the caller of this device kept all of its rules.
    bool was_used_well() const {
        return !staging_was_touched && !copied_outside && !freed_during_copy && !used_while_mapped;
    }

    std::shared_ptr<safemap::DeviceMemory> allocate(std::uint64_t size) override;
    /// Reserves multiples of 64 bytes.
    std::shared_ptr<safemap::DeviceMemory> reserve(std::uint64_t size) override;
    std::shared_ptr<safemap::StagingBuffer> allocate_staging(std::uint64_t size) override;
    /// Knows memory of its own only.
    std::shared_ptr<safemap::DeviceMemory> borrow(void* handle, std::uint64_t size) override;
    safemap::DeviceQueue& queue(Lane lane) override;

private:
    struct Contents;
    struct Memory;
    struct Staging;
    struct Event;
    struct Entry;
    class Queue;

public:
    /// A stream of a caller. Its work is done when the test says so.
    struct Stream {
        std::atomic<bool> captured = false;
        std::atomic<int> waits = 0;  ///< calls of make_wait()
        std::atomic<int> records = 0;

        safemap::NativeStream native() noexcept { return safemap::NativeStream::cuda(this); }
        /// Ends all work that is in the stream.
        void finish();

    private:
        friend class FakeDevice;
        std::mutex mutex;
        std::vector<std::shared_ptr<Event>> recorded;
    };
    void make_wait(safemap::NativeStream stream, const safemap::DeviceEvent& event) override;
    std::shared_ptr<safemap::DeviceEvent> record(safemap::NativeStream stream) override;
    bool is_capturing(safemap::NativeStream stream) const override;

    void copy_to_host(std::span<std::byte> to, const safemap::DeviceMemory& from, std::uint64_t offset) override;

private:
    static Stream& stream_of(safemap::NativeStream stream);
    /// Throws out_of_memory now and then, as a test says.
    void allow_allocation(std::uint64_t size);
    std::shared_ptr<Event> make_event() const;
    void push(Entry entry);
    void work_until_stopped();
    void perform(Entry& entry);

    const std::string name_ = "fake";
    const std::shared_ptr<std::atomic<bool>> failed_ = std::make_shared<std::atomic<bool>>(false);
    const std::unique_ptr<Queue> demand_;
    const std::unique_ptr<Queue> bulk_;
    std::mutex mutex_;
    std::condition_variable changed_;
    std::list<Entry> queue_;
    bool stopping_ = false;
    bool paused_ = false;
    bool working_ = false;
    std::thread thread_;
};
