// The checksum that kernels of tests compute.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>

/// A checksum of rows of bytes.
class RowChecksum {
public:
    void add(const void* row, std::size_t size) {
        for (std::size_t at = 0; at < size; at += 8) {
            std::uint64_t word = 0;
            std::memcpy(&word, static_cast<const std::byte*>(row) + at, std::min<std::size_t>(8, size - at));
            mix(word);
        }
        size_ += size;
    }
    std::uint64_t value() {
        mix(size_);
        return sum_;
    }

private:
    void mix(std::uint64_t word) {
        sum_ = (sum_ ^ word) * 0x9e3779b97f4a7c15;
        sum_ ^= sum_ >> 29;
    }

    std::uint64_t sum_ = 0xcbf29ce484222325;
    std::uint64_t size_ = 0;
};
