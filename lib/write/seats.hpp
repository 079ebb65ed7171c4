// Seats for threads that copy. Any number of threads may ask, but only a limited number have a buffer at a time.
#pragma once

#include "lazy/bulk.hpp"

#include <condition_variable>
#include <memory>
#include <mutex>
#include <vector>

namespace safemap::SAFEMAP_ABI::write {

/// A pool of at most `most` workers with buffers. Thread safe.
class Seats {
public:
    /// A seat in use, given back by the destructor.
    class Taken {
    public:
        Taken(Seats& seats, std::unique_ptr<Worker> seat) noexcept : seats_(seats), seat_(std::move(seat)) {}
        ~Taken() { seats_.give_back(std::move(seat_)); }
        Taken(const Taken&) = delete;
        Taken& operator=(const Taken&) = delete;

        Worker* operator->() const noexcept { return seat_.get(); }
        Worker& operator*() const noexcept { return *seat_; }

    private:
        Seats& seats_;
        std::unique_ptr<Worker> seat_;
    };

    explicit Seats(std::size_t most) : left_(most) { free_.reserve(most); }

    /// Takes a free seat. Waits until there is one.
    Taken take();

private:
    void give_back(std::unique_ptr<Worker> seat) noexcept;

    std::mutex mutex_;
    std::condition_variable changed_;
    std::size_t left_;  ///< seats that are not created yet
    std::vector<std::unique_ptr<Worker>> free_;
};

}  // namespace safemap::SAFEMAP_ABI::write
