// Makes bundles of tensors and leases them. A lease that is dropped is returned to the cache.
#include "device/cache_fixture.hpp"

#include <algorithm>
#include <string>

safemap::Checkpoint no_tensors() {
    const std::string file("\x02\0\0\0\0\0\0\0{}", 10);
    std::vector<std::byte> bytes(file.size());
    std::transform(file.begin(), file.end(), bytes.begin(), [](char c) { return static_cast<std::byte>(c); });
    return safemap::Checkpoint::open(safemap::memory_source("empty.safetensors", std::move(bytes)));
}

Held& Held::operator=(Held&& other) noexcept {
    reset();
    bundle_ = std::move(other.bundle_);
    stream_ = other.stream_;
    return *this;
}

void Held::reset() noexcept {
    if (const auto bundle = std::move(bundle_)) bundle->view->cache->release(*bundle, stream_);
}

CacheFixture::CacheFixture(std::shared_ptr<safemap::Device> device, const safemap::UploadOptions& options,
                           const safemap::device::PathRules& rules)
    : cache_(safemap::device::Cache::make(
          std::move(device), {.device_bytes = options.device_budget, .staging_bytes = options.staging_bytes})),
      view_(cache_->view(options, rules)) {}

CacheFixture::CacheFixture(std::shared_ptr<safemap::device::Cache> cache, const safemap::UploadOptions& options)
    : cache_(std::move(cache)), view_(cache_->view(options)) {}

CacheFixture::CacheFixture(std::shared_ptr<safemap::Device> device, std::uint64_t budget, unsigned readers)
    : CacheFixture(std::move(device), {.device_budget = budget, .readers = readers}) {}

void CacheFixture::stop() noexcept {
    if (const auto view = std::move(view_)) cache_->stop(*view);
    plan_.reset();
    kept_.clear();
}

BundlePtr CacheFixture::bundle(std::vector<safemap::LazyTensor> tensors) const {
    return safemap::device::Cache::bundle(view_, std::move(tensors));
}

BundlePtr CacheFixture::bundle(const safemap::LazyTensor& tensor) const { return bundle(std::vector{tensor}); }

const BundlePtr& CacheFixture::keep(BundlePtr bundle) const {
    const std::lock_guard lock(mutex_);
    return kept_.emplace_back(std::move(bundle));
}

Held CacheFixture::acquire(const BundlePtr& bundle, safemap::NativeStream stream,
                           const safemap::Request& request) const {
    const auto orderable = cache_->orderable(stream);
    if (!safemap::device::Cache::try_lease(*bundle)) cache_->lease(*bundle, request);
    Held held(bundle, stream);
    cache_->order(*bundle, orderable, request);
    return held;
}

std::optional<Held> CacheFixture::try_acquire(const BundlePtr& bundle, safemap::NativeStream stream) const {
    const auto orderable = cache_->orderable(stream);
    if (!safemap::device::Cache::try_lease(*bundle)) return std::nullopt;
    Held held(bundle, stream);
    cache_->order(*bundle, orderable);
    return held;
}

void CacheFixture::prefetch(const std::vector<BundlePtr>& bundles) const { cache_->prefetch(*view_, bundles); }

void CacheFixture::prefetch(const BundlePtr& bundle) const { prefetch(std::vector{bundle}); }

void CacheFixture::prefetch(const std::vector<safemap::LazyTensor>& tensors) const {
    std::vector<BundlePtr> bundles;
    for (const safemap::LazyTensor& tensor : tensors) bundles.push_back(keep(bundle(tensor)));
    prefetch(bundles);
}

void CacheFixture::prefetch(const safemap::LazyTensor& tensor) const { prefetch(std::vector{tensor}); }

std::shared_ptr<safemap::DeviceEvent> CacheFixture::fill(const std::vector<safemap::FillTarget>& targets,
                                                         safemap::NativeStream after) const {
    return cache_->fill(*view_, targets, after);
}

void CacheFixture::follow(const std::vector<BundlePtr>& order, bool cyclic) const {
    const std::lock_guard lock(mutex_);
    if (plan_) cache_->unfollow(std::move(plan_));
    if (!order.empty()) plan_ = cache_->follow(*view_, order, cyclic);
}

void CacheFixture::drop_kept() const {
    const std::lock_guard lock(mutex_);
    kept_.clear();
}

void CacheFixture::evict(const BundlePtr& bundle) const { cache_->evict(*view_, bundle->groups); }

void CacheFixture::evict(const std::vector<safemap::LazyTensor>& tensors) const {
    std::vector<std::shared_ptr<safemap::device::Group>> groups;
    for (const safemap::LazyTensor& tensor : tensors)
        if (auto group = view_->owners.find(tensor)) groups.push_back(std::move(group));
    cache_->evict(*view_, groups);
}

void CacheFixture::evict(const safemap::LazyTensor& tensor) const { evict(std::vector{tensor}); }

std::vector<std::byte> read_back(safemap::Device& device, const safemap::DeviceTensor& tensor) {
    std::vector<std::byte> bytes(tensor.nbytes());
    device.copy_to_host(bytes, *tensor.memory(), tensor.offset());
    return bytes;
}

std::vector<std::byte> value_of(const safemap::LazyTensor& tensor) {
    std::vector<std::byte> bytes(tensor.nbytes());
    tensor.read(0, bytes);
    return bytes;
}
