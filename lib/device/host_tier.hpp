// The host tier: pictures of groups in page-locked memory, from which they come back at the speed of the bus. The cache
// calls it under its lock.
#pragma once

#include "device/group.hpp"
#include "device/policy.hpp"

#include <safemap/advanced/device_backend.hpp>

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <list>
#include <memory>
#include <vector>

namespace safemap::SAFEMAP_ABI::device {

/// The last copies out of a buffer, by lane; null: none.
using LaneEvents = std::array<std::shared_ptr<DeviceEvent>, 2>;

bool are_done(const LaneEvents& copies) noexcept;
void wait_until_done(const LaneEvents& copies) noexcept;

/// Page-locked memory for a picture. Copies out of it may be in progress.
struct HostMemory {
    std::uint64_t size = 0;
    const Account* last = nullptr;  // the account that had it
    std::shared_ptr<StagingBuffer> buffer = {};
    LaneEvents copies = {};
};

/// A list, because lists are joined without allocating.
using HostMemories = std::list<HostMemory>;

/// The bytes of a group's layout in page-locked memory, while it has that, and the policy's record of it.
struct Picture : Use {
    static constexpr std::size_t nowhere = SIZE_MAX;

    explicit Picture(const Group& of) noexcept : group(of) {}
    std::uint64_t size() const noexcept { return group.layout.size; }

    const Group& group;
    std::size_t at = nowhere;  // position in the list of what counts
    HostMemories memory = {};  // one, or none
    bool is_whole = false;     // all tensors are in it
    bool is_used = false;      // an upload fills it, or copies from it
};

/// Memory that makes room for a picture.
struct Leaving {
    HostMemories memory = {};
    std::uint64_t surplus = 0;  // bytes that count until gone() is called: there is more of it than the picture needs
};

/// Decides which groups have a picture, and counts them. It allocates and frees no page-locked memory itself. Groups
/// that no plan is about are chosen by a policy, as device memory is.
class HostTier {
public:
    explicit HostTier(std::uint64_t budget) noexcept : budget_(budget), policy_(std::max<std::uint64_t>(budget, 1)) {}

    /// Returns the bytes of all pictures and spares, and of what is about to be freed.
    std::uint64_t bytes() const noexcept { return bytes_; }
    std::uint64_t peak() const noexcept { return peak_; }

    /// Returns the picture of a group that is uploaded, for the use of this upload until give_back(). If it is not
    /// whole, the caller gets it a buffer: one of `leaving` that has the size, or a new one after all of `leaving` are
    /// freed. No copy reads these. Returns null if the group has no picture; then `leaving` is to be freed, too.
    std::shared_ptr<Picture> take(Group& group, bool demanded, Leaving& leaving);
    /// Ends the use. `is_whole`: all tensors are in it, or it loses its buffer. `copies`: out of it, by this use.
    void give_back(Picture& picture, bool is_whole, const LaneEvents& copies) noexcept;
    /// Ends the use of a picture for which there is no memory. The tier does not grow any more.
    void refuse(Picture& picture) noexcept;
    /// Forgets the picture of a group that ends.
    void forget(Group& group) noexcept;
    /// Takes the memory of all pictures of a view.
    void end(const View& view) noexcept;
    /// Takes a spare that an account had, to be freed when no copy reads it. It counts until gone() is called. Returns
    /// nothing without one.
    HostMemories take_spare(const Account& account) noexcept;
    void gone(std::uint64_t size) noexcept { bytes_ -= size; }

    /// Keeps so many bytes for the pictures of a plan, or gives them up.
    void promise(std::uint64_t bytes) noexcept { promised_ += bytes; }
    void end_promise(std::uint64_t bytes) noexcept { promised_ -= bytes; }
    /// Returns the bytes that are not promised.
    std::uint64_t unpromised() const noexcept { return budget_ - std::min(budget_, promised_); }

private:
    bool make_room(const Picture& coming, Leaving& leaving) noexcept;
    void remove(Picture& picture) noexcept;

    std::uint64_t budget_;
    std::uint64_t bytes_ = 0;
    std::uint64_t peak_ = 0;
    std::uint64_t promised_ = 0;
    std::vector<Picture*> pictures_;  // all that count
    HostMemories spares_;             // no picture has them any more
    Policy policy_;
};

}  // namespace safemap::SAFEMAP_ABI::device
