// The steps that the processes of a team take together: all do a step, or one does; then all know how it ended.
#pragma once

#include "base/watch.hpp"

#include <safemap/advanced/team.hpp>
#include <safemap/progress.hpp>

#include <cstdint>
#include <deque>
#include <functional>
#include <mutex>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace safemap::SAFEMAP_ABI::write {

/// Numbers and texts as bytes, in order.
class Packer {
public:
    Packer& number(std::uint64_t number);
    Packer& text(std::string_view text);
    std::string take() { return std::move(bytes_); }

private:
    std::string bytes_;
};

/// Reads what a Packer wrote. Throws io_error if bytes are missing.
class Unpacker {
public:
    explicit Unpacker(std::string_view bytes) : rest_(bytes) {}

    std::uint64_t number();
    /// Valid as long as the bytes.
    std::string_view text();
    bool done() const noexcept { return rest_.empty(); }

private:
    std::string_view take(std::uint64_t size);
    std::string_view rest_;
};

/// The processes that save together; without a team, this process alone. Rank 0 leads.
class Together {
public:
    using Step = std::function<std::string()>;

    explicit Together(Team* team) : team_(team) {}

    bool alone() const noexcept { return team_ == nullptr || team_->size() < 2; }
    unsigned rank() const noexcept { return alone() ? 0 : team_->rank(); }
    unsigned size() const noexcept { return alone() ? 1 : team_->size(); }
    bool leads() const noexcept { return rank() == 0; }

    /// Runs `step` on every rank and waits for all. Returns the texts of all ranks. If the step fails anywhere, stops
    /// the ranks that are still at it, and throws on every rank the error of the lowest rank that failed.
    std::vector<std::string> all(const Step& step);
    /// Runs `step` on the leader while the others wait. Returns its text on every rank. Throws on every rank what it
    /// throws on the leader.
    std::string lead(const Step& step);

    // For work inside of all():
    /// Sends a message to the leader, on which on_message(rank, text) is called. May be called from any thread.
    void tell_leader(std::string message);
    std::function<void(unsigned from, std::string_view message)> on_message = {};
    /// Returns a monitor for the work of a step: it also sends and takes messages, and ends the work if another rank
    /// has failed. `monitor` must outlive it.
    Monitor watching(const Monitor& monitor);

private:
    struct OtherFailed {};  // thrown inside a step to end it

    void attend();
    void send_queued();
    void take_messages();
    void take(const Team::Message& message);
    std::string outcome_of(const Step& step, std::exception_ptr& own);
    std::vector<std::string> exchange(std::string outcome);

    Team* team_;
    bool other_failed_ = false;
    std::vector<std::uint64_t> posted_;  // number of messages to each rank so far
    std::uint64_t taken_ = 0;            // number of messages received so far
    std::mutex mutex_;                   // guards queue_
    std::deque<std::string> queue_;      // messages for the leader
};

}  // namespace safemap::SAFEMAP_ABI::write
