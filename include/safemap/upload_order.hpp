// UploadOrder: the order in which a program uses its bundles, and a place in it.
#pragma once

#include <safemap/bundle.hpp>
#include <safemap/device.hpp>
#include <safemap/request.hpp>

#include <cstddef>
#include <memory>

namespace safemap::SAFEMAP_ABI {

namespace device {
class Plan;
}  // namespace device

/// The order in which a program uses its bundles, and a place in it: the result of Uploader::follow(). While it lives,
/// the uploader uploads ahead what comes next in the order, and decides what stays on the device. So the bundles, such
/// as the layers of a model, may be larger than the device: while one is used, the next one is on its way.
///
/// Orders can be moved, not copied. A default one, and one that was moved from or has ended, has no steps. An order
/// must not be used from two threads at once; the uploader may be used from others meanwhile. It may outlive its
/// uploader; then next() throws cancelled.
///
/// Example:
///     safemap::UploadOrder layers = uploader.follow(bundles);  // each token passes all layers in turn
///     for (std::size_t i = 0; i < layers.size(); ++i) {
///         safemap::Lease layer = layers.next();  // ends the turn of the layer before, if its lease has ended
///         for (const safemap::DeviceTensor& one : layer.tensors()) use(one.address(), one.nbytes());
///     }
class [[nodiscard]] SAFEMAP_API UploadOrder {
public:
    UploadOrder() noexcept;
    UploadOrder(UploadOrder&& other) noexcept;
    UploadOrder& operator=(UploadOrder&& other) noexcept;
    /// Does the same as end().
    ~UploadOrder();

    /// Returns the number of steps of a pass.
    std::size_t size() const noexcept;
    /// Returns the number of the step that next() will return, from 0 on; size() at the end of an order that is
    /// followed once.
    std::size_t upcoming() const noexcept { return at_; }
    /// Returns a lease of the bundle of the next step. Waits until it is on the device, and throws as
    /// Uploader::acquire() does; then the next call returns the same step. Release the lease before the call after the
    /// next one: until then, its slot is not free for another bundle. With a stream, waits until the copies are queued,
    /// as acquire() does. Throws invalid_argument if there is no next step.
    Lease next(NativeStream stream = {}, const Request& request = {});
    /// Goes back to the first step, and starts the uploads of what comes first, as Uploader::follow() did.
    void reset();

    /// Ends the order, so that the uploader can follow another one. Bundles of which the program has a handle stay on
    /// the device as any others. The memory of the other bundles, and memory that no bundle uses, goes back to the
    /// device; waits for the work of streams that still uses it.
    void end() noexcept;

private:
    friend class Uploader;
    explicit UploadOrder(std::shared_ptr<device::Plan> plan) noexcept;
    std::shared_ptr<device::Plan> plan_;
    std::size_t at_ = 0;
};

}  // namespace safemap::SAFEMAP_ABI
