// A copy of a file in memory of this process, read where it is asked for.
#pragma once

#include "io/file.hpp"

#include <safemap/bytes.hpp>
#include <safemap/source.hpp>

#include <cstdint>
#include <map>
#include <memory>
#include <mutex>

namespace safemap::SAFEMAP_ABI::io {

/// The twin of a private mapping for file systems whose files are not mapped. Addresses for the whole file are taken at
/// once, memory only for what is read. Every byte is read once, so what was written to a part stays there. `file` has
/// to last; parts may outlive both. May be used from several threads at once, which read one after another.
class OwnCopy {
public:
    /// Takes addresses, and reads nothing. Throws out_of_memory.
    explicit OwnCopy(const File& file);

    /// Returns the bytes of `extent`, writable. Throws file_truncated where that is not inside the file, file_changed
    /// where the file is no longer what was opened, and what reading throws; what was asked for is then read anew the
    /// next time.
    SharedBytes part(Extent extent);

private:
    void read(Extent extent);

    const File& file_;
    std::shared_ptr<std::byte> memory_;
    std::mutex reading_;                              ///< guards the next one, and the bytes that it does not name
    std::map<std::uint64_t, std::uint64_t> is_read_;  ///< from the key up to the value; neither meet nor touch
};

}  // namespace safemap::SAFEMAP_ABI::io
