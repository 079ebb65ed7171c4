// Computes the digest of a tensor that is on a device.

#include "base/checksum.hpp"
#include "device/group.hpp"

#include <safemap/uploader.hpp>

#include <algorithm>
#include <vector>

namespace safemap::SAFEMAP_ABI {

std::string digest(Device& device, const DeviceTensor& tensor) {
    for (const device::Fence& fence : tensor.group_->on_device->ready) fence.event->wait();
    constexpr std::uint64_t block = 8_MiB;
    std::vector<std::byte> buffer(std::min(block, tensor.nbytes()));
    Xxh3 hash;
    for (std::uint64_t at = 0; at < tensor.nbytes(); at += block) {
        const auto part = std::span(buffer).first(std::min(block, tensor.nbytes() - at));
        device.copy_to_host(part, *tensor.memory(), tensor.offset() + at);
        hash.update(part);
    }
    return hash.hex();
}

}  // namespace safemap::SAFEMAP_ABI
