// Inflates zip records while they are read.
#include "base/inflate.hpp"

#include "base/checksum.hpp"
#include "base/stream_source.hpp"

#include <safemap/error.hpp>

#include <zlib.h>

#include <algorithm>
#include <memory>
#include <utility>

namespace safemap::SAFEMAP_ABI {
namespace {

/// Memory of one pass: zlib's state, its window of 32 KiB, and the input.
constexpr std::uint64_t pass_bytes = 112U << 10;
/// Memory of one state: zlib's state of 7 KiB and its window, 40 KiB together, and some room for other versions of
/// zlib.
constexpr std::uint64_t state_bytes = 48U << 10;
/// Bytes that a read backwards decodes at least. A state is that far apart, too, so they are decoded once.
constexpr std::uint64_t kept_bytes = StreamIndex::block;

/// A pass over a record at the end of a decode().
struct InflaterState final : StreamState {
    InflaterState() = default;
    ~InflaterState() override {
        if (copied) ::inflateEnd(&stream);
    }

    // zlib does not change what it copies, whatever the type of its argument says.
    mutable z_stream stream{};
    bool copied = false;
    std::uint64_t consumed = 0;  // bytes of the record that the stream has taken
    std::uint32_t crc = 0;
};

/// One pass over a record: raw deflate, as zip stores it.
class Inflater final : public StreamDecoder {
public:
    Inflater(std::string record, const std::shared_ptr<const Source>& source, Extent packed,
             std::optional<std::uint32_t> crc32)
        : record_(std::move(record)), source_(source), input_(*source, packed), stored_crc_(crc32) {
        // A negative window size means no zlib header.
        if (::inflateInit2(&stream_, -MAX_WBITS) != Z_OK) throw Error(Errc::out_of_memory, "inflate cannot start");
    }
    ~Inflater() override { ::inflateEnd(&stream_); }
    Inflater(const Inflater&) = delete;
    Inflater& operator=(const Inflater&) = delete;

    std::size_t decode(std::span<std::byte> into) override {
        const auto part = static_cast<uInt>(std::min<std::size_t>(into.size(), 1U << 30));
        stream_.next_out = reinterpret_cast<Bytef*>(into.data());
        stream_.avail_out = part;
        for (;;) {
            if (stream_.avail_in == 0) refill();
            const int status = ::inflate(&stream_, Z_NO_FLUSH);
            if (status == Z_STREAM_END || stream_.avail_out != part) break;
            const bool starved = stream_.avail_in == 0 && !input_.at_end();
            if (status == Z_OK || (status == Z_BUF_ERROR && starved)) continue;
            throw BadStream{"compressed data is corrupt"};
        }
        const std::size_t made = part - stream_.avail_out;
        if (stored_crc_) crc_ = crc32(crc_, into.first(made));
        return made;
    }

    // This pass has read all bytes. The byte that was asked for after the last one was not made.
    void finish() override {
        if (stored_crc_ && crc_ != *stored_crc_)
            throw crc32_mismatch(record_, crc_, *stored_crc_).with_path(source_->name());
    }

    std::unique_ptr<StreamState> state() const override {
        auto copy = std::make_unique<InflaterState>();
        copy->copied = ::inflateCopy(&copy->stream, &stream_) == Z_OK;
        if (!copy->copied) return nullptr;  // out of memory
        copy->consumed = input_.consumed() - stream_.avail_in;
        copy->crc = crc_;
        return copy;
    }
    void resume(const StreamState& state) override {
        const auto& from = static_cast<const InflaterState&>(state);
        ::inflateEnd(&stream_);
        if (::inflateCopy(&stream_, &from.stream) != Z_OK) throw Error(Errc::out_of_memory, "inflate cannot go on");
        stream_.next_in = nullptr;
        stream_.avail_in = 0;
        input_.seek(from.consumed);
        crc_ = from.crc;
    }

private:
    void refill() {
        const auto block = input_.next();
        // zlib does not change its input, whatever its type says.
        stream_.next_in = reinterpret_cast<Bytef*>(const_cast<std::byte*>(block.data()));
        stream_.avail_in = static_cast<uInt>(block.size());
    }

    std::string record_;
    std::shared_ptr<const Source> source_;
    StreamInput input_;
    std::optional<std::uint32_t> stored_crc_;
    mutable z_stream stream_{};  // zlib does not change what it copies
    std::uint32_t crc_ = 0;      // CRC-32 of the bytes so far
};

}  // namespace

std::shared_ptr<const Source> inflated_source(std::string record, std::shared_ptr<const Source> source, Extent packed,
                                              std::uint64_t size, std::optional<std::uint32_t> crc32) {
    const auto open = [record, source, packed, crc32] {
        return std::make_unique<Inflater>(record, source, packed, crc32);
    };
    StreamKind kind{.open = open,
                    .decoder_bytes = pass_bytes,
                    .state_bytes = state_bytes,
                    .block_bytes = std::clamp<std::uint64_t>(size, 1, kept_bytes)};
    return std::make_shared<StreamSource>(std::move(record), std::move(source), packed, size, std::move(kind));
}

}  // namespace safemap::SAFEMAP_ABI
