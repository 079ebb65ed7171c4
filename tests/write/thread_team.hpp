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
#include <thread>
#include <utility>
#include <vector>

namespace thread_team {

/// The wires between the ranks.
class Wires {
public:
    explicit Wires(unsigned size) : size_(size), given_(size), boxes_(size) {}

    unsigned size() const noexcept { return size_; }

    std::vector<std::string> exchange(unsigned rank, const std::string& own) {
        std::unique_lock lock(mutex_);
        given_[rank] = own;
        const std::size_t round = round_;
        if (++arrived_ == size_) {
            all_ = given_;
            arrived_ = 0;
            ++round_;
            changed_.notify_all();
        }
        changed_.wait(lock, [&] { return round_ != round; });
        return all_;  // unchanged until every rank has come to the next exchange
    }

    void post(unsigned from, unsigned to, std::string text) {
        const std::lock_guard lock(mutex_);
        boxes_[to].push_back({from, std::move(text)});
    }

    std::optional<safemap::Team::Message> poll(unsigned rank) {
        const std::lock_guard lock(mutex_);
        if (boxes_[rank].empty()) return std::nullopt;
        safemap::Team::Message message = std::move(boxes_[rank].front());
        boxes_[rank].pop_front();
        return message;
    }

    /// Returns the number of messages that nobody has taken.
    std::size_t left() {
        const std::lock_guard lock(mutex_);
        std::size_t count = 0;
        for (const auto& box : boxes_) count += box.size();
        return count;
    }

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
    void post(unsigned to, std::string text) override { wires_.post(rank_, to, std::move(text)); }
    std::optional<Message> poll() override { return wires_.poll(rank_); }

private:
    Wires& wires_;
    unsigned rank_;
};

/// Calls work(team) on a thread for each rank. Returns the exception of each, or null.
inline std::vector<std::exception_ptr> on_ranks(unsigned size, const std::function<void(Member&)>& work,
                                                std::size_t* messages_left = nullptr) {
    Wires wires(size);
    std::vector<std::exception_ptr> errors(size);
    std::vector<std::thread> threads;
    for (unsigned rank = 0; rank < size; ++rank)
        threads.emplace_back([&, rank] {
            Member member(wires, rank);
            try {
                work(member);
            } catch (...) {
                errors[rank] = std::current_exception();
            }
        });
    for (std::thread& thread : threads) thread.join();
    if (messages_left != nullptr) *messages_left = wires.left();
    return errors;
}

}  // namespace thread_team
