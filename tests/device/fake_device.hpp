// A device that is as different from the host as possible, unless a test says otherwise. The host cannot write to its
// memory, which has no addresses, and its copies take time on another thread. It detects writes to a staging buffer
// whose copy is not done, copies that reach outside, and memory that is freed while it is copied to.
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
#include <functional>
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
    std::atomic<bool> maps = false;      ///< memory can be mapped
    std::atomic<bool> writable = false;  ///< the host can write to memory
    std::atomic<int> copy_microseconds = 0;
    std::atomic<std::int64_t> fail_allocation = -1;  ///< fails after so many successful ones; -1: never
    std::atomic<bool> full = false;                  ///< every allocation fails
    std::function<void(std::uint64_t size)> on_allocation = [](std::uint64_t) {};
    std::atomic<std::int64_t> fail_copy = -1;    ///< a copy, or a call of map() or unmap(), that is refused
    std::atomic<std::int64_t> fail_device = -1;  ///< a copy that was queued, and with which the device fails
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
    std::atomic<std::uint64_t> waits = 0;  ///< calls of wait_for()
    std::atomic<std::uint64_t> mappings = 0;
    std::atomic<bool> used_while_mapped = false;  ///< true if mapped memory was used, or memory in use was mapped

    const std::string& name() const noexcept override { return name_; }
    std::uint64_t free_memory() const override { return 1'000'000; }

    /// Returns true if the caller of this device kept all of its rules.
    bool was_used_well() const {
        return !staging_was_touched && !copied_outside && !freed_during_copy && !used_while_mapped;
    }

    std::shared_ptr<safemap::DeviceMemory> allocate(std::uint64_t size) override {
        if (full || fail_allocation.fetch_sub(1) == 0)
            throw safemap::Error(safemap::Errc::out_of_memory, "the device is full");
        ++allocations;
        on_allocation(size);
        return std::make_shared<Memory>(*this, size);
    }
    std::shared_ptr<safemap::StagingBuffer> allocate_staging(std::uint64_t size) override {
        if (fail_staging.fetch_sub(1) == 0) throw safemap::Error(safemap::Errc::out_of_memory, "nothing to lock");
        staging += size;
        return std::make_shared<Staging>(size);
    }
    safemap::DeviceQueue& queue(Lane lane) override { return lane == Lane::demand ? demand_ : bulk_; }

private:
    struct Event;

public:
    /// A stream of a caller. Its work is done when the test says so.
    struct Stream {
        std::atomic<bool> captured = false;
        std::atomic<int> waits = 0;  ///< calls of make_wait()
        std::atomic<int> records = 0;

        safemap::NativeStream native() noexcept { return safemap::NativeStream::cuda(this); }
        /// Ends all work that is in the stream.
        void finish() {
            const std::lock_guard lock(mutex);
            for (const auto& event : recorded) event->finish();
            recorded.clear();
        }

    private:
        friend class FakeDevice;
        std::mutex mutex;
        std::vector<std::shared_ptr<Event>> recorded;
    };
    void make_wait(safemap::NativeStream stream, const safemap::DeviceEvent&) override {
        require_alive(*failed_);
        ++stream_of(stream).waits;
    }
    std::shared_ptr<safemap::DeviceEvent> record(safemap::NativeStream stream) override {
        require_alive(*failed_);
        Stream& of = stream_of(stream);
        auto event = make_event();
        const std::lock_guard lock(of.mutex);
        of.recorded.push_back(event);
        ++of.records;
        return event;
    }
    bool is_capturing(safemap::NativeStream stream) const override { return stream_of(stream).captured; }

    void copy_to_host(std::span<std::byte> to, const safemap::DeviceMemory& from, std::uint64_t offset) override {
        const auto& contents = *static_cast<const Memory&>(from).contents;
        const std::lock_guard lock(contents.mutex);
        if (contents.mapped) used_while_mapped = true;
        std::copy_n(contents.bytes.begin() + static_cast<std::ptrdiff_t>(offset), to.size(), to.begin());
    }

private:
    /// The bytes of a memory, which a copy can still write to after the memory was freed.
    struct Contents {
        explicit Contents(std::uint64_t size) : bytes(size) {}
        std::vector<std::byte> bytes;
        std::atomic<int> copies = 0;  // not done yet
        std::atomic<bool> mapped = false;
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
            if (contents->copies > 0 || contents->mapped) device.freed_during_copy = true;
            device.allocated -= contents->bytes.size();
        }
        std::uint64_t size() const noexcept override { return contents->bytes.size(); }
        void* handle() const noexcept override { return const_cast<Memory*>(this); }
        bool has_address() const noexcept override { return false; }
        bool can_be_mapped() const noexcept override { return device.maps && size() > 0; }
        std::span<std::byte> host_bytes() const noexcept override {
            return device.writable ? std::span(contents->bytes) : std::span<std::byte>();
        }

        FakeDevice& device;
        const std::shared_ptr<Contents> contents;
    };
    struct Staging final : safemap::StagingBuffer {
        explicit Staging(std::uint64_t size) : memory(size) {}
        std::span<std::byte> bytes() const noexcept override { return memory; }
        mutable std::vector<std::byte> memory;
    };
    struct Event final : safemap::DeviceEvent, std::enable_shared_from_this<Event> {
        Event(std::shared_ptr<std::atomic<std::int64_t>> fail, std::shared_ptr<std::atomic<bool>> of)
            : fail_done(std::move(fail)), failed(std::move(of)) {}
        bool done() const override {
            if (fail_done->fetch_sub(1) == 0) throw safemap::Error(safemap::Errc::io_error, "nobody knows");
            require_alive(*failed);
            const std::lock_guard lock(mutex);
            return is_done;
        }
        bool wait_until(std::chrono::steady_clock::time_point deadline) const override {
            std::unique_lock lock(mutex);
            const auto ended = [&] { return is_done; };
            // The end of time is no time that can be converted to another clock.
            if (deadline == std::chrono::steady_clock::time_point::max()) changed.wait(lock, ended);
            else if (!changed.wait_until(lock, deadline, ended)) return false;
            lock.unlock();
            require_alive(*failed);
            return true;
        }
        void finish() {
            const std::lock_guard lock(mutex);
            is_done = true;
            changed.notify_all();
        }
        void wait_to_end() const {
            std::unique_lock lock(mutex);
            changed.wait(lock, [&] { return is_done; });
        }
        const std::shared_ptr<std::atomic<std::int64_t>> fail_done;
        const std::shared_ptr<std::atomic<bool>> failed;
        mutable std::mutex mutex;
        mutable std::condition_variable changed;
        bool is_done = false;
    };
    /// An entry of the queue: a copy, the end of a mapping, an event to finish, or one to wait for.
    struct Copy {
        std::shared_ptr<Contents> to;
        const safemap::StagingBuffer* from = nullptr;
        safemap::RowCopy rows = {};
        std::vector<std::byte> expected = {};  // all rows, without gaps
        bool fails = false;
        bool unmaps = false;
        std::shared_ptr<Event> event = {};
        std::shared_ptr<const Event> until = {};
    };
    class Queue final : public safemap::DeviceQueue {
    public:
        explicit Queue(FakeDevice& device) : device_(device) {}
        void copy(safemap::DeviceMemory& to, std::uint64_t offset, const safemap::StagingBuffer& from,
                  safemap::Extent part) override {
            copy_rows(to, from,
                      {.to = offset,
                       .to_pitch = part.size,
                       .from = part.offset,
                       .from_pitch = part.size,
                       .row_bytes = part.size,
                       .rows = 1});
        }
        void copy_rows(safemap::DeviceMemory& to, const safemap::StagingBuffer& from,
                       const safemap::RowCopy& rows) override {
            require_alive(*device_.failed_);
            if (device_.fail_copy.fetch_sub(1) == 0)
                throw safemap::Error(safemap::Errc::io_error, "the copy was refused");
            ++device_.copies;
            Copy copy{static_cast<Memory&>(to).contents, &from, rows};
            copy.fails = device_.fail_device.fetch_sub(1) == 0;
            if (!is_inside(copy)) {
                device_.copied_outside = true;
                copy.rows.rows = 0;
            }
            copy.expected = bytes_of(copy);
            device_.push(std::move(copy));
        }
        std::shared_ptr<safemap::DeviceEvent> record() override {
            require_alive(*device_.failed_);
            Copy end;
            end.event = device_.make_event();
            auto event = end.event;
            device_.push(std::move(end));
            return event;
        }
        void wait_for(const safemap::DeviceEvent& event) override {
            require_alive(*device_.failed_);
            ++device_.waits;
            Copy wait;
            wait.until = dynamic_cast<const Event&>(event).shared_from_this();
            device_.push(std::move(wait));
        }
        std::span<std::byte> map(safemap::DeviceMemory& memory) override {
            refuse_some();
            Contents& contents = *static_cast<Memory&>(memory).contents;
            if (contents.copies > 0 || contents.mapped.exchange(true)) device_.used_while_mapped = true;
            ++device_.mappings;
            return contents.bytes;
        }
        void unmap(safemap::DeviceMemory& memory, std::span<std::byte> mapped) override {
            const auto& contents = static_cast<Memory&>(memory).contents;
            if (!contents->mapped || mapped.data() != contents->bytes.data()) device_.used_while_mapped = true;
            try {
                refuse_some();
            } catch (...) {
                contents->mapped = false;  // nothing waits for it
                throw;
            }
            Copy end;
            end.to = contents;
            end.unmaps = true;
            device_.push(std::move(end));
        }
        void drain() noexcept override {
            std::unique_lock lock(device_.mutex_);
            device_.changed_.wait(lock, [&] { return device_.queue_.empty() && !device_.copying_; });
        }

    private:
        void refuse_some() const {
            require_alive(*device_.failed_);
            if (device_.fail_copy.fetch_sub(1) == 0)
                throw safemap::Error(safemap::Errc::io_error, "the mapping was refused");
        }
        FakeDevice& device_;
    };

    static Stream& stream_of(safemap::NativeStream stream) {
        if (stream.kind != safemap::NativeStream::Kind::cuda)
            throw safemap::Error(safemap::Errc::invalid_argument, "no stream of the fake device");
        return *static_cast<Stream*>(stream.handle);
    }
    static void require_alive(const std::atomic<bool>& failed) {
        if (failed) throw safemap::Error(safemap::Errc::device_failed, "the device fell off");
    }
    std::shared_ptr<Event> make_event() const { return std::make_shared<Event>(fail_done, failed_); }
    void push(Copy entry) {
        {
            const std::lock_guard lock(mutex_);
            queue_.push_back(std::move(entry));
            if (queue_.back().to) ++queue_.back().to->copies;
        }
        changed_.notify_all();
    }

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
            copying_ = true;
            lock.unlock();
            perform(copy);
            lock.lock();
            copying_ = false;
            changed_.notify_all();
        }
    }
    void perform(Copy& copy) {
        if (copy.event) return copy.event->finish();
        if (copy.until) return copy.until->wait_to_end();
        if (copy.unmaps) {
            copy.to->mapped = false;
            --copy.to->copies;
            return;
        }
        if (*failed_) {
            --copy.to->copies;
            return;
        }
        if (copy.to->mapped) used_while_mapped = true;
        if (copy.fails) *failed_ = true;
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
    }

    const std::string name_ = "fake";
    const std::shared_ptr<std::atomic<bool>> failed_ = std::make_shared<std::atomic<bool>>(false);
    Queue demand_{*this};
    Queue bulk_{*this};
    std::mutex mutex_;
    std::condition_variable changed_;
    std::deque<Copy> queue_;
    bool stopping_ = false;
    bool paused_ = false;
    bool copying_ = false;
    std::thread thread_;
};
