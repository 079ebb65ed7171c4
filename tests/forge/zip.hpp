// Writes zips, valid and invalid, and deflates bytes in the form that they store: raw, without zlib's header and
// checksum.
#pragma once

#include "base/checksum.hpp"

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace forge {

std::vector<std::byte> deflated(std::span<const std::byte> data);
std::string deflated(const std::string& data);

inline std::uint32_t crc(std::string_view data) { return safemap::crc32(0, std::as_bytes(std::span(data))); }

/// A zip in parts that a test can change before they are joined. Invalid values are written as they are.
struct Zip {
    struct Record {
        std::string name;
        std::string data;
        std::string local_name = name;
        std::uint16_t flags = 0x0808;
        std::uint16_t method = 0;
        std::uint64_t packed = data.size();
        std::uint64_t size = data.size();
        std::string extra = {};  ///< extra field of the central entry
        std::uint32_t crc32 = crc(data);
    };
    std::vector<Record> records = {};
    std::string prefix = {};
    std::string comment = {};
    bool zip64_end = true;
    bool descriptors = true;    ///< checksums and sizes stand after the data, not before them
    std::size_t alignment = 1;  ///< payloads begin at multiples of it, padded by an extra field as in PyTorch
    int count_error = 0;

    void add(std::string name, std::string data) {
        records.push_back({.name = std::move(name), .data = std::move(data)});
    }
    void add_deflated(std::string name, const std::string& data);

    std::string join() const;
};

/// Returns a plain zip: nothing in it is written later than its place, and the payloads are aligned.
std::string zip(std::vector<Zip::Record> records, std::size_t alignment = 64);

}  // namespace forge
