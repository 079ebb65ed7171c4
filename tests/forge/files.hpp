// Builds safetensors, valid and invalid, from parts; also sources and folders in memory. Checks nothing, so that tests
// can build invalid files.
#pragma once

#include "base/folder.hpp"

#include <safemap/source.hpp>

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <filesystem>
#include <initializer_list>
#include <map>
#include <memory>
#include <random>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace forge {

/// Returns a number as little-endian bytes.
template <class T> std::string little_endian(T number) {
    std::string bytes(sizeof number, '\0');
    std::memcpy(bytes.data(), &number, sizeof number);
    return bytes;
}

std::vector<std::byte> to_bytes(std::string_view text);

std::string random_bytes(std::mt19937& random, std::size_t size);

/// Returns a source of exactly these bytes, in memory of exactly their size, so that a sanitizer sees a read past the
/// end.
inline std::shared_ptr<const safemap::Source> source(std::string_view content, std::string name = "forged") {
    return safemap::memory_source(std::move(name), to_bytes(content));
}

/// Returns a safetensors file: `header` unchanged, with its true length, and `data`.
inline std::string safetensors(std::string_view header, std::string_view data = {}) {
    return little_endian(std::uint64_t{header.size()}) + std::string(header) + std::string(data);
}

/// Returns the same with `length` instead of the true length.
inline std::string safetensors_claiming(std::uint64_t length, std::string_view header, std::string_view data = {}) {
    return little_endian(length) + std::string(header) + std::string(data);
}

/// Returns a header of contiguous U8 tensors: {{"a", 4}, {"b", 2}}.
std::string u8_header(std::span<const std::pair<std::string, std::uint64_t>> tensors);
inline std::string u8_header(std::initializer_list<std::pair<std::string, std::uint64_t>> tensors) {
    return u8_header(std::span(tensors.begin(), tensors.size()));
}

/// Returns a complete file of such tensors; byte i of the data is i modulo 251.
std::string u8_file(std::initializer_list<std::pair<std::string, std::uint64_t>> tensors);

/// Returns the files of a folder from their paths; text after a '=' is the content.
std::map<std::string, std::string> files_of(const std::vector<std::string>& names);

/// Writes files by their paths below a folder.
void write_files(const std::filesystem::path& root, const std::map<std::string, std::string>& files);

/// A folder in memory.
class Folder final : public safemap::Folder {
public:
    explicit Folder(std::map<std::string, std::string> files, std::string name = "folder")
        : name_(std::move(name)), files_(std::move(files)) {}

    const std::string& name() const noexcept override { return name_; }
    std::vector<std::string> list() const override;
    std::vector<std::string> folders() const override;
    std::shared_ptr<const safemap::Folder> folder(std::string_view name) const override;
    std::shared_ptr<const safemap::Source> open(std::string_view file) const override;

private:
    std::string name_;
    std::map<std::string, std::string> files_;
};

}  // namespace forge
