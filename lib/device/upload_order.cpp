// UploadOrder: the handle of a plan that is followed, and a place in it.
#include <safemap/upload_order.hpp>

#include "device/cache.hpp"

#include <safemap/error.hpp>

#include <utility>

namespace safemap::SAFEMAP_ABI {

UploadOrder::UploadOrder() noexcept = default;
UploadOrder::UploadOrder(std::shared_ptr<device::View> view, std::shared_ptr<device::Plan> plan) noexcept
    : view_(std::move(view)), plan_(std::move(plan)) {}
UploadOrder::UploadOrder(UploadOrder&& other) noexcept
    : view_(std::move(other.view_)), plan_(std::move(other.plan_)), at_(std::exchange(other.at_, 0)) {}
UploadOrder::~UploadOrder() { end(); }

UploadOrder& UploadOrder::operator=(UploadOrder&& other) noexcept {
    if (this != &other) {
        end();
        view_ = std::move(other.view_);
        plan_ = std::move(other.plan_);
        at_ = std::exchange(other.at_, 0);
    }
    return *this;
}

std::size_t UploadOrder::size() const noexcept { return plan_ ? plan_->order().size() : 0; }

Lease UploadOrder::next(NativeStream stream, const Request& request) {
    if (at_ == size())
        throw Error(Errc::invalid_argument,
                    plan_ ? "the order is at its end, and is followed once" : "there is no order");
    Lease lease = Lease::acquired(plan_->order()[at_], stream, request);
    at_ = at_ + 1 == size() && plan_->cyclic() ? 0 : at_ + 1;
    return lease;
}

void UploadOrder::reset() {
    if (!plan_) throw Error(Errc::invalid_argument, "there is no order");
    at_ = 0;
    view_->cache->restart(*view_, *plan_);
}

void UploadOrder::end() noexcept {
    const auto view = std::move(view_);
    if (view) view->cache->unfollow(*view, std::move(plan_));
    at_ = 0;
}

}  // namespace safemap::SAFEMAP_ABI
