// The reader threads of the process, and the tasks that they work on.
#include "device/readers.hpp"

#include "base/forks.hpp"

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

std::shared_ptr<Readers> Readers::of_process() { return shared_of_process<Readers>(); }

Readers::Readers() : forks_(count_forks()) {}

Readers::~Readers() {
    if (forks_ != count_forks()) {
        // Its threads are in the process that this one was forked from, and may hold anything of it.
        static_cast<void>(new std::shared_ptr<Shared>(std::move(shared_)));
        return;
    }
    {
        const std::lock_guard lock(shared_->mutex);
        shared_->stopping = true;
    }
    shared_->work.notify_all();
    for (std::thread& thread : shared_->threads) {
        if (thread.get_id() == std::this_thread::get_id()) thread.detach();
        else thread.join();
    }
}

void Readers::expect(unsigned count) {
    const std::lock_guard lock(shared_->mutex);
    shared_->expected = std::max(shared_->expected, count);
}

void Readers::submit(const std::shared_ptr<Task>& task, Lane lane, std::int64_t priority) {
    {
        const std::lock_guard lock(shared_->mutex);
        auto& queue = lane == Lane::demand ? shared_->demand : shared_->bulk;
        Shared::first_of(queue);
        auto place = queue.end();
        while (place != queue.begin() && std::prev(place)->priority < priority) --place;
        queue.insert(place, {task, priority});
        start_threads();
    }
    shared_->work.notify_all();
}

bool Readers::have_threads() const {
    const std::lock_guard lock(shared_->mutex);
    return !shared_->threads.empty();
}

bool Readers::help(Task& task, Worker& worker) {
    Lock lock(shared_->mutex);
    if (task.exhausted()) return false;
    Shared::run_next(lock, task, worker);
    return true;
}

bool Readers::help_demand(Worker& worker) {
    Lock lock(shared_->mutex);
    const auto can_help = [](const Shared::Entry& entry) {
        return !entry.task->exhausted() && !entry.task->may_wait();
    };
    const auto found = std::ranges::find_if(shared_->demand, can_help);
    if (found == shared_->demand.end()) return false;
    const auto task = found->task;
    Shared::run_next(lock, *task, worker);
    return true;
}

bool Readers::has_jobs(const Task& task) const {
    const std::lock_guard lock(shared_->mutex);
    return !task.exhausted();
}

bool Readers::cancel(Task& task) {
    const std::lock_guard lock(shared_->mutex);
    const bool over = task.exhausted();
    task.next_ = task.jobs_;
    return !over && task.running_ == 0;
}

std::unique_ptr<Worker> Readers::borrow_worker() {
    {
        const std::lock_guard lock(shared_->mutex);
        if (!shared_->idle.empty()) {
            auto worker = std::move(shared_->idle.back());
            shared_->idle.pop_back();
            return worker;
        }
    }
    return std::make_unique<Worker>();
}

void Readers::give_back(std::unique_ptr<Worker> worker) noexcept {
    const std::lock_guard lock(shared_->mutex);
    try {
        if (shared_->idle.size() < most_idle) shared_->idle.push_back(std::move(worker));
    } catch (const std::bad_alloc&) {
        // The worker is freed.
    }
}

/// Starts the threads that are missing. Without a thread, or without memory for one, callers read alone.
void Readers::start_threads() noexcept {
    try {
        while (shared_->threads.size() < shared_->expected)
            shared_->threads.emplace_back([shared = shared_] { shared->read_until_stopped(); });
    } catch (const std::exception&) {
    }
}

/// Returns the first task of a queue that has a job left, or null. A task leaves a queue when its last job has begun.
std::shared_ptr<Task> Readers::Shared::first_of(Queue& queue) {
    while (!queue.empty() && queue.front().task->exhausted()) queue.pop_front();
    return queue.empty() ? nullptr : queue.front().task;
}

void Readers::Shared::run_next(Lock& lock, Task& task, Worker& worker) {
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

void Readers::Shared::read_until_stopped() {
    ::pthread_setname_np(::pthread_self(), "safemap-reader");
    std::optional<Worker> worker;
    try {
        worker.emplace();
    } catch (const std::bad_alloc&) {
        return;  // threads that acquire read alone
    }
    Lock lock(mutex);
    while (!stopping) {
        auto task = first_of(demand);
        if (!task) task = first_of(bulk);
        if (task) run_next(lock, *task, *worker);
        else work.wait(lock);
    }
}

}  // namespace safemap::SAFEMAP_ABI::device
