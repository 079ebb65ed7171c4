// LayerStream: the layers of a model one after the other, each on the device by the time it is needed.
#pragma once

#include <safemap/bundle.hpp>
#include <safemap/uploader.hpp>

#include <cstddef>
#include <cstdint>
#include <vector>

namespace safemap::SAFEMAP_ABI {

/// The order in which a LayerStream passes the layers.
enum class LayerOrder : std::uint8_t {
    forwards,        ///< 0, 1, ..., n-1, 0, 1, ...: inference
    backwards,       ///< n-1, ..., 0, n-1, ...
    there_and_back,  ///< 0, 1, ..., n-1, n-1, ..., 0, 0, ...: training
};

/// Walks the layers of a model that may be larger than the device. While one layer is used, the next one that is not on
/// the device is on its way. A layer has the same address in every pass.
///
/// It is a plan (Uploader::follow) and a place in it. As many layers as fit stay on the device, spread evenly over the
/// model; the others have two slots of memory in turn. So a pass uploads S - (B - W) bytes, where S is the size of all
/// layers, B the budget and W that of the slots, at most the two largest layers.
///
/// Example:
///     safemap::LayerStream layers(uploader, bundles);
///     for (std::size_t i = 0; i < layers.size(); ++i) {
///         safemap::Lease layer = layers.next();  // ends the turn of the layer before, if its lease has ended
///         for (const safemap::DeviceTensor& one : layer.tensors())
///             use(one.memory()->handle(), one.offset(), one.nbytes());
///     }
class SAFEMAP_API LayerStream {
public:
    /// Follows the plan of `layers` in this order. The uploader must outlive the stream, and follows no other plan
    /// meanwhile. Throws as Uploader::follow() does, and invalid_argument if there is no layer.
    LayerStream(Uploader& uploader, std::vector<Bundle> layers, LayerOrder order = LayerOrder::forwards);

    /// Returns the number of layers.
    std::size_t size() const noexcept { return layers_; }
    /// Returns a lease of the next layer. Waits until it is on the device, and throws as Uploader::acquire() does; then
    /// the next call returns the same layer. Release the lease before the call after the next one: until then, its slot
    /// is not free for another layer. With a stream, waits until the copies of the layer are queued, as acquire() does.
    Lease next(NativeStream stream = {});
    /// Returns the number of the layer that next() will return.
    std::size_t upcoming() const noexcept;

private:
    Uploader* uploader_;
    std::size_t layers_;
    LayerOrder order_;
    std::vector<Bundle> steps_;  // the steps of one pass
    std::size_t at_ = 0;         // in steps_
};

}  // namespace safemap::SAFEMAP_ABI
