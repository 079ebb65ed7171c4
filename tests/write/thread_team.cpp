// Passes messages between threads under a lock, and collects what each of them throws.
#include "write/thread_team.hpp"

#include <thread>
#include <utility>

namespace thread_team {

std::vector<std::string> Wires::exchange(unsigned rank, const std::string& own) {
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

void Wires::post(unsigned from, unsigned to, std::string text) {
    const std::lock_guard lock(mutex_);
    boxes_[to].push_back({from, std::move(text)});
}

std::optional<safemap::Team::Message> Wires::poll(unsigned rank) {
    const std::lock_guard lock(mutex_);
    if (boxes_[rank].empty()) return std::nullopt;
    safemap::Team::Message message = std::move(boxes_[rank].front());
    boxes_[rank].pop_front();
    return message;
}

std::size_t Wires::left() {
    const std::lock_guard lock(mutex_);
    std::size_t count = 0;
    for (const auto& box : boxes_) count += box.size();
    return count;
}

void Member::post(unsigned to, std::string text) { wires_.post(rank_, to, std::move(text)); }

std::vector<std::exception_ptr> on_ranks(unsigned size, const std::function<void(Member&)>& work,
                                         std::size_t* messages_left) {
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
