// Finds the number of a name in constant time, without storing the names.
#pragma once

#include <safemap/api.hpp>

#include <algorithm>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string_view>
#include <type_traits>
#include <vector>

namespace safemap::SAFEMAP_ABI {

/// Returns a hash with a random seed per process: names come from files, and must not be chosen to collide.
std::uint64_t name_hash(std::string_view name) noexcept;

/// A hash for the standard's tables with keys from files.
struct NameHash {
    std::size_t operator()(std::string_view name) const noexcept { return name_hash(name); }
};

/// The names of the items of a list, by number. An item is a text, a pair whose first is the name, or has a name or
/// name(). The caller keeps the list, which may grow.
template <class List> class NamesOf {
public:
    explicit NamesOf(const List& list) noexcept : list_(list) {}
    std::uint32_t count() const noexcept { return static_cast<std::uint32_t>(list_.size()); }
    std::string_view operator()(std::uint32_t number) const noexcept {
        const auto& item = list_[number];
        if constexpr (std::is_convertible_v<decltype(item), std::string_view>) return item;
        else if constexpr (requires { item.first; }) return item.first;
        else if constexpr (requires { item.name(); }) return item.name();
        else return item.name;
    }

private:
    const List& list_;
};

/// A hash table from names to numbers. The caller keeps the names and returns each by name_of(number). So an entry
/// takes eight bytes, and a lookup does not allocate.
class NameIndex {
public:
    void reserve(std::size_t names) {
        const std::size_t wanted = std::bit_ceil(names * 2 + 2);
        if (wanted > slots_.size()) grow(wanted);
    }

    /// Returns the number that `name` was added with; nothing if it was not added.
    template <class NameOf> std::optional<std::uint32_t> find(std::string_view name, NameOf&& name_of) const {
        if (count_ == 0) return std::nullopt;
        const Slot& slot = slots_[place(name, static_cast<std::uint32_t>(name_hash(name)), name_of)];
        if (slot.number == empty) return std::nullopt;
        return slot.number;
    }

    /// Adds `name` as `number` unless it is already there. Returns its number.
    template <class NameOf> std::uint32_t add(std::string_view name, std::uint32_t number, NameOf&& name_of) {
        reserve(count_ + 1);
        const auto hash = static_cast<std::uint32_t>(name_hash(name));
        Slot& slot = slots_[place(name, hash, name_of)];
        if (slot.number != empty) return slot.number;
        slot = {hash, number};
        ++count_;
        return number;
    }

    /// Adds the names of the numbers 0 to count - 1, in order. Calls repeated(first, number) for a name that is already
    /// there. Several times as fast as single calls, because it prefetches the table's memory.
    template <class NameOf, class Repeated> void add_all(std::uint32_t count, NameOf&& name_of, Repeated&& repeated) {
        reserve(count_ + count);
        constexpr std::uint32_t batch = 16;
        std::uint32_t hashes[batch];
        for (std::uint32_t done = 0; done < count;) {
            const std::uint32_t now = std::min(batch, count - done);
            for (std::uint32_t i = 0; i < now; ++i) {
                hashes[i] = static_cast<std::uint32_t>(name_hash(name_of(done + i)));
                __builtin_prefetch(&slots_[hashes[i] & (slots_.size() - 1)], 1);
            }
            for (std::uint32_t i = 0; i < now; ++i, ++done) {
                Slot& slot = slots_[place(name_of(done), hashes[i], name_of)];
                if (slot.number != empty) {
                    repeated(slot.number, done);
                    continue;
                }
                slot = {hashes[i], done};
                ++count_;
            }
        }
    }

    /// Adds the names of a whole list.
    template <class List, class Repeated> void add_all(const NamesOf<List>& names, Repeated&& repeated) {
        add_all(names.count(), names, repeated);
    }
    /// Adds the names of a whole list. A repeated name keeps its first number.
    template <class List> void add_all(const NamesOf<List>& names) {
        add_all(names, [](auto, auto) {});
    }

private:
    static constexpr std::uint32_t empty = UINT32_MAX;
    struct Slot {
        std::uint32_t hash = 0;
        std::uint32_t number = empty;
    };

    /// Returns the slot of `name`, or the free slot for it. There always is one: at most half are used.
    template <class NameOf> std::size_t place(std::string_view name, std::uint32_t hash, NameOf&& name_of) const {
        const std::size_t mask = slots_.size() - 1;
        for (std::size_t i = hash & mask;; i = (i + 1) & mask) {
            const Slot& slot = slots_[i];
            if (slot.number == empty || (slot.hash == hash && std::string_view(name_of(slot.number)) == name)) return i;
        }
    }

    void grow(std::size_t size) {
        std::vector<Slot> old(size);
        old.swap(slots_);
        const std::size_t mask = size - 1;
        for (const Slot& slot : old) {
            if (slot.number == empty) continue;
            std::size_t i = slot.hash & mask;
            while (slots_[i].number != empty) i = (i + 1) & mask;
            slots_[i] = slot;
        }
    }

    std::vector<Slot> slots_;
    std::size_t count_ = 0;
};

}  // namespace safemap::SAFEMAP_ABI
