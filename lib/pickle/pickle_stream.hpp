// Pickles that follow each other in a file, of which only the opcodes tell where they end. Each is read in a window
// that grows until its end is in it: what follows may be many gigabytes of tensors, and is not read.
#pragma once

#include "pickle/pickle.hpp"

#include <safemap/bytes.hpp>
#include <safemap/source.hpp>

#include <cstdint>
#include <functional>
#include <memory>
#include <string_view>
#include <utility>
#include <vector>

namespace safemap::SAFEMAP_ABI {

/// A pickle, and the bytes that its texts are views of.
struct HeldPickle {
    std::vector<char> bytes;
    PickleGraph graph;
};

class PickleStream {
public:
    /// Is told of each pickle, and what it is. It may throw.
    using Seen = std::function<void(const PickleGraph&, std::string_view what)>;

    /// Of `part` of the source, which lies inside it.
    PickleStream(std::shared_ptr<const Source> source, Extent part, Seen seen = {})
        : source_(std::move(source)), at_(part.offset), end_(part.end()), seen_(std::move(seen)) {}

    /// Reads the next pickle; `what` it is goes into errors. Throws the pickle_* faults, file_truncated.
    HeldPickle pickle(std::string_view what);
    /// The next eight bytes, little-endian. Throws file_truncated.
    std::int64_t number(std::string_view what);
    /// Steps over so many bytes without reading them, and says where they are. Throws file_truncated.
    Extent skip(std::uint64_t bytes, std::string_view what);

    std::uint64_t left() const noexcept { return end_ - at_; }

private:
    std::shared_ptr<const Source> source_;
    std::uint64_t at_;
    std::uint64_t end_;
    Seen seen_;
};

}  // namespace safemap::SAFEMAP_ABI
