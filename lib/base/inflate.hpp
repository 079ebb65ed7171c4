// A deflated stream as a Source: reads forward, goes on from kept states for a read elsewhere, cannot be mapped.
#pragma once

#include <safemap/source.hpp>

#include <cstdint>
#include <memory>
#include <optional>
#include <string>

namespace safemap::SAFEMAP_ABI {

/// Returns the inflated bytes of a zip record as a Source. The record is `packed` in `source`, raw deflate, and
/// inflates to `size` bytes. Reads nothing yet.
/// read_at() throws inflate_failed if the stream is damaged or does not end after `size` bytes; checksum_mismatch if
/// the CRC-32 of all bytes is not `crc32`. Both errors name the record. The checksum is compared whenever the last byte
/// is read, in any order of reads. Without `crc32` nothing is compared.
/// Reads at rising offsets take one pass over the stream. A read elsewhere inflates from the nearest kept state: up to
/// 1 MiB before it, and more in a stream of more than 224 MiB (StreamSource). Calls from several threads run one after
/// another.
std::shared_ptr<const Source> inflated_source(std::string record, std::shared_ptr<const Source> source, Extent packed,
                                              std::uint64_t size, std::optional<std::uint32_t> crc32 = std::nullopt);

}  // namespace safemap::SAFEMAP_ABI
