// A team whose processes are threads of the test.
#pragma once

#include <safemap/advanced/team.hpp>

#include <condition_variable>
#include <cstddef>
#include <deque>
#include <exception>
#include <functional>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

namespace thread_team {

/// The wires between the ranks.
class Wires {
public:
    explicit Wires(unsigned size) : size_(size), given_(size), boxes_(size) {}

    unsigned size() const noexcept { return size_; }

    std::vector<std::string> exchange(unsigned rank, const std::string& own);

    void post(unsigned from, unsigned to, std::string text);

    std::optional<safemap::Team::Message> poll(unsigned rank);

    /// Returns the number of messages that nobody has taken.
    std::size_t left();

private:
    unsigned size_;
    std::mutex mutex_;
    std::condition_variable changed_;
    std::vector<std::string> given_;
    std::vector<std::string> all_;
    unsigned arrived_ = 0;
    std::size_t round_ = 0;
    std::vector<std::deque<safemap::Team::Message>> boxes_;
};

class Member final : public safemap::Team {
public:
    Member(Wires& wires, unsigned rank) : wires_(wires), rank_(rank) {}

    unsigned rank() const noexcept override { return rank_; }
    unsigned size() const noexcept override { return wires_.size(); }
    std::vector<std::string> exchange(const std::string& own) override { return wires_.exchange(rank_, own); }
    void post(unsigned to, std::string text) override;
    std::optional<Message> poll() override { return wires_.poll(rank_); }

private:
    Wires& wires_;
    unsigned rank_;
};

/// Calls work(team) on a thread for each rank. Returns the exception of each, or null.
std::vector<std::exception_ptr> on_ranks(unsigned size, const std::function<void(Member&)>& work,
                                         std::size_t* messages_left = nullptr);

}  // namespace thread_team
