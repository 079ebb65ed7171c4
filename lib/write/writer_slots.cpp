// Lends out slots and creates each when it is first needed.
#include "write/writer_slots.hpp"

#include <utility>

namespace safemap::SAFEMAP_ABI::write {

WriterSlots::Taken WriterSlots::take() {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [this] { return !free_.empty() || left_ > 0; });
    if (free_.empty()) {
        auto slot = std::make_unique<Worker>();
        --left_;
        return {*this, std::move(slot)};
    }
    std::unique_ptr<Worker> slot = std::move(free_.back());
    free_.pop_back();
    return {*this, std::move(slot)};
}

void WriterSlots::give_back(std::unique_ptr<Worker> slot) noexcept {
    {
        const std::lock_guard lock(mutex_);
        free_.push_back(std::move(slot));  // never allocates: the constructor reserved room for all slots
    }
    changed_.notify_one();
}

}  // namespace safemap::SAFEMAP_ABI::write
