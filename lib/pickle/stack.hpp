// The stack with its marks, and the memo, which opcodes work on. Both charge for the memory that they take.
#pragma once

#include "pickle/input.hpp"
#include "pickle/memory_share.hpp"
#include "pickle/pickle.hpp"

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <map>
#include <span>
#include <string>
#include <vector>

namespace safemap::SAFEMAP_ABI {

/// The stack of values and marks. Values below the last mark are out of reach.
class PickleStack {
public:
    using Id = PickleGraph::Id;

    PickleStack(const PickleInput& input, Allowance& allowance) : input_(input), allowance_(allowance) {}

    void push(Id id) {
        allowance_.spend(slot_cost);
        values_.push_back(id);
    }
    void push_mark() {
        allowance_.spend(mark_cost);
        marks_.push_back(values_.size());
    }
    Id top() const {
        if (values_.size() <= fence()) refuse("the stack is empty");
        return values_.back();
    }
    /// Returns the last value, or nothing if the stack, or what is above its last mark, is empty.
    Id top_or_nothing() const noexcept { return values_.size() <= fence() ? PickleGraph::nothing : values_.back(); }
    /// Returns the slot of the last value. The stack must not be empty.
    Id& top_place() { return values_.back(); }
    Id pop() {
        const Id id = top();
        values_.pop_back();
        return id;
    }
    void pop_or_mark() {
        if (!marks_.empty() && marks_.back() == values_.size()) marks_.pop_back();
        else pop();
    }
    /// Pops the last values, and returns them in the order in which they were pushed.
    template <std::size_t count> std::array<Id, count> pop_last() {
        std::array<Id, count> last;
        const std::size_t begin = operands(count);
        for (std::size_t i = 0; i < count; ++i) last[i] = values_[begin + i];
        values_.resize(begin);
        return last;
    }

    // Ranges begin at a place and end at the top.

    /// Removes the last mark, and returns the place after it.
    std::size_t pop_mark() {
        if (marks_.empty()) refuse("no mark on the stack");
        const std::size_t begin = marks_.back();
        marks_.pop_back();
        return begin;
    }
    /// Returns the place of the last `count` values.
    std::size_t operands(std::size_t count) const {
        if (values_.size() - fence() < count) refuse("fewer values on the stack than the opcode takes");
        return values_.size() - count;
    }
    std::span<const Id> above(std::size_t begin) const { return std::span(values_).subspan(begin); }
    /// Returns the container below `begin`, which an opcode will change.
    Id below(std::size_t begin) const {
        if (begin <= fence()) refuse("no value to put the items into");
        return values_[begin - 1];
    }
    void cut(std::size_t begin) { values_.resize(begin); }
    std::size_t size() const noexcept { return values_.size(); }
    /// Returns the place after the last mark.
    std::size_t last_mark() const noexcept { return fence(); }
    /// Removes marks after a place, and values, so that `size` values are left; adds `filler` if there are fewer.
    void settle(std::size_t size, Id filler) {
        while (!marks_.empty() && marks_.back() > size) marks_.pop_back();
        while (values_.size() < size) push(filler);
        values_.resize(size);
    }
    /// Moves the values above `begin` to the end of `into`.
    void move_to(std::vector<Id>& into, std::size_t begin) {
        const auto items = above(begin);
        into.insert(into.end(), items.begin(), items.end());
        cut(begin);
    }

    Error bad(const std::string& what) const { return input_.fault(Errc::pickle_bad_stack, what); }

private:
    /// Charge for a value, which may become a member of a container here and in the tree.
    static constexpr std::uint64_t slot_cost = 16;
    static constexpr std::uint64_t mark_cost = 24;

    [[noreturn]] void refuse(const char* what) const { input_.refuse(Errc::pickle_bad_stack, what); }
    std::size_t fence() const { return marks_.empty() ? 0 : marks_.back(); }

    const PickleInput& input_;
    Allowance& allowance_;
    std::vector<Id> values_;
    std::vector<std::size_t> marks_;
};

/// The memo. A pickler numbers its entries from 0, and each entry takes at least a byte of the pickle. A pickler that
/// writes several pickles with one memo goes on numbering; therefore indices above the pickle's length are possible,
/// but rare.
class PickleMemo {
public:
    using Id = PickleGraph::Id;

    PickleMemo(const PickleInput& input, Allowance& allowance, std::uint64_t max_memory)
        : input_(input), allowance_(allowance), max_memory_(max_memory) {}

    void put(std::uint64_t index, Id id) {
        Id& entry = index < near_.size() ? near_[index] : added(index);
        if (entry == PickleGraph::nothing) ++count_;
        entry = id;
    }
    /// Puts an entry as MEMOIZE does, at the next index.
    void put_next(Id id) { put(count_, id); }
    /// Notes for entries from `first` up to `end` that a ListReader took their values. They must not be above the
    /// pickle's length.
    void put_taken(std::uint64_t first, std::uint64_t end) {
        if (first == end) return;
        put(end - 1, PickleGraph::taken);
        for (std::uint64_t i = first; i < end - 1; ++i) {
            if (near_[i] == PickleGraph::nothing) ++count_;
            near_[i] = PickleGraph::taken;
        }
    }
    /// Returns an entry as it is: a node, PickleGraph::taken, or PickleGraph::nothing.
    Id find(std::uint64_t index) const { return index < near_.size() ? near_[index] : far_at(index); }
    Id get(std::uint64_t index) const {
        const Id id = find(index);
        if (id < PickleGraph::taken) return id;
        if (id == PickleGraph::taken) throw TakenValue();
        throw input_.fault(Errc::pickle_bad_memo, "memo entry " + std::to_string(index) + " does not exist");
    }

private:
    static constexpr std::uint64_t entry_cost = 12;
    static constexpr std::uint64_t far_entry_cost = 64;

    Id& added(std::uint64_t index) {
        if (index > input_.size()) {
            // CPython holds an array of all entries up to the last, so an index this large is refused.
            if (index > max_memory_ / entry_cost) {
                MemoryShare::exceed();
                throw input_.fault(Errc::pickle_bad_memo, "memo index " + std::to_string(index) + " is too large");
            }
            const auto [entry, fresh] = far_.try_emplace(index, PickleGraph::nothing);
            if (fresh) allowance_.spend(far_entry_cost);
            return entry->second;
        }
        // near_ stays below the smallest index in far_, which it would hide.
        const std::size_t size = std::min(std::max(static_cast<std::size_t>(index) + 1, near_.size() * 2),
                                          static_cast<std::size_t>(input_.size()) + 1);
        allowance_.spend(entry_cost * (size - near_.size()));
        near_.resize(size, PickleGraph::nothing);
        return near_[index];
    }
    Id far_at(std::uint64_t index) const {
        const auto far = far_.find(index);
        return far == far_.end() ? PickleGraph::nothing : far->second;
    }

    const PickleInput& input_;
    Allowance& allowance_;
    std::uint64_t max_memory_;
    std::vector<Id> near_;
    std::map<std::uint64_t, Id> far_;  ///< entries with indices above the pickle's length
    std::uint64_t count_ = 0;
};

}  // namespace safemap::SAFEMAP_ABI
