// Makes a tensor of each kind, and remembers which source its first element is in.
#include "device/random_tensors.hpp"

#include <safemap/advanced/dtypes.hpp>
#include <safemap/advanced/stored_tensor.hpp>
#include <safemap/advanced/strides.hpp>

#include <algorithm>
#include <iterator>
#include <utility>

namespace random_tensors {

Maker::Maker(unsigned seed, std::size_t sources, std::uint64_t source_bytes) : random_(seed) {
    for (std::size_t i = 0; i < sources; ++i)
        sources_.push_back(counted_.emplace_back(seed + i, source_bytes).source());
}

Maker::Maker(unsigned seed, std::shared_ptr<const safemap::Source> source)
    : random_(seed), sources_{std::move(source)} {}

std::uint64_t Maker::bytes_read() const {
    std::uint64_t sum = 0;
    for (const Counted& one : counted_) sum += one.bytes();
    return sum;
}

Placed Maker::make(Kind kind, std::uint64_t elements) {
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
            return {
                {name(), placed.tensor.stored(), safemap::Decoding{.byte_swap = true}}, placed.source, placed.offset};
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

safemap::Dtype Maker::any() {
    constexpr safemap::Dtype all[] = {safemap::Dtype::u8, safemap::Dtype::bf16, safemap::Dtype::f32,
                                      safemap::Dtype::i64};
    return all[below(std::size(all))];
}

Placed Maker::run(safemap::Dtype dtype, safemap::Shape shape) {
    const SourcePtr& in = source();
    const std::uint64_t bytes = *safemap::byte_size(dtype, *safemap::element_count(shape));
    const std::uint64_t offset = room(in, bytes);
    return {{name(), safemap::stored_run(dtype, std::move(shape), in, offset)}, in.get(), offset};
}

Placed Maker::backwards(std::uint64_t rows, std::uint64_t columns) {
    const Placed placed = run(safemap::Dtype::u16, {rows, 2 * columns});
    const auto tensor =
        placed.tensor.slice({safemap::Slice{.step = -1}, safemap::Slice{.start = 1, .step = 2}}).renamed(name());
    return {tensor, placed.source, placed.offset + 2 * ((rows - 1) * 2 * columns + 1)};
}

Placed Maker::transposed(std::uint64_t rows, std::uint64_t columns) {
    const Placed placed = run(below(2) == 0 ? safemap::Dtype::bf16 : safemap::Dtype::u8, {columns, rows});
    const safemap::StridedView view{{rows, columns}, {1, static_cast<std::int64_t>(rows)}, 0};
    return {{name(), placed.tensor.stored(), view}, placed.source, placed.offset};
}

Placed Maker::runs(std::uint64_t rows, std::uint64_t columns) {
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
    return {
        {name(), safemap::stored_runs(safemap::Dtype::u32, {rows, columns}, pieces)}, first.source.get(), first.offset};
}

Placed Maker::boxes(std::uint64_t rows, std::uint64_t columns) {
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

}  // namespace random_tensors
