// Maps files by Boost.Interprocess; no other file includes it. Its file_mapping is not used: it opens files without
// O_CLOEXEC and does not check their identity. mapped_region accepts any class that has get_mapping_handle().
#include "io/mapping.hpp"

#include <boost/interprocess/mapped_region.hpp>

#include <sys/mman.h>

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

}  // namespace safemap::SAFEMAP_ABI::io
