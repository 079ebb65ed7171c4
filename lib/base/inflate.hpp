// A deflated stream as a Source: reads forward, restarts when asked backwards, has no addresses.
#pragma once

#include <safemap/source.hpp>

#include <cstdint>
#include <memory>
#include <optional>
#include <string>

namespace safemap::SAFEMAP_ABI {

/// A zip record: `packed` of `source`, raw deflate, which gives `size` bytes. Nothing is read yet. read_at throws
/// inflate_failed where the stream is damaged or does not end after `size` bytes, and checksum_mismatch where all of
/// it has another CRC-32 than `crc32`. Both name the record. Every pass begins at the first byte, so the checksum is
/// compared whenever the last byte is read, in whatever order the reads come. Without `crc32` none is compared.
/// Reads at rising offsets cost one pass over the stream; a read behind the last one starts again. Calls from several
/// threads take turns.
std::shared_ptr<const Source> inflated_source(std::string record, std::shared_ptr<const Source> source, Extent packed,
                                              std::uint64_t size, std::optional<std::uint32_t> crc32 = std::nullopt);

}  // namespace safemap::SAFEMAP_ABI
