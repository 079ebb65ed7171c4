// Does the queued copies on a thread, and keeps freed memory to see late writes to it.
#include "device/fake_device.hpp"

#include <safemap/error.hpp>

#include <algorithm>
#include <chrono>
#include <utility>

namespace {

void require_alive(const std::atomic<bool>& failed) {
    if (failed) throw safemap::Error(safemap::Errc::device_failed, "the device fell off");
}

}  // namespace

/// The bytes of a memory, which a copy can still write to after the memory was freed.
struct FakeDevice::Contents {
    explicit Contents(std::uint64_t size) : bytes(size) {}
    std::vector<std::byte> bytes;
    std::atomic<int> copies = 0;  // not done yet
    std::atomic<bool> mapped = false;
    std::atomic<bool> committed = true;
    mutable std::mutex mutex;
};

struct FakeDevice::Memory final : safemap::DeviceMemory, std::enable_shared_from_this<Memory> {
    Memory(FakeDevice& of, std::uint64_t size, bool reserves = false)
        : device(of), contents(std::make_shared<Contents>(size)), is_reserved(reserves) {
        if (is_reserved) contents->committed = false;
        else count();
    }
    void count() {
        const std::uint64_t size = contents->bytes.size();
        const std::uint64_t now = device.allocated += size;
        std::uint64_t before = device.peak;
        while (before < now && !device.peak.compare_exchange_weak(before, now)) {
        }
    }
    ~Memory() override {
        if (contents->copies > 0 || contents->mapped) device.freed_during_copy = true;
        if (contents->committed) device.allocated -= contents->bytes.size();
    }
    bool can_decommit() const noexcept override { return is_reserved; }
    void decommit() override {
        if (contents->copies > 0 || contents->mapped) device.freed_during_copy = true;
        if (contents->committed.exchange(false)) device.allocated -= contents->bytes.size();
        const std::lock_guard lock(contents->mutex);
        std::ranges::fill(contents->bytes, std::byte{0xEE});
    }
    void commit() override {
        if (contents->committed) return;
        device.allow_allocation(size());
        count();
        contents->committed = true;
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
    const bool is_reserved;
};

struct FakeDevice::Staging final : safemap::StagingBuffer {
    Staging(std::uint64_t size, std::shared_ptr<std::atomic<std::uint64_t>> sum,
            std::shared_ptr<const std::function<void(std::uint64_t)>> call)
        : memory(size), live(std::move(sum)), on_free(std::move(call)) {
        *live += size;
    }
    ~Staging() override {
        (*on_free)(memory.size());
        *live -= memory.size();
    }
    Staging(const Staging&) = delete;
    Staging& operator=(const Staging&) = delete;
    std::span<std::byte> bytes() const noexcept override { return memory; }
    mutable std::vector<std::byte> memory;
    const std::shared_ptr<std::atomic<std::uint64_t>> live;
    const std::shared_ptr<const std::function<void(std::uint64_t)>> on_free;
};

struct FakeDevice::Event final : safemap::DeviceEvent, std::enable_shared_from_this<Event> {
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
struct FakeDevice::Entry {
    std::shared_ptr<Contents> to;
    const safemap::StagingBuffer* from = nullptr;
    safemap::RowCopy rows = {};
    std::vector<std::byte> expected = {};  // all rows, without gaps
    bool fails = false;
    bool unmaps = false;
    std::shared_ptr<Event> event = {};
    std::shared_ptr<const Event> until = {};

    bool is_inside() const {
        const auto fits = [&](std::uint64_t begin, std::uint64_t pitch, std::uint64_t size) {
            // In 128 bits, nothing overflows.
            __extension__ using Wide = unsigned __int128;
            return Wide{begin} + Wide{rows.rows - 1} * pitch + rows.row_bytes <= size;
        };
        return rows.rows > 0 && rows.to_pitch >= rows.row_bytes && rows.from_pitch >= rows.row_bytes &&
               fits(rows.to, rows.to_pitch, to->bytes.size()) && fits(rows.from, rows.from_pitch, from->bytes().size());
    }
    std::vector<std::byte> bytes() const {
        std::vector<std::byte> bytes;
        bytes.reserve(rows.rows * rows.row_bytes);
        for (std::uint64_t row = 0; row < rows.rows; ++row) {
            const auto source = from->bytes().subspan(rows.from + row * rows.from_pitch, rows.row_bytes);
            bytes.insert(bytes.end(), source.begin(), source.end());
        }
        return bytes;
    }
};

class FakeDevice::Queue final : public safemap::DeviceQueue {
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
        if (device_.fail_copy.fetch_sub(1) == 0) throw safemap::Error(safemap::Errc::io_error, "the copy was refused");
        ++device_.copies;
        Entry copy{static_cast<Memory&>(to).contents, &from, rows};
        copy.fails = device_.fail_device.fetch_sub(1) == 0;
        if (!copy.is_inside() || !copy.to->committed) {
            device_.copied_outside = true;
            copy.rows.rows = 0;
        }
        copy.expected = copy.bytes();
        device_.push(std::move(copy));
    }
    std::shared_ptr<safemap::DeviceEvent> record() override {
        require_alive(*device_.failed_);
        Entry end;
        end.event = device_.make_event();
        auto event = end.event;
        device_.push(std::move(end));
        return event;
    }
    void wait_for(const safemap::DeviceEvent& event) override {
        require_alive(*device_.failed_);
        ++device_.waits;
        Entry wait;
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
        Entry end;
        end.to = contents;
        end.unmaps = true;
        device_.push(std::move(end));
    }
    void drain() noexcept override {
        std::unique_lock lock(device_.mutex_);
        device_.changed_.wait(lock, [&] { return device_.queue_.empty() && !device_.working_; });
    }

private:
    void refuse_some() const {
        require_alive(*device_.failed_);
        if (device_.fail_copy.fetch_sub(1) == 0)
            throw safemap::Error(safemap::Errc::io_error, "the mapping was refused");
    }
    FakeDevice& device_;
};

FakeDevice::FakeDevice()
    : demand_(std::make_unique<Queue>(*this)),
      bulk_(std::make_unique<Queue>(*this)),
      thread_([this] { work_until_stopped(); }) {}

FakeDevice::~FakeDevice() {
    {
        const std::lock_guard lock(mutex_);
        stopping_ = true;
        paused_ = false;
    }
    changed_.notify_all();
    thread_.join();
}

void FakeDevice::pause(bool paused) {
    {
        const std::lock_guard lock(mutex_);
        paused_ = paused;
    }
    changed_.notify_all();
}

std::shared_ptr<safemap::DeviceMemory> FakeDevice::allocate(std::uint64_t size) {
    allow_allocation(size);
    return std::make_shared<Memory>(*this, size);
}

std::shared_ptr<safemap::DeviceMemory> FakeDevice::reserve(std::uint64_t size) {
    return std::make_shared<Memory>(*this, (size + 63) / 64 * 64, true);
}

void FakeDevice::allow_allocation(std::uint64_t size) {
    if (full || fail_allocation.fetch_sub(1) == 0)
        throw safemap::Error(safemap::Errc::out_of_memory, "the device is full");
    ++allocations;
    on_allocation(size);
}

std::shared_ptr<safemap::DeviceMemory> FakeDevice::borrow(void* handle, std::uint64_t size) {
    return handle == nullptr ? Device::borrow(handle, size) : static_cast<Memory*>(handle)->shared_from_this();
}

std::shared_ptr<safemap::StagingBuffer> FakeDevice::allocate_staging(std::uint64_t size) {
    if (fail_staging.fetch_sub(1) == 0) throw safemap::Error(safemap::Errc::out_of_memory, "nothing to lock");
    staging += size;
    return std::make_shared<Staging>(size, live_staging, on_free_staging);
}

safemap::DeviceQueue& FakeDevice::queue(Lane lane) { return lane == Lane::demand ? *demand_ : *bulk_; }

void FakeDevice::Stream::finish() {
    const std::lock_guard lock(mutex);
    for (const auto& event : recorded) event->finish();
    recorded.clear();
}

void FakeDevice::make_wait(safemap::NativeStream stream, const safemap::DeviceEvent&) {
    require_alive(*failed_);
    ++stream_of(stream).waits;
}

std::shared_ptr<safemap::DeviceEvent> FakeDevice::record(safemap::NativeStream stream) {
    require_alive(*failed_);
    Stream& of = stream_of(stream);
    auto event = make_event();
    const std::lock_guard lock(of.mutex);
    of.recorded.push_back(event);
    ++of.records;
    return event;
}

bool FakeDevice::is_capturing(safemap::NativeStream stream) const { return stream_of(stream).captured; }

void FakeDevice::copy_to_host(std::span<std::byte> to, const safemap::DeviceMemory& from, std::uint64_t offset) {
    const auto& contents = *static_cast<const Memory&>(from).contents;
    const std::lock_guard lock(contents.mutex);
    if (contents.mapped) used_while_mapped = true;
    std::copy_n(contents.bytes.begin() + static_cast<std::ptrdiff_t>(offset), to.size(), to.begin());
}

FakeDevice::Stream& FakeDevice::stream_of(safemap::NativeStream stream) {
    if (stream.kind != safemap::NativeStream::Kind::cuda)
        throw safemap::Error(safemap::Errc::invalid_argument, "no stream of the fake device");
    return *static_cast<Stream*>(stream.handle);
}

std::shared_ptr<FakeDevice::Event> FakeDevice::make_event() const {
    return std::make_shared<Event>(fail_done, failed_);
}

void FakeDevice::push(Entry entry) {
    {
        const std::lock_guard lock(mutex_);
        queue_.push_back(std::move(entry));
        if (queue_.back().to) ++queue_.back().to->copies;
    }
    changed_.notify_all();
}

void FakeDevice::work_until_stopped() {
    std::unique_lock lock(mutex_);
    for (;;) {
        changed_.wait(lock, [&] { return stopping_ || (!queue_.empty() && !paused_); });
        if (queue_.empty()) return;
        Entry entry = std::move(queue_.front());
        queue_.pop_front();
        working_ = true;
        lock.unlock();
        perform(entry);
        lock.lock();
        working_ = false;
        changed_.notify_all();
    }
}

void FakeDevice::perform(Entry& entry) {
    if (entry.event) return entry.event->finish();
    if (entry.until) return entry.until->wait_to_end();
    if (entry.unmaps) {
        entry.to->mapped = false;
        --entry.to->copies;
        return;
    }
    if (*failed_) {
        --entry.to->copies;
        return;
    }
    if (entry.to->mapped) used_while_mapped = true;
    if (copy_microseconds > 0) std::this_thread::sleep_for(std::chrono::microseconds(copy_microseconds));
    const std::vector<std::byte> now = entry.bytes();
    if (now != entry.expected) staging_was_touched = true;
    if (entry.fails) *failed_ = true;  // not before: who sees it may free the staging buffer
    {
        const std::lock_guard memory(entry.to->mutex);
        const auto size = static_cast<std::ptrdiff_t>(entry.rows.row_bytes);
        auto from = now.begin();
        for (std::uint64_t row = 0; row < entry.rows.rows; ++row, from += size)
            std::copy_n(
                from, size,
                entry.to->bytes.begin() + static_cast<std::ptrdiff_t>(entry.rows.to + row * entry.rows.to_pitch));
    }
    --entry.to->copies;
}
