// A cache for tests, which leases bundles as an Uploader does.
#pragma once

#include "device/cache.hpp"
#include "device/readers.hpp"

#include <safemap/advanced/device_backend.hpp>
#include <safemap/bundle.hpp>
#include <safemap/checkpoint.hpp>
#include <safemap/lazy_tensor.hpp>
#include <safemap/source.hpp>
#include <safemap/uploader.hpp>

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <list>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string_view>
#include <thread>
#include <utility>
#include <vector>

using BundlePtr = std::shared_ptr<const safemap::device::BundleData>;

/// A checkpoint for an uploader whose bundles are made of other tensors.
safemap::Checkpoint no_tensors();

/// The lease of a bundle, and a handle of it.
class Held {
public:
    explicit Held(BundlePtr leased, safemap::NativeStream stream = {}) noexcept
        : bundle_(std::move(leased)), stream_(stream) {}
    Held(Held&& other) noexcept = default;
    Held& operator=(Held&& other) noexcept;
    ~Held() { reset(); }

    void reset() noexcept;
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
                 const safemap::device::PathRules& rules = {});
    CacheFixture(std::shared_ptr<safemap::device::Cache> cache, const safemap::UploadOptions& options);
    CacheFixture(std::shared_ptr<safemap::Device> device, std::uint64_t budget, unsigned readers = 2);
    ~CacheFixture() { stop(); }
    CacheFixture(const CacheFixture&) = delete;
    CacheFixture& operator=(const CacheFixture&) = delete;

    void stop() noexcept;
    const std::shared_ptr<safemap::device::View>& view() const noexcept { return view_; }
    safemap::UploadStats stats() const { return cache_->stats(*view_); }

    BundlePtr bundle(std::vector<safemap::LazyTensor> tensors) const;
    BundlePtr bundle(const safemap::LazyTensor& tensor) const;

    Held acquire(const BundlePtr& bundle, safemap::NativeStream stream = {},
                 const safemap::Request& request = {}) const;
    /// Leases a bundle if it is there.
    std::optional<Held> try_acquire(const BundlePtr& bundle, safemap::NativeStream stream = {}) const;
    /// Leases one tensor as its own bundle, which the fixture keeps.
    Held acquire(const safemap::LazyTensor& tensor) const { return acquire(keep(bundle(tensor))); }

    void prefetch(const std::vector<BundlePtr>& bundles) const;
    void prefetch(const BundlePtr& bundle) const;
    /// Prefetches each tensor as its own bundle, which the fixture keeps.
    void prefetch(const std::vector<safemap::LazyTensor>& tensors) const;
    void prefetch(const safemap::LazyTensor& tensor) const;

    std::shared_ptr<safemap::DeviceEvent> fill(const std::vector<safemap::FillTarget>& targets,
                                               safemap::NativeStream after = {}) const;

    std::uint64_t sleep() const { return cache_->sleep(*view_); }
    void wake() const { cache_->wake(*view_); }
    /// Follows an order in place of the one before; none if it is empty.
    void follow(const std::vector<BundlePtr>& order, bool cyclic) const;

    /// Drops the bundles that the fixture keeps.
    void drop_kept() const;
    void evict(const BundlePtr& bundle) const;
    /// Evicts the groups that own the tensors.
    void evict(const std::vector<safemap::LazyTensor>& tensors) const;
    void evict(const safemap::LazyTensor& tensor) const;

private:
    const BundlePtr& keep(BundlePtr bundle) const;

    std::shared_ptr<safemap::device::Cache> cache_;
    std::shared_ptr<safemap::device::View> view_;
    mutable std::mutex mutex_;
    mutable std::list<BundlePtr> kept_;
    mutable std::shared_ptr<safemap::device::Plan> plan_;
};

std::vector<std::byte> read_back(safemap::Device& device, const safemap::DeviceTensor& tensor);

std::vector<std::byte> value_of(const safemap::LazyTensor& tensor);

/// Waits until `condition` is true, for effects of other threads.
template <class Condition> bool soon(Condition&& condition) {
    for (int i = 0; i < 60'000; ++i) {
        if (condition()) return true;
        std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
    return false;
}
