// Kernels that read memory: copies to locked memory of the host, and a function of the host that computes the checksum.

#include "cuda/relay/relay.hpp"
#include "cuda/stub/checksum.hpp"

#include <algorithm>
#include <atomic>
#include <deque>

namespace relay {
namespace {

constexpr std::size_t chunk_size = std::size_t{1} << 26;

/// Locked memory that stays until the process ends: the driver may wait for all streams before it gives some back.
struct Chunk {
    std::byte* begin = nullptr;
    std::size_t size = 0;
    std::size_t taken = 0;
    std::atomic<std::uint64_t> users = 0;
};

struct Kernel {
    Chunk* chunk = nullptr;
    const std::byte* bytes = nullptr;
    std::size_t size = 0;
    std::uint64_t* sum = nullptr;
};

struct Memory {
    std::mutex mutex;
    std::deque<Chunk> chunks;
};

Memory& memory() {
    static Memory& only = *new Memory;
    return only;
}

Chunk* add_chunk(std::size_t size) {
    void* made = nullptr;
    SAFEMAP_RELAY_FORWARD(cuMemHostAlloc, &made, size, cu_mem_host_portable_mapped);
    if (made == nullptr) return nullptr;
    Chunk& chunk = memory().chunks.emplace_back();
    chunk.begin = static_cast<std::byte*>(made);
    chunk.size = size;
    return &chunk;
}

/// Returns where the next kernel puts what it reads. The functions of the host do not wait for the lock.
std::byte* take(std::size_t size, Chunk*& from) {
    const std::lock_guard lock(memory().mutex);
    from = nullptr;
    for (Chunk& chunk : memory().chunks) {
        if (chunk.users == 0) chunk.taken = 0;
        if (chunk.size - chunk.taken >= size) from = &chunk;
    }
    if (from == nullptr) from = add_chunk(std::max(size, chunk_size));
    if (from == nullptr) return nullptr;
    std::byte* const bytes = from->begin + from->taken;
    from->taken += std::min((size + 255) / 256 * 256, from->size - from->taken);
    ++from->users;
    return bytes;
}

/// Runs on a thread of the driver. Calls no function of it, and waits for no lock.
void sum_up(void* data) {
    auto* const kernel = static_cast<Kernel*>(data);
    RowChecksum checksum;
    checksum.add(kernel->bytes, kernel->size);
    *kernel->sum = checksum.value();
    --kernel->chunk->users;
    delete kernel;
}

}  // namespace

void prepare_kernels() {
    const std::lock_guard lock(memory().mutex);
    if (memory().chunks.empty()) add_chunk(chunk_size);
}

bool read_and_sum(CuStream stream, CuPointer address, std::size_t size, std::uint64_t* sum) {
    Chunk* chunk = nullptr;
    std::byte* const bytes = take(size, chunk);
    if (bytes == nullptr) return false;
    if (SAFEMAP_RELAY_FORWARD(cuMemcpyDtoHAsync_v2, bytes, address, size, stream) != CuResult::success) {
        --chunk->users;
        return false;
    }
    auto* const kernel = new Kernel{chunk, bytes, size, sum};
    if (SAFEMAP_RELAY_FORWARD(cuLaunchHostFunc, stream, &sum_up, kernel) == CuResult::success) return true;
    delete kernel;
    return false;  // the copy may be under way, so the memory stays taken
}

}  // namespace relay
