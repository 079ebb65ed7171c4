// A device that is as different from the host as possible: its memory has no addresses, its copies take time on another
// thread, and it detects writes to a staging buffer whose copy is not done.
#pragma once

#include <safemap/device.hpp>
#include <safemap/error.hpp>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstring>
#include <deque>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <utility>
#include <vector>

class FakeDevice final : public safemap::Device {
public:
    FakeDevice() : thread_([this] { copy_until_stopped(); }) {}
    ~FakeDevice() override {
        {
            const std::lock_guard lock(mutex_);
            stopping_ = true;
            paused_ = false;
        }
        changed_.notify_all();
        thread_.join();
    }

    // Behaviour, set by tests.
    std::atomic<int> copy_microseconds = 0;
    std::atomic<std::int64_t> fail_allocation = -1;  ///< fails after so many successful ones; -1: never
    std::atomic<std::int64_t> fail_copy = -1;
    std::atomic<std::int64_t> fail_staging = -1;
    /// One event fails to report its state after so many more successful reports; -1: none.
    const std::shared_ptr<std::atomic<std::int64_t>> fail_done = std::make_shared<std::atomic<std::int64_t>>(-1);

    /// Holds back copies while paused.
    void pause(bool paused) {
        {
            const std::lock_guard lock(mutex_);
            paused_ = paused;
        }
        changed_.notify_all();
    }

    // Observations.
    std::atomic<bool> staging_was_touched = false;  ///< true if a buffer was written before its copy was done
    std::atomic<std::uint64_t> allocated = 0;
    std::atomic<std::uint64_t> peak = 0;
    std::atomic<std::uint64_t> staging = 0;
    std::atomic<std::uint64_t> copies = 0;

    const std::string& name() const noexcept override { return name_; }
    std::uint64_t free_memory() const override { return 1'000'000; }
    std::size_t alignment() const noexcept override { return 256; }

    std::shared_ptr<safemap::DeviceMemory> allocate(std::uint64_t size) override {
        if (fail_allocation.fetch_sub(1) == 0) throw safemap::Error(safemap::Errc::out_of_memory, "the device is full");
        return std::make_shared<Memory>(*this, size);
    }
    std::shared_ptr<safemap::StagingBuffer> allocate_staging(std::uint64_t size) override {
        if (fail_staging.fetch_sub(1) == 0) throw safemap::Error(safemap::Errc::out_of_memory, "nothing to lock");
        staging += size;
        return std::make_shared<Staging>(size);
    }
    std::shared_ptr<safemap::DeviceEvent> copy_to_device(const std::shared_ptr<safemap::DeviceMemory>& to,
                                                         std::uint64_t offset,
                                                         const std::shared_ptr<safemap::StagingBuffer>& from,
                                                         safemap::Extent part) override {
        const auto bytes = from->bytes().subspan(part.offset, part.size);
        auto event = std::make_shared<Event>(fail_done);
        event->fails = fail_copy.fetch_sub(1) == 0;
        ++copies;
        Copy copy{std::static_pointer_cast<Memory>(to), offset, from, part, {bytes.begin(), bytes.end()}, event};
        {
            const std::lock_guard lock(mutex_);
            queue_.push_back(std::move(copy));
        }
        changed_.notify_all();
        return event;
    }
    void copy_to_host(std::span<std::byte> to, const safemap::DeviceMemory& from, std::uint64_t offset) override {
        const auto& memory = static_cast<const Memory&>(from);
        const std::lock_guard lock(memory.mutex);
        std::copy_n(memory.bytes.begin() + static_cast<std::ptrdiff_t>(offset), to.size(), to.begin());
    }

private:
    struct Memory final : safemap::DeviceMemory {
        Memory(FakeDevice& of, std::uint64_t bytes_wanted) : device(of), bytes(bytes_wanted) {
            const std::uint64_t now = device.allocated += bytes_wanted;
            std::uint64_t before = device.peak;
            while (before < now && !device.peak.compare_exchange_weak(before, now)) {
            }
        }
        ~Memory() override { device.allocated -= bytes.size(); }
        std::uint64_t size() const noexcept override { return bytes.size(); }
        void* handle() const noexcept override { return const_cast<Memory*>(this); }

        FakeDevice& device;
        std::vector<std::byte> bytes;
        mutable std::mutex mutex;
    };
    struct Staging final : safemap::StagingBuffer {
        explicit Staging(std::uint64_t size) : memory(size) {}
        std::span<std::byte> bytes() const noexcept override { return memory; }
        mutable std::vector<std::byte> memory;
    };
    struct Event final : safemap::DeviceEvent {
        explicit Event(std::shared_ptr<std::atomic<std::int64_t>> fail) : fail_done(std::move(fail)) {}
        bool done() const override {
            if (fail_done->fetch_sub(1) == 0) throw safemap::Error(safemap::Errc::io_error, "nobody knows");
            const std::lock_guard lock(mutex);
            return is_done;
        }
        void wait() const override {
            std::unique_lock lock(mutex);
            changed.wait(lock, [&] { return is_done; });
            if (fails) throw safemap::Error(safemap::Errc::io_error, "the copy failed");
        }
        const std::shared_ptr<std::atomic<std::int64_t>> fail_done;
        mutable std::mutex mutex;
        mutable std::condition_variable changed;
        bool is_done = false;
        bool fails = false;
    };
    struct Copy {
        std::shared_ptr<Memory> to;
        std::uint64_t offset;
        std::shared_ptr<safemap::StagingBuffer> from;
        safemap::Extent part;
        std::vector<std::byte> expected;
        std::shared_ptr<Event> event;
    };

    void copy_until_stopped() {
        std::unique_lock lock(mutex_);
        for (;;) {
            changed_.wait(lock, [&] { return stopping_ || (!queue_.empty() && !paused_); });
            if (queue_.empty()) return;
            Copy copy = std::move(queue_.front());
            queue_.pop_front();
            lock.unlock();
            perform(copy);
            copy = {};  // releases the memory before the copy is reported as done
            lock.lock();
        }
    }
    void perform(Copy& copy) {
        if (copy_microseconds > 0) std::this_thread::sleep_for(std::chrono::microseconds(copy_microseconds));
        const auto now = copy.from->bytes().subspan(copy.part.offset, copy.part.size);
        if (!std::equal(now.begin(), now.end(), copy.expected.begin())) staging_was_touched = true;
        {
            const std::lock_guard memory(copy.to->mutex);
            std::copy(now.begin(), now.end(), copy.to->bytes.begin() + static_cast<std::ptrdiff_t>(copy.offset));
        }
        copy.to.reset();
        const std::lock_guard done(copy.event->mutex);
        copy.event->is_done = true;
        copy.event->changed.notify_all();
    }

    const std::string name_ = "fake";
    std::mutex mutex_;
    std::condition_variable changed_;
    std::deque<Copy> queue_;
    bool stopping_ = false;
    bool paused_ = false;
    std::thread thread_;
};
