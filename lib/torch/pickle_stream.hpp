// Pickles that follow each other in a file, of which only the opcodes tell where they end. Each is read in a window
// that grows until its end is in it: what follows may be many gigabytes of tensors, and is not read.
#pragma once

#include "torch/globals.hpp"
#include "torch/pickle.hpp"

#include <safemap/bytes.hpp>
#include <safemap/source.hpp>

#include <cstdint>
#include <memory>
#include <string_view>
#include <vector>

namespace safemap::SAFEMAP_ABI::torch {

/// A pickle, and the bytes that its texts are views of.
struct HeldPickle {
    std::vector<char> bytes;
    PickleGraph graph;
};

class PickleStream {
public:
    /// Of `part` of the source, which lies inside it. The globals of all pickles are added to `globals`, as those of
    /// the record that pickle() is called with.
    PickleStream(std::shared_ptr<const Source> source, Extent part, NamedGlobals* globals = nullptr)
        : source_(std::move(source)), at_(part.offset), end_(part.end()), globals_(globals) {}

    /// Reads the next pickle; `what` it is goes into errors. Throws the pickle_* faults, file_truncated.
    HeldPickle pickle(std::string_view what);
    /// The next eight bytes, little-endian. Throws file_truncated.
    std::int64_t number(std::string_view what);
    /// Steps over so many bytes without reading them, and says where they are. Throws file_truncated.
    Extent skip(std::uint64_t bytes, std::string_view what);

    const std::shared_ptr<const Source>& source() const noexcept { return source_; }
    std::uint64_t left() const noexcept { return end_ - at_; }

private:
    std::shared_ptr<const Source> source_;
    std::uint64_t at_;
    std::uint64_t end_;
    NamedGlobals* globals_;
};

}  // namespace safemap::SAFEMAP_ABI::torch
