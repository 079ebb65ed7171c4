// Output files that are open, of more than there are descriptors for.
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

/// Opens the files of a staging when they are written to, and keeps them open for the next time, up to an eighth of
/// the descriptors that the process may have; then the one unused for longest is closed. What is closed has been
/// brought to the disk, so that an error of writing it back is not lost with its descriptor. Thread safe.
class OpenFiles {
public:
    /// `names` are those that the staging has the files under. With `around_cache`, files are written past it.
    OpenFiles(const io::Staging& staging, std::vector<std::string> names, bool around_cache);

    /// A file in use, which is not closed meanwhile.
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

    /// Brings all that is open to the disk, and closes it. Nothing may be in use any more.
    void finish();

private:
    struct File {
        std::string name = {};
        std::optional<io::OutputFile> output = {};  // does not move while there are users
        unsigned users = 0;
        std::uint64_t last_use = 0;
    };

    void begin(std::size_t number);
    void end(std::size_t number) noexcept;
    void open(File& file);
    void close_idle();
    void finish(io::OutputFile& output, const std::string& name) const;

    const io::Staging& staging_;
    bool around_cache_;
    std::size_t most_;
    std::mutex mutex_;
    std::vector<File> files_;
    std::size_t open_ = 0;
    std::uint64_t uses_ = 0;
};

}  // namespace safemap::SAFEMAP_ABI::write
