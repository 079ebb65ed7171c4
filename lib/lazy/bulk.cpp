// Allocates the memory of workers, and finds the item of a block.
#include "lazy/bulk.hpp"

#include <algorithm>
#include <iterator>

namespace safemap::SAFEMAP_ABI {

std::span<std::byte> PageBuffer::get(std::size_t size) {
    if (size > size_) {
        memory_.reset(new (std::align_val_t{page}) std::byte[size]);
        size_ = size;
    }
    return {memory_.get(), size};
}

Workers::Workers(unsigned threads, unsigned buffers, std::uint64_t largest, ThreadLimits limits)
    : workers_(thread_count(threads, limits)),
      buffers_(buffers),
      buffer_size_(buffer_size(count(), buffers, largest)) {}

BlockRow::Place BlockRow::at(std::size_t i) const noexcept {
    const auto end = std::upper_bound(ends_.begin(), ends_.end(), i);
    const std::size_t begin = end == ends_.begin() ? 0 : *std::prev(end);
    return {static_cast<std::size_t>(end - ends_.begin()), i - begin};
}

void BlockRow::each(unsigned threads, Watch& watch, std::size_t first, std::size_t last,
                    const std::function<void(Place, unsigned)>& work) const {
    parallel_for(
        last - first, threads, [&](std::size_t i, unsigned worker) { work(at(first + i), worker); },
        [&] { watch.tick(); });
}

}  // namespace safemap::SAFEMAP_ABI
