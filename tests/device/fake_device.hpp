// A device that is as different from the host as possible: its memory has no addresses, and its copies take time on
// another thread. It detects writes to a staging buffer whose copy is not done, copies that reach outside, and memory
// that is freed while it is copied to.
#pragma once

#include <safemap/device.hpp>
#include <safemap/error.hpp>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <mutex>
#include <span>
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
    std::atomic<bool> full = false;                  ///< every allocation fails
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
    std::atomic<bool> copied_outside = false;       ///< true if a copy reached outside, or its rows overlapped
    std::atomic<bool> freed_during_copy = false;    ///< true if memory was freed before a copy to it was done
    std::atomic<std::uint64_t> allocated = 0;
    std::atomic<std::uint64_t> peak = 0;
    std::atomic<std::uint64_t> allocations = 0;
    std::atomic<std::uint64_t> staging = 0;
    std::atomic<std::uint64_t> copies = 0;

    const std::string& name() const noexcept override { return name_; }
    std::uint64_t free_memory() const override { return 1'000'000; }

    /// Returns true if the caller of this device kept all of its rules.
    bool was_used_well() const { return !staging_was_touched && !copied_outside && !freed_during_copy; }

    std::shared_ptr<safemap::DeviceMemory> allocate(std::uint64_t size) override {
        if (full || fail_allocation.fetch_sub(1) == 0)
            throw safemap::Error(safemap::Errc::out_of_memory, "the device is full");
        ++allocations;
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
        return copy_rows_to_device(to, from,
                                   {.to = offset,
                                    .to_pitch = part.size,
                                    .from = part.offset,
                                    .from_pitch = part.size,
                                    .row_bytes = part.size,
                                    .rows = 1});
    }
    std::shared_ptr<safemap::DeviceEvent> copy_rows_to_device(const std::shared_ptr<safemap::DeviceMemory>& to,
                                                              const std::shared_ptr<safemap::StagingBuffer>& from,
                                                              const safemap::RowCopy& rows) override {
        auto event = std::make_shared<Event>(fail_done);
        event->fails = fail_copy.fetch_sub(1) == 0;
        ++copies;
        Copy copy{std::static_pointer_cast<Memory>(to)->contents, from, rows, {}, event};
        if (!is_inside(copy)) {
            copied_outside = true;
            copy.rows.rows = 0;
        }
        copy.expected = bytes_of(copy);
        {
            const std::lock_guard lock(mutex_);
            queue_.push_back(std::move(copy));
            ++queue_.back().to->copies;
        }
        changed_.notify_all();
        return event;
    }
    void copy_to_host(std::span<std::byte> to, const safemap::DeviceMemory& from, std::uint64_t offset) override {
        const auto& contents = *static_cast<const Memory&>(from).contents;
        const std::lock_guard lock(contents.mutex);
        std::copy_n(contents.bytes.begin() + static_cast<std::ptrdiff_t>(offset), to.size(), to.begin());
    }

private:
    /// The bytes of a memory, which a copy can still write to after the memory was freed.
    struct Contents {
        explicit Contents(std::uint64_t size) : bytes(size) {}
        std::vector<std::byte> bytes;
        std::atomic<int> copies = 0;  // not done yet
        mutable std::mutex mutex;
    };
    struct Memory final : safemap::DeviceMemory {
        Memory(FakeDevice& of, std::uint64_t size) : device(of), contents(std::make_shared<Contents>(size)) {
            const std::uint64_t now = device.allocated += size;
            std::uint64_t before = device.peak;
            while (before < now && !device.peak.compare_exchange_weak(before, now)) {
            }
        }
        ~Memory() override {
            if (contents->copies > 0) device.freed_during_copy = true;
            device.allocated -= contents->bytes.size();
        }
        std::uint64_t size() const noexcept override { return contents->bytes.size(); }
        void* handle() const noexcept override { return const_cast<Memory*>(this); }

        FakeDevice& device;
        const std::shared_ptr<Contents> contents;
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
        std::shared_ptr<Contents> to;
        std::shared_ptr<safemap::StagingBuffer> from;
        safemap::RowCopy rows;
        std::vector<std::byte> expected;  // all rows, without gaps
        std::shared_ptr<Event> event;
    };

    static bool is_inside(const Copy& copy) {
        const safemap::RowCopy& rows = copy.rows;
        const auto fits = [&](std::uint64_t begin, std::uint64_t pitch, std::uint64_t size) {
            // In 128 bits, nothing overflows.
            __extension__ using Wide = unsigned __int128;
            return Wide{begin} + Wide{rows.rows - 1} * pitch + rows.row_bytes <= size;
        };
        return rows.rows > 0 && rows.to_pitch >= rows.row_bytes && rows.from_pitch >= rows.row_bytes &&
               fits(rows.to, rows.to_pitch, copy.to->bytes.size()) &&
               fits(rows.from, rows.from_pitch, copy.from->bytes().size());
    }
    static std::vector<std::byte> bytes_of(const Copy& copy) {
        std::vector<std::byte> bytes;
        bytes.reserve(copy.rows.rows * copy.rows.row_bytes);
        for (std::uint64_t row = 0; row < copy.rows.rows; ++row) {
            const auto from =
                copy.from->bytes().subspan(copy.rows.from + row * copy.rows.from_pitch, copy.rows.row_bytes);
            bytes.insert(bytes.end(), from.begin(), from.end());
        }
        return bytes;
    }

    void copy_until_stopped() {
        std::unique_lock lock(mutex_);
        for (;;) {
            changed_.wait(lock, [&] { return stopping_ || (!queue_.empty() && !paused_); });
            if (queue_.empty()) return;
            Copy copy = std::move(queue_.front());
            queue_.pop_front();
            lock.unlock();
            perform(copy);
            lock.lock();
        }
    }
    void perform(Copy& copy) {
        if (copy_microseconds > 0) std::this_thread::sleep_for(std::chrono::microseconds(copy_microseconds));
        const std::vector<std::byte> now = bytes_of(copy);
        if (now != copy.expected) staging_was_touched = true;
        {
            const std::lock_guard memory(copy.to->mutex);
            const auto size = static_cast<std::ptrdiff_t>(copy.rows.row_bytes);
            auto from = now.begin();
            for (std::uint64_t row = 0; row < copy.rows.rows; ++row, from += size)
                std::copy_n(
                    from, size,
                    copy.to->bytes.begin() + static_cast<std::ptrdiff_t>(copy.rows.to + row * copy.rows.to_pitch));
        }
        --copy.to->copies;
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
