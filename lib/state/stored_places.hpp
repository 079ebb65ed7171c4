// What a file of torch says of its bytes besides the tensors.
#pragma once

#include <safemap/source.hpp>

#include <cstdint>
#include <memory>
#include <string>

namespace safemap::SAFEMAP_ABI {

/// A record of a zip whose checksum is stored.
struct StoredChecksum {
    std::shared_ptr<const Source> source;
    Extent extent;
    std::uint32_t crc32;
    std::string record;  ///< "archive/data/0"
};

/// Where a storage of a `.pt` stands.
struct StoragePlace {
    std::shared_ptr<const Source> source;
    Extent extent;
};

}  // namespace safemap::SAFEMAP_ABI
