// Loads libcuda.so.1, looks its functions up, and spells its errors.
#include "drivers/cuda_api.hpp"

#include <array>
#include <string>

namespace safemap::SAFEMAP_ABI::drivers {

bool CudaApi::has_pools() const noexcept {
    return cuMemPoolCreate && cuMemPoolDestroy && cuMemPoolSetAttribute && cuMemPoolGetAttribute && cuMemPoolTrimTo &&
           cuMemAllocFromPoolAsync && cuMemFreeAsync;
}

bool CudaApi::has_virtual_memory() const noexcept {
    return cuMemGetAllocationGranularity && cuMemAddressReserve && cuMemAddressFree && cuMemCreate && cuMemRelease &&
           cuMemMap && cuMemUnmap && cuMemSetAccess;
}

std::string CudaApi::text(CuResult result) const {
    const char* name = nullptr;
    if (cuGetErrorName(result, &name) != CuResult::success || name == nullptr)
        return "CUDA error " + std::to_string(static_cast<int>(result));
    const char* words = nullptr;
    if (cuGetErrorString(result, &words) != CuResult::success || words == nullptr) return name;
    return std::string(name) + " (" + words + ")";
}

LoadedLibrary load_cuda(const char* library, CudaApi& api) {
#define SAFEMAP_CUDA_ROW(name, required, parameters) LibraryFunction{#name, &api.name, required},
    const std::array functions = {SAFEMAP_CUDA_FUNCTIONS(SAFEMAP_CUDA_ROW)};
#undef SAFEMAP_CUDA_ROW
    return load_library(library, functions);
}

const CudaDriver& cuda_driver() {
    // Never libcuda.so: that is the stub of the toolkit, which programs link where there is no driver.
    static const CudaDriver driver = [] {
        CudaDriver loaded;
        loaded.library = load_cuda("libcuda.so.1", loaded.api);
        return loaded;
    }();
    return driver;
}

}  // namespace safemap::SAFEMAP_ABI::drivers
