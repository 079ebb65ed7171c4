// The limits that loading to a device is compared with: threads that read blocks of a file to memory.
#pragma once

#include "device/made.hpp"
#include "device/measure.hpp"

#include <safemap/bytes.hpp>
#include <safemap/checkpoint.hpp>

#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <cstring>
#include <memory>
#include <thread>
#include <vector>

namespace limits {

using namespace safemap::literals;

constexpr std::uint64_t block = 8_MiB;
constexpr unsigned threads = 2;
constexpr std::uint64_t huge_page = 2_MiB;

/// Memory that the kernel hands out in huge pages, which nothing has touched yet.
class HugeMemory {
public:
    explicit HugeMemory(std::uint64_t size) : mapped_(size + huge_page) {
        at_ = ::mmap(nullptr, mapped_, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        if (at_ == MAP_FAILED) measure::fail("mmap");
        const auto address = reinterpret_cast<std::uintptr_t>(at_);
        bytes_ = static_cast<char*>(at_) + (huge_page - address % huge_page) % huge_page;
        ::madvise(bytes_, size, MADV_HUGEPAGE);
    }
    ~HugeMemory() { ::munmap(at_, mapped_); }
    HugeMemory(const HugeMemory&) = delete;
    HugeMemory& operator=(const HugeMemory&) = delete;

    char* bytes() const noexcept { return bytes_; }

private:
    std::uint64_t mapped_;
    void* at_;
    char* bytes_;
};

inline void pread_all(const made::File& file, char* into, std::uint64_t size, std::uint64_t offset) {
    while (size > 0) {
        const ssize_t done = ::pread(file.descriptor(), into, size, static_cast<off_t>(offset));
        if (done <= 0) measure::fail("pread");
        into += done;
        offset += static_cast<std::uint64_t>(done);
        size -= static_cast<std::uint64_t>(done);
    }
}

/// A file of layers, whose bytes come first, and of small tensors.
struct Model {
    const made::File& file;
    std::uint64_t bytes;  // sum of all layers
    safemap::Checkpoint checkpoint;
};

/// Reads `bytes` of the layers of a model by threads that claim blocks: to `memory` of `room` bytes. At the end of
/// either they go on at its beginning. With `staged`, each thread reads to a buffer of its own, and copies that.
inline void read_blocks(const Model& model, std::uint64_t bytes, char* memory, std::uint64_t room, bool staged) {
    std::atomic<std::uint64_t> next = 0;
    const std::uint64_t blocks = std::max<std::uint64_t>(model.bytes / block, 1);
    const auto work = [&] {
        const HugeMemory buffer(staged ? block : huge_page);
        for (std::uint64_t at = next.fetch_add(block); at < bytes; at = next.fetch_add(block)) {
            const std::uint64_t size = std::min(block, bytes - at);
            char* const to = memory + at / block % (room / block) * block;
            const std::uint64_t from = model.file.data() + at / block % blocks * block;
            pread_all(model.file, staged ? buffer.bytes() : to, size, from);
            if (staged) std::memcpy(to, buffer.bytes(), size);
        }
    };
    std::vector<std::thread> others;
    for (unsigned i = 1; i < threads; ++i) others.emplace_back(work);
    work();
    for (std::thread& thread : others) thread.join();
}

inline double seconds_to_fresh_memory(const Model& model) {
    const std::uint64_t room = (model.bytes + block - 1) / block * block;
    std::unique_ptr<HugeMemory> memory;  // freed after the time is taken
    return measure::seconds([&] {
        memory = std::make_unique<HugeMemory>(room);
        read_blocks(model, model.bytes, memory->bytes(), room, false);
    });
}

}  // namespace limits
