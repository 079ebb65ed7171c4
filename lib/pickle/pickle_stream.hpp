// Reads pickles that follow each other in a file. Only the opcodes of a pickle say where it ends, so each is read in a
// window that grows until it holds the end. The rest of the file may be many gigabytes of tensors and is not read.
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

/// A cursor over a sequence of pickles and numbers in a file.
class PickleStream {
public:
    /// A callback that gets each pickle and its description. It may throw.
    using Seen = std::function<void(const PickleGraph&, std::string_view what)>;

    /// Reads `part` of the source; `part` must be inside the source.
    PickleStream(std::shared_ptr<const Source> source, Extent part, Seen seen = {})
        : source_(std::move(source)), at_(part.offset), end_(part.end()), seen_(std::move(seen)) {}

    /// Reads the next pickle. `what` describes it in errors. Throws the pickle_* faults, file_truncated.
    HeldPickle pickle(std::string_view what);
    /// Reads the next eight bytes, little-endian. Throws file_truncated.
    std::int64_t number(std::string_view what);
    /// Skips bytes without reading them, and returns their place. Throws file_truncated.
    Extent skip(std::uint64_t bytes, std::string_view what);

    std::uint64_t left() const noexcept { return end_ - at_; }

private:
    std::shared_ptr<const Source> source_;
    std::uint64_t at_;
    std::uint64_t end_;
    Seen seen_;
};

}  // namespace safemap::SAFEMAP_ABI
