// The policy of the cache: heaps and lists, arrivals, searches, the two parts of the cache, and the rival.
#include "device/policy.hpp"

#include <algorithm>
#include <cassert>
#include <cmath>
#include <utility>

namespace safemap::SAFEMAP_ABI::device {
namespace {

// The time that passes while a whole budget arrives. It is counted in bytes, so that sizes do not matter to it.
constexpr double units_of_budget = 1 << 20;
// A use weighs half after this time. Half of it forgets too much while a scan goes on, and twice of it learns late.
constexpr double half_life = 2 * units_of_budget;
// The number of extra entries that an arrival looks at.
constexpr std::size_t extra_looks = 4;
// The number of refused entries that a search asks for again.
constexpr std::size_t asked_again = 16;
// `in_use_` shrinks by its bytes once in as many bytes of arrivals.
constexpr std::uint64_t slowness = 64;

/// Returns the worth of two worths together.
std::uint64_t sum_of_worths(std::uint64_t a, std::uint64_t b) noexcept {
    const auto [least, most] = std::minmax(a, b);
    const double apart = static_cast<double>(most - least) / half_life;
    if (least == 0 || apart > 40) return most;
    return most + static_cast<std::uint64_t>(half_life * std::log2(1 + std::exp2(-apart)));
}

}  // namespace

// The heap

template <Use::Links Use::*links> bool Policy::Heap<links>::goes_before(const Use& a, const Use& b) noexcept {
    const std::uint64_t of_a = (a.*links).key, of_b = (b.*links).key;
    return of_a != of_b ? of_a < of_b : a.came_ > b.came_;
}

/// Puts the child of the higher rank first. Returns false if the rank of the entry stays as it is.
template <Use::Links Use::*links> bool Policy::Heap<links>::order_children(Use& use) noexcept {
    Links& of = use.*links;
    if (rank_of(of.next) < rank_of(of.other)) std::swap(of.next, of.other);
    const unsigned rank = rank_of(of.other) + 1;
    if (of.rank == rank) return false;
    of.rank = rank & 63U;
    return true;
}

/// Joins two heaps, of which one may be empty. Goes no deeper than their two ranks.
template <Use::Links Use::*links> Use* Policy::Heap<links>::join(Use* a, Use* b) noexcept {
    if (a == nullptr || b == nullptr) return a != nullptr ? a : b;
    if (goes_before(*b, *a)) std::swap(a, b);
    Links& above = a->*links;
    above.other = join(above.other, b);
    (above.other->*links).before = a;
    order_children(*a);
    return a;
}

template <Use::Links Use::*links> void Policy::Heap<links>::push(Use& use, std::uint64_t key) noexcept {
    use.*links = {};
    (use.*links).set_key(key);
    (use.*links).rank = 1;
    root_ = join(root_, &use);
    (root_->*links).before = nullptr;
}

template <Use::Links Use::*links> void Policy::Heap<links>::remove(Use& use) noexcept {
    const Links& of = use.*links;
    Use* const below = join(of.next, of.other);
    if (below != nullptr) (below->*links).before = of.before;
    if (of.before == nullptr) {
        root_ = below;
        return;
    }
    Links& before = of.before->*links;
    (before.next == &use ? before.next : before.other) = below;
    for (Use* at = of.before; at != nullptr && order_children(*at);) at = (at->*links).before;
}

// The list

template <Use::Links Use::*links> void Policy::List<links>::push(Use& use) noexcept {
    Links& of = use.*links;
    of.next = nullptr;
    of.before = back_;
    (back_ != nullptr ? (back_->*links).next : front_) = &use;
    back_ = &use;
    ++size_;
}

template <Use::Links Use::*links> void Policy::List<links>::remove(Use& use) noexcept {
    Links& of = use.*links;
    (of.before != nullptr ? (of.before->*links).next : front_) = of.next;
    (of.next != nullptr ? (of.next->*links).before : back_) = of.before;
    of.before = of.next = nullptr;
    --size_;
}

// Arrivals and departures

Policy::Policy(std::uint64_t budget, std::size_t most_looks) noexcept
    : budget_(budget),
      most_looks_(most_looks),
      units_per_byte_(units_of_budget / static_cast<double>(std::max<std::uint64_t>(budget, 1))),
      window_target_(budget / 2) {}

void Policy::came(Use& use, std::uint64_t bytes, bool demanded) noexcept {
    assert(use.where_ == Where::absent);
    count(use, 0);
    const std::uint64_t time = now() + 1 + static_cast<std::uint64_t>(units_per_byte_ * static_cast<double>(bytes));
    if (use.in_rival_) {
        if (demanded) window_target_ += std::min(bytes, budget_ - window_target_);
        leave_rival(use);
    }
    for (std::size_t left = std::min(extra_looks, extra_.size()); left > 0; --left) {
        Use& extra = *extra_.front();
        if (look_at_extra(extra)) continue;
        extra_.remove(extra);
        extra_.push(extra);
    }
    in_use_ -= std::min(in_use_, bytes / slowness);
    use.bytes_ = bytes;
    use.came_ = time;
    use.is_ahead_ = !demanded;
    use.used_.store(time, std::memory_order_relaxed);
    if (demanded) use.uses_.store(use.uses_.load(std::memory_order_relaxed) + 1, std::memory_order_relaxed);
    now_.store(time, std::memory_order_relaxed);
    use.where_ = Where::window;
    window_bytes_ += bytes;
    window_.push(use, time);
    add_to_rival(use, time);
}

void Policy::left(Use& use) noexcept {
    if (use.where_ == Where::absent) return;
    take_out(use);
    use.where_ = Where::absent;
    if (!use.is_extra_ || look_at_extra(use)) return;
    use.is_extra_ = false;
    extra_.remove(use);
}

void Policy::forget(Use& use) noexcept {
    left(use);
    if (use.in_rival_) leave_rival(use);
}

void Policy::let_go_first(Use& use) noexcept {
    if (use.where_ == Where::absent || use.where_ == Where::chosen) return;
    take_out(use);
    count(use, 0);
    use.where_ = Where::main;
    use.on_trial_ = true;
    add_to_main(use, 0);
}

void Policy::stays(Use& use) noexcept {
    assert(use.where_ == Where::chosen);
    put_back(use);
}

// Searches

/// Puts some of the refused entries back. The others are not seen yet.
Policy::Search Policy::begin_search() noexcept {
    for (std::size_t left = std::min(asked_again, refused_.size()); left > 0; --left) {
        Use& use = *refused_.front();
        refused_.remove(use);
        put_back(use);
    }
    return {refused_.size(), most_looks_, most_looks_, most_looks_};
}

/// Takes the entry that goes next out of its part. The refused ones come last.
Use* Policy::take_next(std::uint64_t coming, Search& search) noexcept {
    Use* oldest = oldest_of_window(search.window_looks);
    for (; oldest != nullptr && window_bytes_ + coming > window_target_ && search.moves > 0; --search.moves) {
        move_to_main(*oldest, std::max({window_target_, in_use_, coming}));
        oldest = oldest_of_window(search.window_looks);
    }
    Use* next = least_of_main(search.main_looks);
    if (next != nullptr) {
        remove_from_main(*next);
        next->in_window_ = false;
    } else if (oldest != nullptr) {
        next = oldest;
        window_.remove(*next);
        next->in_window_ = true;
    } else if (search.unseen > 0) {
        --search.unseen;
        next = refused_.front();
        refused_.remove(*next);
    } else {
        return nullptr;
    }
    next->where_ = Where::chosen;
    return next;
}

void Policy::refuse(Use& use) noexcept {
    use.where_ = Where::refused;
    refused_.push(use);
}

/// Puts an entry that was refused or chosen back into its part.
void Policy::put_back(Use& use) noexcept {
    use.where_ = use.in_window_ ? Where::window : Where::main;
    if (use.in_window_) window_.push(use, use.turn_.key);
    else add_to_main(use, use.turn_.key);
}

/// Notes that an entry goes. If the main part loses it, had no more than its share and nothing on trial could go
/// instead, others are in use, and need that much room beside the main part. Without that room, the main part would
/// lose entries at each such time, and get others for them that are worth no more.
void Policy::note_loss(const Use& use) noexcept {
    const std::uint64_t reserve = std::max(window_target_, in_use_);
    if (use.in_window_ || use.on_trial_ || trials_ > 0 || main_bytes_ > budget_ - reserve) return;
    in_use_ = reserve + std::min(use.bytes_, budget_ - reserve);
}

// The two parts

/// Returns the entry whose last use is the oldest, as far as `looks` at uses show, which it subtracts.
Use* Policy::oldest_of_window(std::size_t& looks) noexcept {
    for (;; --looks) {
        Use* const top = window_.top();
        if (top == nullptr || looks == 0 || top->used() <= top->turn_.key) return top;
        window_.remove(*top);
        window_.push(*top, top->used());
    }
}

/// Returns the entry with the least worth, as far as `looks` at uses show, which it subtracts.
Use* Policy::least_of_main(std::size_t& looks) noexcept {
    for (;; --looks) {
        Use* const top = main_.top();
        if (top == nullptr || looks == 0) return top;
        if (top->uses_.load(std::memory_order_relaxed) - top->counted_ <= top->uncounted_) return top;
        remove_from_main(*top);
        if (top->is_extra_) look_at_extra(*top);
        if (std::exchange(top->on_trial_, false)) main_bytes_ += top->bytes_;
        top->uncounted_ = 0;
        count(*top, 0);
        add_to_main(*top, top->worth_);
    }
}

/// Moves an entry from the window to the main part: on trial, unless there is room for it and `reserve` bytes.
void Policy::move_to_main(Use& use, std::uint64_t reserve) noexcept {
    window_.remove(use);
    window_bytes_ -= use.bytes_;
    use.where_ = Where::main;
    use.on_trial_ = main_bytes_ + use.bytes_ > budget_ - std::min(budget_, reserve);
    count(use, use.on_trial_ ? 1 : 0);
    const bool has_use = use.is_ahead_ || use.uses_.load(std::memory_order_relaxed) != use.counted_;
    if (use.on_trial_) use.uncounted_ = has_use ? 1 : 0;
    else main_bytes_ += use.bytes_;
    add_to_main(use, use.worth_);
}

void Policy::add_to_main(Use& use, std::uint64_t key) noexcept {
    main_.push(use, key);
    if (use.on_trial_) ++trials_;
}

void Policy::remove_from_main(Use& use) noexcept {
    main_.remove(use);
    if (use.on_trial_) --trials_;
}

/// Takes an entry out of its part.
void Policy::take_out(Use& use) noexcept {
    switch (use.where_) {
        case Where::window:
            window_.remove(use);
            use.in_window_ = true;
            break;
        case Where::main:
            remove_from_main(use);
            use.in_window_ = false;
            break;
        case Where::refused: refused_.remove(use); break;
        case Where::absent:
        case Where::chosen: break;
    }
    if (use.in_window_) window_bytes_ -= use.bytes_;
    else if (!use.on_trial_) main_bytes_ -= use.bytes_;
    use.on_trial_ = false;
    use.uncounted_ = 0;
}

/// Adds the uses that are not counted yet to the worth, but for the last `without`. It takes the time of the last one
/// for all of them.
void Policy::count(Use& use, std::uint32_t without) noexcept {
    const std::uint32_t uses = use.uses_.load(std::memory_order_relaxed) - use.counted_;
    if (uses <= without) return;
    const double times = static_cast<double>(uses - without);
    use.worth_ = sum_of_worths(use.worth_, use.used() + static_cast<std::uint64_t>(half_life * std::log2(times)));
    use.counted_ += uses - without;
}

// The rival

/// Gives an extra entry to the rival if it was used: the rival has missed it. Returns false if it was not used.
bool Policy::look_at_extra(Use& use) noexcept {
    const std::uint64_t used = use.used();
    if (used <= use.rival_.key) return false;
    window_target_ -= std::min(use.bytes_, window_target_);
    extra_.remove(use);
    use.is_extra_ = false;
    add_to_rival(use, used);
    return true;
}

void Policy::add_to_rival(Use& use, std::uint64_t time) noexcept {
    use.in_rival_ = true;
    rival_bytes_ += use.bytes_;
    rival_.push(use, time);
    for (std::size_t looks = most_looks_; rival_bytes_ > budget_;) {
        Use& top = *rival_.top();
        const std::uint64_t used = std::max<std::uint64_t>(top.used(), top.rival_.key);
        if (used > top.rival_.key && looks > 0) {
            --looks;
            rival_.remove(top);
            rival_.push(top, used);
            continue;
        }
        top.rival_.set_key(used);
        leave_rival(top);
        if (top.where_ == Where::absent) continue;
        top.is_extra_ = true;
        extra_.push(top);
    }
}

void Policy::leave_rival(Use& use) noexcept {
    rival_.remove(use);
    rival_bytes_ -= use.bytes_;
    use.in_rival_ = false;
}

}  // namespace safemap::SAFEMAP_ABI::device
