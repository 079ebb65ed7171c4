// Uploader: looks up names of a checkpoint, makes bundles of their tensors, and lets the cache bring them.

#include "checkpoint/all_names.hpp"
#include "device/cache.hpp"
#include "device/ticket.hpp"

#include <safemap/error.hpp>
#include <safemap/uploader.hpp>

#include <functional>
#include <mutex>
#include <unordered_map>
#include <utility>
#include <vector>

namespace safemap::SAFEMAP_ABI {

using device::BundleData;
using device::Cache;
using device::Keep;

struct Uploader::Impl {
    /// `place`: a device, or the budget of one.
    template <class Place>
    Impl(std::shared_ptr<Place> place, Checkpoint opened, const UploadOptions& options)
        : checkpoint(std::move(opened)),
          readers(device::Readers::of_process()),
          cache(std::make_shared<Cache>(std::move(place), options, *readers)) {}
    ~Impl() { cache->stop(); }
    Impl(const Impl&) = delete;
    Impl& operator=(const Impl&) = delete;

    /// Returns the bundle of a name that was acquired before, if it is still held; otherwise null.
    std::shared_ptr<const BundleData> known(std::string_view name) {
        const std::lock_guard lock(mutex);
        const auto found = named.find(name);
        return found == named.end() ? nullptr : found->second.lock();
    }

    struct Hash {
        using is_transparent = void;
        std::size_t operator()(std::string_view name) const noexcept { return std::hash<std::string_view>()(name); }
    };

    const Checkpoint checkpoint;
    const std::shared_ptr<device::Readers> readers;  // outlives the uploads of the cache
    const std::shared_ptr<Cache> cache;              // shared with bundles
    std::mutex mutex;
    std::unordered_map<std::string, std::weak_ptr<const BundleData>, Hash, std::equal_to<>> named;
};

Uploader::Uploader(std::shared_ptr<Device> device, Checkpoint checkpoint, const UploadOptions& options)
    : impl_(std::make_unique<Impl>(std::move(device), std::move(checkpoint), options)) {}

Uploader::Uploader(const DeviceBudget& budget, Checkpoint checkpoint, const UploadOptions& options)
    : impl_(std::make_unique<Impl>(budget.shared_, std::move(checkpoint), options)) {}

Uploader::~Uploader() = default;

const std::shared_ptr<const BundleData>& Uploader::own(const Bundle& bundle) const {
    if (bundle.data_ && bundle.data_->cache == impl_->cache) return bundle.data_;
    throw Error(Errc::invalid_argument, bundle.data_ ? "the bundle belongs to another uploader" : "there is no bundle");
}

Bundle Uploader::bundle(const Selection& selection) {
    return Bundle(impl_->cache->bundle(checkpoint::selected(impl_->checkpoint, selection)));
}

Bundle Uploader::bundle(std::span<const LazyTensor> tensors) {
    return Bundle(impl_->cache->bundle({tensors.begin(), tensors.end()}));
}

Lease Uploader::acquire(const Bundle& bundle, NativeStream stream, const Request& request) {
    const auto& data = own(bundle);
    const NativeStream orderable = impl_->cache->orderable(stream);
    const bool was_there = Cache::try_lease(*data);
    if (!was_there) impl_->cache->lease(data, Keep::no, request);
    Lease lease = Lease::ordered(data, stream, orderable, request);
    if (was_there && impl_->cache->follows()) impl_->cache->reached(*data);
    return lease;
}

std::optional<Lease> Uploader::try_acquire(const Bundle& bundle, NativeStream stream) {
    const auto& data = own(bundle);
    const NativeStream orderable = impl_->cache->orderable(stream);
    if (!Cache::try_lease(*data)) return std::nullopt;
    Lease lease = Lease::ordered(data, stream, orderable, {});
    if (impl_->cache->follows()) impl_->cache->reached(*data);
    return lease;
}

std::shared_ptr<DeviceEvent> Uploader::fill(std::span<const FillTarget> targets, NativeStream after) {
    return impl_->cache->fill(targets, after);
}

void Uploader::follow(const UploadPlan& plan) {
    std::vector<std::shared_ptr<const BundleData>> order;
    order.reserve(plan.order.size());
    for (const Bundle& bundle : plan.order) order.push_back(own(bundle));
    impl_->cache->follow(std::move(order), plan.cyclic);
}

std::uint64_t Uploader::sleep() { return impl_->cache->sleep(); }

void Uploader::wake() { impl_->cache->wake(); }

Ticket Uploader::request(const Bundle& bundle, const Request& request) {
    auto data = std::make_unique<Ticket::Data>();
    data->bundle = own(bundle);
    data->request = request;
    data->uploads = impl_->cache->request(data->bundle, request);
    return Ticket(std::move(data));
}

Lease Uploader::acquire(std::string_view name, NativeStream stream) {
    const NativeStream orderable = impl_->cache->orderable(stream);
    auto data = impl_->known(name);
    const bool is_new = data == nullptr;
    if (is_new) {
        // A tied tensor is one tensor under several names. The lease has it under the name that was asked for.
        std::vector<LazyTensor> tensors = {impl_->checkpoint[name].renamed(std::string(name))};
        data = impl_->cache->bundle(std::move(tensors));
    }
    if (is_new || !Cache::try_lease(*data)) impl_->cache->lease(data, Keep::yes, {});
    Lease lease = Lease::ordered(std::move(data), stream, orderable, {});
    if (!is_new) return lease;
    const std::lock_guard lock(impl_->mutex);
    impl_->named[std::string(name)] = lease.data_;
    return lease;
}

Lease Uploader::acquire(const Selection& selection, NativeStream stream) {
    const NativeStream orderable = impl_->cache->orderable(stream);
    auto data = impl_->cache->bundle(checkpoint::selected(impl_->checkpoint, selection));
    // Without a group of its own, there is nothing that only this bundle owns.
    impl_->cache->lease(data, data->own != nullptr ? Keep::yes : Keep::no, {});
    return Lease::ordered(std::move(data), stream, orderable, {});
}

void Uploader::prefetch(std::span<const Bundle> bundles) {
    std::vector<std::shared_ptr<const BundleData>> data;
    data.reserve(bundles.size());
    for (const Bundle& bundle : bundles) data.push_back(own(bundle));
    impl_->cache->prefetch(data, Keep::no);
}

void Uploader::prefetch(const Selection& selection) {
    std::vector<std::shared_ptr<const BundleData>> data;
    for (LazyTensor& tensor : checkpoint::selected(impl_->checkpoint, selection)) {
        std::vector<LazyTensor> one;
        one.push_back(std::move(tensor));
        data.push_back(impl_->cache->bundle(std::move(one)));
    }
    impl_->cache->prefetch(data, Keep::yes);
}

void Uploader::evict(const Bundle& bundle) { impl_->cache->evict(own(bundle)->groups); }

void Uploader::evict(const Selection& selection) {
    std::vector<std::shared_ptr<device::Group>> groups;
    for (const LazyTensor& tensor : checkpoint::selected(impl_->checkpoint, selection))
        if (auto group = impl_->cache->owner_of(tensor)) groups.push_back(std::move(group));
    impl_->cache->evict(groups);
}

UploadStats Uploader::stats() const { return impl_->cache->stats(); }

}  // namespace safemap::SAFEMAP_ABI
