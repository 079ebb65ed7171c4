// The policy of the cache: which memory on a device goes first when room is needed and no plan says more. It has no
// threads, allocates nothing, and knows no groups: the cache calls it under its lock, but for Policy::hit().
//
// The policy is W-TinyLFU with an adaptive window, over bytes:
//  - Einziger, Friedman, Manes, "TinyLFU: A Highly Efficient Cache Admission Policy", ACM ToS 13(4), 2017
//  - Einziger, Eytan, Friedman, Manes, "Adaptive Software Cache Management", Middleware 2018
// The cache has two parts. An arrival enters the *window*, which is LRU. When the window is full, its oldest entry
// moves to the *main part*, on trial. The entry of the main part with the least *worth* goes next. The worth counts
// uses, and a use weighs half after the half-life. The last use of an entry on trial is not counted. Otherwise a cycle
// of groups that do not all fit would replace the group that it needs soonest, as LRU does.
//
// Differences from the papers:
//  1. The counters are exact and in the entry, because groups outlive their memory. There is no sketch, and no pass to
//     age it: later uses weigh more instead (Cormode, Shkapenyuk, Srivastava, Xu, "Forward Decay", ICDE 2009).
//  2. The size of the window is not climbed. It follows a *rival*: an LRU of the same budget that has no memory. If the
//     rival has what is missed here, the window grows by its bytes. If the rival lacks what is hit here, the window
//     shrinks by its bytes. So the window becomes the whole cache where LRU is better, and nothing where it is worse.
//  3. Beside the main part, there is room for what is in use at once; see note_loss().
//
// ARC and S3-FIFO would not do: in a cycle of twice the budget they hit nothing, as LRU does, where a fixed set hits
// half. tests/device/policy_test.cpp replays this and other traces.
#pragma once

#include <safemap/api.hpp>

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <utility>

namespace safemap::SAFEMAP_ABI::device {

/// The policy's record of one piece of memory that comes and goes as a whole. A group with memory of its own has a Use
/// as a member: the record must outlive the memory, because it decides when the memory comes again. A block that small
/// groups share has one Use for all of them, which ends with the block. Its groups point to that Use, and the pointer
/// is set before they are resident. If each group of a block had its own, a search would have to merge them.
class Use {
public:
    Use() = default;
    Use(const Use&) = delete;
    Use& operator=(const Use&) = delete;

    /// Returns the time of the last use or arrival, as Policy::now() has it. Any thread may call it.
    std::uint64_t used() const noexcept { return used_.load(std::memory_order_relaxed); }

private:
    friend class Policy;

    enum class Where : std::uint8_t { absent, window, main, refused, chosen };

    /// Links in a heap, or in a list, which uses no `key` and no `rank`.
    struct Links {
        std::uint64_t key : 58 = 0;  // times and worths are less: a budget that arrives takes about 2^20
        std::uint64_t rank : 6 = 0;  // nodes from here to the nearest missing child
        Use* before = nullptr;       // in a heap, the parent
        Use* next = nullptr;         // in a heap, the child of the higher rank
        Use* other = nullptr;        // in a heap, the other child

        void set_key(std::uint64_t to) noexcept { key = to & (~std::uint64_t{} >> 6); }
    };

    // Written by hits, in any thread.
    std::atomic<std::uint64_t> used_ = 0;
    std::atomic<std::uint32_t> uses_ = 0;  // number of intervals between two arrivals in which it was used; wraps

    // Guarded by the lock of the cache.
    std::uint32_t counted_ = 0;  // as many of `uses_` are in `worth_`
    Where where_ = Where::absent;
    bool in_window_ = false;      // while refused or chosen: it comes from the window, not from the main part
    bool on_trial_ = false;       // in the main part, and not used since it came there
    std::uint8_t uncounted_ = 0;  // on trial: uses that are not counted yet, or of a prefetch will not be
    bool is_ahead_ = false;       // a prefetch brought it, for a use that comes
    bool in_rival_ = false;       // the rival has it
    bool is_extra_ = false;       // it is here, and the rival does not have it
    std::uint64_t bytes_ = 0;
    std::uint64_t came_ = 0;   // time of the last arrival, which no other entry has
    std::uint64_t worth_ = 0;  // half_life * log2(sum of 2^(time of a use / half_life))
    Links turn_ = {};          // in the window, the main part, or the refused ones
    Links rival_ = {};         // in the rival, or among the extra ones
};

/// Decides which entries go. An arrival, and a search for a victim, take O(log n) for n entries, and as much for each
/// refused entry and each recorded use that they look at. They look at no more than `most_looks` of these uses in each
/// part of the cache, so a search after many uses is as quick as any other. What is left then is decided by older uses.
class Policy {
public:
    static constexpr std::size_t usual_looks = 256;

    explicit Policy(std::uint64_t budget, std::size_t most_looks = usual_looks) noexcept;
    Policy(const Policy&) = delete;
    Policy& operator=(const Policy&) = delete;

    /// Records a use of something resident. Any thread may call it, without the lock. It writes once between two
    /// arrivals, to the entry alone. Two threads may record one use; then nothing worse than a count is lost.
    void hit(Use& use) const noexcept {
        const std::uint64_t time = now_.load(std::memory_order_relaxed);
        if (use.used_.load(std::memory_order_relaxed) == time) return;
        use.used_.store(time, std::memory_order_relaxed);
        use.uses_.store(use.uses_.load(std::memory_order_relaxed) + 1, std::memory_order_relaxed);
    }
    /// Returns the time of the last arrival. Time grows with each arrival, in proportion to its bytes.
    std::uint64_t now() const noexcept { return now_.load(std::memory_order_relaxed); }

    /// Adds something absent that has memory from now on. `demanded`: it is used now. A prefetch is not a use: the
    /// first lease of it is, which is a hit. The caller has made room: entries have at most the budget.
    void came(Use& use, std::uint64_t bytes, bool demanded) noexcept;
    /// Removes something that loses its memory, whether or not victim() chose it, but remembers its uses. A cache may
    /// also remove what a plan keeps, until the plan ends: otherwise searches ask for it in vain.
    void left(Use& use) noexcept;
    /// Removes something, and forgets its uses. Must be called before the Use is destroyed.
    void forget(Use& use) noexcept;
    /// Makes something go before all others, until it is used.
    void let_go_first(Use& use) noexcept;

    /// Returns the entry that goes next to make room for `coming` bytes, or null if none can go. Skips entries for
    /// which `can_go` returns false. Calls `can_go` at most once for each entry, and for no other after it returned
    /// true, so it may reserve the entry. left() or stays() must follow for the entry that is returned; until then, it
    /// is not chosen again. Later searches ask for at most 16 of the skipped entries again before they ask for others.
    template <class CanGo>
    Use* victim(std::uint64_t coming, CanGo&& can_go) noexcept(noexcept(can_go(std::declval<Use&>()))) {
        for (Search search = begin_search();;) {
            Use* const next = take_next(coming, search);
            if (next == nullptr) return nullptr;
            if (!can_go(*next)) {
                refuse(*next);
                continue;
            }
            note_loss(*next);
            return next;
        }
    }
    /// Puts an entry back that victim() chose, and that does not go after all.
    void stays(Use& use) noexcept;

    /// Returns the bytes that the window should have.
    std::uint64_t window() const noexcept { return window_target_; }

private:
    using Links = Use::Links;
    using Where = Use::Where;

    /// A leftist heap: the least key is at the top, and among equals the last arrival. A step takes O(log n), also
    /// the first one after many others. The key of an entry may be older than its last use. As a use never makes a key
    /// less, the top is brought up to date until it is.
    template <Links Use::*links> class Heap {
    public:
        Use* top() const noexcept { return root_; }
        void push(Use& use, std::uint64_t key) noexcept;
        void remove(Use& use) noexcept;

    private:
        static bool goes_before(const Use& a, const Use& b) noexcept;
        static unsigned rank_of(const Use* use) noexcept { return use != nullptr ? (use->*links).rank : 0; }
        static bool order_children(Use& use) noexcept;
        static Use* join(Use* a, Use* b) noexcept;

        Use* root_ = nullptr;
    };
    /// A list: first in, first out.
    template <Links Use::*links> class List {
    public:
        std::size_t size() const noexcept { return size_; }
        Use* front() const noexcept { return front_; }
        void push(Use& use) noexcept;
        void remove(Use& use) noexcept;

    private:
        Use* front_ = nullptr;
        Use* back_ = nullptr;
        std::size_t size_ = 0;
    };

    // Searches.
    struct Search {
        std::size_t unseen;        // refused entries that it may ask for again
        std::size_t window_looks;  // uses that it may look at yet
        std::size_t main_looks;
        std::size_t moves;  // entries that it may yet move to the main part
    };
    Search begin_search() noexcept;
    Use* take_next(std::uint64_t coming, Search& search) noexcept;
    void refuse(Use& use) noexcept;
    void put_back(Use& use) noexcept;
    void note_loss(const Use& use) noexcept;
    // The two parts.
    Use* oldest_of_window(std::size_t& looks) noexcept;
    Use* least_of_main(std::size_t& looks) noexcept;
    void move_to_main(Use& use, std::uint64_t reserve) noexcept;
    void add_to_main(Use& use, std::uint64_t key) noexcept;
    void remove_from_main(Use& use) noexcept;
    void take_out(Use& use) noexcept;
    static void count(Use& use, std::uint32_t without) noexcept;
    // The rival.
    bool look_at_extra(Use& use) noexcept;
    void add_to_rival(Use& use, std::uint64_t time) noexcept;
    void leave_rival(Use& use) noexcept;

    std::uint64_t budget_;
    std::size_t most_looks_;
    double units_per_byte_;
    std::atomic<std::uint64_t> now_ = 1;
    Heap<& Use::turn_> window_ = {};
    Heap<& Use::turn_> main_ = {};
    List<& Use::turn_> refused_ = {};
    std::uint64_t window_target_;
    std::uint64_t window_bytes_ = 0;  // with what is refused or chosen
    std::uint64_t main_bytes_ = 0;    // the same, without what is on trial
    std::size_t trials_ = 0;          // number of entries in `main_` that are on trial
    std::uint64_t in_use_ = 0;        // bytes that are in use at once, apart from the main part
    Heap<& Use::rival_> rival_ = {};
    List<& Use::rival_> extra_ = {};
    std::uint64_t rival_bytes_ = 0;
};

}  // namespace safemap::SAFEMAP_ABI::device
