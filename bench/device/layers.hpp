// The model that is brought to a device in benchmarks: layers of nine tensors, and small tensors.
#pragma once

#include "device/made.hpp"

#include <safemap/bundle.hpp>
#include <safemap/bytes.hpp>
#include <safemap/checkpoint.hpp>
#include <safemap/selection.hpp>
#include <safemap/uploader.hpp>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <utility>
#include <vector>

namespace layers {

using namespace safemap;

constexpr std::size_t layer_count = 16;
constexpr std::size_t small_tensors = 64;
constexpr std::uint64_t small_size = 64_KiB;

/// Returns the tensors of a model: those of the layers, and then the small ones.
inline std::vector<made::Item> items_of(std::uint64_t size) {
    const std::uint64_t part = std::max<std::uint64_t>(size / layer_count / 64, 4_KiB);
    const std::pair<const char*, std::uint64_t> parts[] = {{"q", 6},     {"k", 2},   {"v", 2},    {"o", 6},
                                                           {"gate", 16}, {"up", 16}, {"down", 16}};
    std::vector<made::Item> items;
    for (std::size_t i = 0; i < layer_count; ++i) {
        const std::string layer = "layers." + std::to_string(i) + ".";
        items.emplace_back(layer + "norm_1", 4_KiB);
        for (const auto& [name, share] : parts) items.emplace_back(layer + name, share * part);
        items.emplace_back(layer + "norm_2", 4_KiB);
    }
    for (std::size_t i = 0; i < small_tensors; ++i) items.emplace_back("small." + std::to_string(i), small_size);
    return items;
}

inline std::uint64_t bytes_of_layers(const std::vector<made::Item>& items) {
    std::uint64_t sum = 0;
    for (const auto& [name, size] : items)
        if (name.starts_with("layers.")) sum += size;
    return sum;
}

inline std::vector<Bundle> bundles_of_layers(Uploader& uploader) {
    std::vector<Bundle> layers;
    for (std::size_t i = 0; i < layer_count; ++i)
        layers.push_back(uploader.bundle(Selection::prefix("layers." + std::to_string(i))));
    return layers;
}

/// Returns the small tensors, each a bundle.
inline std::vector<Bundle> small_bundles(Uploader& uploader) {
    std::vector<Bundle> small;
    for (std::size_t i = 0; i < small_tensors; ++i)
        small.push_back(uploader.bundle(Selection::names({"small." + std::to_string(i)})));
    return small;
}

/// Returns all tensors of the layers, each with memory of its own, which is added to `memory`.
inline std::vector<FillTarget> fill_targets(Device& device, const Checkpoint& checkpoint,
                                            std::vector<std::shared_ptr<DeviceMemory>>& memory) {
    std::vector<FillTarget> targets;
    for (const LazyTensor& tensor : checkpoint)
        if (tensor.name().starts_with("layers.")) {
            memory.push_back(device.allocate(tensor.nbytes()));
            targets.push_back({.tensor = tensor, .address = memory.back()->handle(), .size = tensor.nbytes()});
        }
    return targets;
}

/// Leases all layers in order, each while the next `ahead` ones are on their way.
inline void pass(Uploader& uploader, const std::vector<Bundle>& layers, std::size_t ahead) {
    const std::span all(layers);
    uploader.prefetch(all.first(ahead));
    for (std::size_t i = 0; i < layers.size(); ++i) {
        const Lease lease = uploader.acquire(layers[i]);
        if (i + ahead < layers.size()) uploader.prefetch(layers[i + ahead]);
    }
}

/// Returns the bytes that `walk` uploads again and again, after two times in which layers settle that fit.
template <class Bytes, class Walk> std::uint64_t settle(Bytes&& uploaded_bytes, Walk&& walk) {
    for (int i = 0; i < 2; ++i) walk();
    const std::uint64_t before = uploaded_bytes();
    walk();
    return uploaded_bytes() - before;
}

/// Returns the bytes of the first half of the layers, all of equal size.
inline std::uint64_t half_budget(const Checkpoint& checkpoint) {
    Uploader uploader(Device::open("host"), checkpoint);
    return uploader.bundle(Selection::prefix("layers.0")).device_bytes() * (layer_count / 2);
}

}  // namespace layers
