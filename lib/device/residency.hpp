// Who is on the device, who is on the way, who may go: the arithmetic of the budget. No threads, no memory, no
// reading; the engine calls it under its lock, and a test compares it with a slow twin.
#pragma once

#include <safemap/api.hpp>

#include <cstdint>
#include <limits>
#include <vector>

namespace safemap::SAFEMAP_ABI::device {

class Residency {
public:
    using Id = std::uint32_t;
    /// A moment; later ones are larger.
    using Time = std::uint64_t;

    /// `arriving` and `leaving` tensors take up the budget, because their memory is or may be allocated.
    enum class State : std::uint8_t { absent, arriving, resident, leaving };

    explicit Residency(std::uint64_t budget) noexcept : budget_(budget) {}

    /// A tensor of `bytes`, absent and not leased.
    Id add(std::uint64_t bytes);
    /// Forgets one that is absent and not leased; its number is given out again.
    void remove(Id id);

    State state(Id id) const { return tensors_[id].state; }
    std::uint64_t bytes(Id id) const { return tensors_[id].bytes; }
    bool leased(Id id) const { return tensors_[id].leases > 0; }

    std::uint64_t budget() const noexcept { return budget_; }
    /// Of all tensors that are not absent; never above the budget.
    std::uint64_t occupied() const noexcept { return occupied_; }
    std::uint64_t peak() const noexcept { return peak_; }
    std::uint64_t resident() const noexcept { return resident_; }
    /// Of all tensors with a lease, wherever they are. While this stays within the budget every one of them can be
    /// brought without waiting for another lease.
    std::uint64_t leased_bytes() const noexcept { return leased_; }

    /// A lease holds a tensor wherever it is, also an absent one that is still to be brought.
    void lease(Id id);
    void release(Id id) noexcept;
    /// Counts as a use, for what is resident and not leased.
    void touch(Id id) noexcept;
    Time now() const noexcept { return now_; }

    /// How `bytes` may get their place.
    struct Room {
        bool now = false;         ///< they fit
        std::vector<Id> victims;  ///< otherwise: they will, when these have left (and whoever is leaving has)
    };
    /// For a tensor that is leased. Neither `now` nor victims: only waiting for arrivals or departures helps.
    Room room_for(std::uint64_t bytes) const { return room_for(bytes, 0, now_); }
    /// For a tensor that is not: leaves room for everything leased that is still to come, and takes none from what
    /// was used after `since`.
    Room spare_room_for(std::uint64_t bytes, Time since) const { return room_for(bytes, wanted_, since); }

    // How tensors move. Each wants the state it starts from.
    void begin(Id id);             ///< absent → arriving; the bytes must fit
    void arrive(Id id) noexcept;   ///< arriving → resident
    void give_up(Id id) noexcept;  ///< arriving → absent; its memory is freed
    void leave(Id id) noexcept;    ///< resident, not leased → leaving
    void gone(Id id) noexcept;     ///< leaving → absent; its memory is freed

private:
    static constexpr Id none = std::numeric_limits<Id>::max();

    struct Tensor {
        std::uint64_t bytes = 0;
        std::uint32_t leases = 0;
        State state = State::absent;
        Time used = 0;
        // Neighbours among what is resident and not leased, by time of use.
        Id older = none;
        Id newer = none;
    };

    Room room_for(std::uint64_t bytes, std::uint64_t kept_free, Time since) const;
    /// Leased, and neither here nor on its way.
    static bool wanted(const Tensor& tensor) noexcept {
        return tensor.leases > 0 && (tensor.state == State::absent || tensor.state == State::leaving);
    }
    template <class Change> void change(Id id, Change&& apply) noexcept;
    void link_newest(Id id) noexcept;
    void unlink(Id id) noexcept;

    std::vector<Tensor> tensors_;
    std::vector<Id> free_ids_;
    Id oldest_ = none;
    Id newest_ = none;
    Time now_ = 0;
    std::uint64_t budget_;
    std::uint64_t occupied_ = 0;
    std::uint64_t peak_ = 0;
    std::uint64_t resident_ = 0;
    std::uint64_t leaving_ = 0;
    std::uint64_t leased_ = 0;
    std::uint64_t wanted_ = 0;
};

}  // namespace safemap::SAFEMAP_ABI::device
