// Allocates buffers of OpenCL: on the device, or of huge pages if the device is the processor itself.
#include "drivers/opencl_memory.hpp"

#include "base/text.hpp"
#include "drivers/huge_pages.hpp"

#include <safemap/error.hpp>

#include <sys/mman.h>

#include <memory>
#include <utility>

namespace safemap::SAFEMAP_ABI::drivers {
namespace {

/// Memory of this process that a buffer is made of.
struct Pages {
    explicit Pages(std::uint64_t bytes) noexcept : data(map_memory(bytes)), size(bytes) {}
    ~Pages() {
        if (data != nullptr) ::munmap(data, size);
    }
    Pages(const Pages&) = delete;
    Pages& operator=(const Pages&) = delete;

    std::byte* const data;
    const std::uint64_t size;
};

}  // namespace

OpenclMemory::OpenclMemory(std::shared_ptr<OpenclContext> context, std::uint64_t size)
    : context_(std::move(context)), size_(size) {
    context_->require_working();
    if (size == 0) return;
    // Not all implementations check this.
    if (size > context_->largest_allocation()) throw_out_of_memory(ClResult::invalid_buffer_size);
    const ClResult result = allocate();
    if (result == ClResult::success) {
        context_->allocated += size;
        counted_ = true;
        return;
    }
    if (memory_ != nullptr) context_->api().clReleaseMemObject(memory_);
    if (is_out_of_memory(result)) throw_out_of_memory(result);
    context_->check(result, "clCreateBuffer");
}

OpenclMemory::OpenclMemory(std::shared_ptr<OpenclContext> context, ClMemory buffer, std::uint64_t size)
    : context_(std::move(context)), size_(size) {
    context_->require_working();
    const OpenclApi& api = context_->api();
    ClContext owner = nullptr;
    std::size_t there = 0;
    ClResult result = buffer == nullptr ? ClResult::invalid_mem_object
                                        : api.clGetMemObjectInfo(buffer, ClMemoryInfo::context, sizeof owner,
                                                                 static_cast<void*>(&owner), nullptr);
    if (result == ClResult::success)
        result = api.clGetMemObjectInfo(buffer, ClMemoryInfo::size, sizeof there, &there, nullptr);
    if (result == ClResult::invalid_mem_object)
        throw Error(Errc::invalid_argument, "memory to borrow that is not a buffer of OpenCL");
    context_->check(result, "clGetMemObjectInfo");
    if (owner != context_->context())
        throw Error(Errc::invalid_argument,
                    "a buffer of another context than that of the device " + safemap::quoted(context_->name()));
    if (size > there)
        throw Error(Errc::invalid_argument,
                    "a buffer of " + bytes_text(there) + " was given as one of " + bytes_text(size));
    context_->check(api.clRetainMemObject(buffer), "clRetainMemObject");
    memory_ = buffer;
}

/// Allocates memory that all queues can use when this returns.
ClResult OpenclMemory::allocate() {
    const bool is_host_memory = context_->is_cpu() && context_->has_unified_memory();
    return is_host_memory && size_ >= huge_page ? allocate_in_huge_pages() : allocate_on_device();
}

/// Makes a buffer of memory of this process. A processor uses that itself. Its pages are first touched while a tensor
/// is read, and with small pages that takes longer than the reading.
ClResult OpenclMemory::allocate_in_huge_pages() {
    const OpenclApi& api = context_->api();
    auto pages = std::make_unique<Pages>(size_);
    if (pages->data == nullptr) return ClResult::out_of_host_memory;
    ClResult result = ClResult::success;
    memory_ =
        api.clCreateBuffer(context_->context(), cl_mem_read_write | cl_mem_use_host_ptr, size_, pages->data, &result);
    if (result != ClResult::success) return result;
    const auto free_pages = [](ClMemory, void* of) { delete static_cast<Pages*>(of); };
    result = api.clSetMemObjectDestructorCallback(memory_, free_pages, pages.get());
    if (result == ClResult::success) pages.release();  // a program may keep the buffer longer than this
    else api.clReleaseMemObject(std::exchange(memory_, nullptr));
    return result;
}

ClResult OpenclMemory::allocate_on_device() {
    const OpenclApi& api = context_->api();
    ClResult result = ClResult::success;
    // Where the device uses the memory of the host, a mapping of such a buffer is the buffer itself.
    const ClFlags flags = cl_mem_read_write | (context_->has_unified_memory() ? cl_mem_alloc_host_ptr : 0);
    memory_ = api.clCreateBuffer(context_->context(), flags, size_, nullptr, &result);
    if (result != ClResult::success) return result;
    // Implementations may allocate on first use. Without this, a copy would be the first to find that memory is
    // missing.
    ClEvent there = nullptr;
    result = api.clEnqueueMigrateMemObjects(context_->side_queue(), 1, &memory_, cl_migrate_content_undefined, 0,
                                            nullptr, &there);
    if (result != ClResult::success) return result;
    result = api.clWaitForEvents(1, &there);
    api.clReleaseEvent(there);
    return result;
}

void OpenclMemory::throw_out_of_memory(ClResult result) const {
    Error error(Errc::out_of_memory, "the device " + safemap::quoted(context_->name()) + " has no memory for " +
                                         bytes_text(size_) + ": " + text(result) +
                                         "; the largest allocation of the device is " +
                                         bytes_text(context_->largest_allocation()));
    if (size_ > context_->largest_allocation()) error.with_hint("Load smaller bundles, or slices of large tensors.");
    throw error;
}

OpenclMemory::~OpenclMemory() {
    if (memory_ == nullptr) return;
    if (counted_) context_->allocated -= size_;
    if (!context_->is_lost()) context_->api().clReleaseMemObject(memory_);
}

OpenclStaging::OpenclStaging(std::shared_ptr<OpenclContext> context, std::uint64_t size)
    : context_(std::move(context)) {
    context_->require_working();
    if (size == 0) return;
    const OpenclApi& api = context_->api();
    ClResult result = ClResult::success;
    memory_ =
        api.clCreateBuffer(context_->context(), cl_mem_read_write | cl_mem_alloc_host_ptr, size, nullptr, &result);
    void* mapped = nullptr;
    if (result == ClResult::success)
        mapped = api.clEnqueueMapBuffer(context_->side_queue(), memory_, 1, cl_map_read_write, 0, size, 0, nullptr,
                                        nullptr, &result);
    if (result == ClResult::success) {
        bytes_ = {static_cast<std::byte*>(mapped), size};
        return;
    }
    if (memory_ != nullptr) api.clReleaseMemObject(memory_);
    if (is_out_of_memory(result))
        throw Error(Errc::out_of_memory, "the device " + safemap::quoted(context_->name()) +
                                             " has no host memory for a staging buffer of " + bytes_text(size) + ": " +
                                             text(result));
    context_->check(result, "clEnqueueMapBuffer");
}

OpenclStaging::~OpenclStaging() {
    if (memory_ == nullptr || context_->is_lost()) return;
    const OpenclApi& api = context_->api();
    const ClResult result =
        api.clEnqueueUnmapMemObject(context_->side_queue(), memory_, bytes_.data(), 0, nullptr, nullptr);
    if (result != ClResult::success) context_->note_failure(result, "clEnqueueUnmapMemObject");
    else api.clReleaseMemObject(memory_);  // the queue keeps it until it is unmapped
    api.clFlush(context_->side_queue());
}

}  // namespace safemap::SAFEMAP_ABI::drivers
