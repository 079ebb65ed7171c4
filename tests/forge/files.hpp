// Builds valid and invalid files from parts: safetensors, zips, .pt archives; also folders in memory. Checks nothing,
// so that tests can build invalid files.
#pragma once

#include "base/folder.hpp"

#include <safemap/source.hpp>

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <initializer_list>
#include <map>
#include <memory>
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

/// A stored record of a zip. Invalid values are written as they are.
struct ZipRecord {
    std::string name = {};
    std::string bytes = {};
    bool wrong_crc = false;
    bool zero_crc = false;
};

/// Returns a zip without compression. Payloads begin at multiples of `alignment`, padded by an extra field as in
/// PyTorch.
std::string zip(std::span<const ZipRecord> records, std::size_t alignment = 64);

/// A contiguous float32 tensor of a state dict, with a storage of its own.
struct PtTensor {
    std::string name = {};
    std::vector<std::uint32_t> shape = {};
    std::vector<float> values = {};
};

/// Returns the records of a file of torch.save.
std::vector<ZipRecord> pt_records(std::span<const PtTensor> tensors);
inline std::string pt(std::initializer_list<PtTensor> tensors) {
    return zip(pt_records(std::span(tensors.begin(), tensors.size())));
}

/// Returns the files of a folder from their paths; text after a '=' is the content.
std::map<std::string, std::string> files_of(const std::vector<std::string>& names);

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
