// The reader threads of the process, and the tasks that they work on.
#include "device/readers.hpp"

#include <pthread.h>

#include <algorithm>
#include <exception>
#include <iterator>
#include <new>
#include <optional>
#include <utility>

namespace safemap::SAFEMAP_ABI::device {
namespace {

// Workers that are kept for calling threads. Each has up to 6.3 MiB.
constexpr std::size_t most_idle = 4;

}  // namespace

std::shared_ptr<Readers> Readers::of_process() {
    static std::mutex mutex;
    static std::weak_ptr<Readers> shared;
    const std::lock_guard lock(mutex);
    auto readers = shared.lock();
    if (!readers) shared = readers = std::make_shared<Readers>();
    return readers;
}

Readers::~Readers() {
    {
        const std::lock_guard lock(mutex_);
        stopping_ = true;
    }
    work_.notify_all();
    for (std::thread& thread : threads_) thread.join();
}

void Readers::expect(unsigned count) {
    const std::lock_guard lock(mutex_);
    expected_ = std::max(expected_, count);
}

void Readers::submit(const std::shared_ptr<Task>& task, Lane lane, int priority) {
    {
        const std::lock_guard lock(mutex_);
        Queue& queue = lane == Lane::demand ? demand_ : bulk_;
        first_of(queue);
        auto place = queue.end();
        while (place != queue.begin() && std::prev(place)->priority < priority) --place;
        queue.insert(place, {task, priority});
        start_threads();
    }
    work_.notify_all();
}

bool Readers::have_threads() const {
    const std::lock_guard lock(mutex_);
    return !threads_.empty();
}

bool Readers::help(Task& task, Worker& worker) {
    Lock lock(mutex_);
    if (task.exhausted()) return false;
    run_next(lock, task, worker);
    return true;
}

bool Readers::help_demand(Worker& worker) {
    Lock lock(mutex_);
    const auto task = first_of(demand_);
    if (!task) return false;
    run_next(lock, *task, worker);
    return true;
}

bool Readers::has_jobs(const Task& task) const {
    const std::lock_guard lock(mutex_);
    return !task.exhausted();
}

bool Readers::cancel(Task& task) {
    const std::lock_guard lock(mutex_);
    const bool over = task.exhausted();
    task.next_ = task.jobs_;
    return !over && task.running_ == 0;
}

std::unique_ptr<Worker> Readers::borrow_worker() {
    {
        const std::lock_guard lock(mutex_);
        if (!idle_.empty()) {
            auto worker = std::move(idle_.back());
            idle_.pop_back();
            return worker;
        }
    }
    return std::make_unique<Worker>();
}

void Readers::give_back(std::unique_ptr<Worker> worker) noexcept {
    const std::lock_guard lock(mutex_);
    try {
        if (idle_.size() < most_idle) idle_.push_back(std::move(worker));
    } catch (const std::bad_alloc&) {
        // The worker is freed.
    }
}

/// Starts the threads that are missing. Without a thread, or without memory for one, callers read alone.
void Readers::start_threads() noexcept {
    try {
        while (threads_.size() < expected_) threads_.emplace_back([this] { read_until_stopped(); });
    } catch (const std::exception&) {
    }
}

/// Returns the first task of a queue that has a job left, or null. A task leaves a queue when its last job has begun.
std::shared_ptr<Task> Readers::first_of(Queue& queue) {
    while (!queue.empty() && queue.front().task->exhausted()) queue.pop_front();
    return queue.empty() ? nullptr : queue.front().task;
}

void Readers::run_next(Lock& lock, Task& task, Worker& worker) {
    const std::size_t job = task.next_++;
    ++task.running_;
    lock.unlock();
    const bool go_on = task.run(job, worker);
    lock.lock();
    if (!go_on) task.next_ = task.jobs_;
    const bool last = --task.running_ == 0 && task.exhausted();
    if (!last) return;
    lock.unlock();
    task.finish();
    lock.lock();
}

void Readers::read_until_stopped() {
    ::pthread_setname_np(::pthread_self(), "safemap-reader");
    std::optional<Worker> worker;
    try {
        worker.emplace();
    } catch (const std::bad_alloc&) {
        return;  // threads that acquire read alone
    }
    Lock lock(mutex_);
    while (!stopping_) {
        auto task = first_of(demand_);
        if (!task) task = first_of(bulk_);
        if (task) run_next(lock, *task, *worker);
        else work_.wait(lock);
    }
}

}  // namespace safemap::SAFEMAP_ABI::device
