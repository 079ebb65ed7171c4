// Digests of many items whose bytes are with several workers.
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

/// A hash (Xxh3 or Sha256) wants an item's bytes in order, so a worker waits with its piece until those before it have
/// been fed. Pieces of an item have to be taken up in order, and whoever has taken one up feeds it or abandons: then
/// nobody waits for ever. Takes a digest an item, and a hash for each that has begun and not ended. For any thread.
template <class Hash> class OrderedHashes {
public:
    using Value = decltype(std::declval<const Hash&>().digest());

    /// Each is the digest of nothing until something is fed.
    explicit OrderedHashes(std::size_t items);

    /// Feeds the bytes from `offset` on of an item that has `size` in all. While it waits, it ticks `watch`, where
    /// given: what only the caller's thread may do. False where the item was abandoned.
    bool feed(std::size_t item, std::uint64_t size, std::uint64_t offset, std::span<const std::byte> bytes,
              Watch* watch = nullptr);
    /// An item whose digest is known already, and of which nothing is fed.
    void set(std::size_t item, const Value& digest) noexcept { digests_[item] = digest; }
    /// The rest of an item, which has begun or will, never comes.
    void abandon(std::size_t item);
    /// Of no item.
    void abandon_all() noexcept;

    /// Once all of the item was fed.
    const Value& of(std::size_t item) const noexcept { return digests_[item]; }
    /// Of all items, each as of() has it.
    std::span<const Value> all() const noexcept { return digests_; }

private:
    struct Open {
        std::uint64_t fed = 0;
        bool abandoned = false;
        Hash hash = {};
    };
    Open* wait_for_turn(std::size_t item, std::uint64_t offset, Watch* watch);

    std::vector<Value> digests_;
    std::mutex mutex_;
    std::condition_variable turn_;
    std::unordered_map<std::size_t, Open> open_;  // as all below, guarded; but a hash is whose turn it is
    bool all_abandoned_ = false;
};

extern template class OrderedHashes<Xxh3>;
extern template class OrderedHashes<Sha256>;

using OrderedDigests = OrderedHashes<Xxh3>;

}  // namespace safemap::SAFEMAP_ABI
