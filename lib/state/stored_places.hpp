// The places and checksums of bytes that a PyTorch file stores, apart from its tensors.
#pragma once

#include <safemap/source.hpp>

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

namespace safemap::SAFEMAP_ABI {

/// A record of a zip with a stored checksum.
struct StoredChecksum {
    std::shared_ptr<const Source> source;
    Extent extent;
    std::uint32_t crc32;
    std::string record;  ///< its name: "archive/data/0"
};

/// The parts of files that are zips of their own, as the items of torch.distributed.checkpoint are. verify() reads
/// their records, whose list would take more memory than all else.
struct StoredItems {
    struct Item {
        std::uint64_t offset;
        std::uint64_t length;
        std::uint32_t file;  ///< number in `files`
        std::uint32_t name;  ///< number in `names`
        bool zstd;           ///< true if the zip is compressed as a whole
    };
    std::vector<std::shared_ptr<const Source>> files = {};
    std::vector<std::string> names = {};
    std::vector<Item> items = {};    ///< in the order of files and offsets; no two overlap
    std::uint64_t bytes_beside = 0;  ///< size of files that have no checksums at all, such as metadata
};

/// The place of a storage in a `.pt` file.
struct StoragePlace {
    std::shared_ptr<const Source> source;
    Extent extent;
};

/// The places and checksums that files store apart from their tensors, for verify() and save().
struct StoredPlaces {
    std::vector<StoredChecksum> checksums = {};
    std::vector<StoragePlace> storages = {};
    /// Set if files hold many zips, whose checksums are then not in `checksums`.
    std::shared_ptr<const StoredItems> items = {};
};

}  // namespace safemap::SAFEMAP_ABI
