// Reads pickles through windows of a file. Tested by tests/torch/legacy_test.cpp.
#include "pickle/pickle_stream.hpp"

#include "base/text.hpp"

#include <algorithm>
#include <span>
#include <string>
#include <utility>

namespace safemap::SAFEMAP_ABI {

namespace {

/// Windows that grow fourfold read a third more than if the size were known.
constexpr std::uint64_t first_window = 512;
constexpr std::uint64_t growth = 4;

Error truncated(std::string_view what, const std::string& how) {
    return {Errc::file_truncated, std::string(what) + ": " + how};
}

}  // namespace

HeldPickle PickleStream::pickle(std::string_view what) {
    const std::uint64_t most = std::min(left(), PickleLimits::most_bytes);
    for (std::uint64_t window = std::min(first_window, most);; window = std::min(window * growth, most)) {
        HeldPickle held;
        held.bytes.resize(window);
        source_->read_at(at_, std::as_writable_bytes(std::span(held.bytes)));
        PickleLimits limits = PickleLimits::of_packed(window);
        limits.follows = left() - window;
        try {
            held.graph = read_pickle(held.bytes, limits);
            at_ += held.graph.consumed();
            if (seen_) seen_(held.graph, what);
            return held;
        } catch (const Error& error) {
            const bool cut = error.code() == Errc::pickle_truncated;
            if (!cut) throw Error(error.code(), std::string(what) + ": " + error.message());
            if (window == left()) throw truncated(what, error.message());
            if (window == most) {
                throw Error(Errc::pickle_too_large, std::string(what) + ": more than " + bytes_text(most));
            }
        }
    }
}

std::int64_t PickleStream::number(std::string_view what) {
    std::int64_t value = 0;
    const Extent place = skip(sizeof value, what);
    source_->read_at(place.offset, std::as_writable_bytes(std::span(&value, 1)));
    return value;
}

Extent PickleStream::skip(std::uint64_t bytes, std::string_view what) {
    if (bytes > left()) throw truncated(what, "expected " + bytes_text(bytes) + ", found " + bytes_text(left()));
    return {std::exchange(at_, at_ + bytes), bytes};
}

}  // namespace safemap::SAFEMAP_ABI
