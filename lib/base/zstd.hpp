// A zstd stream as a Source, in builds with libzstd.
#pragma once

#include <safemap/source.hpp>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

namespace safemap::SAFEMAP_ABI {

/// Returns true if this build reads zstd.
bool has_zstd() noexcept;

/// The size of a stream, which is known at its end only, and its first and last bytes.
struct ZstdContent {
    /// Most bytes of each end.
    static constexpr std::size_t most_kept = 64U << 10;

    std::uint64_t size = 0;
    std::vector<std::byte> head = {};
    std::vector<std::byte> tail = {};
};

/// Reads the stream that is `packed` in `source` once, from its first to its last byte: one or several frames. `record`
/// names it in errors. Throws inflate_failed if the stream is damaged or has more than `most` bytes; unknown_transform
/// in a build without libzstd.
ZstdContent scan_zstd(const std::string& record, const Source& source, Extent packed, std::uint64_t most);

/// Returns the decoded bytes of the stream, `size` as scan_zstd() has found, as a Source. Reads nothing yet. read_at()
/// throws inflate_failed. Reads at rising offsets take one pass over the stream. A read elsewhere begins at the nearest
/// frame, and a small read backwards decodes 4 MiB, which are kept (StreamSource). Most streams are one frame: reads
/// further and further back decode it from its beginning for every 4 MiB. A pass needs a window of about 2 MiB, so few
/// passes of all streams are kept at a time. Calls from several threads run one after another.
std::shared_ptr<const Source> zstd_source(std::string record, std::shared_ptr<const Source> source, Extent packed,
                                          std::uint64_t size);

}  // namespace safemap::SAFEMAP_ABI
