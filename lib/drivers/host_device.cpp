// Main memory as a device: for servers without a GPU, and for tests of all layers above on any machine.

#include "drivers/host_device.hpp"

#include "base/checked.hpp"
#include "base/text.hpp"
#include "drivers/backend.hpp"
#include "drivers/huge_pages.hpp"
#include "drivers/memory_limit.hpp"

#include <safemap/error.hpp>

#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <charconv>
#include <chrono>
#include <cstring>
#include <fstream>
#include <new>
#include <string>

namespace safemap::SAFEMAP_ABI::drivers {
namespace {

// As CUDA aligns its allocations, so that layouts are the same.
constexpr std::size_t alignment = 256;
// Blocks of this size or more come straight from the kernel, and return to it when they are freed. The allocator would
// keep some of their memory.
constexpr std::uint64_t mapped_from = 1_MiB;

[[noreturn]] void throw_out_of_memory(std::uint64_t size) {
    throw Error(Errc::out_of_memory, "the host has no memory for " + bytes_text(size));
}

/// A block of memory, aligned to 256 bytes; if it is large, to huge pages.
class Block {
public:
    explicit Block(std::uint64_t size) : size_(size) {
        if (size == 0) return;
        data_ = size < mapped_from ? allocate(size) : map_memory(size);
        if (data_ == nullptr) throw_out_of_memory(size);
    }
    ~Block() {
        if (data_ == nullptr) return;
        if (size_ < mapped_from) ::operator delete (data_, std::align_val_t{alignment});
        else ::munmap(data_, size_);
    }
    Block(const Block&) = delete;
    Block& operator=(const Block&) = delete;

    std::span<std::byte> bytes() const noexcept { return {static_cast<std::byte*>(data_), size_}; }

private:
    static void* allocate(std::uint64_t size) noexcept {
        return ::operator new (size, std::align_val_t{alignment}, std::nothrow);
    }

    void* data_ = nullptr;
    std::uint64_t size_;
};

class HostMemory final : public DeviceMemory {
public:
    explicit HostMemory(std::uint64_t size) : block_(size) {}
    std::uint64_t size() const noexcept override { return block_.bytes().size(); }
    void* handle() const noexcept override { return block_.bytes().data(); }
    std::span<std::byte> host_bytes() const noexcept override { return block_.bytes(); }

private:
    Block block_;
};

/// Memory that comes and goes at addresses that stay.
class HostReserved final : public DeviceMemory {
public:
    explicit HostReserved(std::uint64_t size) {
        const auto page = static_cast<std::uint64_t>(::sysconf(_SC_PAGESIZE));
        const auto rounded = checked_add(size, page - 1);
        if (!rounded) throw_out_of_memory(size);
        size_ = *rounded / page * page;
        if (size == 0) return;
        data_ = map_memory(size_);
        if (data_ == nullptr) throw_out_of_memory(size);
        decommit();
    }
    ~HostReserved() override {
        if (data_ != nullptr) ::munmap(data_, size_);
    }
    std::uint64_t size() const noexcept override { return size_; }
    void* handle() const noexcept override { return data_; }
    std::span<std::byte> host_bytes() const noexcept override { return {data_, size_}; }
    bool can_decommit() const noexcept override { return true; }
    void decommit() override { exchange_pages(PROT_NONE, MAP_NORESERVE); }
    void commit() override {
        if (is_committed_) return;
        exchange_pages(PROT_READ | PROT_WRITE, 0);
        ::madvise(data_, size_, MADV_HUGEPAGE);
    }

private:
    /// Puts new pages, which are not touched, in the place of those that are there.
    void exchange_pages(int access, int flags) {
        if (size_ == 0) return;
        const int fixed = MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED | flags;
        if (::mmap(data_, size_, access, fixed, -1, 0) == MAP_FAILED) throw_out_of_memory(size_);
        is_committed_ = access != PROT_NONE;
    }

    std::uint64_t size_ = 0;
    std::byte* data_ = nullptr;
    bool is_committed_ = false;
};

/// Memory of the caller.
class BorrowedMemory final : public DeviceMemory {
public:
    BorrowedMemory(void* data, std::uint64_t size) noexcept : bytes_(static_cast<std::byte*>(data), size) {}
    std::uint64_t size() const noexcept override { return bytes_.size(); }
    void* handle() const noexcept override { return bytes_.data(); }
    std::span<std::byte> host_bytes() const noexcept override { return bytes_; }

private:
    std::span<std::byte> bytes_;
};

class HostStaging final : public StagingBuffer {
public:
    explicit HostStaging(std::uint64_t size) : block_(size) {}
    std::span<std::byte> bytes() const noexcept override { return block_.bytes(); }

private:
    Block block_;
};

/// The event of a copy on the host. The copy is done when it returns.
class DoneEvent final : public DeviceEvent {
public:
    bool done() const override { return true; }
    bool wait_until(std::chrono::steady_clock::time_point) const override { return true; }
};

/// Returns the kernel's estimate of the memory that is available without swapping, or what is free if there is no
/// /proc.
std::uint64_t available_memory() {
    constexpr std::string_view key = "MemAvailable:";
    std::ifstream meminfo("/proc/meminfo");
    for (std::string line; std::getline(meminfo, line);) {
        if (!line.starts_with(key)) continue;
        const char* from = line.data() + line.find_first_not_of(' ', key.size());
        std::uint64_t kib = 0;
        if (std::from_chars(from, line.data() + line.size(), kib).ec != std::errc{}) break;
        if (const auto bytes = checked_mul(kib, 1_KiB)) return *bytes;
    }
    const long pages = ::sysconf(_SC_AVPHYS_PAGES);
    const long page_size = ::sysconf(_SC_PAGESIZE);
    return pages < 0 || page_size < 0 ? 0 : static_cast<std::uint64_t>(pages) * static_cast<std::uint64_t>(page_size);
}

/// Copies before it returns.
class HostQueue final : public DeviceQueue {
public:
    void copy(DeviceMemory& to, std::uint64_t offset, const StagingBuffer& from, Extent part) override {
        check_copy(to, offset, from, part);
        if (part.size > 0) std::memcpy(to.host_bytes().data() + offset, from.bytes().data() + part.offset, part.size);
    }
    void copy_rows(DeviceMemory& to, const StagingBuffer& from, const RowCopy& rows) override {
        check_rows(to, from, rows);
        for (std::uint64_t row = 0; row < rows.rows; ++row)
            copy(to, rows.to + row * rows.to_pitch, from, {rows.from + row * rows.from_pitch, rows.row_bytes});
    }
    std::shared_ptr<DeviceEvent> record() override { return done_; }
    void wait_for(const DeviceEvent& event) override { event.wait(); }
    void drain() noexcept override {}

private:
    const std::shared_ptr<DeviceEvent> done_ = std::make_shared<DoneEvent>();
};

class HostDevice final : public Device {
public:
    const std::string& name() const noexcept override { return name_; }

    std::uint64_t free_memory() const override {
        const std::uint64_t available = available_memory();
        return std::min(available, room_in_cgroups().value_or(available));
    }

    std::shared_ptr<DeviceMemory> allocate(std::uint64_t size) override { return std::make_shared<HostMemory>(size); }
    std::shared_ptr<DeviceMemory> reserve(std::uint64_t size) override { return std::make_shared<HostReserved>(size); }
    std::shared_ptr<StagingBuffer> allocate_staging(std::uint64_t size) override {
        return std::make_shared<HostStaging>(size);
    }

    DeviceQueue& queue(Lane) override { return queue_; }
    std::shared_ptr<DeviceMemory> borrow(void* handle, std::uint64_t size) override {
        if (handle == nullptr) throw Error(Errc::invalid_argument, "the memory to borrow is null");
        return std::make_shared<BorrowedMemory>(handle, size);
    }

    void copy_to_host(std::span<std::byte> to, const DeviceMemory& from, std::uint64_t offset) override {
        check_read(from, {offset, to.size()});
        if (!to.empty()) std::memcpy(to.data(), from.host_bytes().data() + offset, to.size());
    }

private:
    std::string name_ = "host";
    HostQueue queue_;
};

}  // namespace

std::shared_ptr<Device> open_host(std::string_view ordinal) {
    if (!ordinal.empty()) return nullptr;
    return std::make_shared<HostDevice>();
}

}  // namespace safemap::SAFEMAP_ABI::drivers
