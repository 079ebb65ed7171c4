// A compressed stream as a Source: reads forward, restarts for a read backwards, cannot be mapped. The decoders are in
// inflate.cpp and zstd.cpp.
#pragma once

#include <safemap/error.hpp>
#include <safemap/source.hpp>

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
};

/// A range of a source, read in blocks: the input of a decoder.
class StreamInput {
public:
    StreamInput(const Source& source, Extent packed) : source_(source), packed_(packed) {}
    /// Returns the next block; empty at the end. Valid until the next call.
    std::span<const std::byte> next();
    bool at_end() const noexcept { return consumed_ == packed_.size; }

private:
    const Source& source_;
    Extent packed_;
    std::uint64_t consumed_ = 0;
    std::unique_ptr<std::byte[]> block_;
};

/// The decoded bytes of a stream, of which there are `size`. Reads at rising offsets take one pass over the stream; a
/// read before the previous one starts again. Every pass begins at the first byte, so it has read all of them when it
/// comes to the end. Calls from several threads run one after another.
class StreamSource : public Source {
public:
    using Open = std::function<std::unique_ptr<StreamDecoder>()>;

    /// The stream is `packed` in `source`. `record` names it in errors, inflate_failed among them. `open` begins a
    /// pass. If `heavy`, few passes of all such sources are kept: beginning one ends the pass that was begun first.
    StreamSource(std::string record, std::shared_ptr<const Source> source, Extent packed, std::uint64_t size, Open open,
                 bool heavy = false);
    ~StreamSource() override;

    const std::string& name() const noexcept override { return source_->name(); }
    std::uint64_t size() const noexcept override { return size_; }
    void require_unchanged() const override { source_->require_unchanged(); }
    std::string identity() const override;
    void read_at(std::uint64_t offset, std::span<std::byte> into) const override;

private:
    void restart() const;
    void close() const noexcept;
    void make_room() const;
    void finish() const;
    void skip_to(std::uint64_t offset) const;
    void produce(std::span<std::byte> into) const;
    std::size_t decode(std::span<std::byte> into) const;
    Error fault(Errc code, const std::string& what) const;

    std::string record_;
    std::shared_ptr<const Source> source_;
    Extent packed_;
    std::uint64_t size_;
    Open open_;
    bool heavy_;

    mutable std::mutex mutex_;  // guards everything below
    mutable std::unique_ptr<StreamDecoder> decoder_;
    mutable std::uint64_t position_ = 0;  // in the decoded bytes
};

}  // namespace safemap::SAFEMAP_ABI
