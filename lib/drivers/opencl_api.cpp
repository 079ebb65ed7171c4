// Loads libOpenCL.so.1, looks its functions up, and spells its errors.
#include "drivers/opencl_api.hpp"

#include <array>
#include <string>

namespace safemap::SAFEMAP_ABI::drivers {
namespace {

struct ErrorName {
    int code;
    const char* name;
};

// OpenCL has no function that returns these.
constexpr ErrorName error_names[] = {
    {-1, "CL_DEVICE_NOT_FOUND"},
    {-2, "CL_DEVICE_NOT_AVAILABLE"},
    {-4, "CL_MEM_OBJECT_ALLOCATION_FAILURE"},
    {-5, "CL_OUT_OF_RESOURCES"},
    {-6, "CL_OUT_OF_HOST_MEMORY"},
    {-12, "CL_MAP_FAILURE"},
    {-13, "CL_MISALIGNED_SUB_BUFFER_OFFSET"},
    {-14, "CL_EXEC_STATUS_ERROR_FOR_EVENTS_IN_WAIT_LIST"},
    {-30, "CL_INVALID_VALUE"},
    {-32, "CL_INVALID_PLATFORM"},
    {-33, "CL_INVALID_DEVICE"},
    {-34, "CL_INVALID_CONTEXT"},
    {-35, "CL_INVALID_QUEUE_PROPERTIES"},
    {-36, "CL_INVALID_COMMAND_QUEUE"},
    {-38, "CL_INVALID_MEM_OBJECT"},
    {-57, "CL_INVALID_EVENT_WAIT_LIST"},
    {-58, "CL_INVALID_EVENT"},
    {-59, "CL_INVALID_OPERATION"},
    {-61, "CL_INVALID_BUFFER_SIZE"},
    {-1001, "CL_PLATFORM_NOT_FOUND_KHR"},
};

}  // namespace

std::string text(ClResult result) {
    const int code = static_cast<int>(result);
    for (const ErrorName& each : error_names) {
        if (each.code == code) return each.name;
    }
    return "OpenCL error " + std::to_string(code);
}

LoadedLibrary load_opencl(const char* library, OpenclApi& api) {
#define SAFEMAP_OPENCL_ROW(name, result, parameters) LibraryFunction{#name, &api.name, true},
    const std::array functions = {SAFEMAP_OPENCL_FUNCTIONS(SAFEMAP_OPENCL_ROW)};
#undef SAFEMAP_OPENCL_ROW
    return load_library(library, functions);
}

const OpenclDriver& opencl_driver() {
    static const OpenclDriver driver = [] {
        OpenclDriver loaded;
        loaded.library = load_opencl("libOpenCL.so.1", loaded.api);
        return loaded;
    }();
    return driver;
}

}  // namespace safemap::SAFEMAP_ABI::drivers
