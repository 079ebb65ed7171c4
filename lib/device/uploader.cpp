// Uploader and Lease: look up names of a checkpoint, and let the engine bring their tensors.

#include "base/text.hpp"
#include "checkpoint/all_names.hpp"
#include "device/upload_engine.hpp"

#include <safemap/error.hpp>
#include <safemap/uploader.hpp>

#include <utility>

namespace safemap::SAFEMAP_ABI {

struct Lease::Held {
    std::shared_ptr<device::LeasedTensors> tensors;
};

struct Uploader::Impl {
    Impl(std::shared_ptr<Device> to, Checkpoint opened, const UploadOptions& options)
        : checkpoint(std::move(opened)), device(std::make_shared<device::UploadEngine>(std::move(to), options)) {}
    ~Impl() { device->stop(); }

    Lease lease(std::span<const LazyTensor> tensors, device::Keep keep) {
        Lease lease;
        lease.held_ = std::make_shared<Lease::Held>();
        lease.held_->tensors = device->acquire(tensors, keep);
        return lease;
    }

    Checkpoint checkpoint;
    std::shared_ptr<device::UploadEngine> device;  // leases share it
};

Lease::Lease() noexcept = default;
Lease::Lease(Lease&&) noexcept = default;
Lease& Lease::operator=(Lease&&) noexcept = default;
Lease::~Lease() = default;

std::span<const DeviceTensor> Lease::tensors() const& noexcept {
    if (!held_) return {};
    return held_->tensors->tensors();
}

const DeviceTensor& Lease::operator[](std::string_view name) const& {
    const DeviceTensor* const tensor = held_ ? held_->tensors->find(name) : nullptr;
    if (tensor != nullptr) return *tensor;
    throw Error(Errc::tensor_not_found, "this lease has no tensor " + safemap::quoted(name));
}

void Lease::release() noexcept { held_.reset(); }

Uploader::Uploader(std::shared_ptr<Device> device, Checkpoint checkpoint, const UploadOptions& options)
    : engine_(std::make_shared<Impl>(std::move(device), std::move(checkpoint), options)) {}

Uploader::~Uploader() = default;

Lease Uploader::acquire(std::string_view name) {
    // A tied tensor is one tensor under several names. The lease has it under the name that was asked for.
    const LazyTensor tensor = engine_->checkpoint[name].renamed(std::string(name));
    return engine_->lease(std::span(&tensor, 1), device::Keep::yes);
}

Lease Uploader::acquire(const Selection& selection) {
    return engine_->lease(checkpoint::selected(engine_->checkpoint, selection), device::Keep::yes);
}

Lease Uploader::acquire(const LazyTensor& tensor) {
    const auto stored = engine_->checkpoint.find(tensor.name());
    const bool whole = stored && SameTensor{}(&*stored, &tensor);
    return engine_->lease(std::span(&tensor, 1), whole ? device::Keep::yes : device::Keep::no);
}

void Uploader::prefetch(const Selection& selection) { prefetch(checkpoint::selected(engine_->checkpoint, selection)); }

void Uploader::prefetch(std::span<const LazyTensor> tensors) { engine_->device->prefetch(tensors); }

void Uploader::evict(const Selection& selection) {
    engine_->device->evict(checkpoint::selected(engine_->checkpoint, selection));
}

UploadStats Uploader::stats() const { return engine_->device->stats(); }

}  // namespace safemap::SAFEMAP_ABI
