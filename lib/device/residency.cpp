// The arithmetic of the budget: which tensors are on the device, on their way, or free to go.

#include "device/residency.hpp"

#include <algorithm>
#include <cassert>

namespace safemap::SAFEMAP_ABI::device {

// Changes a tensor. All sums are kept by one rule: the tensor is subtracted before it changes, and added after.
template <class Change> void Residency::change(Id id, Change&& apply) noexcept {
    Tensor& tensor = tensors_[id];
    const auto count = [&](auto&& add) {
        if (tensor.state != State::absent) add(occupied_, tensor.bytes);
        if (tensor.state == State::resident) add(resident_, tensor.bytes);
        if (tensor.state == State::leaving) add(leaving_, tensor.bytes);
        if (tensor.leases > 0) add(leased_, tensor.bytes);
        if (wanted(tensor)) add(wanted_, tensor.bytes);
    };
    const auto evictable = [&] { return tensor.state == State::resident && tensor.leases == 0; };

    if (evictable()) unlink(id);
    count([](std::uint64_t& sum, std::uint64_t bytes) { sum -= bytes; });
    apply(tensor);
    count([](std::uint64_t& sum, std::uint64_t bytes) { sum += bytes; });
    if (evictable()) link_newest(id);
    peak_ = std::max(peak_, occupied_);
    assert(occupied_ <= budget_);
}

Residency::Id Residency::add(std::uint64_t bytes) {
    if (free_ids_.empty()) {
        tensors_.emplace_back();
        free_ids_.reserve(tensors_.capacity());  // so that remove() cannot fail
        free_ids_.push_back(static_cast<Id>(tensors_.size() - 1));
    }
    const Id id = free_ids_.back();
    free_ids_.pop_back();
    tensors_[id] = {.bytes = bytes};
    return id;
}

void Residency::remove(Id id) {
    assert(state(id) == State::absent && !leased(id));
    free_ids_.push_back(id);
}

void Residency::lease(Id id) {
    change(id, [](Tensor& tensor) { ++tensor.leases; });
}

void Residency::release(Id id) noexcept {
    assert(leased(id));
    change(id, [](Tensor& tensor) { --tensor.leases; });
}

void Residency::touch(Id id) noexcept {
    change(id, [](Tensor&) {});
}

Residency::Room Residency::room_for(std::uint64_t bytes, std::uint64_t kept_free, Time since) const {
    const auto fits = [&](std::uint64_t free) { return kept_free <= free && bytes <= free - kept_free; };
    std::uint64_t free = budget_ - occupied_;
    if (fits(free)) return {.now = true, .victims = {}};

    Room room;
    free += leaving_;
    for (Id id = oldest_; !fits(free); id = tensors_[id].newer) {
        if (id == none || tensors_[id].used > since) return {};
        if (tensors_[id].bytes == 0) continue;
        room.victims.push_back(id);
        free += tensors_[id].bytes;
    }
    return room;
}

void Residency::begin(Id id) {
    assert(state(id) == State::absent && bytes(id) <= budget_ - occupied_);
    change(id, [](Tensor& tensor) { tensor.state = State::arriving; });
}

void Residency::arrive(Id id) noexcept {
    assert(state(id) == State::arriving);
    change(id, [](Tensor& tensor) { tensor.state = State::resident; });
}

void Residency::give_up(Id id) noexcept {
    assert(state(id) == State::arriving);
    change(id, [](Tensor& tensor) { tensor.state = State::absent; });
}

void Residency::leave(Id id) noexcept {
    assert(state(id) == State::resident && !leased(id));
    change(id, [](Tensor& tensor) { tensor.state = State::leaving; });
}

void Residency::gone(Id id) noexcept {
    assert(state(id) == State::leaving);
    change(id, [](Tensor& tensor) { tensor.state = State::absent; });
}

void Residency::link_newest(Id id) noexcept {
    Tensor& tensor = tensors_[id];
    tensor.used = ++now_;
    tensor.older = newest_;
    tensor.newer = none;
    (newest_ == none ? oldest_ : tensors_[newest_].newer) = id;
    newest_ = id;
}

void Residency::unlink(Id id) noexcept {
    const Tensor& tensor = tensors_[id];
    (tensor.older == none ? oldest_ : tensors_[tensor.older].newer) = tensor.newer;
    (tensor.newer == none ? newest_ : tensors_[tensor.newer].older) = tensor.older;
}

}  // namespace safemap::SAFEMAP_ABI::device
