// Reads compressed streams forward, and restarts them. Tested by tests/base/inflate_test.cpp and zstd_test.cpp.
#include "base/stream_source.hpp"

#include "base/text.hpp"

#include <safemap/error.hpp>

#include <algorithm>
#include <list>
#include <utility>
#include <vector>

namespace safemap::SAFEMAP_ABI {

namespace {

constexpr std::size_t input_block = 64 << 10;
constexpr std::size_t skip_block = 64 << 10;
/// Heavy passes that are kept: each has a window of some megabytes.
constexpr std::size_t most_heavy = 16;

/// The sources with a heavy pass, those that began one last first. A source enters and leaves while its own mutex is
/// held, or when it ends.
struct HeavyPasses {
    std::mutex mutex;
    std::list<const StreamSource*> sources;
};
HeavyPasses& heavy_passes() {
    static HeavyPasses* const passes = new HeavyPasses;  // never freed: sources may outlive every static
    return *passes;
}

}  // namespace

std::span<const std::byte> StreamInput::next() {
    if (!block_) block_ = std::make_unique<std::byte[]>(input_block);
    const auto part = static_cast<std::size_t>(std::min<std::uint64_t>(input_block, packed_.size - consumed_));
    if (part > 0) source_.read_at(packed_.offset + consumed_, {block_.get(), part});
    consumed_ += part;
    return {block_.get(), part};
}

StreamSource::StreamSource(std::string record, std::shared_ptr<const Source> source, Extent packed, std::uint64_t size,
                           Open open, bool heavy)
    : record_(std::move(record)),
      source_(std::move(source)),
      packed_(packed),
      size_(size),
      open_(std::move(open)),
      heavy_(heavy) {
    if (!packed.inside(source_->size()))
        throw Error(Errc::file_truncated, "compressed data reaches past the end of the file")
            .with_path(source_->name());
}

StreamSource::~StreamSource() { close(); }

std::string StreamSource::identity() const {
    const std::string of = source_->identity();
    return of.empty() ? of : of + std::to_string(packed_.offset) + ' ' + std::to_string(packed_.size);
}

void StreamSource::read_at(std::uint64_t offset, std::span<std::byte> into) const {
    if (!Extent{offset, into.size()}.inside(size_))
        throw fault(Errc::file_truncated, bytes_text(into.size()) + " requested at offset " + std::to_string(offset) +
                                              ", but there are " + bytes_text(size_));
    if (into.empty()) return;
    const std::lock_guard lock(mutex_);
    try {
        if (!decoder_ || offset < position_) restart();
        skip_to(offset);
        produce(into);
        if (position_ == size_) finish();
    } catch (...) {
        close();
        throw;
    }
}

void StreamSource::restart() const {
    close();
    if (heavy_) make_room();
    decoder_ = open_();
    position_ = 0;
}

/// Lists this source, and ends the passes that were begun first. A source that is being read keeps its pass.
void StreamSource::make_room() const {
    HeavyPasses& passes = heavy_passes();
    const std::lock_guard lock(passes.mutex);
    auto at = passes.sources.end();
    while (passes.sources.size() >= most_heavy && at != passes.sources.begin()) {
        --at;
        const std::unique_lock other((*at)->mutex_, std::try_to_lock);
        if (!other) continue;
        (*at)->decoder_.reset();
        at = passes.sources.erase(at);
    }
    passes.sources.push_front(this);
}

void StreamSource::close() const noexcept {
    if (heavy_) {
        HeavyPasses& passes = heavy_passes();
        const std::lock_guard lock(passes.mutex);
        passes.sources.remove(this);
    }
    decoder_.reset();
}

/// Called after the last byte. Checks that the stream ends here too. Then frees the memory, because there may be many
/// such sources.
void StreamSource::finish() const {
    std::byte beyond{};
    if (decode(std::span(&beyond, 1)) != 0)
        throw fault(Errc::inflate_failed, "compressed data continues after the expected " + bytes_text(size_));
    decoder_->finish();
    close();
}

void StreamSource::skip_to(std::uint64_t offset) const {
    std::vector<std::byte> discarded(static_cast<std::size_t>(std::min<std::uint64_t>(skip_block, offset - position_)));
    while (position_ < offset)
        produce(std::span(discarded).first(
            static_cast<std::size_t>(std::min<std::uint64_t>(discarded.size(), offset - position_))));
}

void StreamSource::produce(std::span<std::byte> into) const {
    while (!into.empty()) {
        const std::size_t made = decode(into);
        if (made == 0)
            throw fault(Errc::inflate_failed,
                        "compressed data ends after " + bytes_text(position_) + ", expected " + bytes_text(size_));
        into = into.subspan(made);
        position_ += made;
    }
}

std::size_t StreamSource::decode(std::span<std::byte> into) const {
    try {
        return decoder_->decode(into);
    } catch (const BadStream& bad) {
        throw fault(Errc::inflate_failed,
                    bad.what + " after " + bytes_text(position_) + ", expected " + bytes_text(size_));
    }
}

Error StreamSource::fault(Errc code, const std::string& what) const {
    Error error(code, "record " + safemap::quoted(record_) + ": " + what);
    return std::move(error.with_path(source_->name()));
}

}  // namespace safemap::SAFEMAP_ABI
