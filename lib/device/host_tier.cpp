// The host tier: which groups have a picture in page-locked memory.
#include "device/host_tier.hpp"

#include "device/cache.hpp"
#include "device/fences.hpp"

#include <algorithm>
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

std::shared_ptr<Picture> HostTier::take(Group& group, bool demanded, Leaving& leaving) {
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
        HostMemories memory(1, {.size = picture.size(), .last = &group.view->account});
        policy_.came(picture, picture.size(), demanded);  // first, because the policy may choose it to go
        if (!make_room(picture, leaving)) {
            policy_.left(picture);
            return nullptr;
        }
        picture.memory = std::move(memory);
        if (group.hosting == Hosting::if_room) policy_.let_go_first(picture);
        picture.at = pictures_.size();
        pictures_.push_back(&picture);
    }
    picture.is_used = true;
    return found;
}

/// Counts the bytes of a picture that came. Moves to `leaving` what has to be freed for that, or a spare of its size.
/// Returns false if nothing can go, or it is what goes.
bool HostTier::make_room(const Picture& coming, Leaving& leaving) noexcept {
    const std::uint64_t size = coming.size();
    const bool may_evict = coming.group.hosting != Hosting::if_room;
    const auto can_go = [](Use& use) noexcept {
        const auto& picture = static_cast<const Picture&>(use);
        if (picture.is_used || picture.group.hosting == Hosting::kept) return false;
        return picture.memory.empty() || are_done(picture.memory.front().copies);  // empty: it is the one that came
    };
    const auto find_idle = [&](auto&& fits) {
        return std::ranges::find_if(spares_, [&](const HostMemory& one) { return fits(one) && are_done(one.copies); });
    };
    const auto is_missing = [&] { return size > budget_ - bytes_ + leaving.surplus; };
    for (auto spare = find_idle([&](const HostMemory& one) { return one.size == size; });;) {
        if (spare == spares_.end() && is_missing()) spare = find_idle([](const HostMemory&) { return true; });
        if (spare != spares_.end()) {
            leaving.surplus += spare->size;
            leaving.memory.splice(leaving.memory.end(), spares_, std::exchange(spare, spares_.end()));
            continue;
        }
        if (!is_missing()) break;
        Use* const victim = may_evict ? policy_.victim(0, can_go) : nullptr;
        if (victim == nullptr || victim == &coming) return false;
        remove(static_cast<Picture&>(*victim));
    }
    const std::uint64_t reused = std::min(size, leaving.surplus);
    leaving.surplus -= reused;
    bytes_ += size - reused;
    peak_ = std::max(peak_, bytes_);
    return true;
}

void HostTier::give_back(Picture& picture, bool is_whole, const LaneEvents& copies) noexcept {
    LaneEvents& all = picture.memory.front().copies;
    for (std::size_t lane = 0; lane < copies.size(); ++lane)
        if (copies[lane]) all[lane] = copies[lane];
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
    if (picture.memory.front().buffer) return spares_.splice(spares_.end(), picture.memory);
    bytes_ -= picture.size();
    picture.memory.clear();
}

HostMemories HostTier::take_spare(const Account& account) noexcept {
    HostMemories taken;
    const auto found = std::ranges::find(spares_, &account, &HostMemory::last);
    if (found != spares_.end()) taken.splice(taken.end(), spares_, found);
    return taken;
}

}  // namespace safemap::SAFEMAP_ABI::device
