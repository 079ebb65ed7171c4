// Allocates memory on a GPU, and page-locked staging buffers in pieces that the driver accepts.
#include "drivers/cuda_memory.hpp"

#include "base/text.hpp"
#include "drivers/huge_pages.hpp"

#include <safemap/error.hpp>

#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <bit>
#include <string>
#include <utility>

namespace safemap::SAFEMAP_ABI::drivers {
namespace {

/// Returns true if the driver does not lock memory of this process, which is no failure of the device: it is limited,
/// or the machine does not support it.
bool is_refusal(CuResult result) noexcept {
    return result == CuResult::out_of_memory || result == CuResult::invalid_value ||
           result == CuResult::operating_system || result == CuResult::host_memory_already_registered ||
           result == CuResult::not_permitted || result == CuResult::not_supported;
}

std::byte* map_touched(std::uint64_t size) {
    std::byte* const bytes = map_memory(size);
    if (bytes == nullptr)
        throw Error(Errc::out_of_memory, "the host has no memory for a staging buffer of " + bytes_text(size));
    // After a fork, a page that parent and child share is copied when the parent writes to it. The device would go on
    // to read the old one.
    ::madvise(bytes, size, MADV_DONTFORK);
    const std::uint64_t page = static_cast<std::uint64_t>(::sysconf(_SC_PAGESIZE));
    for (std::uint64_t at = 0; at < size; at += page) *const_cast<volatile std::byte*>(bytes + at) = std::byte{0};
    return bytes;
}

[[noreturn]] void throw_out_of_memory(CudaContext& context, std::uint64_t size) {
    std::size_t free = 0;
    std::size_t total = 0;
    const CuResult result = context.api().cuMemGetInfo_v2(&free, &total);
    context.check(result, "cuMemGetInfo");
    throw Error(Errc::out_of_memory, "the device '" + context.name() + "' has no memory for " + bytes_text(size) +
                                         "; " + std::to_string(free) + " of " + bytes_text(total) + " are free");
}

}  // namespace

CudaMemory::CudaMemory(std::shared_ptr<CudaContext> context, std::uint64_t size)
    : context_(std::move(context)), size_(size) {
    context_->require_working();
    if (size == 0) return;
    const CudaEntry entry(*context_);
    // Drivers have other errors for sizes that no device has.
    if (size > context_->total_memory()) throw_out_of_memory(*context_, size);
    const CuResult result = allocate();
    if (result == CuResult::out_of_memory) throw_out_of_memory(*context_, size);
    context_->check(result, context_->pool() == nullptr ? "cuMemAlloc" : "cuMemAllocFromPoolAsync");
}

/// Allocates memory that all streams can use when this returns.
CuResult CudaMemory::allocate() {
    const CudaApi& api = context_->api();
    if (context_->pool() == nullptr) return api.cuMemAlloc_v2(&address_, size_);
    const auto from_pool = [&] {
        return api.cuMemAllocFromPoolAsync(&address_, size_, context_->pool(), context_->side_stream());
    };
    CuResult result = from_pool();
    const auto synchronize = [&] {
        context_->check(api.cuStreamSynchronize(context_->side_stream()), "cuStreamSynchronize");
    };
    if (result == CuResult::out_of_memory) {
        // The pool may keep memory in pieces that are too small.
        synchronize();
        context_->check(api.cuMemPoolTrimTo(context_->pool(), 0), "cuMemPoolTrimTo");
        result = from_pool();
    }
    if (result == CuResult::success) synchronize();
    return result;
}

CudaMemory::~CudaMemory() {
    if (address_ == 0) return;
    if (context_->is_lost()) return;  // the device may still write to the memory, or the memory is another process's
    try {
        const CudaEntry entry(*context_);
        free();
    } catch (const std::exception&) {  // the context knows of the failure
    }
}

void CudaMemory::free() {
    const CudaApi& api = context_->api();
    if (context_->pool() == nullptr) {
        context_->check(api.cuMemFree_v2(address_), "cuMemFree");
        return;
    }
    context_->check(api.cuMemFreeAsync(address_, context_->side_stream()), "cuMemFreeAsync");
    // Memory that is used again is not freed, so the program wants the device for something else: the pool keeps none.
    context_->check(api.cuStreamSynchronize(context_->side_stream()), "cuStreamSynchronize");
    context_->check(api.cuMemPoolTrimTo(context_->pool(), 0), "cuMemPoolTrimTo");
}

void* CudaMemory::handle() const noexcept { return std::bit_cast<void*>(address_); }

CudaReserved::CudaReserved(std::shared_ptr<CudaContext> context, std::uint64_t size)
    : context_(std::move(context)), size_(size) {
    const CudaEntry entry(*context_);
    const std::uint64_t granularity = context_->granularity();
    if (size == 0) return;
    if (size > context_->total_memory()) throw_out_of_memory(*context_, size);
    size_ = (size + granularity - 1) / granularity * granularity;
    require(context_->api().cuMemAddressReserve(&address_, size_, 0, 0, 0), "cuMemAddressReserve");
}

CudaReserved::~CudaReserved() {
    if (address_ == 0 || context_->is_lost()) return;
    try {
        decommit();
        const CudaEntry entry(*context_);
        context_->check(context_->api().cuMemAddressFree(address_, size_), "cuMemAddressFree");
    } catch (const std::exception&) {  // the context knows of the failure
    }
}

void* CudaReserved::handle() const noexcept { return std::bit_cast<void*>(address_); }

void CudaReserved::require(CuResult result, const char* call) const {
    if (result == CuResult::out_of_memory) throw_out_of_memory(*context_, size_);
    context_->check(result, call);
}

void CudaReserved::commit() {
    const CudaEntry entry(*context_);
    if (size_ == 0 || committed_) return;
    require(map(), "cuMemMap");
    const CuMemoryAccess access{.location = context_->location()};
    const CuResult result = context_->api().cuMemSetAccess(address_, size_, &access, 1);
    if (result == CuResult::success) return;
    if (result == CuResult::out_of_memory || is_about_the_call(result)) decommit();
    require(result, "cuMemSetAccess");
}

/// Maps new memory. The mapping keeps the memory, so its handle is not needed any more.
CuResult CudaReserved::map() {
    const CudaApi& api = context_->api();
    const CuMemoryProperties properties{.location = context_->location()};
    CuMemoryHandle memory = 0;
    require(api.cuMemCreate(&memory, size_, &properties, 0), "cuMemCreate");
    const CuResult mapped = api.cuMemMap(address_, size_, 0, memory, 0);
    committed_ = mapped == CuResult::success;
    context_->check(api.cuMemRelease(memory), "cuMemRelease");
    return mapped;
}

void CudaReserved::decommit() {
    const CudaEntry entry(*context_);
    if (!committed_) return;
    context_->check(context_->api().cuMemUnmap(address_, size_), "cuMemUnmap");
    committed_ = false;
}

CudaStaging::CudaStaging(std::shared_ptr<CudaContext> context, std::uint64_t size)
    : context_(std::move(context)), size_(size) {
    context_->require_working();
    if (size == 0) return;
    memory_ = map_touched(size);
    try {
        lock_pages();
    } catch (...) {
        ::munmap(memory_, size_);  // nothing copies from it
        throw;
    }
}

/// Locks as many pieces as the driver allows.
void CudaStaging::lock_pages() {
    const CudaEntry entry(*context_);
    while (locked_ < size_) {
        const std::uint64_t part = std::min(piece, size_ - locked_);
        // Portable: pages that are locked for all devices of the process.
        const CuResult result =
            context_->api().cuMemHostRegister_v2(memory_ + locked_, part, cu_host_register_portable);
        if (is_refusal(result)) return;
        context_->check(result, "cuMemHostRegister");
        locked_ += part;
    }
}

void CudaStaging::unlock_pages() {
    const CudaEntry entry(*context_);
    for (std::uint64_t at = 0; at < locked_; at += piece)
        context_->check(context_->api().cuMemHostUnregister(memory_ + at), "cuMemHostUnregister");
}

CudaStaging::~CudaStaging() {
    // If the device failed, it may still read from the memory, which therefore stays.
    if (memory_ == nullptr || context_->is_lost()) return;
    try {
        unlock_pages();
    } catch (const std::exception&) {
        return;
    }
    ::munmap(memory_, size_);
}

}  // namespace safemap::SAFEMAP_ABI::drivers
