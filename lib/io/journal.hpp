// The journal of a save: the files that it has finished, so that a later save can resume it.
#pragma once

#include "io/system.hpp"

#include <string>
#include <vector>

namespace safemap::SAFEMAP_ABI::io {

inline constexpr const char* journal_name = "journal";
inline constexpr const char* new_journal_name = "journal.new";

/// A file in the sibling. The first line names the job. Each further line is one finished file with its size, inode and
/// times then. A file that changed afterwards does not count as finished; neither does a file whose line is damaged. If
/// the journal is `durable`, each line is on the disk when add() returns.
class Journal {
public:
    /// Begins a new journal in the open `sibling`. `job` is one line of text: the same text for the same files from the
    /// same sources.
    static Journal begin(int sibling, const std::string& job, bool durable = true);
    /// Continues the journal of the same job. Appends to `finished` the finished files that are still unchanged in the
    /// open folder `content`. Returns an empty journal if this job has left no journal.
    static Journal resume(int sibling, int content, const std::string& job, std::vector<std::string>& finished,
                          bool durable = true);

    Journal() = default;
    explicit operator bool() const noexcept { return static_cast<bool>(file_); }
    /// Records that the file `name` in `content` is finished and will not change.
    void add(int content, const std::string& name);

private:
    Journal(Descriptor file, bool durable) noexcept : file_(std::move(file)), durable_(durable) {}

    Descriptor file_;
    bool durable_ = true;
};

}  // namespace safemap::SAFEMAP_ABI::io
