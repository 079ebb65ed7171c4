// The reader threads of the process, and the tasks that they work on. They know nothing of devices.
#pragma once

#include "lazy/bulk.hpp"

#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

namespace safemap::SAFEMAP_ABI::device {

class Readers;

/// Work that consists of jobs, which threads may do in any order and at the same time.
class Task {
public:
    explicit Task(std::size_t jobs) noexcept : jobs_(jobs) {}
    virtual ~Task() = default;
    Task(const Task&) = delete;
    Task& operator=(const Task&) = delete;

    /// Does a job. Returns false if the jobs that have not begun are not needed any more.
    virtual bool run(std::size_t job, Worker& worker) noexcept = 0;
    /// Is called once, after the last job, by the thread that did it. A task without jobs is not finished by readers.
    virtual void finish() noexcept = 0;
    /// Returns true if a job may wait for jobs of other tasks.
    virtual bool may_wait() const noexcept { return false; }

    std::size_t jobs() const noexcept { return jobs_; }

private:
    friend class Readers;
    bool exhausted() const noexcept { return next_ == jobs_; }

    // Guarded by the mutex of the readers.
    std::size_t jobs_;
    std::size_t next_ = 0;     // the next job to begin
    std::size_t running_ = 0;  // jobs in progress
};

/// Threads that do the jobs of tasks: first of those that somebody waits for (demand), then of the others (bulk), each
/// by priority, and then in the order in which they were submitted. Only jobs of the bulk lane may call help_demand().
/// All members may be called from several threads at once.
class Readers {
public:
    enum class Lane : std::uint8_t { demand, bulk };

    /// Returns the readers of this process. They live as long as somebody holds them.
    static std::shared_ptr<Readers> of_process();

    Readers();
    /// Ends the threads, each after its current job, and waits for them. If this is one of them, does not wait for it.
    ~Readers();
    Readers(const Readers&) = delete;
    Readers& operator=(const Readers&) = delete;

    /// Makes sure that there will be at least `count` threads. They start with the first task.
    void expect(unsigned count);
    /// Queues a task behind those of the lane with the same or a higher priority. A task may be queued in both lanes,
    /// or again with another priority, and is done once.
    void submit(const std::shared_ptr<Task>& task, Lane lane, std::int64_t priority = 0);
    /// Returns true if there are threads. Without them, callers have to help.
    bool have_threads() const;
    /// Does one job of the task on the calling thread. Returns false if no job is left to begin.
    bool help(Task& task, Worker& worker);
    /// Does one job of the first task of the demand lane that does not wait, on the calling thread: a job that waits
    /// before it uses its worker can call this. Returns false if no job is left to begin.
    bool help_demand(Worker& worker);
    /// Returns true if a job of the task is left to begin.
    bool has_jobs(const Task& task) const;
    /// Drops the jobs that have not begun. Returns true if none is running: then finish() will not be called, and was
    /// not called before.
    bool cancel(Task& task);

    /// Lends the memory that a calling thread needs to do jobs, and takes it back.
    std::unique_ptr<Worker> borrow_worker();
    void give_back(std::unique_ptr<Worker> worker) noexcept;

private:
    using Lock = std::unique_lock<std::mutex>;
    /// The state that the threads work on. It outlives the one that ends the readers, and in a process that was forked,
    /// where no thread is left, all of them.
    struct Shared {
        struct Entry {
            std::shared_ptr<Task> task;
            std::int64_t priority;
        };
        using Queue = std::deque<Entry>;

        static std::shared_ptr<Task> first_of(Queue& queue);
        static void run_next(Lock& lock, Task& task, Worker& worker);
        void read_until_stopped();

        std::mutex mutex = {};
        std::condition_variable work = {};
        Queue demand = {};  // by priority, highest first
        Queue bulk = {};
        std::vector<std::unique_ptr<Worker>> idle = {};
        std::vector<std::thread> threads = {};
        unsigned expected = 0;
        bool stopping = false;
    };
    void start_threads() noexcept;

    const unsigned forks_;
    std::shared_ptr<Shared> shared_ = std::make_shared<Shared>();
};

}  // namespace safemap::SAFEMAP_ABI::device
