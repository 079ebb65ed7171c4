// Computes digests of many items whose bytes arrive from several workers.
#pragma once

#include "base/checksum.hpp"
#include "base/sha256.hpp"
#include "base/watch.hpp"

#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <mutex>
#include <span>
#include <unordered_map>
#include <utility>
#include <vector>

namespace safemap::SAFEMAP_ABI {

/// The digests of many items, by a hash (Xxh3 or Sha256). A hash needs the bytes of an item in order, so a worker with
/// a later piece waits until the earlier ones are fed. Workers must take the pieces of an item in order, and a worker
/// that has taken one must feed it or call abandon(). Otherwise the other workers wait forever. Memory: one digest per
/// item, plus one hash for each unfinished item. Thread-safe.
template <class Hash> class OrderedHashes {
public:
    using Value = decltype(std::declval<const Hash&>().digest());

    /// Makes `items` digests. Until bytes are fed, each is the digest of no bytes.
    explicit OrderedHashes(std::size_t items);

    /// Feeds the bytes at `offset` of an item that has `size` bytes in total. While waiting, calls watch->tick() if
    /// `watch` is given; only the caller's thread may give it. Returns false if the item was abandoned.
    bool feed(std::size_t item, std::uint64_t size, std::uint64_t offset, std::span<const std::byte> bytes,
              Watch* watch = nullptr);
    /// Sets the digest of an item that is known already. Nothing is fed for that item.
    void set(std::size_t item, const Value& digest) noexcept { digests_[item] = digest; }
    /// Gives up an item, begun or not: its remaining bytes never come.
    void abandon(std::size_t item);
    /// Gives up all items.
    void abandon_all() noexcept;

    /// Returns the digest of an item. Requires that all its bytes were fed.
    const Value& of(std::size_t item) const noexcept { return digests_[item]; }
    /// Returns of() for each item.
    std::span<const Value> all() const noexcept { return digests_; }

private:
    /// An unfinished item. mutex_ guards it, except the hash: only the worker whose turn it is uses that.
    struct Open {
        std::uint64_t fed = 0;
        bool abandoned = false;
        Hash hash = {};
    };
    Open* wait_for_turn(std::size_t item, std::uint64_t offset, Watch* watch);

    std::vector<Value> digests_;
    std::mutex mutex_;
    std::condition_variable turn_;
    std::unordered_map<std::size_t, Open> open_;  // guarded, as is all below
    bool all_abandoned_ = false;
};

extern template class OrderedHashes<Xxh3>;
extern template class OrderedHashes<Sha256>;

using OrderedDigests = OrderedHashes<Xxh3>;

}  // namespace safemap::SAFEMAP_ABI
