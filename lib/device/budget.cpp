// The budget of a device, which caches share.
#include "device/budget.hpp"

#include "device/cache.hpp"

#include <safemap/error.hpp>

#include <string>
#include <utility>

namespace safemap::SAFEMAP_ABI {
namespace device {
namespace {

// With jobs of this size, two threads that claim them reach the disk's limit. Loaders for GPUs converge on such sizes,
// too (4 to 16 MiB).
constexpr std::uint64_t most_slab = 8_MiB;
constexpr std::uint64_t least_staging = 4_KiB;
constexpr std::uint64_t staging_for_others = 32_MiB;

// Slabs that are read into again and again have to stay in the cache of the processor, or the memory is the limit, and
// not the bus. Twelve readers and an H100 came to 50 GB/s with two slabs of 4 MiB each, and to 38 with 8 MiB; its bus
// copies 53.
constexpr std::uint64_t slab_for_cuda = 4_MiB;
constexpr std::uint64_t staging_for_cuda = 128_MiB;

std::uint64_t choose_staging(const Device& device, const DeviceBudgetOptions& options) {
    if (options.staging_bytes == 0) return is_cuda(device) ? staging_for_cuda : staging_for_others;
    if (options.staging_bytes >= least_staging) return options.staging_bytes;
    throw Error(Errc::invalid_argument, "staging_bytes is " + std::to_string(options.staging_bytes) +
                                            "; expected at least " + std::to_string(least_staging));
}

std::uint64_t slab_bytes(const Device& device, std::uint64_t staging_bytes) {
    return std::min(is_cuda(device) ? slab_for_cuda : most_slab, staging_bytes);
}

std::uint64_t choose_budget(const Device& device, const DeviceBudgetOptions& options) {
    return options.device_bytes > 0 ? options.device_bytes : device.free_memory() / 10 * 9;
}

}  // namespace

bool is_cuda(const Device& device) noexcept { return device.stream_kind() == NativeStream::Kind::cuda; }

Budget::Budget(std::shared_ptr<Device> of, const DeviceBudgetOptions& options)
    : device(std::move(of)),
      staging_limit(choose_staging(*device, options)),
      staging(device, slab_bytes(*device, staging_limit), staging_limit / slab_bytes(*device, staging_limit)),
      claimed{.limit = choose_budget(*device, options)},
      allocated{.limit = claimed.limit} {}

std::vector<std::shared_ptr<Cache>> Budget::others(const Cache& than) const {
    std::vector<std::shared_ptr<Cache>> found;
    found.reserve(caches.size());
    for (Cache* const cache : caches) {
        if (cache == &than) continue;
        // One whose last owner is going has stopped, or is about to take itself out.
        if (auto shared = cache->weak_from_this().lock()) found.push_back(std::move(shared));
    }
    return found;
}

}  // namespace device

DeviceBudget::DeviceBudget(std::shared_ptr<Device> device, const DeviceBudgetOptions& options)
    : shared_(std::make_shared<device::Budget>(std::move(device), options)) {}

const std::shared_ptr<Device>& DeviceBudget::device() const noexcept { return shared_->device; }

std::uint64_t DeviceBudget::device_bytes() const noexcept { return shared_->claimed.limit; }

DeviceBudgetStats DeviceBudget::stats() const {
    const std::lock_guard lock(shared_->mutex);
    return {.device_bytes = shared_->allocated.used,
            .peak_device_bytes = shared_->allocated.peak,
            .peak_staging_bytes = shared_->staging.peak()};
}

}  // namespace safemap::SAFEMAP_ABI
