// A file that is mostly zeros that take no memory, and counts what is read of it.
#pragma once

#include <safemap/source.hpp>

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <cstring>
#include <memory>
#include <span>
#include <string>
#include <utility>

/// A source of `size` bytes: `head`, then zeros that take no memory. Counts into `read`.
inline std::shared_ptr<const safemap::Source> counting_source(std::string name, std::string head, std::uint64_t size,
                                                              std::shared_ptr<std::atomic<std::uint64_t>> read) {
    auto fill = [head = std::move(head), read = std::move(read)](std::uint64_t offset, std::span<std::byte> into) {
        *read += into.size();
        const std::uint64_t from_head =
            offset < head.size() ? std::min<std::uint64_t>(head.size() - offset, into.size()) : 0;
        if (from_head > 0) std::memcpy(into.data(), head.data() + offset, from_head);
        if (from_head < into.size()) std::memset(into.data() + from_head, 0, into.size() - from_head);
    };
    return safemap::callback_source(std::move(name), size, std::move(fill));
}
