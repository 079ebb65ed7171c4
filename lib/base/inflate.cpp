// Inflates zip records while they are read.
#include "base/inflate.hpp"

#include "base/checksum.hpp"
#include "base/text.hpp"

#include <safemap/error.hpp>

#include <zlib.h>

#include <algorithm>
#include <memory>
#include <mutex>
#include <utility>
#include <vector>

namespace safemap::SAFEMAP_ABI {
namespace {

constexpr std::size_t input_block = 64 << 10;
constexpr std::size_t skip_block = 64 << 10;

class InflatedSource final : public Source {
public:
    InflatedSource(std::string record, std::shared_ptr<const Source> source, Extent packed, std::uint64_t size,
                   std::optional<std::uint32_t> crc32)
        : record_(std::move(record)), source_(std::move(source)), packed_(packed), size_(size), stored_crc_(crc32) {}

    ~InflatedSource() override {
        if (open_) ::inflateEnd(&stream_);
    }

    const std::string& name() const noexcept override { return source_->name(); }
    std::uint64_t size() const noexcept override { return size_; }
    void require_unchanged() const override { source_->require_unchanged(); }
    std::string identity() const override {
        const std::string of = source_->identity();
        return of.empty() ? of : of + std::to_string(packed_.offset) + ' ' + std::to_string(packed_.size);
    }

    void read_at(std::uint64_t offset, std::span<std::byte> into) const override {
        if (!Extent{offset, into.size()}.inside(size_))
            throw fault(Errc::file_truncated, bytes_text(into.size()) + " requested at offset " +
                                                  std::to_string(offset) + ", but there are " + bytes_text(size_));
        if (into.empty()) return;
        const std::lock_guard lock(mutex_);
        try {
            if (!open_ || offset < position_) restart();
            skip_to(offset);
            produce(into);
            if (position_ == size_) finish();
        } catch (...) {
            close();
            throw;
        }
    }

private:
    void restart() const {
        close();
        stream_ = {};
        // Raw deflate, as zip stores it: a negative window size means no zlib header.
        if (::inflateInit2(&stream_, -MAX_WBITS) != Z_OK) throw Error(Errc::out_of_memory, "inflate cannot start");
        open_ = true;
        position_ = 0;
        consumed_ = 0;
        crc_ = 0;
    }

    void close() const noexcept {
        if (open_) ::inflateEnd(&stream_);
        open_ = false;
        input_.reset();
    }

    // Called after the last byte. Checks that the stream ends here too, and compares the checksum: this pass has read
    // all bytes. Then frees the memory, because there may be many such sources.
    void finish() const {
        std::byte beyond{};
        const auto made = inflate_some(std::span(&beyond, 1));
        if (made != 0)
            throw fault(Errc::inflate_failed, "compressed data continues after the expected " + bytes_text(size_));
        if (stored_crc_ && crc_ != *stored_crc_)
            throw crc32_mismatch(record_, crc_, *stored_crc_).with_path(source_->name());
        close();
    }

    void skip_to(std::uint64_t offset) const {
        std::vector<std::byte> discarded(
            static_cast<std::size_t>(std::min<std::uint64_t>(skip_block, offset - position_)));
        while (position_ < offset)
            produce(std::span(discarded).first(
                static_cast<std::size_t>(std::min<std::uint64_t>(discarded.size(), offset - position_))));
    }

    void produce(std::span<std::byte> into) const {
        while (!into.empty()) {
            const std::size_t made = inflate_some(into);
            if (made == 0)
                throw fault(Errc::inflate_failed,
                            "compressed data ends after " + bytes_text(position_) + ", expected " + bytes_text(size_));
            if (stored_crc_) crc_ = crc32(crc_, into.first(made));
            into = into.subspan(made);
            position_ += made;
        }
    }

    // Inflates some of the next bytes. Returns how many; 0 at the end of the stream.
    std::size_t inflate_some(std::span<std::byte> into) const {
        const auto part = static_cast<uInt>(std::min<std::size_t>(into.size(), 1U << 30));
        stream_.next_out = reinterpret_cast<Bytef*>(into.data());
        stream_.avail_out = part;
        for (;;) {
            if (stream_.avail_in == 0) refill();
            const int status = ::inflate(&stream_, Z_NO_FLUSH);
            if (status == Z_STREAM_END || stream_.avail_out != part) return part - stream_.avail_out;
            const bool starved = stream_.avail_in == 0 && consumed_ < packed_.size;
            if (status == Z_OK || (status == Z_BUF_ERROR && starved)) continue;
            throw fault(Errc::inflate_failed, "compressed data is corrupt after " + bytes_text(position_) +
                                                  ", expected " + bytes_text(size_));
        }
    }

    void refill() const {
        if (!input_) input_ = std::make_unique<std::byte[]>(input_block);
        const auto part = static_cast<std::size_t>(std::min<std::uint64_t>(input_block, packed_.size - consumed_));
        source_->read_at(packed_.offset + consumed_, {input_.get(), part});
        consumed_ += part;
        stream_.next_in = reinterpret_cast<Bytef*>(input_.get());
        stream_.avail_in = static_cast<uInt>(part);
    }

    Error fault(Errc code, const std::string& what) const {
        Error error(code, "record " + safemap::quoted(record_) + ": " + what);
        return std::move(error.with_path(source_->name()));
    }

    std::string record_;
    std::shared_ptr<const Source> source_;
    Extent packed_;
    std::uint64_t size_;
    std::optional<std::uint32_t> stored_crc_;

    mutable std::mutex mutex_;  // guards everything below
    mutable z_stream stream_{};
    mutable bool open_ = false;
    mutable std::uint64_t position_ = 0;  // in the inflated bytes
    mutable std::uint64_t consumed_ = 0;  // bytes of the packed data so far
    mutable std::uint32_t crc_ = 0;       // CRC-32 of the bytes before position_
    mutable std::unique_ptr<std::byte[]> input_;
};

}  // namespace

std::shared_ptr<const Source> inflated_source(std::string record, std::shared_ptr<const Source> source, Extent packed,
                                              std::uint64_t size, std::optional<std::uint32_t> crc32) {
    if (!packed.inside(source->size()))
        throw Error(Errc::file_truncated, "compressed data reaches past the end of the file").with_path(source->name());
    return std::make_shared<InflatedSource>(std::move(record), std::move(source), packed, size, crc32);
}

}  // namespace safemap::SAFEMAP_ABI
