// A deflated stream as a Source: reads forward, restarts when asked backwards, has no addresses.
#pragma once

#include <safemap/source.hpp>

#include <memory>
#include <string>

namespace safemap {

/// `packed` of `source`, raw deflate as zip stores it, which gives `size` bytes. Nothing is read yet. read_at throws
/// inflate_failed where the stream is damaged or ends before `size` bytes. Reads at rising offsets cost one pass
/// over the stream; a read behind the last one starts again. Calls from several threads take turns.
std::shared_ptr<const Source> inflated_source(std::string name, std::shared_ptr<const Source> source, Extent packed,
                                              std::uint64_t size);

}  // namespace safemap
