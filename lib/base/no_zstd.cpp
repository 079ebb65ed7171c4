// Replaces zstd.cpp in a build without libzstd.
#include "base/zstd.hpp"

#include <safemap/error.hpp>

namespace safemap::SAFEMAP_ABI {

bool has_zstd() noexcept { return false; }

ZstdContent scan_zstd(const std::string& record, const Source& source, Extent, std::uint64_t) {
    throw Error(Errc::unknown_transform, "'" + record + "' is compressed, and this build of safemap does not read zstd")
        .with_hint("install libzstd (Debian: libzstd-dev) and build again with -Dzstd=enabled")
        .with_path(source.name());
}

std::shared_ptr<const Source> zstd_source(std::string record, std::shared_ptr<const Source> source, Extent packed,
                                          std::uint64_t) {
    static_cast<void>(scan_zstd(record, *source, packed, 0));
    return nullptr;
}

}  // namespace safemap::SAFEMAP_ABI
