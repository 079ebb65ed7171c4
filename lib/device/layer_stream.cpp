// LayerStream: a plan of layers and a place in it.

#include <safemap/error.hpp>
#include <safemap/layer_stream.hpp>

#include <algorithm>
#include <utility>

namespace safemap::SAFEMAP_ABI {

LayerStream::LayerStream(Uploader& uploader, std::vector<Bundle> layers, LayerOrder order)
    : uploader_(&uploader), layers_(layers.size()), order_(order), steps_(std::move(layers)) {
    if (steps_.empty()) throw Error(Errc::invalid_argument, "there are no layers");
    if (order == LayerOrder::backwards) std::ranges::reverse(steps_);
    if (order == LayerOrder::there_and_back) {
        steps_.reserve(2 * layers_);
        for (std::size_t i = layers_; i-- > 0;) steps_.push_back(steps_[i]);
    }
    uploader_->follow({.order = steps_, .cyclic = true});
}

Lease LayerStream::next(NativeStream stream) {
    Lease lease = uploader_->acquire(steps_[at_], stream);
    at_ = (at_ + 1) % steps_.size();
    return lease;
}

std::size_t LayerStream::upcoming() const noexcept {
    if (order_ == LayerOrder::forwards) return at_;
    if (order_ == LayerOrder::backwards) return layers_ - 1 - at_;
    return at_ < layers_ ? at_ : 2 * layers_ - 1 - at_;
}

}  // namespace safemap::SAFEMAP_ABI
