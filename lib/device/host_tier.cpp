// The host tier: which groups have a picture in page-locked memory.
#include "device/host_tier.hpp"

#include "device/cache.hpp"
#include "device/fences.hpp"

#include <algorithm>
#include <new>
#include <utility>

namespace safemap::SAFEMAP_ABI::device {

bool are_done(const LaneEvents& copies) noexcept {
    try {
        return std::ranges::all_of(copies, [](const auto& copy) { return !copy || copy->done(); });
    } catch (const std::exception&) {  // a device that failed may still read
        return false;
    }
}

void wait_until_done(const LaneEvents& copies) noexcept {
    for (const auto& copy : copies)
        if (copy) wait_until_done(*copy);
}

std::shared_ptr<Picture> HostTier::take(Group& group, bool demanded, std::vector<Spare>& leaving) {
    if (budget_ == 0) return nullptr;
    const std::shared_ptr<Picture>& found = group.on_device->picture;
    if (!found) group.on_device->picture = std::make_shared<Picture>(group);
    Picture& picture = *found;
    if (picture.is_used) return nullptr;
    if (picture.is_whole) {
        policy_.hit(picture);
    } else {
        if (group.hosting == Hosting::none) return nullptr;
        if (pictures_.size() == pictures_.capacity()) pictures_.reserve(2 * pictures_.size() + 1);
        if (picture.size() == 0 || picture.size() > budget_) return nullptr;
        policy_.came(picture, picture.size(), demanded);  // first, because the policy may choose it to go
        if (!make_room(picture, leaving)) {
            policy_.left(picture);
            return nullptr;
        }
        if (group.hosting == Hosting::if_room) policy_.let_go_first(picture);
        picture.at = pictures_.size();
        pictures_.push_back(&picture);
    }
    picture.is_used = true;
    return found;
}

/// Counts the bytes of a picture that came. Moves to `leaving` what has to be freed for that, or a spare of its size.
/// Returns false if nothing can go, or it is what goes.
bool HostTier::make_room(const Picture& coming, std::vector<Spare>& leaving) {
    const std::uint64_t size = coming.size();
    const bool may_evict = coming.group.hosting != Hosting::if_room;
    const auto is_idle = [](const Spare& spare) { return are_done(spare.copies); };
    const auto can_go = [](Use& use) noexcept {
        const auto& picture = static_cast<const Picture&>(use);
        return !picture.is_used && picture.group.hosting != Hosting::kept && are_done(picture.copies);
    };
    auto spare = std::ranges::find_if(spares_, [&](const Spare& one) { return one.size == size && is_idle(one); });
    while (spare != spares_.end() || size > budget_ - bytes_) {
        if (spare != spares_.end()) {
            leaving.push_back(*spare);
            bytes_ -= spare->size;
            spares_.erase(spare);
        } else if (Use* const victim = may_evict ? policy_.victim(0, can_go) : nullptr) {
            if (victim == &coming) return false;
            remove(static_cast<Picture&>(*victim));
        } else {
            return false;
        }
        spare = size > budget_ - bytes_ ? std::ranges::find_if(spares_, is_idle) : spares_.end();
    }
    bytes_ += size;
    peak_ = std::max(peak_, bytes_);
    return true;
}

void HostTier::give_back(Picture& picture, bool is_whole, const LaneEvents& copies) noexcept {
    for (std::size_t lane = 0; lane < copies.size(); ++lane)
        if (copies[lane]) picture.copies[lane] = copies[lane];
    picture.is_used = false;
    picture.is_whole = is_whole;
    if (!is_whole) remove(picture);
}

void HostTier::refuse(Picture& picture) noexcept {
    picture.is_used = false;
    remove(picture);
    budget_ = bytes_;
}

void HostTier::forget(Group& group) noexcept {
    if (!group.on_device || !group.on_device->picture) return;
    remove(*group.on_device->picture);
    policy_.forget(*group.on_device->picture);
}

void HostTier::end(const View& view) noexcept {
    for (std::size_t i = 0; i < pictures_.size();) {
        Picture& picture = *pictures_[i];
        if (picture.group.view.get() == &view && !picture.is_used) remove(picture);  // moves another
        else ++i;
    }
}

/// Takes the memory of a picture, if it has any, and keeps it for others.
void HostTier::remove(Picture& picture) noexcept {
    policy_.left(picture);
    picture.is_whole = false;
    if (picture.at == Picture::nowhere) return;
    pictures_[picture.at] = pictures_.back();
    pictures_[picture.at]->at = picture.at;
    pictures_.pop_back();
    picture.at = Picture::nowhere;
    Spare spare{std::move(picture.buffer), picture.size(), &picture.group.view->account,
                std::exchange(picture.copies, {})};
    try {
        if (spare.buffer) return spares_.push_back(spare);
    } catch (const std::bad_alloc&) {  // freed instead
        wait_until_done(spare.copies);
    }
    bytes_ -= spare.size;
}

bool HostTier::take_spare(Spare& spare, const Account& account) noexcept {
    const auto found = std::ranges::find(spares_, &account, &Spare::last);
    if (found == spares_.end()) return false;
    spare = std::move(*found);
    spares_.erase(found);
    return true;
}

}  // namespace safemap::SAFEMAP_ABI::device
