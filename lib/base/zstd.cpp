// Decodes zstd streams. Built with libzstd; no_zstd.cpp is its twin.
#include "base/zstd.hpp"

#include "base/stream_source.hpp"
#include "base/text.hpp"

#include <safemap/error.hpp>

#include <zstd.h>

#include <algorithm>
#include <memory>
#include <span>
#include <string>
#include <utility>

namespace safemap::SAFEMAP_ABI {
namespace {

struct FreeStream {
    void operator()(ZSTD_DStream* stream) const noexcept { ZSTD_freeDStream(stream); }
};

/// Memory of one pass: a window of 2 MiB, as zstd's usual levels write, and the buffers around it.
constexpr std::uint64_t zstd_pass_bytes = std::uint64_t{5} << 19;
/// Memory of one state, which is a place. More than it takes, so that the states of all streams stay few.
constexpr std::uint64_t zstd_state_bytes = 4096;
/// Bytes that a read backwards decodes at least. Most streams are one frame, whose beginning is the only place at which
/// zstd can begin: the larger the block, the fewer passes.
constexpr std::uint64_t zstd_kept_bytes = std::uint64_t{4} << 20;

/// The beginning of a frame.
struct ZstdPlace final : StreamState {
    explicit ZstdPlace(std::uint64_t at) : consumed(at) {}
    std::uint64_t consumed;  // bytes of the stream before the frame
};

/// One pass over a stream of frames.
class ZstdDecoder final : public StreamDecoder {
public:
    ZstdDecoder(const std::shared_ptr<const Source>& source, Extent packed) : owner_(source), input_(*source, packed) {
        start();
    }
    ZstdDecoder(const Source& source, Extent packed) : input_(source, packed) { start(); }

    std::size_t decode(std::span<std::byte> into) override {
        ZSTD_outBuffer out{into.data(), into.size(), 0};
        while (out.pos == 0) {
            if (in_.pos == in_.size && !input_.at_end()) {
                const auto block = input_.next();
                in_ = {block.data(), block.size(), 0};
            }
            const bool last = in_.pos == in_.size && input_.at_end();
            // At the end of a frame and of the input, there is nothing to ask for.
            if (last && frame_done_) return 0;
            const std::size_t before = in_.pos;
            const std::size_t status = ZSTD_decompressStream(stream_.get(), &out, &in_);
            if (ZSTD_isError(status) != 0)
                throw BadStream{"compressed data is corrupt (" + std::string(ZSTD_getErrorName(status)) + ')'};
            frame_done_ = status == 0;
            if (out.pos == 0 && last && in_.pos == before) return 0;  // truncated: the caller expects more
        }
        return out.pos;
    }
    std::unique_ptr<StreamState> state() const override {
        if (!frame_done_) return nullptr;
        return std::make_unique<ZstdPlace>(input_.consumed() - (in_.size - in_.pos));
    }
    void resume(const StreamState& state) override {
        if (ZSTD_isError(ZSTD_initDStream(stream_.get())) != 0) throw Error(Errc::out_of_memory, "zstd cannot go on");
        input_.seek(static_cast<const ZstdPlace&>(state).consumed);
        in_ = {nullptr, 0, 0};
        frame_done_ = true;
    }
    /// Returns true if no frame has begun that has not ended.
    bool complete() const noexcept { return frame_done_; }

private:
    void start() {
        stream_.reset(ZSTD_createDStream());
        if (!stream_ || ZSTD_isError(ZSTD_initDStream(stream_.get())) != 0)
            throw Error(Errc::out_of_memory, "zstd cannot start");
    }

    std::shared_ptr<const Source> owner_ = {};
    StreamInput input_;
    std::unique_ptr<ZSTD_DStream, FreeStream> stream_;
    ZSTD_inBuffer in_{nullptr, 0, 0};
    bool frame_done_ = false;
};

/// Keeps the last bytes of a stream.
class Tail {
public:
    void add(std::span<const std::byte> bytes) {
        bytes_.insert(bytes_.end(), bytes.begin(), bytes.end());
        if (bytes_.size() > 4 * ZstdContent::most_kept) cut();
    }
    std::vector<std::byte> take() {
        cut();
        return std::move(bytes_);
    }

private:
    void cut() {
        if (bytes_.size() > ZstdContent::most_kept)
            bytes_.erase(bytes_.begin(), bytes_.end() - static_cast<std::ptrdiff_t>(ZstdContent::most_kept));
    }
    std::vector<std::byte> bytes_;
};

}  // namespace

bool has_zstd() noexcept { return true; }

ZstdContent scan_zstd(const std::string& record, const Source& source, Extent packed, std::uint64_t most) {
    const auto fail = [&](const std::string& what) {
        throw Error(Errc::inflate_failed, "record " + safemap::quoted(record) + ": " + what).with_path(source.name());
    };
    ZstdContent content;
    Tail tail;
    ZstdDecoder decoder(source, packed);
    std::vector<std::byte> block(ZstdContent::most_kept);
    try {
        while (const std::size_t made = decoder.decode(block)) {
            const auto bytes = std::span<const std::byte>(block).first(made);
            if (made > most - content.size) fail("it has more than " + bytes_text(most) + ", which is too many");
            content.size += made;
            if (content.head.size() < ZstdContent::most_kept) {
                const auto wanted = bytes.first(std::min(made, ZstdContent::most_kept - content.head.size()));
                content.head.insert(content.head.end(), wanted.begin(), wanted.end());
            }
            tail.add(bytes);
        }
    } catch (const BadStream& bad) {
        fail(bad.what + " after " + bytes_text(content.size));
    }
    if (!decoder.complete()) fail("compressed data ends after " + bytes_text(content.size) + " inside a frame");
    content.tail = tail.take();
    return content;
}

std::shared_ptr<const Source> zstd_source(std::string record, std::shared_ptr<const Source> source, Extent packed,
                                          std::uint64_t size) {
    const auto open = [source, packed] { return std::make_unique<ZstdDecoder>(source, packed); };
    StreamKind kind{.open = open,
                    .decoder_bytes = zstd_pass_bytes,
                    .state_bytes = zstd_state_bytes,
                    .block_bytes = std::clamp<std::uint64_t>(size, 1, zstd_kept_bytes)};
    return std::make_shared<StreamSource>(std::move(record), std::move(source), packed, size, std::move(kind));
}

}  // namespace safemap::SAFEMAP_ABI
