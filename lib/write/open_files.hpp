// The open output files, which may be more than descriptors, and the buffers that threads of a ShardWriter share.
#pragma once

#include "io/output.hpp"
#include "io/staging.hpp"
#include "lazy/bulk.hpp"

#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <memory>
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

/// A pool of at most `most` workers with buffers. Thread safe.
class WriterSlots {
public:
    /// A slot in use, given back by the destructor.
    class Taken {
    public:
        Taken(WriterSlots& slots, std::unique_ptr<Worker> slot) noexcept : slots_(slots), slot_(std::move(slot)) {}
        ~Taken() { slots_.give_back(std::move(slot_)); }
        Taken(const Taken&) = delete;
        Taken& operator=(const Taken&) = delete;

        Worker* operator->() const noexcept { return slot_.get(); }
        Worker& operator*() const noexcept { return *slot_; }

    private:
        WriterSlots& slots_;
        std::unique_ptr<Worker> slot_;
    };

    explicit WriterSlots(std::size_t most) : left_(most) { free_.reserve(most); }

    /// Takes a free slot. Waits until there is one.
    Taken take();

private:
    void give_back(std::unique_ptr<Worker> slot) noexcept;

    std::mutex mutex_;
    std::condition_variable changed_;
    std::size_t left_;  ///< slots that are not created yet
    std::vector<std::unique_ptr<Worker>> free_;
};

}  // namespace safemap::SAFEMAP_ABI::write
