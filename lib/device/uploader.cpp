// Uploader: looks up names of a checkpoint, makes bundles of their tensors, and lets the cache bring them.

#include "base/text.hpp"
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

namespace {

DeviceBudgetOptions own_budget(const UploadOptions& options) {
    return {.device_bytes = options.device_budget, .staging_bytes = options.staging_bytes};
}

}  // namespace

struct Uploader::Impl {
    Impl(const std::shared_ptr<Cache>& of, Checkpoint opened, const UploadOptions& options)
        : checkpoint(std::move(opened)), cache(*of), view(of->view(options)) {}
    ~Impl() { cache.stop(*view); }
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
    Cache& cache;
    const std::shared_ptr<device::View> view;  // holds the cache; shared with bundles
    std::mutex mutex;
    std::unordered_map<std::string, std::weak_ptr<const BundleData>, Hash, std::equal_to<>> named;
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

Bundle Uploader::bundle(const Selection& selection) {
    return Bundle(Cache::bundle(impl_->view, checkpoint::selected(impl_->checkpoint, selection)));
}

Bundle Uploader::bundle(std::span<const LazyTensor> tensors) {
    return Bundle(Cache::bundle(impl_->view, {tensors.begin(), tensors.end()}));
}

Lease Uploader::acquire(const Bundle& bundle, NativeStream stream, const Request& request) {
    const auto& data = own(bundle);
    const NativeStream orderable = impl_->cache.orderable(stream);
    const bool was_there = Cache::try_lease(*data);
    if (!was_there) impl_->cache.lease(data, Keep::no, request);
    Lease lease = Lease::ordered(data, stream, orderable, request);
    if (was_there && impl_->view->follows) impl_->cache.reached(*data);
    return lease;
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

void Uploader::follow(const UploadPlan& plan) {
    std::vector<std::shared_ptr<const BundleData>> order;
    order.reserve(plan.order.size());
    for (const Bundle& bundle : plan.order) order.push_back(own(bundle));
    impl_->cache.follow(*impl_->view, std::move(order), plan.cyclic);
}

std::uint64_t Uploader::sleep() { return impl_->cache.sleep(*impl_->view); }

void Uploader::wake() { impl_->cache.wake(*impl_->view); }

Ticket Uploader::request(const Bundle& bundle, const Request& request) {
    auto data = std::make_unique<Ticket::Data>();
    data->bundle = own(bundle);
    data->request = request;
    data->try_begin();
    return Ticket(std::move(data));
}

Lease Uploader::acquire(std::string_view name, NativeStream stream) {
    const NativeStream orderable = impl_->cache.orderable(stream);
    auto data = impl_->known(name);
    const bool is_new = data == nullptr;
    if (is_new) {
        // A tied tensor is one tensor under several names. The lease has it under the name that was asked for.
        std::vector<LazyTensor> tensors = {impl_->checkpoint[name].renamed(std::string(name))};
        data = Cache::bundle(impl_->view, std::move(tensors));
    }
    if (is_new || !Cache::try_lease(*data)) impl_->cache.lease(data, Keep::yes, {});
    Lease lease = Lease::ordered(std::move(data), stream, orderable, {});
    if (!is_new) return lease;
    const std::lock_guard lock(impl_->mutex);
    impl_->named[std::string(name)] = lease.data_;
    return lease;
}

Lease Uploader::acquire(const char* name, NativeStream stream) {
    return acquire(not_null(name, "name of a tensor"), stream);
}

Lease Uploader::acquire(const Selection& selection, NativeStream stream) {
    const NativeStream orderable = impl_->cache.orderable(stream);
    auto data = Cache::bundle(impl_->view, checkpoint::selected(impl_->checkpoint, selection));
    // Without a group of its own, there is nothing that only this bundle owns.
    impl_->cache.lease(data, data->own != nullptr ? Keep::yes : Keep::no, {});
    return Lease::ordered(std::move(data), stream, orderable, {});
}

void Uploader::prefetch(std::span<const Bundle> bundles) {
    std::vector<std::shared_ptr<const BundleData>> data;
    data.reserve(bundles.size());
    for (const Bundle& bundle : bundles) data.push_back(own(bundle));
    impl_->cache.prefetch(*impl_->view, data, Keep::no);
}

void Uploader::prefetch(const Selection& selection) {
    std::vector<std::shared_ptr<const BundleData>> data;
    for (LazyTensor& tensor : checkpoint::selected(impl_->checkpoint, selection)) {
        std::vector<LazyTensor> one;
        one.push_back(std::move(tensor));
        data.push_back(Cache::bundle(impl_->view, std::move(one)));
    }
    impl_->cache.prefetch(*impl_->view, data, Keep::yes);
}

void Uploader::evict(const Bundle& bundle) { impl_->cache.evict(own(bundle)->groups); }

void Uploader::evict(const Selection& selection) {
    std::vector<std::shared_ptr<device::Group>> groups;
    for (const LazyTensor& tensor : checkpoint::selected(impl_->checkpoint, selection))
        if (auto group = impl_->view->owners.find(tensor)) groups.push_back(std::move(group));
    impl_->cache.evict(groups);
}

UploadStats Uploader::stats() const { return impl_->cache.stats(*impl_->view); }

}  // namespace safemap::SAFEMAP_ABI
