// Upload: a group on its way to a device.
#pragma once

#include "device/filling.hpp"
#include "device/group.hpp"
#include "device/readers.hpp"

#include <safemap/error.hpp>
#include <safemap/uploader.hpp>

#include <atomic>
#include <cstdint>
#include <exception>
#include <list>
#include <memory>
#include <utility>
#include <vector>

namespace safemap::SAFEMAP_ABI::device {

/// Returns what `work` for these tensors throws, or null if it throws nothing. If it is one tensor, adds its name to an
/// Error that has none, if there is memory for it. Errors of reading have the name of one of several.
template <class Work> std::exception_ptr fault_of(const Layout& layout, Work&& work) noexcept {
    try {
        work();
        return nullptr;
    } catch (Error& error) {
        try {
            if (layout.tensors.size() == 1) error.with_tensor(layout.tensors.front().name());
        } catch (...) {
        }
        return std::current_exception();
    } catch (...) {
        return std::current_exception();
    }
}

/// Throws a copy of `fault`. Each thread gets an Error of its own, to add context to.
[[noreturn]] void throw_copy(const std::exception_ptr& fault);

/// The task that fills the memory of a group. The lock of the cache guards all members but `filling`, which has its
/// memory when the task is submitted.
class Upload final : public Task {
public:
    explicit Upload(std::shared_ptr<Group> of);

    bool run(std::size_t job, Worker& worker) noexcept override;
    void finish() noexcept override;
    /// Copies the picture, which is whole, in place of all jobs; then it is finished.
    void copy_picture() noexcept;
    Cache& cache() const noexcept { return cache_; }
    /// Makes this thread the one that gets the memory, if nobody is at it; under the lock, so that no other thread gets
    /// it, too, or ends the upload. Returns false otherwise.
    bool claim() noexcept {
        if (!waits_for_help || finished) return false;
        waits_for_help = false;
        return providing = true;
    }

private:
    void note(std::exception_ptr failed) noexcept;
    bool is_wanted() const;
    std::vector<FillTarget> arrived(const Space& space, std::uint64_t offset) const;

    Cache& cache_;

public:
    View& view;                    // lives until all work is over that was begun for it
    std::shared_ptr<Group> group;  // until the upload is finished
    Filling filling;

    std::atomic<bool> submitted = false;    // memory is set, and jobs may run
    std::atomic<bool> demanded = false;     // somebody waits for it
    std::atomic<std::uint64_t> left;        // bytes to read
    int priority = 0;                       // the highest of those who wait for it
    bool waits_for_help = false;            // nobody is getting its memory, or will unless a reader or a caller does
    std::weak_ptr<Task> preparation = {};   // the task of a reader that gets its memory
    std::shared_ptr<Picture> picture = {};  // used until the upload is over
    bool cancelled = false;                 // the group does not want it any more
    bool finished = false;
    bool providing = false;  // a thread is getting its memory, or has got it
    std::exception_ptr fault = {};
    Space leaving = {};        // memory of a cancelled upload, which is free when no job uses it any more
    Holding* block = nullptr;  // cancelled upload of a small group: the block that its jobs may still write to
    std::list<Upload*>::iterator place = {};  // in the cache's list

    // After it was cancelled.
    enum class Rest : std::uint8_t { nothing, group, copies };
    Rest rest = Rest::nothing;  // left to do without the lock: to destroy the owner of its group, or to fence copies
    std::shared_ptr<Upload> next_cancelled = {};
};

/// The task that gets the memory of an upload, unless somebody who waits for it has begun to.
class Preparation final : public Task {
public:
    explicit Preparation(std::shared_ptr<Upload> upload) : Task(1), upload_(std::move(upload)) {}

    bool run(std::size_t job, Worker& worker) noexcept override;
    void finish() noexcept override {}
    bool may_wait() const noexcept override { return true; }  // for memory that jobs of others leave

private:
    const std::shared_ptr<Upload> upload_;
};

}  // namespace safemap::SAFEMAP_ABI::device
