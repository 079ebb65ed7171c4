// Copies a value block by block and writes each block to the pieces of the region that it covers.
#include "write/copy.hpp"

#include <safemap/advanced/dtypes.hpp>

#include "lazy/blocks.hpp"
#include "write/cuts.hpp"

#include <algorithm>

namespace safemap::SAFEMAP_ABI::write {

namespace {

using namespace literals;

// If blocks do not begin at pages of the file, their size is a multiple of all element sizes and of the three bytes of
// four F6 elements.
constexpr std::uint64_t grain = 48;

/// A writer of a region's bytes in consecutive stretches.
class Rows {
public:
    explicit Rows(const OutputPlace& to) : to_(to) {}

    /// Writes the bytes that follow the bytes of the last call.
    void append(std::span<const std::byte> bytes) {
        while (!bytes.empty()) {
            const Extent& piece = to_.pieces[piece_];
            const auto size = static_cast<std::size_t>(std::min<std::uint64_t>(bytes.size(), piece.size - done_));
            to_.file.write_at(to_.tensor + piece.offset + done_, bytes.first(size));
            bytes = bytes.subspan(size);
            done_ += size;
            if (done_ < piece.size) return;
            ++piece_;
            done_ = 0;
        }
    }

private:
    const OutputPlace& to_;
    std::size_t piece_ = 0;
    std::uint64_t done_ = 0;  // bytes of that piece that are written
};

/// Copies in the order of the value. If the region is one piece, blocks end at the block boundaries of the file. Each
/// block then has the same offset in a page of the buffer as in a page of the file, so that it can be written past the
/// page cache.
void copy_ranges(const OutputPlace& to, const LazyTensor& value, Worker& worker) {
    const std::uint64_t size = value.nbytes();
    const bool one_place = to.pieces.size() == 1 && whole_bytes(value.dtype());
    const std::uint64_t place = one_place ? to.tensor + to.pieces.front().offset : 0;
    const std::uint64_t block = one_place ? stream_block : stream_block / grain * grain;
    Rows rows(to);
    for (std::uint64_t done = 0; done < size;) {
        const std::uint64_t end = std::min(size, ((place + done) / block + 1) * block - place);
        const std::uint64_t into_page = one_place ? (place + done) % io::direct_alignment : 0;
        const auto bytes = worker.buffer(copy_buffer)
                               .subspan(static_cast<std::size_t>(into_page), static_cast<std::size_t>(end - done));
        worker.gatherer.fill(value, done, bytes);
        rows.append(bytes);
        done = end;
    }
}

void copy_tiles(const OutputPlace& to, const LazyTensor& value, const Blocks& tiles, Worker& worker) {
    const Region& region = to.region;
    for (std::uint64_t i = 0; i < tiles.count(); ++i) {
        Box box = tiles.box(i);
        for (std::size_t d = 0; d < box.start.size(); ++d) box.start[d] += region.box.start[d];
        const auto bytes = tiles.gather(i, value, worker.gatherer, worker.buffer(copy_buffer));
        for_each_range(region.shape, region.element_bits, box,
                       [&](std::uint64_t at, std::uint64_t in_tile, std::uint64_t length) {
                           to.file.write_at(to.tensor + region.offset + at, bytes.subspan(in_tile, length));
                       });
    }
}

}  // namespace

Region byte_range(std::uint64_t offset, std::uint64_t size) { return whole_value({size}, Dtype::u8, offset); }

Region whole_value(const Shape& shape, Dtype dtype, std::uint64_t offset) {
    return {.shape = shape,
            .box = {.start = Shape(shape.size(), 0), .extent = shape},
            .element_bits = bits(dtype),
            .offset = offset};
}

std::vector<Extent> pieces_of(const Region& region) {
    std::vector<Extent> pieces;
    for_each_range(region.shape, region.element_bits, region.box,
                   [&](std::uint64_t at, std::uint64_t, std::uint64_t length) {
                       pieces.push_back({region.offset + at, length});
                   });
    return pieces;
}

void copy_memory(const OutputPlace& to, std::span<const std::byte> bytes) { Rows(to).append(bytes); }

void copy_value(const OutputPlace& to, const LazyTensor& value, Worker& worker) {
    const Blocks blocks(value, copy_buffer);
    if (blocks.ranges()) copy_ranges(to, value, worker);
    else copy_tiles(to, value, blocks, worker);
}

}  // namespace safemap::SAFEMAP_ABI::write
