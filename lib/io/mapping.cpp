// The one file that sees Boost.Interprocess. Its file_mapping is not used: it opens without O_CLOEXEC and knows
// nothing of the file's identity; mapped_region takes any class with a get_mapping_handle().
#include "io/mapping.hpp"

#include <boost/interprocess/mapped_region.hpp>

namespace safemap::io {

namespace {

namespace ipc = boost::interprocess;

struct Mappable {
    int descriptor;
    ipc::mapping_handle_t get_mapping_handle() const noexcept {
        return ipc::ipcdetail::mapping_handle_from_file_handle(descriptor);
    }
};

}  // namespace

SharedBytes map_whole(const File& file) {
    // mapped_region takes a size of 0 to mean "up to the end" and then fails for there being nothing.
    if (file.size() == 0) return {};
    const Handle handle = file.descriptor();
    try {
        auto region =
            std::make_shared<const ipc::mapped_region>(Mappable{handle->number()}, ipc::read_only, 0, file.size());
        const auto* first = static_cast<const std::byte*>(region->get_address());
        return {.bytes = {first, region->get_size()}, .owner = std::move(region)};
    } catch (const ipc::interprocess_exception& exception) {
        throw system_error(exception.get_native_error(), "map it").with_path(file.path());
    }
}

}  // namespace safemap::io
