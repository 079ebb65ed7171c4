// Which files a save has finished, for the one that continues it.
#pragma once

#include "io/system.hpp"

#include <string>
#include <vector>

namespace safemap::SAFEMAP_ABI::io {

inline constexpr const char* journal_name = "journal";
inline constexpr const char* new_journal_name = "journal.new";

/// A file in the sibling: what is being written, and a line for each file that is finished, as it was then: its size,
/// inode and times. A file that anybody has touched since is none of them, nor is one whose line is damaged. What is in
/// a `durable` one is on the disk when it is said.
class Journal {
public:
    /// Begins a new one in the sibling open as `sibling`. `job` is a line of text that is the same for the same files
    /// from the same sources.
    static Journal begin(int sibling, const std::string& job, bool durable = true);
    /// Goes on with the one that is there, if it is of that job: `finished` are the files that are still in the folder
    /// open as `content`. None where there is no such journal.
    static Journal resume(int sibling, int content, const std::string& job, std::vector<std::string>& finished,
                          bool durable = true);

    Journal() = default;
    explicit operator bool() const noexcept { return static_cast<bool>(file_); }
    /// `name` in `content` is finished: nothing is going to be changed in it.
    void add(int content, const std::string& name);

private:
    Journal(Descriptor file, bool durable) noexcept : file_(std::move(file)), durable_(durable) {}

    Descriptor file_;
    bool durable_ = true;
};

}  // namespace safemap::SAFEMAP_ABI::io
