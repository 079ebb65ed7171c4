// The arithmetic of the budget: which tensors are on the device, on their way, or free to go. It has no threads,
// allocates no device memory and reads nothing. The engine calls it under its lock, and a test compares it with a slow
// implementation.
#pragma once

#include <safemap/api.hpp>

#include <cstdint>
#include <limits>
#include <vector>

namespace safemap::SAFEMAP_ABI::device {

/// The states and leases of tensors under a budget.
class Residency {
public:
    using Id = std::uint32_t;
    /// A point in time. Later ones are larger.
    using Time = std::uint64_t;

    /// The state of a tensor. `arriving` and `leaving` tensors count against the budget, because their memory is or may
    /// be allocated.
    enum class State : std::uint8_t { absent, arriving, resident, leaving };

    explicit Residency(std::uint64_t budget) noexcept : budget_(budget) {}

    /// Adds a tensor of `bytes`, absent and not leased.
    Id add(std::uint64_t bytes);
    /// Forgets a tensor that is absent and not leased. Its number is used again.
    void remove(Id id);

    State state(Id id) const { return tensors_[id].state; }
    std::uint64_t bytes(Id id) const { return tensors_[id].bytes; }
    bool leased(Id id) const { return tensors_[id].leases > 0; }

    std::uint64_t budget() const noexcept { return budget_; }
    /// Returns the bytes of all tensors that are not absent. Never above the budget.
    std::uint64_t occupied() const noexcept { return occupied_; }
    std::uint64_t peak() const noexcept { return peak_; }
    std::uint64_t resident() const noexcept { return resident_; }
    /// Returns the bytes of all tensors with a lease, in any state. While this stays within the budget, every leased
    /// tensor can be brought without waiting for another lease to end.
    std::uint64_t leased_bytes() const noexcept { return leased_; }

    /// Leases a tensor in any state, even an absent one that is still to be brought.
    void lease(Id id);
    void release(Id id) noexcept;
    /// Counts as a use of a tensor that is resident and not leased.
    void touch(Id id) noexcept;
    Time now() const noexcept { return now_; }

    /// The way to make room for `bytes`.
    struct Room {
        bool now = false;         ///< true if they fit
        std::vector<Id> victims;  ///< else: they fit when these tensors, and the ones already leaving, have left
    };
    /// Returns the room for a leased tensor. If there are neither `now` nor victims, only waiting for arrivals or
    /// departures helps.
    Room room_for(std::uint64_t bytes) const { return room_for(bytes, 0, now_); }
    /// Returns the room for a tensor that is not leased. Leaves room for all leased tensors that are still to come, and
    /// evicts no tensor that was used after `since`.
    Room spare_room_for(std::uint64_t bytes, Time since) const { return room_for(bytes, wanted_, since); }

    // Transitions of a tensor. Each requires the state that it starts from.
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
        // Neighbours among the tensors that are resident and not leased, by time of use.
        Id older = none;
        Id newer = none;
    };

    Room room_for(std::uint64_t bytes, std::uint64_t kept_free, Time since) const;
    /// Returns true if a tensor is leased, and neither resident nor on its way.
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
