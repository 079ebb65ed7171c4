// A buffer that can be written past the page cache.
#pragma once

#include "io/output.hpp"

#include <cstddef>
#include <memory>
#include <new>
#include <span>

namespace safemap::SAFEMAP_ABI::write {

/// Memory that begins at a page. Not a vector: that would write zeros into pages which the next read fills anyway.
class PageBuffer {
public:
    PageBuffer() = default;
    explicit PageBuffer(std::size_t size)
        : bytes_(new (std::align_val_t{io::direct_alignment}) std::byte[size]), size_(size) {}

    std::span<std::byte> bytes() const noexcept { return {bytes_.get(), size_}; }

private:
    struct Free {
        void operator()(std::byte* bytes) const noexcept {
            ::operator delete[](bytes, std::align_val_t{io::direct_alignment});
        }
    };
    std::unique_ptr<std::byte[], Free> bytes_;
    std::size_t size_ = 0;
};

}  // namespace safemap::SAFEMAP_ABI::write
