// Reads compressed streams in any order. From top to bottom:
//
//   StreamInput   the packed bytes
//   KeptMemory    the memory that all streams of the process keep, and which stream has to give some up
//   read_at       takes steps until all bytes are there: step() serves a read from the kept block, or moves the decoder
//   states        where the decoder goes on, and when its state is kept
//   memory        what a stream gives up
//
// Tested by tests/base/inflate_test.cpp, zstd_test.cpp and stream_index_test.cpp.
#include "base/stream_source.hpp"

#include "base/pool.hpp"
#include "base/text.hpp"

#include <safemap/error.hpp>

#include <algorithm>
#include <chrono>
#include <cstring>
#include <list>
#include <utility>
#include <vector>

namespace safemap::SAFEMAP_ABI {

namespace {

constexpr std::size_t input_block = 64 << 10;
constexpr std::size_t skip_block = 64 << 10;
/// Most bytes that are decoded between two looks at the clock: a few milliseconds.
constexpr std::uint64_t step_bytes = StreamIndex::block;
/// Longest time, in steady use, without asking whether the read is still wanted.
constexpr std::chrono::milliseconds patience{50};

}  // namespace

std::span<const std::byte> StreamInput::next() {
    if (!block_) block_ = std::make_unique<std::byte[]>(input_block);
    const auto part = static_cast<std::size_t>(std::min<std::uint64_t>(input_block, packed_.size - consumed_));
    if (part > 0) source_.read_at(packed_.offset + consumed_, {block_.get(), part});
    consumed_ += part;
    return {block_.get(), part};
}

/// The streams that keep memory. A stream reserves memory while a thread reads it. Other streams give some up only if
/// nobody reads them at that moment. The mutex of a stream is locked after this one, and never before it.
struct KeptMemory {
    std::mutex mutex;                        // guards everything below, and StreamSource::kept_
    std::list<const StreamSource*> streams;  // the one that began to keep memory last is first
    std::uint64_t total = 0;

    static KeptMemory& all() {
        static KeptMemory* const memory = new KeptMemory;  // never freed: streams may outlive every static
        return *memory;
    }

    void count(const StreamSource& stream, std::uint64_t bytes) {
        if (stream.kept_ == 0 && bytes > 0) streams.push_front(&stream);
        stream.kept_ += bytes;
        total += bytes;
    }
    void uncount(const StreamSource& stream, std::uint64_t bytes) noexcept {
        if (bytes == 0) return;
        stream.kept_ -= bytes;
        total -= bytes;
        if (stream.kept_ == 0) streams.remove(&stream);
    }

    /// Makes the streams that keep most give up memory, until `bytes` fit. Returns false if they do not.
    bool make_room(const StreamSource& reader, std::uint64_t bytes) {
        std::vector<const StreamSource*> busy;
        while (total + bytes > StreamSource::kept_limit) {
            const StreamSource* most = nullptr;
            for (const StreamSource* const each : streams) {
                const bool skipped = std::find(busy.begin(), busy.end(), each) != busy.end();
                if (!skipped && (most == nullptr || each->kept_ >= most->kept_)) most = each;
            }
            if (most == nullptr) return false;
            std::uint64_t given = 0;
            if (most == &reader) {
                given = most->give_up_some(true);
            } else {
                const std::lock_guard other(most->mutex_);
                if (!most->busy_) given = most->give_up_some(false);
            }
            uncount(*most, given);
            if (given == 0) busy.push_back(most);
        }
        return true;
    }
};

StreamSource::StreamSource(std::string record, std::shared_ptr<const Source> source, Extent packed, std::uint64_t size,
                           StreamKind kind)
    : record_(std::move(record)), source_(std::move(source)), packed_(packed), size_(size), kind_(std::move(kind)) {
    if (!packed.inside(source_->size()))
        throw Error(Errc::file_truncated, "compressed data reaches past the end of the file")
            .with_path(source_->name());
}

StreamSource::~StreamSource() {
    KeptMemory& memory = KeptMemory::all();
    const std::lock_guard lock(memory.mutex);
    memory.uncount(*this, kept_);
}

std::string StreamSource::identity() const {
    const std::string of = source_->identity();
    return of.empty() ? of : of + std::to_string(packed_.offset) + ' ' + std::to_string(packed_.size);
}

// Reads.

/// The right of one thread to read a stream. Waiting for it asks Interruption.
class StreamSource::Turn {
public:
    explicit Turn(const StreamSource& stream) : stream_(stream) {
        std::unique_lock lock(stream.mutex_);
        while (stream.busy_) {
            if (stream.free_.wait_for(lock, patience, [&] { return !stream.busy_; })) break;
            lock.unlock();
            Interruption::ask();
            lock.lock();
        }
        stream.busy_ = true;
        begun_ = Clock::now();
    }
    ~Turn() {
        {
            const std::lock_guard lock(stream_.mutex_);
            stream_.busy_ = false;
        }
        stream_.free_.notify_one();
    }
    Turn(const Turn&) = delete;
    Turn& operator=(const Turn&) = delete;

    /// Returns true if it is time to ask Interruption.
    bool is_long() const { return Interruption::possible() && Clock::now() - begun_ >= patience; }

private:
    using Clock = std::chrono::steady_clock;

    const StreamSource& stream_;
    Clock::time_point begun_;
};

void StreamSource::read_at(std::uint64_t offset, std::span<std::byte> into) const {
    if (!Extent{offset, into.size()}.inside(size_))
        throw fault(Errc::file_truncated, bytes_text(into.size()) + " requested at offset " + std::to_string(offset) +
                                              ", but there are " + bytes_text(size_));
    Rest rest{offset, into};
    take_turn(rest);
    while (!rest.into.empty()) {
        // A question may read this stream on this thread. What other reads do to the stream meanwhile costs time only:
        // each step looks where the decoder is.
        Interruption::ask();
        take_turn(rest);
    }
}

/// Reads for a while: until all bytes are there, or it is time to ask Interruption.
void StreamSource::take_turn(Rest& rest) const {
    if (rest.into.empty()) return;
    const Turn turn(*this);
    do {
        try {
            step(rest);
        } catch (...) {
            forget();
            throw;
        }
    } while (!rest.into.empty() && !turn.is_long());
}

/// Serves a part of a read, or brings the decoder nearer to it.
void StreamSource::step(Rest& rest) const {
    take_kept(rest);
    if (rest.into.empty()) return;
    if (rest.offset < position_) rest.backwards = true;
    if (rest.offset != position_ && !index_) index_ = std::make_unique<StreamIndex>();
    seek(rest.offset);
    const std::uint64_t block = rest.offset - rest.offset % kind_.block_bytes;
    // The last byte of the stream is in no block: who reads it has the checksum compared.
    const bool keeps = rest.backwards && rest.into.size() < kind_.block_bytes && rest.offset < size_ - 1;
    if (keeps && position_ < block) return skip_to(block);
    if (keeps) {
        std::uint64_t end = std::min(block + kind_.block_bytes, size_ - 1);
        // The kept block begins there: reads further and further back have read it.
        if (block_size_ > 0 && rest.offset < block_at_) end = std::min(end, block_at_);
        rest.backwards = keep_block(rest.offset, end);
        return take_kept(rest);
    }
    if (position_ != rest.offset) return skip_to(rest.offset);
    const auto most = static_cast<std::size_t>(std::min<std::uint64_t>(rest.into.size(), step_bytes));
    const std::size_t made = decode_some(rest.into.first(most));
    rest.into = rest.into.subspan(made);
    rest.offset += made;
    if (position_ == size_) finish();
}

/// Serves the beginning or the end of a read from the kept block.
void StreamSource::take_kept(Rest& rest) const {
    const std::uint64_t block_end = block_at_ + block_size_;
    const std::uint64_t end = rest.offset + rest.into.size();
    const auto copy = [&](std::uint64_t from, std::uint64_t until) {
        std::memcpy(rest.into.data() + (from - rest.offset), block_.get() + (from - block_at_), until - from);
    };
    if (rest.offset >= block_at_ && rest.offset < block_end) {
        const std::uint64_t until = std::min(end, block_end);
        copy(rest.offset, until);
        rest.into = rest.into.subspan(until - rest.offset);
        rest.offset = until;
    } else if (rest.offset < block_at_ && end > block_at_ && end <= block_end) {
        copy(block_at_, end);
        rest.into = rest.into.first(block_at_ - rest.offset);
    }
}

/// Decodes up to step_bytes on the way to `offset`. If the decoder is behind it, does nothing: the next step moves it.
void StreamSource::skip_to(std::uint64_t offset) const {
    if (position_ >= offset) return;
    const std::uint64_t until = std::min(offset, position_ + step_bytes);
    const auto discarded = std::make_unique_for_overwrite<std::byte[]>(skip_block);
    while (position_ < until)
        decode_some(
            {discarded.get(), static_cast<std::size_t>(std::min<std::uint64_t>(skip_block, until - position_))});
}

/// Decodes the bytes from here to `end` into the kept block. After a fault keeps the bytes before it, because a read of
/// those succeeds. Returns false, and keeps nothing, if there is no room or the fault is at `offset` or before it.
bool StreamSource::keep_block(std::uint64_t offset, std::uint64_t end) const {
    if (!block_) {
        if (!reserve(kind_.block_bytes)) return false;
        block_ = std::make_unique_for_overwrite<std::byte[]>(kind_.block_bytes);
    }
    block_at_ = position_;
    block_size_ = 0;
    const auto size = static_cast<std::size_t>(end - position_);
    try {
        while (block_size_ < size) block_size_ += decode_some({block_.get() + block_size_, size - block_size_});
    } catch (const Error&) {
        decoder_.reset();
        if (position_ <= offset) {
            drop_block();
            position_ = 0;
        }
        settle();
    }
    return block_size_ > 0;
}

/// Called after the last byte. Checks that the stream ends here too. Then frees the decoder, because there may be many
/// such sources.
void StreamSource::finish() const {
    std::byte beyond{};
    if (decode(std::span(&beyond, 1)) != 0)
        throw fault(Errc::inflate_failed, "compressed data continues after the expected " + bytes_text(size_));
    decoder_->finish();
    close();
}

/// Decodes at least one byte. Keeps the state of the decoder at the beginning of a block, if one is wanted there.
std::size_t StreamSource::decode_some(std::span<std::byte> into) const {
    const std::uint64_t to_next = StreamIndex::block - position_ % StreamIndex::block;
    const auto most = static_cast<std::size_t>(std::min<std::uint64_t>(into.size(), to_next));
    const std::size_t made = decode(index_ ? into.first(most) : into);
    if (made == 0)
        throw fault(Errc::inflate_failed,
                    "compressed data ends after " + bytes_text(position_) + ", expected " + bytes_text(size_));
    position_ += made;
    if (index_) note_state();
    return made;
}

std::size_t StreamSource::decode(std::span<std::byte> into) const {
    try {
        return decoder_->decode(into);
    } catch (const BadStream& bad) {
        throw fault(Errc::inflate_failed,
                    bad.what + " after " + bytes_text(position_) + ", expected " + bytes_text(size_));
    }
}

// States.

/// Returns the last kept state that is not behind `offset`; without one, a null state at 0.
StreamIndex::Found StreamSource::nearest(std::uint64_t offset) const {
    return index_ ? index_->best(offset).value_or(StreamIndex::Found{}) : StreamIndex::Found{};
}

/// Moves the decoder to the nearest place before `offset` from which it can go on: where it is, a kept state, or the
/// beginning.
void StreamSource::seek(std::uint64_t offset) const {
    const bool stays = decoder_ && position_ <= offset;
    if (stays && nearest(offset).position <= position_) return;
    if (!decoder_ || nearest(offset).state == nullptr) {
        close();
        reserve(kind_.decoder_bytes, true);
        decoder_ = kind_.open();
        position_ = 0;
    }
    // Looks again, because reserve() may have dropped states.
    const auto found = nearest(offset);
    if (found.state == nullptr) return;
    decoder_->resume(*found.state);
    position_ = found.position;
}

void StreamSource::note_state() const {
    if (!index_->wants(position_) || !reserve(kind_.state_bytes)) return;
    // Looks again, because reserve() may have dropped states and widened the spacing.
    auto state = index_->wants(position_) ? decoder_->state() : nullptr;
    if (state) index_->add(position_, std::move(state));
    settle();
}

// Memory.

void StreamSource::close() const noexcept {
    decoder_.reset();
    settle();
}

void StreamSource::drop_block() const noexcept {
    block_.reset();
    block_size_ = 0;
}

/// Drops everything, after a fault.
void StreamSource::forget() const noexcept {
    drop_block();
    index_.reset();
    position_ = 0;
    close();
}

std::uint64_t StreamSource::in_use() const noexcept {
    return (decoder_ ? kind_.decoder_bytes : 0) + (block_ ? kind_.block_bytes : 0) + state_count() * kind_.state_bytes;
}

/// Counts memory before it is allocated. Returns false, and counts nothing, without room for it, unless `forced`. The
/// next settle() takes back what was not allocated.
bool StreamSource::reserve(std::uint64_t bytes, bool forced) const {
    KeptMemory& memory = KeptMemory::all();
    const std::lock_guard lock(memory.mutex);
    if (!memory.make_room(*this, bytes) && !forced) return false;
    memory.count(*this, bytes);
    return true;
}

/// Counts what is in use, of all that was reserved.
void StreamSource::settle() const noexcept {
    KeptMemory& memory = KeptMemory::all();
    const std::lock_guard lock(memory.mutex);
    memory.uncount(*this, kept_ - in_use());
}

/// Drops the largest part of the memory of this stream: the block, the decoder, or half of the states. Returns how many
/// bytes that was, which the caller uncounts.
std::uint64_t StreamSource::give_up_some(bool states_only) const noexcept {
    const std::uint64_t before = in_use();
    const std::uint64_t of_states = state_count() * kind_.state_bytes;
    if (!states_only && block_ && kind_.block_bytes >= of_states) drop_block();
    else if (!states_only && decoder_ && kind_.decoder_bytes >= of_states) decoder_.reset();
    else if (index_) index_->thin();
    return before - in_use();
}

std::size_t StreamSource::states() const {
    const Turn turn(*this);
    return state_count();
}

std::uint64_t StreamSource::all_kept() {
    KeptMemory& memory = KeptMemory::all();
    const std::lock_guard lock(memory.mutex);
    return memory.total;
}

Error StreamSource::fault(Errc code, const std::string& what) const {
    Error error(code, "record " + safemap::quoted(record_) + ": " + what);
    return std::move(error.with_path(source_->name()));
}

}  // namespace safemap::SAFEMAP_ABI
