// UploadOrder: the handle of a plan that is followed, and a place in it.
#include <safemap/upload_order.hpp>

#include "device/cache.hpp"

#include <safemap/error.hpp>

#include <utility>

namespace safemap::SAFEMAP_ABI {

UploadOrder::UploadOrder() noexcept = default;
UploadOrder::UploadOrder(std::shared_ptr<device::Plan> plan) noexcept : plan_(std::move(plan)) {}
UploadOrder::UploadOrder(UploadOrder&& other) noexcept
    : plan_(std::move(other.plan_)), at_(std::exchange(other.at_, 0)) {}
UploadOrder::~UploadOrder() { end(); }

UploadOrder& UploadOrder::operator=(UploadOrder&& other) noexcept {
    if (this != &other) {
        end();
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
    plan_->view()->cache->restart(*plan_);
}

void UploadOrder::end() noexcept {
    at_ = 0;
    if (!plan_) return;
    const std::shared_ptr<device::Cache> cache = plan_->view()->cache;  // outlives the plan
    cache->unfollow(std::move(plan_));
}

}  // namespace safemap::SAFEMAP_ABI
