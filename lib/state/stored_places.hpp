// The places and checksums of bytes that a PyTorch file stores, apart from its tensors.
#pragma once

#include <safemap/source.hpp>

#include <cstdint>
#include <memory>
#include <string>

namespace safemap::SAFEMAP_ABI {

/// A record of a zip with a stored checksum.
struct StoredChecksum {
    std::shared_ptr<const Source> source;
    Extent extent;
    std::uint32_t crc32;
    std::string record;  ///< its name: "archive/data/0"
};

/// The place of a storage in a `.pt` file.
struct StoragePlace {
    std::shared_ptr<const Source> source;
    Extent extent;
};

}  // namespace safemap::SAFEMAP_ABI
