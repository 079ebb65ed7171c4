// WriterSlots for threads that copy. Any number of threads may ask, but only a limited number have a buffer at a time.
#pragma once

#include "lazy/bulk.hpp"

#include <condition_variable>
#include <memory>
#include <mutex>
#include <vector>

namespace safemap::SAFEMAP_ABI::write {

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
