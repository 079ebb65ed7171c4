// A compressed stream as a Source: reads forward, goes on from kept states for a read elsewhere, cannot be mapped. The
// decoders are in inflate.cpp and zstd.cpp.
#pragma once

#include "base/stream_index.hpp"

#include <safemap/error.hpp>
#include <safemap/source.hpp>

#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <span>
#include <string>

namespace safemap::SAFEMAP_ABI {

/// A fault of a stream. The text begins a message.
struct BadStream {
    std::string what;
};

/// One pass over a stream.
class StreamDecoder {
public:
    virtual ~StreamDecoder() = default;
    /// Decodes some of the next bytes, and returns how many; 0 at the end of the stream. Throws BadStream, and what
    /// reading its source throws.
    virtual std::size_t decode(std::span<std::byte> into) = 0;
    /// Called after the last byte of the stream. Throws an Error if its checksum is wrong.
    virtual void finish() {}
    /// Returns a copy of the state after the last decode(); null if this decoder has none here, or memory is exhausted.
    virtual std::unique_ptr<StreamState> state() const = 0;
    /// Goes on where a decoder of the same stream was when it returned `state`. Throws out_of_memory.
    virtual void resume(const StreamState& state) = 0;
};

/// A range of a source, read in blocks: the input of a decoder.
class StreamInput {
public:
    StreamInput(const Source& source, Extent packed) : source_(source), packed_(packed) {}
    /// Returns the next block; empty at the end. Valid until the next call.
    std::span<const std::byte> next();
    bool at_end() const noexcept { return consumed_ == packed_.size; }
    /// Returns the number of bytes that next() has returned.
    std::uint64_t consumed() const noexcept { return consumed_; }
    /// Makes next() return the bytes from `consumed` on.
    void seek(std::uint64_t consumed) noexcept { consumed_ = consumed; }

private:
    const Source& source_;
    Extent packed_;
    std::uint64_t consumed_ = 0;
    std::unique_ptr<std::byte[]> block_;
};

/// A kind of stream: how to begin a pass, and the memory that it takes.
struct StreamKind {
    std::function<std::unique_ptr<StreamDecoder>()> open;
    std::uint64_t decoder_bytes;  ///< memory of a pass
    std::uint64_t state_bytes;    ///< memory of a StreamState
    std::uint64_t block_bytes;    ///< bytes that are kept after a read backwards
};

/// The decoded bytes of a stream, of which there are `size`. Reads at rising offsets without gaps take one pass over
/// the stream. Once a read leaves a gap or goes backwards, the states of the decoder are kept (StreamIndex), and a read
/// goes on from the last state before it. After a read backwards the block around it is kept too, so that reads further
/// and further back decode each block once.
///
/// A state includes the checksum of all bytes before it, so finish() is right in any order of reads. All streams of the
/// process together keep at most kept_limit of decoders, states and blocks, except those that are being read. Calls
/// from several threads run one after another. A read of more than 50 ms asks Interruption, without the lock.
class StreamSource : public Source {
public:
    static constexpr std::uint64_t kept_limit = std::uint64_t{20} << 20;

    /// The stream is `packed` in `source`. `record` names it in errors, inflate_failed among them.
    StreamSource(std::string record, std::shared_ptr<const Source> source, Extent packed, std::uint64_t size,
                 StreamKind kind);
    ~StreamSource() override;

    const std::string& name() const noexcept override { return source_->name(); }
    std::uint64_t size() const noexcept override { return size_; }
    void require_unchanged() const override { source_->require_unchanged(); }
    std::string identity() const override;
    void read_at(std::uint64_t offset, std::span<std::byte> into) const override;

    // For tests.
    /// Returns the number of states that this stream keeps.
    std::size_t states() const;
    /// Returns the memory that all streams of the process keep, in bytes.
    static std::uint64_t all_kept();

private:
    /// The part of a read that is left.
    struct Rest {
        std::uint64_t offset;
        std::span<std::byte> into;
        bool backwards = false;  ///< true if the read began before the place of the decoder
    };

    class Turn;

    void take_turn(Rest& rest) const;
    void step(Rest& rest) const;
    void take_kept(Rest& rest) const;
    void seek(std::uint64_t offset) const;
    void skip_to(std::uint64_t offset) const;
    bool keep_block(std::uint64_t offset, std::uint64_t end) const;
    void finish() const;
    std::size_t decode(std::span<std::byte> into) const;
    std::size_t decode_some(std::span<std::byte> into) const;
    StreamIndex::Found nearest(std::uint64_t offset) const;
    void note_state() const;
    void close() const noexcept;
    void drop_block() const noexcept;
    void forget() const noexcept;

    std::uint64_t in_use() const noexcept;
    std::size_t state_count() const noexcept { return index_ ? index_->count() : 0; }
    bool reserve(std::uint64_t bytes, bool forced = false) const;
    void settle() const noexcept;
    std::uint64_t give_up_some(bool states_only) const noexcept;
    Error fault(Errc code, const std::string& what) const;

    std::string record_;
    std::shared_ptr<const Source> source_;
    Extent packed_;
    std::uint64_t size_;
    StreamKind kind_;

    mutable std::mutex mutex_;  // guards busy_, and everything below while nobody reads
    mutable std::condition_variable free_;
    mutable bool busy_ = false;  // true while a thread reads, and owns everything below but kept_
    mutable std::unique_ptr<StreamDecoder> decoder_;
    mutable std::uint64_t position_ = 0;          // in the decoded bytes: where the decoder is, or the last one was
    mutable std::unique_ptr<StreamIndex> index_;  // null until a read leaves a gap or goes backwards
    mutable std::unique_ptr<std::byte[]> block_;  // block_bytes, or null
    mutable std::uint64_t block_at_ = 0;
    mutable std::size_t block_size_ = 0;  // bytes of it that are decoded

    friend struct KeptMemory;
    mutable std::uint64_t kept_ = 0;  // memory that is counted for this stream; guarded by the mutex of KeptMemory
};

}  // namespace safemap::SAFEMAP_ABI
