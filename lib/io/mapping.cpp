// Maps files by Boost.Interprocess; no other file includes it. Its file_mapping is not used: it opens files without
// O_CLOEXEC and does not check their identity. mapped_region accepts any class that has get_mapping_handle().
#include "io/mapping.hpp"

#include "io/system.hpp"

#include <sys/mman.h>

#include <algorithm>
#include <boost/interprocess/mapped_region.hpp>
#include <iterator>

namespace safemap::SAFEMAP_ABI::io {

namespace {

namespace ipc = boost::interprocess;

struct Mappable {
    int descriptor;
    ipc::mapping_handle_t get_mapping_handle() const noexcept {
        return ipc::ipcdetail::mapping_handle_from_file_handle(descriptor);
    }
};

}  // namespace

SharedBytes map_whole(const File& file, Mapping mapping) {
    const bool writable = mapping == Mapping::private_copy;
    // mapped_region takes a size of 0 as "up to the end" and then fails because nothing is there.
    if (file.size() == 0) return {.writable = writable};
    const Handle handle = file.descriptor();
    try {
        // Without MAP_NORESERVE the system reserves memory for a copy of the whole file before a byte is written.
        auto region = std::make_shared<const ipc::mapped_region>(
            Mappable{handle->number()}, writable ? ipc::copy_on_write : ipc::read_only, 0, file.size(), nullptr,
            writable ? MAP_NORESERVE : ipc::default_map_options);
        const auto* first = static_cast<const std::byte*>(region->get_address());
        return {.bytes = {first, region->get_size()}, .owner = std::move(region), .writable = writable};
    } catch (const ipc::interprocess_exception& exception) {
        throw system_error(exception.get_native_error(), "map it").with_path(file.path());
    }
}

namespace {

/// Without MAP_NORESERVE the system reserves memory for the whole file before a byte is read.
std::shared_ptr<std::byte> addresses_for(std::uint64_t size) {
    if (size == 0) return nullptr;
    void* const memory =
        ::mmap(nullptr, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (memory == MAP_FAILED) throw system_error(errno, "reserve address space for a copy of it");
    return {static_cast<std::byte*>(memory), [size](std::byte* first) { ::munmap(first, size); }};
}

}  // namespace

OwnCopy::OwnCopy(const File& file) : file_(file) {
    try {
        memory_ = addresses_for(file.size());
    } catch (Error& error) {
        throw error.with_path(file.path());
    }
}

SharedBytes OwnCopy::part(Extent extent) {
    file_.require_inside(extent);
    const std::lock_guard lock(reading_);
    read(extent);
    return {.bytes = {memory_.get() + extent.offset, extent.size}, .owner = memory_, .writable = true};
}

/// Reads the gaps between the known ranges in `extent`, and records the result as one range.
void OwnCopy::read(Extent extent) {
    if (extent.size == 0) return;
    std::uint64_t begin = extent.offset;
    std::uint64_t end = extent.end();
    // The first range that ends at or after `begin`.
    auto first = is_read_.upper_bound(begin);
    if (first != is_read_.begin() && std::prev(first)->second >= begin) --first;
    if (first != is_read_.end() && first->first <= begin && first->second >= end) return;

    std::uint64_t at = begin;
    auto last = first;
    const auto fill_up_to = [&](std::uint64_t stop) {
        if (at < stop) file_.read_at(at, {memory_.get() + at, stop - at});
    };
    for (; last != is_read_.end() && last->first <= end; ++last) {
        fill_up_to(last->first);
        at = std::max(at, last->second);
        begin = std::min(begin, last->first);
        end = std::max(end, last->second);
    }
    fill_up_to(end);
    file_.require_unchanged();
    // Insert before erasing: if memory runs out in between, a range must not be forgotten. It would be read again over
    // what the caller has written.
    const bool added = is_read_.insert_or_assign(begin, end).second;
    is_read_.erase(added ? first : std::next(first), last);
}

}  // namespace safemap::SAFEMAP_ABI::io
