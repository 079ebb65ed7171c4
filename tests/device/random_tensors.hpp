// Random tensors of every kind that a layout can have, each with the place of its first element.
#pragma once

#include <safemap/advanced/dtypes.hpp>
#include <safemap/advanced/stored_tensor.hpp>
#include <safemap/advanced/strides.hpp>
#include <safemap/lazy_tensor.hpp>

#include "device/counted.hpp"

#include <algorithm>
#include <cstdint>
#include <memory>
#include <random>
#include <string>
#include <utility>
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
    Maker(unsigned seed, std::size_t sources, std::uint64_t source_bytes) : random_(seed) {
        for (std::size_t i = 0; i < sources; ++i)
            sources_.push_back(counted_.emplace_back(seed + i, source_bytes).source());
    }
    Maker(unsigned seed, std::shared_ptr<const safemap::Source> source) : random_(seed), sources_{std::move(source)} {}

    std::uint64_t below(std::uint64_t n) { return std::uniform_int_distribution<std::uint64_t>(0, n - 1)(random_); }
    std::mt19937& random() { return random_; }
    /// Returns the bytes that were read from the sources.
    std::uint64_t bytes_read() const {
        std::uint64_t sum = 0;
        for (const Counted& one : counted_) sum += one.bytes();
        return sum;
    }

    /// Makes a tensor with about `elements` elements of at most 8 bytes, at least one unless it is empty.
    Placed make(Kind kind, std::uint64_t elements) {
        const std::uint64_t rows = 1 + below(std::min<std::uint64_t>(elements, 300));
        const std::uint64_t columns = std::max<std::uint64_t>(1, elements / rows);
        switch (kind) {
            case Kind::run: return run(any(), {rows, columns});
            case Kind::backwards: return backwards(rows, columns);
            case Kind::transposed: return transposed(rows, columns);
            case Kind::runs: return runs(rows, columns);
            case Kind::boxes: return boxes(rows, columns);
            case Kind::cast: {
                Placed placed = run(safemap::Dtype::f32, {rows, columns});
                const bool wider = below(2) == 0;
                return {placed.tensor.cast(wider ? safemap::Dtype::f64 : safemap::Dtype::bf16), placed.source,
                        placed.offset};
            }
            case Kind::swapped: {
                const Placed placed = run(safemap::Dtype::i32, {rows, columns});
                return {{name(), placed.tensor.stored(), safemap::Decoding{.byte_swap = true}},
                        placed.source,
                        placed.offset};
            }
            case Kind::repeated: {
                const Placed placed = run(safemap::Dtype::u16, {columns});
                const safemap::StridedView view{{rows, columns}, {0, 1}, 0};
                return {{name(), placed.tensor.stored(), view}, placed.source, placed.offset};
            }
            case Kind::below_byte: {
                const bool four = below(2) == 0;
                return run(four ? safemap::Dtype::f4 : safemap::Dtype::f6_e2m3, {rows, columns * 8});
            }
            case Kind::empty: break;
        }
        return run(any(), {columns, 0});
    }

private:
    std::string name() { return "t" + std::to_string(++names_); }
    using SourcePtr = std::shared_ptr<const safemap::Source>;
    const SourcePtr& source() { return sources_[below(sources_.size())]; }
    std::uint64_t room(const SourcePtr& in, std::uint64_t bytes) { return below(in->size() - bytes + 1); }
    safemap::Dtype any() {
        constexpr safemap::Dtype all[] = {safemap::Dtype::u8, safemap::Dtype::bf16, safemap::Dtype::f32,
                                          safemap::Dtype::i64};
        return all[below(std::size(all))];
    }

    Placed run(safemap::Dtype dtype, safemap::Shape shape) {
        const SourcePtr& in = source();
        const std::uint64_t bytes = *safemap::byte_size(dtype, *safemap::element_count(shape));
        const std::uint64_t offset = room(in, bytes);
        return {{name(), safemap::stored_run(dtype, std::move(shape), in, offset)}, in.get(), offset};
    }
    /// Rows from the last to the first, every second column.
    Placed backwards(std::uint64_t rows, std::uint64_t columns) {
        const Placed placed = run(safemap::Dtype::u16, {rows, 2 * columns});
        const auto tensor =
            placed.tensor.slice({safemap::Slice{.step = -1}, safemap::Slice{.start = 1, .step = 2}}).renamed(name());
        return {tensor, placed.source, placed.offset + 2 * ((rows - 1) * 2 * columns + 1)};
    }
    Placed transposed(std::uint64_t rows, std::uint64_t columns) {
        const Placed placed = run(below(2) == 0 ? safemap::Dtype::bf16 : safemap::Dtype::u8, {columns, rows});
        const safemap::StridedView view{{rows, columns}, {1, static_cast<std::int64_t>(rows)}, 0};
        return {{name(), placed.tensor.stored(), view}, placed.source, placed.offset};
    }
    /// A tensor in several sources.
    Placed runs(std::uint64_t rows, std::uint64_t columns) {
        const std::uint64_t count = rows * columns;
        std::vector<safemap::RunPiece> pieces;
        for (std::uint64_t first = 0; first < count;) {
            const SourcePtr& in = source();
            const std::uint64_t n = pieces.size() > 3 ? count - first : 1 + below(count - first);
            pieces.push_back({in, room(in, n * 4), first, n});
            first += n;
        }
        const auto first = pieces.front();
        std::shuffle(pieces.begin(), pieces.end(), random_);
        return {{name(), safemap::stored_runs(safemap::Dtype::u32, {rows, columns}, pieces)},
                first.source.get(),
                first.offset};
    }
    /// Columns in boxes, whose rows are short.
    Placed boxes(std::uint64_t rows, std::uint64_t columns) {
        std::vector<safemap::BoxPiece> pieces;
        const std::uint64_t most = 1 + columns / 3;
        for (std::uint64_t first = 0; first < columns;) {
            const std::uint64_t n = std::min(most, columns - first);
            const SourcePtr& in = source();
            pieces.push_back({in, room(in, rows * n * 4), {{0, first}, {rows, n}}, {static_cast<std::int64_t>(n), 1}});
            first += n;
        }
        const auto first = pieces.front();
        return {{name(), safemap::stored_boxes(safemap::Dtype::f32, {rows, columns}, pieces)},
                first.source.get(),
                first.offset};
    }

    std::mt19937 random_;
    std::vector<Counted> counted_;
    std::vector<SourcePtr> sources_;
    int names_ = 0;
};

}  // namespace random_tensors
