// A cache for tests, which leases bundles as an Uploader does.
#pragma once

#include "device/cache.hpp"
#include "device/readers.hpp"

#include <safemap/bundle.hpp>
#include <safemap/checkpoint.hpp>
#include <safemap/device.hpp>
#include <safemap/lazy_tensor.hpp>
#include <safemap/source.hpp>
#include <safemap/uploader.hpp>

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string_view>
#include <thread>
#include <utility>
#include <vector>

using BundlePtr = std::shared_ptr<const safemap::device::BundleData>;

/// A checkpoint for an uploader whose bundles are made of other tensors.
inline safemap::Checkpoint no_tensors() {
    const std::string file("\x02\0\0\0\0\0\0\0{}", 10);
    std::vector<std::byte> bytes(file.size());
    std::transform(file.begin(), file.end(), bytes.begin(), [](char c) { return static_cast<std::byte>(c); });
    return safemap::Checkpoint::open(safemap::memory_source("empty.safetensors", std::move(bytes)));
}

/// The lease of a bundle, and a handle of it.
class Held {
public:
    explicit Held(BundlePtr leased, safemap::NativeStream stream = {}) noexcept
        : bundle_(std::move(leased)), stream_(stream) {}
    Held(Held&& other) noexcept = default;
    Held& operator=(Held&& other) noexcept {
        reset();
        bundle_ = std::move(other.bundle_);
        stream_ = other.stream_;
        return *this;
    }
    ~Held() { reset(); }

    void reset() noexcept {
        if (const auto bundle = std::move(bundle_)) bundle->cache->release(*bundle, stream_);
    }
    std::span<const safemap::DeviceTensor> tensors() const noexcept { return bundle_->tensors; }
    const safemap::DeviceTensor& operator[](std::size_t i) const noexcept { return bundle_->tensors[i]; }
    const safemap::DeviceTensor* find(std::string_view name) const { return bundle_->find(name); }
    const safemap::device::BundleData& bundle() const noexcept { return *bundle_; }

private:
    BundlePtr bundle_;
    safemap::NativeStream stream_;
};

/// A cache, which stops at the end of the fixture.
class CacheFixture {
public:
    CacheFixture(std::shared_ptr<safemap::Device> device, const safemap::UploadOptions& options,
                 const safemap::device::PathRules& rules = {})
        : cache_(std::make_shared<safemap::device::Cache>(std::move(device), options, *readers_, rules)) {}
    CacheFixture(std::shared_ptr<safemap::device::Budget> budget, const safemap::UploadOptions& options)
        : cache_(std::make_shared<safemap::device::Cache>(std::move(budget), options, *readers_)) {}
    CacheFixture(std::shared_ptr<safemap::Device> device, std::uint64_t budget, unsigned readers = 2)
        : CacheFixture(std::move(device), {.device_budget = budget, .readers = readers}) {}
    ~CacheFixture() { stop(); }
    CacheFixture(const CacheFixture&) = delete;
    CacheFixture& operator=(const CacheFixture&) = delete;

    void stop() noexcept {
        if (const auto cache = std::move(cache_)) cache->stop();
    }
    safemap::UploadStats stats() const { return cache_->stats(); }

    BundlePtr bundle(std::vector<safemap::LazyTensor> tensors) const { return cache_->bundle(std::move(tensors)); }
    BundlePtr bundle(const safemap::LazyTensor& tensor) const { return bundle(std::vector{tensor}); }

    /// Leases a bundle of which the caller has a handle.
    Held acquire(const BundlePtr& bundle, safemap::device::Keep keep = safemap::device::Keep::no,
                 safemap::NativeStream stream = {}, const safemap::Request& request = {}) const {
        const auto orderable = cache_->orderable(stream);
        if (!safemap::device::Cache::try_lease(*bundle)) cache_->lease(bundle, keep, request);
        Held held(bundle, stream);
        cache_->order(*bundle, orderable, request);
        return held;
    }
    /// Leases a bundle if it is there.
    std::optional<Held> try_acquire(const BundlePtr& bundle, safemap::NativeStream stream = {}) const {
        const auto orderable = cache_->orderable(stream);
        if (!safemap::device::Cache::try_lease(*bundle)) return std::nullopt;
        Held held(bundle, stream);
        cache_->order(*bundle, orderable);
        return held;
    }
    Held acquire(const BundlePtr& bundle, safemap::NativeStream stream) const {
        return acquire(bundle, safemap::device::Keep::no, stream);
    }
    /// Leases one tensor as its own bundle, which the cache keeps.
    Held acquire(const safemap::LazyTensor& tensor) const {
        return acquire(bundle(tensor), safemap::device::Keep::yes);
    }

    void prefetch(std::span<const BundlePtr> bundles) const { cache_->prefetch(bundles, safemap::device::Keep::no); }
    void prefetch(const BundlePtr& bundle) const { prefetch(std::span(&bundle, 1)); }
    /// Prefetches each tensor as its own bundle, which the cache keeps.
    void prefetch(const std::vector<safemap::LazyTensor>& tensors) const {
        std::vector<BundlePtr> bundles;
        for (const safemap::LazyTensor& tensor : tensors) bundles.push_back(bundle(tensor));
        cache_->prefetch(bundles, safemap::device::Keep::yes);
    }
    void prefetch(const safemap::LazyTensor& tensor) const { prefetch(std::vector{tensor}); }

    std::shared_ptr<safemap::DeviceEvent> fill(const std::vector<safemap::FillTarget>& targets,
                                               safemap::NativeStream after = {}) const {
        return cache_->fill(targets, after);
    }

    void evict(const BundlePtr& bundle) const { cache_->evict(bundle->groups); }
    /// Evicts the groups that own the tensors.
    void evict(const std::vector<safemap::LazyTensor>& tensors) const {
        std::vector<std::shared_ptr<safemap::device::Group>> groups;
        for (const safemap::LazyTensor& tensor : tensors)
            if (auto group = cache_->owner_of(tensor)) groups.push_back(std::move(group));
        cache_->evict(groups);
    }
    void evict(const safemap::LazyTensor& tensor) const { evict(std::vector{tensor}); }

private:
    const std::shared_ptr<safemap::device::Readers> readers_ = safemap::device::Readers::of_process();
    std::shared_ptr<safemap::device::Cache> cache_;
};

inline std::vector<std::byte> read_back(safemap::Device& device, const safemap::DeviceTensor& tensor) {
    std::vector<std::byte> bytes(tensor.nbytes());
    device.copy_to_host(bytes, *tensor.memory(), tensor.offset());
    return bytes;
}

inline std::vector<std::byte> value_of(const safemap::LazyTensor& tensor) {
    std::vector<std::byte> bytes(tensor.nbytes());
    tensor.read(0, bytes);
    return bytes;
}

/// Waits until `condition` is true, for effects of other threads.
template <class Condition> bool soon(Condition&& condition) {
    for (int i = 0; i < 60'000; ++i) {
        if (condition()) return true;
        std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
    return false;
}
