// Team: several processes, on one machine or many, that save one checkpoint together.
#pragma once

#include <safemap/api.hpp>
#include <safemap/error.hpp>

#include <optional>
#include <string>
#include <vector>

namespace safemap::SAFEMAP_ABI {

/// Processes that make the same call of save() with SaveOptions::team. Each writes a part of the files; the result is
/// the same, byte for byte, as that of one process. Derive from Team to let the processes of MPI, or of anything else
/// that sends messages, save together: the command line does so over MPI (docs/many-nodes.md).
///
/// A save calls the members only on the thread that called save(). A Team serves one save at a time.
///
/// Example:
///     safemap::save("out/", safemap::Checkpoint::open(path), {.checksums = true, .team = &team});  // on every rank
class SAFEMAP_API Team {
public:
    virtual ~Team() = default;
    Team() = default;
    Team(const Team&) = delete;
    Team& operator=(const Team&) = delete;

    /// Returns the number of this process, from 0. Rank 0 creates the files and commits them.
    virtual unsigned rank() const noexcept = 0;
    /// Returns the number of processes.
    virtual unsigned size() const noexcept = 0;
    /// Waits until every process has called this, and returns what each of them gave, by rank. Texts may have any
    /// bytes, and megabytes of them.
    virtual std::vector<std::string> exchange(const std::string& own) = 0;

    /// A message of another process.
    struct Message {
        unsigned from = 0;
        std::string text = {};
    };
    /// Sends a message to another process without waiting for it. Messages from one process to another arrive in order,
    /// and none is lost.
    virtual void post(unsigned to, std::string text) = 0;
    /// Returns the next message that has arrived, or nothing.
    [[nodiscard]] virtual std::optional<Message> poll() = 0;
};

/// Takes part in the first step of a save with a failure of this process: for an error that comes before it can call
/// save(), such as one of Checkpoint::open(). Every process of the team must call either this or save(). Throws the
/// error of the lowest rank that failed, as the other processes do.
[[noreturn]] SAFEMAP_API void fail_together(Team& team, const Error& error);

}  // namespace safemap::SAFEMAP_ABI
