// Uploader: looks up names of a checkpoint, makes bundles of their tensors, and lets the cache bring them.

#include "base/text.hpp"
#include "checkpoint/all_names.hpp"
#include "device/cache.hpp"

#include <safemap/error.hpp>
#include <safemap/uploader.hpp>

#include <functional>
#include <mutex>
#include <unordered_map>
#include <utility>
#include <vector>

namespace safemap::SAFEMAP_ABI {

using device::BundleData;
using device::Bundles;
using device::Cache;

namespace {

DeviceBudgetOptions own_budget(const UploadOptions& options) {
    return {.device_bytes = options.device_budget,
            .staging_bytes = options.staging_bytes,
            .host_bytes = options.host_bytes};
}

}  // namespace

struct Uploader::Impl {
    Impl(const std::shared_ptr<Cache>& of, Checkpoint opened, const UploadOptions& options)
        : checkpoint(std::move(opened)), cache(*of), view(of->view(options)) {}
    ~Impl() { cache.stop(*view); }
    Impl(const Impl&) = delete;
    Impl& operator=(const Impl&) = delete;

    struct Hash {
        using is_transparent = void;
        std::size_t operator()(std::string_view name) const noexcept { return std::hash<std::string_view>()(name); }
    };

    const Checkpoint checkpoint;
    Cache& cache;
    const std::shared_ptr<device::View> view;  // holds the cache; shared with bundles
    std::mutex mutex;
    /// Bundles of one tensor that were asked for by name.
    std::unordered_map<std::string, std::shared_ptr<const BundleData>, Hash, std::equal_to<>> named;
};

Uploader::Uploader(std::shared_ptr<Device> device, Checkpoint checkpoint, const UploadOptions& options)
    : Uploader(DeviceBudget(std::move(device), own_budget(options)), std::move(checkpoint), options) {}

Uploader::Uploader(const DeviceBudget& budget, Checkpoint checkpoint, const UploadOptions& options)
    : impl_(std::make_unique<Impl>(budget.cache_, std::move(checkpoint), options)) {}

Uploader::~Uploader() {
    if (impl_->cache.is_forked()) static_cast<void>(impl_.release());  // any lock in it may be held for ever
}

const std::shared_ptr<const BundleData>& Uploader::own(const Bundle& bundle) const {
    if (bundle.data_ && bundle.data_->view == impl_->view) return bundle.data_;
    throw Error(Errc::invalid_argument, bundle.data_ ? "the bundle belongs to another uploader" : "there is no bundle");
}

Bundles Uploader::own(std::span<const Bundle> bundles) const {
    Bundles data;
    data.reserve(bundles.size());
    for (const Bundle& bundle : bundles) data.push_back(own(bundle));
    return data;
}

Bundle Uploader::bundle(const Selection& selection) {
    return Bundle(Cache::bundle(impl_->view, checkpoint::selected(impl_->checkpoint, selection)));
}

Bundle Uploader::bundle(std::span<const LazyTensor> tensors) {
    return Bundle(Cache::bundle(impl_->view, {tensors.begin(), tensors.end()}));
}

Bundle Uploader::bundle(std::string_view name) {
    impl_->cache.require_own_process();  // before the lock
    {
        const std::lock_guard lock(impl_->mutex);
        const auto known = impl_->named.find(name);
        if (known != impl_->named.end()) return Bundle(known->second);
    }
    // A tied tensor is one tensor under several names. The bundle has it under the name that was asked for.
    auto data = Cache::bundle(impl_->view, {impl_->checkpoint[name].renamed(std::string(name))});
    const std::lock_guard lock(impl_->mutex);
    return Bundle(impl_->named.try_emplace(std::string(name), std::move(data)).first->second);
}

Bundle Uploader::bundle(const char* name) { return bundle(not_null(name, "name of a tensor")); }

Lease Uploader::acquire(const Bundle& bundle, NativeStream stream, const Request& request) {
    return Lease::acquired(own(bundle), stream, request);
}

std::optional<Lease> Uploader::try_acquire(const Bundle& bundle, NativeStream stream) {
    const auto& data = own(bundle);
    const NativeStream orderable = impl_->cache.orderable(stream);
    if (!Cache::try_lease(*data)) {
        impl_->cache.help_without_readers(*data);
        return std::nullopt;
    }
    Lease lease = Lease::ordered(data, stream, orderable, {});
    if (impl_->view->follows) impl_->cache.reached(*data);
    return lease;
}

std::shared_ptr<DeviceEvent> Uploader::fill(std::span<const FillTarget> targets, NativeStream after) {
    return impl_->cache.fill(*impl_->view, targets, after);
}

UploadOrder Uploader::follow(std::span<const Bundle> bundles) {
    return UploadOrder(impl_->cache.follow(*impl_->view, own(bundles), true));
}

UploadOrder Uploader::follow_once(std::span<const Bundle> bundles) {
    return UploadOrder(impl_->cache.follow(*impl_->view, own(bundles), false));
}

std::uint64_t Uploader::sleep() { return impl_->cache.sleep(*impl_->view); }

void Uploader::wake() { impl_->cache.wake(*impl_->view); }

Lease Uploader::request(const Bundle& bundle, const Request& request) {
    const auto& data = own(bundle);
    auto awaited = std::make_shared<device::Awaited>(device::Awaited{.request = request});
    awaited->try_begin(*data);
    return Lease(data, std::move(awaited));
}

void Uploader::prefetch(std::span<const Bundle> bundles) { impl_->cache.prefetch(*impl_->view, own(bundles)); }

void Uploader::evict(const Bundle& bundle) { impl_->cache.evict(*impl_->view, own(bundle)->groups); }

void Uploader::evict(const Selection& selection) {
    std::vector<std::shared_ptr<device::Group>> groups;
    for (const LazyTensor& tensor : checkpoint::selected(impl_->checkpoint, selection))
        if (auto group = impl_->view->owners.find(tensor)) groups.push_back(std::move(group));
    impl_->cache.evict(*impl_->view, groups);
}

UploadStats Uploader::stats() const { return impl_->cache.stats(*impl_->view); }

}  // namespace safemap::SAFEMAP_ABI
