// Lends out seats and creates each when it is first needed.
#include "write/seats.hpp"

#include <utility>

namespace safemap::SAFEMAP_ABI::write {

Seats::Taken Seats::take() {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [this] { return !free_.empty() || left_ > 0; });
    if (free_.empty()) {
        auto seat = std::make_unique<Worker>();
        --left_;
        return {*this, std::move(seat)};
    }
    std::unique_ptr<Worker> seat = std::move(free_.back());
    free_.pop_back();
    return {*this, std::move(seat)};
}

void Seats::give_back(std::unique_ptr<Worker> seat) noexcept {
    {
        const std::lock_guard lock(mutex_);
        free_.push_back(std::move(seat));  // never allocates: the constructor reserved room for all seats
    }
    changed_.notify_one();
}

}  // namespace safemap::SAFEMAP_ABI::write
