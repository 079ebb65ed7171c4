// Hashes tensors while they are read. A digest wants the bytes in order: blocks of one tensor are read side by side,
// and each worker waits with its block until those before it have been fed.
#include <safemap/digest.hpp>

#include "base/checksum.hpp"
#include "base/pool.hpp"
#include "base/watch.hpp"
#include "checkpoint/bulk.hpp"
#include "lazy/blocks.hpp"
#include "lazy/page_cache.hpp"

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <memory>
#include <mutex>
#include <numeric>
#include <span>
#include <utility>

namespace safemap {

namespace {

using checkpoint::BlockRow;
using checkpoint::Workers;

/// Blocks are handed out in order, so whoever waits for a block waits for a worker that has it already.
class Hasher {
public:
    /// `tensors` and `watch` outlive it.
    Hasher(std::span<const LazyTensor* const> tensors, unsigned threads, Watch& watch)
        : tensors_(tensors), workers_(threads, 1), watch_(watch), streams_(tensors.size()) {
        for (const LazyTensor* tensor : tensors_) row_.add(blocks_of(*tensor).count());
    }

    /// 32 hex digits for each.
    std::vector<std::string> run() {
        watch_.tell();
        parallel_for(
            row_.size(), workers_.count(), [this](std::size_t i, unsigned worker) { do_block(row_.at(i), worker); },
            [this] { watch_.tick(); });
        watch_.tell();
        std::vector<std::string> digests;
        digests.reserve(streams_.size());
        for (Stream& stream : streams_)
            digests.push_back(stream.digest.empty() ? Xxh3().hex() : std::move(stream.digest));
        return digests;
    }

private:
    struct Stream {
        std::uint64_t fed = 0;            // blocks; guarded by mutex_
        std::unique_ptr<Xxh3> hash = {};  // from the first block to the last; for whose turn it is
        std::string digest = {};          // after the last
    };

    Blocks blocks_of(const LazyTensor& tensor) const { return Blocks::in_order(tensor, workers_.buffer_size()); }

    /// Whatever keeps a block from being fed has to be told to those who wait for it.
    void do_block(BlockRow::Place place, unsigned worker) {
        try {
            watch_.check_stop();
            const LazyTensor& tensor = *tensors_[place.item];
            const Blocks blocks = blocks_of(tensor);
            const Extent range = blocks.range(place.block);
            const auto bytes = workers_.buffer(worker).first(static_cast<std::size_t>(range.size));
            workers_.gatherer(worker).fill(tensor, range.offset, bytes);
            if (!wait_for_turn(place, worker)) return;
            feed(streams_[place.item], bytes, place.block + 1 == blocks.count());
            next_turn(streams_[place.item]);
            watch_.add(range.size);
        } catch (...) {
            give_up();
            throw;
        }
    }

    static void feed(Stream& stream, std::span<const std::byte> bytes, bool last) {
        if (!stream.hash) stream.hash = std::make_unique<Xxh3>();
        stream.hash->update(bytes);
        if (!last) return;
        stream.digest = stream.hash->hex();
        stream.hash.reset();
    }

    /// False where the turn will never come.
    bool wait_for_turn(BlockRow::Place place, unsigned worker) {
        constexpr std::chrono::milliseconds tick_interval{100};
        std::unique_lock lock(mutex_);
        const auto ready = [&] { return gave_up_ || streams_[place.item].fed == place.block; };
        while (!turn_.wait_for(lock, tick_interval, ready)) {
            if (worker != 0) continue;
            lock.unlock();
            watch_.tick();  // worker 0 is the caller's thread
            lock.lock();
        }
        return !gave_up_;
    }

    void next_turn(Stream& stream) {
        {
            const std::lock_guard lock(mutex_);
            ++stream.fed;
        }
        turn_.notify_all();
    }

    void give_up() noexcept {
        {
            const std::lock_guard lock(mutex_);
            gave_up_ = true;
        }
        turn_.notify_all();
    }

    std::span<const LazyTensor* const> tensors_;
    Workers workers_;
    Watch& watch_;
    BlockRow row_;
    std::vector<Stream> streams_;
    std::mutex mutex_;
    std::condition_variable turn_;
    bool gave_up_ = false;
};

/// Tensors without repeats, and which of them each name is for.
struct Hashed {
    std::vector<const LazyTensor*> tensors;
    std::vector<std::size_t> of_name;
};

Hashed hashed_of(const Checkpoint& checkpoint, const std::vector<NamedTensor>& names) {
    Hashed hashed;
    for (const NamedTensor& named : names) {
        const LazyTensor* const tensor = &checkpoint.tensor(named.tensor);
        if (hashed.tensors.empty() || hashed.tensors.back() != tensor) hashed.tensors.push_back(tensor);
        hashed.of_name.push_back(hashed.tensors.size() - 1);
    }
    return hashed;
}

/// The line of a tensor in the digest of its checkpoint.
std::string line_of(const TensorDigest& named, const LazyTensor& tensor) {
    std::string line = named.name;
    line += '\0';
    line += name(tensor.dtype());
    line += '\0';
    for (std::size_t d = 0; d < tensor.shape().size(); ++d)
        line += (d > 0 ? "," : "") + std::to_string(tensor.shape()[d]);
    line += '\0';
    line += named.digest;
    line += '\n';
    return line;
}

/// Sorts the lines without keeping them: there may be very many, and names nearly always decide.
std::string digest_of_all(const std::vector<TensorDigest>& digests, const Hashed& hashed) {
    const auto line = [&](std::size_t i) { return line_of(digests[i], *hashed.tensors[hashed.of_name[i]]); };
    const auto before = [&](std::size_t i, std::size_t j) {
        const std::string& a = digests[i].name;
        const std::string& b = digests[j].name;
        return a.starts_with(b) || b.starts_with(a) ? line(i) < line(j) : a < b;
    };
    std::vector<std::size_t> order(digests.size());
    std::iota(order.begin(), order.end(), std::size_t{0});
    std::sort(order.begin(), order.end(), before);
    Xxh3 hash;
    for (const std::size_t i : order) {
        const std::string text = line(i);
        hash.update(std::as_bytes(std::span(text)));
    }
    return hash.hex();
}

}  // namespace

CheckpointDigests digests(const Checkpoint& checkpoint, const DigestOptions& options) {
    const std::vector<NamedTensor> names = all_names(checkpoint, options.selection);
    const Hashed hashed = hashed_of(checkpoint, names);
    CheckpointDigests report;
    for (const LazyTensor* tensor : hashed.tensors) report.bytes += tensor->nbytes();  // at most total_bytes()
    Watch watch(options.monitor, "hashing", report.bytes);
    const std::vector<std::string> digests = Hasher(hashed.tensors, options.threads, watch).run();
    require_unchanged(std::span(checkpoint.begin(), checkpoint.size()));

    report.tensors.reserve(names.size());
    for (std::size_t i = 0; i < names.size(); ++i)
        report.tensors.push_back({std::string(names[i].name), digests[hashed.of_name[i]]});
    report.checkpoint = digest_of_all(report.tensors, hashed);
    return report;
}

std::string digest(const LazyTensor& tensor) {
    const LazyTensor* const one = &tensor;
    const Monitor nobody;
    Watch watch(nobody, "hashing", tensor.nbytes());
    std::string found = Hasher({&one, 1}, 0, watch).run().front();
    require_unchanged({one, 1});
    return found;
}

}  // namespace safemap
