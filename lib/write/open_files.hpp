// A cache of open output files, for saves with more files than descriptors.
#pragma once

#include "io/output.hpp"
#include "io/replace.hpp"

#include <cstddef>
#include <cstdint>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

namespace safemap::SAFEMAP_ABI::write {

/// A cache of the open files of a staging. It opens a file when it is written to and keeps it open for the next write,
/// up to an eighth of the descriptors that the process may have. Then it closes the file that was unused for longest. A
/// file is flushed to disk before it is closed, so that a write-back error is not lost with the descriptor. Thread
/// safe.
class OpenFiles {
public:
    /// Takes the names of the files in the staging. If `direct_io`, files are written past the page cache.
    OpenFiles(const io::Staging& staging, std::vector<std::string> names, bool direct_io);

    /// A file in use. It stays open until the object is destroyed.
    class Use {
    public:
        Use(OpenFiles& files, std::size_t number) : files_(files), number_(number) { files_.begin(number); }
        ~Use() { files_.end(number_); }
        Use(const Use&) = delete;
        Use& operator=(const Use&) = delete;

        const io::OutputFile& operator*() const noexcept { return *files_.files_[number_].output; }
        const io::OutputFile* operator->() const noexcept { return &**this; }

    private:
        OpenFiles& files_;
        std::size_t number_;
    };

    /// Flushes all open files to disk and closes them. No file may be in use.
    void finish();

private:
    struct File {
        std::string name = {};
        std::optional<io::OutputFile> output = {};  // not moved while it has users
        unsigned users = 0;
        std::uint64_t last_use = 0;
    };

    void begin(std::size_t number);
    void end(std::size_t number) noexcept;
    void open(File& file);
    void close_idle();
    void finish(io::OutputFile& output, const std::string& name) const;

    const io::Staging& staging_;
    bool direct_io_;
    std::size_t most_;
    std::mutex mutex_;
    std::vector<File> files_;
    std::size_t open_ = 0;
    std::uint64_t uses_ = 0;
};

}  // namespace safemap::SAFEMAP_ABI::write
