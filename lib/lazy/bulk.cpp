// Workers' memory, and where a block of many tensors is.
#include "lazy/bulk.hpp"

#include "base/pool.hpp"

#include <safemap/bytes.hpp>

#include <algorithm>
#include <iterator>

namespace safemap::SAFEMAP_ABI {
namespace {

using namespace literals;

constexpr std::uint64_t all_memory = 32_MiB;
constexpr std::uint64_t gatherer_memory = 3_MiB;
constexpr std::uint64_t largest_buffer = 4_MiB;
constexpr std::uint64_t page = 4_KiB;
constexpr unsigned most_workers = 8;  // which leaves each 1 MiB for its buffers

}  // namespace

Workers::Workers(unsigned threads, unsigned buffers)
    : workers_(std::min(thread_count(threads), most_workers)), buffers_(buffers) {
    const std::uint64_t room = (all_memory / workers_.size() - gatherer_memory) / buffers_;
    buffer_size_ = static_cast<std::size_t>(std::min(largest_buffer, room / page * page));
}

std::span<std::byte> Workers::buffer(unsigned worker, unsigned which) {
    auto& memory = workers_[worker].memory;
    if (!memory) memory = std::make_unique_for_overwrite<std::byte[]>(buffers_ * buffer_size_);
    return {memory.get() + which * buffer_size_, buffer_size_};
}

BlockRow::Place BlockRow::at(std::size_t i) const noexcept {
    const auto end = std::upper_bound(ends_.begin(), ends_.end(), i);
    const std::size_t begin = end == ends_.begin() ? 0 : *std::prev(end);
    return {static_cast<std::size_t>(end - ends_.begin()), i - begin};
}

}  // namespace safemap::SAFEMAP_ABI
