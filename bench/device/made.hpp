// Files of safetensors for the benchmarks of devices: headers, and files of random bytes in the page cache.
#pragma once

#include "safetensors/header.hpp"

#include <safemap/bytes.hpp>

#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdint>
#include <cstdlib>
#include <filesystem>
#include <random>
#include <string>
#include <system_error>
#include <utility>
#include <vector>

namespace made {

/// Name and bytes of a tensor.
using Item = std::pair<std::string, std::uint64_t>;

/// Returns the bytes before the data in a file with these U8 tensors.
inline std::string header_of(const std::vector<Item>& items) {
    std::vector<safemap::Shape> shapes;
    for (const auto& [name, size] : items) shapes.push_back({size});
    std::vector<safemap::safetensors::TensorSpec> specs;
    for (std::size_t i = 0; i < items.size(); ++i)
        specs.push_back({.name = items[i].first, .dtype = safemap::Dtype::u8, .shape = &shapes[i]});
    return safemap::safetensors::write_header(specs, {}, false, 8);
}

/// Returns `count` tensors of 16 bytes.
inline std::vector<Item> small_items(std::size_t count) {
    std::vector<Item> items;
    for (std::size_t i = 0; i < count; ++i) items.emplace_back("model.layers." + std::to_string(i) + ".bias", 16);
    return items;
}

/// A file of tensors with random bytes. All of it is in the page cache and on the disk. It is removed at the end.
class File {
public:
    File(const std::filesystem::path& folder, const std::vector<Item>& items)
        : path_((folder / "safemap-bench-XXXXXX.safetensors").string()) {
        descriptor_ = ::mkstemps(path_.data(), 12);
        if (descriptor_ < 0) fail(path_);
        const std::string header = header_of(items);
        write(header.data(), header.size());
        data_ = size_;
        std::uint64_t left = 0;
        for (const auto& [name, size] : items) left += size;
        std::vector<std::uint32_t> block((std::uint64_t{8} << 20) / 4);
        std::minstd_rand random(1);
        for (std::uint32_t& word : block) word = static_cast<std::uint32_t>(random());
        while (left > 0) {
            const std::uint64_t next = std::min<std::uint64_t>(left, block.size() * 4);
            write(block.data(), next);
            left -= next;
        }
        if (::fsync(descriptor_) != 0) fail("fsync");
    }
    ~File() {
        ::close(descriptor_);
        ::unlink(path_.c_str());
    }
    File(const File&) = delete;
    File& operator=(const File&) = delete;

    const std::string& path() const noexcept { return path_; }
    int descriptor() const noexcept { return descriptor_; }
    /// Returns the offset of the first tensor.
    std::uint64_t data() const noexcept { return data_; }

private:
    [[noreturn]] static void fail(const std::string& what) {
        throw std::system_error(errno, std::generic_category(), what);
    }
    void write(const void* bytes, std::uint64_t size) {
        if (::pwrite(descriptor_, bytes, size, static_cast<off_t>(size_)) != static_cast<ssize_t>(size)) fail(path_);
        size_ += size;
    }

    std::string path_;
    int descriptor_ = -1;
    std::uint64_t data_ = 0;
    std::uint64_t size_ = 0;
};

}  // namespace made
