// Random tensors of every kind that a layout can have, each with the place of its first element.
#pragma once

#include "device/counted.hpp"

#include <safemap/dtype.hpp>
#include <safemap/lazy_tensor.hpp>
#include <safemap/shape.hpp>
#include <safemap/source.hpp>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <random>
#include <string>
#include <vector>

namespace random_tensors {

/// A tensor, and the place of its first element as the test chose it.
struct Placed {
    safemap::LazyTensor tensor;
    const safemap::Source* source = nullptr;
    std::uint64_t offset = 0;
};

enum class Kind { run, backwards, transposed, runs, boxes, cast, swapped, repeated, below_byte, empty };
constexpr Kind kinds[] = {Kind::run,  Kind::backwards, Kind::transposed, Kind::runs,       Kind::boxes,
                          Kind::cast, Kind::swapped,   Kind::repeated,   Kind::below_byte, Kind::empty};

/// Makes tensors in a few sources, at random places that may overlap.
class Maker {
public:
    Maker(unsigned seed, std::size_t sources, std::uint64_t source_bytes);
    Maker(unsigned seed, std::shared_ptr<const safemap::Source> source);

    std::uint64_t below(std::uint64_t n) { return std::uniform_int_distribution<std::uint64_t>(0, n - 1)(random_); }
    std::mt19937& random() { return random_; }
    /// Returns the bytes that were read from the sources.
    std::uint64_t bytes_read() const;

    /// Makes a tensor with about `elements` elements of at most 8 bytes, at least one unless it is empty.
    Placed make(Kind kind, std::uint64_t elements);

private:
    std::string name() { return "t" + std::to_string(++names_); }
    using SourcePtr = std::shared_ptr<const safemap::Source>;
    const SourcePtr& source() { return sources_[below(sources_.size())]; }
    std::uint64_t room(const SourcePtr& in, std::uint64_t bytes) { return below(in->size() - bytes + 1); }
    safemap::Dtype any();

    Placed run(safemap::Dtype dtype, safemap::Shape shape);
    /// Rows from the last to the first, every second column.
    Placed backwards(std::uint64_t rows, std::uint64_t columns);
    Placed transposed(std::uint64_t rows, std::uint64_t columns);
    /// A tensor in several sources.
    Placed runs(std::uint64_t rows, std::uint64_t columns);
    /// Columns in boxes, whose rows are short.
    Placed boxes(std::uint64_t rows, std::uint64_t columns);

    std::mt19937 random_;
    std::vector<Counted> counted_;
    std::vector<SourcePtr> sources_;
    int names_ = 0;
};

}  // namespace random_tensors
