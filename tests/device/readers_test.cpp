// Tests the reader threads: lanes, help by callers, cancelling, failures and the end. From top to bottom: a task that
// records, tests of one thread or none, tests of several threads.
#include "device/readers.hpp"

#include "doctest_safemap.hpp"

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <filesystem>
#include <fstream>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <utility>
#include <vector>

namespace readers_test {

using safemap::Worker;
using safemap::device::Readers;
using safemap::device::Task;
using Lane = Readers::Lane;

namespace {

/// Holds threads until it is opened, and lets a test wait for threads that are held.
class Gate {
public:
    void pass() {
        std::unique_lock lock(mutex_);
        ++arrived_;
        changed_.notify_all();
        changed_.wait(lock, [&] { return open_; });
    }
    void wait_for_arrivals(int count) {
        std::unique_lock lock(mutex_);
        changed_.wait(lock, [&] { return arrived_ >= count; });
    }
    void open() {
        const std::lock_guard lock(mutex_);
        open_ = true;
        changed_.notify_all();
    }

private:
    std::mutex mutex_;
    std::condition_variable changed_;
    int arrived_ = 0;
    bool open_ = false;
};

/// A task that counts what happens to it.
class Recorded final : public Task {
public:
    explicit Recorded(std::size_t jobs, std::function<bool(std::size_t)> work = {})
        : Task(jobs), ran(jobs), work_(std::move(work)) {}

    bool run(std::size_t job, Worker&) noexcept override {
        ++running_;
        ++ran[job];
        const bool go_on = !work_ || work_(job);
        --running_;
        return go_on;
    }
    void finish() noexcept override {
        if (running_ != 0) finished_early = true;
        ++finished_;
        finished_.notify_all();
    }

    int finished() const { return finished_; }
    void wait() const { finished_.wait(0); }
    int jobs_run() const {
        int sum = 0;
        for (const auto& count : ran) sum += count;
        return sum;
    }
    bool each_job_once() const {
        for (const auto& count : ran)
            if (count != 1) return false;
        return true;
    }

    std::vector<std::atomic<int>> ran;
    std::atomic<bool> finished_early = false;

private:
    std::function<bool(std::size_t)> work_;
    std::atomic<int> running_ = 0;
    std::atomic<int> finished_ = 0;
};

std::shared_ptr<Recorded> make(std::size_t jobs, std::function<bool(std::size_t)> work = {}) {
    return std::make_shared<Recorded>(jobs, std::move(work));
}

std::shared_ptr<Recorded> held(std::size_t jobs, Gate& gate) {
    return make(jobs, [&gate](std::size_t) {
        gate.pass();
        return true;
    });
}

/// Returns the number of reader threads in this process.
int reader_threads() {
    int count = 0;
    for (const auto& task : std::filesystem::directory_iterator("/proc/self/task")) {
        std::string name;
        std::getline(std::ifstream(task.path() / "comm"), name);
        count += name == "safemap-reader" ? 1 : 0;
    }
    return count;
}

}  // namespace

TEST_CASE("threads start with the first task, as many as expected") {
    const int before = reader_threads();
    Readers readers;
    readers.expect(3);
    readers.expect(2);
    CHECK(reader_threads() == before);
    Gate gate;
    const auto task = held(3, gate);
    readers.submit(task, Lane::bulk);
    gate.wait_for_arrivals(3);  // by three threads at the same time
    CHECK(reader_threads() == before + 3);
    gate.open();
    task->wait();
    CHECK(task->each_job_once());
}

TEST_CASE("tasks that somebody waits for come first, each lane in its order") {
    Readers readers;
    readers.expect(1);
    Gate gate;
    const auto first = held(1, gate);
    readers.submit(first, Lane::bulk);
    gate.wait_for_arrivals(1);
    std::string order;  // written by the only thread
    const auto noted = [&](char name) {
        return make(2, [&order, name](std::size_t) {
            order += name;
            return true;
        });
    };
    const std::vector tasks = {noted('a'), noted('B'), noted('c'), noted('D')};
    readers.submit(tasks[0], Lane::bulk);
    readers.submit(tasks[1], Lane::demand);
    readers.submit(tasks[2], Lane::bulk);
    readers.submit(tasks[3], Lane::demand);
    gate.open();
    for (const auto& task : tasks) task->wait();
    CHECK(order == "BBDDaacc");
}

TEST_CASE("a bulk task that is submitted for demand too comes first, and is done once") {
    Readers readers;
    readers.expect(1);
    Gate gate;
    readers.submit(held(1, gate), Lane::bulk);
    gate.wait_for_arrivals(1);
    std::string order;
    const auto noted = [&](char name) {
        return make(3, [&order, name](std::size_t) {
            order += name;
            return true;
        });
    };
    const auto early = noted('a');
    const auto promoted = noted('b');
    const auto late = noted('c');
    readers.submit(early, Lane::bulk);
    readers.submit(promoted, Lane::bulk);
    readers.submit(late, Lane::bulk);
    readers.submit(promoted, Lane::demand);
    gate.open();
    late->wait();
    CHECK(order == "bbbaaaccc");
    CHECK(promoted->finished() == 1);
    CHECK(promoted->each_job_once());
}

TEST_CASE("without threads, callers do all jobs, and the one that does the last finishes the task") {
    Readers readers;
    const auto task = make(4);
    readers.submit(task, Lane::demand);
    auto worker = readers.borrow_worker();
    for (int i = 0; i < 4; ++i) {
        CHECK(readers.has_jobs(*task));
        CHECK(task->finished() == 0);
        CHECK(readers.help(*task, *worker));
    }
    CHECK_FALSE(readers.has_jobs(*task));
    CHECK_FALSE(readers.help(*task, *worker));
    CHECK(task->finished() == 1);
    CHECK(task->each_job_once());
    readers.give_back(std::move(worker));
}

TEST_CASE("a worker that is given back is lent again") {
    Readers readers;
    auto worker = readers.borrow_worker();
    const Worker* const first = worker.get();
    const auto other = readers.borrow_worker();
    CHECK(other.get() != first);
    readers.give_back(std::move(worker));
    CHECK(readers.borrow_worker().get() == first);
}

TEST_CASE("a task that is cancelled before a job began never runs and is not finished") {
    Readers readers;
    const auto task = make(3);
    CHECK(readers.cancel(*task));
    Worker worker;
    CHECK_FALSE(readers.help(*task, worker));

    const auto queued = make(3);
    readers.submit(queued, Lane::bulk);
    readers.submit(queued, Lane::demand);
    CHECK(readers.cancel(*queued));
    CHECK_FALSE(readers.has_jobs(*queued));
    readers.expect(1);
    const auto later = make(1);
    readers.submit(later, Lane::bulk);
    later->wait();
    CHECK(queued->jobs_run() == 0);
    CHECK(queued->finished() == 0);
}

TEST_CASE("a task that is cancelled between two jobs is not finished") {
    Readers readers;
    const auto task = make(3);
    Worker worker;
    CHECK(readers.help(*task, worker));
    CHECK(readers.cancel(*task));
    CHECK_FALSE(readers.help(*task, worker));
    CHECK(task->jobs_run() == 1);
    CHECK(task->finished() == 0);
}

TEST_CASE("a task that is cancelled while jobs run is finished by the last of them") {
    for (const std::size_t jobs : {2U, 5U}) {  // all jobs run, or some have not begun
        Readers readers;
        readers.expect(2);
        Gate gate;
        const auto task = held(jobs, gate);
        readers.submit(task, Lane::demand);
        gate.wait_for_arrivals(2);
        CHECK_FALSE(readers.cancel(*task));
        CHECK_FALSE(readers.has_jobs(*task));
        CHECK(task->finished() == 0);
        gate.open();
        task->wait();
        CHECK(task->jobs_run() == 2);
        CHECK(task->finished() == 1);
        CHECK_FALSE(task->finished_early);
        CHECK_FALSE(readers.cancel(*task));  // finish() was called
    }
}

TEST_CASE("a job that fails drops the jobs that have not begun, and the task is finished once") {
    Readers readers;
    const auto task = make(10, [](std::size_t job) { return job != 3; });
    Worker worker;
    int helped = 0;
    while (readers.help(*task, worker)) ++helped;
    CHECK(helped == 4);
    CHECK(task->jobs_run() == 4);
    CHECK(task->finished() == 1);

    Gate gate;
    readers.expect(3);
    const auto parallel = make(100, [&gate](std::size_t job) {
        gate.pass();
        return job != 1;
    });
    readers.submit(parallel, Lane::bulk);
    gate.wait_for_arrivals(3);
    gate.open();
    parallel->wait();
    CHECK(parallel->finished() == 1);
    CHECK_FALSE(parallel->finished_early);
}

TEST_CASE("the destructor waits for jobs in progress, and begins no others") {
    constexpr std::size_t jobs = 1'000;
    std::atomic<int> begun = 0;
    std::atomic<int> ended = 0;
    const auto task = make(jobs, [&](std::size_t) {
        ++begun;
        begun.notify_all();
        std::this_thread::sleep_for(std::chrono::milliseconds(20));
        ++ended;
        return true;
    });
    {
        Readers readers;
        readers.expect(2);
        readers.submit(task, Lane::demand);
        begun.wait(0);
    }
    CHECK(begun == ended);
    CHECK(begun > 0);
    CHECK(task->jobs_run() < static_cast<int>(jobs));
    CHECK(task->finished() == 0);
    CHECK(task.use_count() == 1);
}

TEST_CASE("threads and callers together do every job once") {
    constexpr int count = 300;
    Readers readers;
    readers.expect(2);
    std::vector<std::shared_ptr<Recorded>> tasks;
    for (int i = 0; i < count; ++i) tasks.push_back(make(1 + static_cast<std::size_t>(i) % 7));
    const auto call = [&](int first) {
        auto worker = readers.borrow_worker();
        for (int i = first; i < count; i += 2) {
            const auto& task = tasks[static_cast<std::size_t>(i)];
            readers.submit(task, i % 3 == 0 ? Lane::bulk : Lane::demand);
            if (i % 5 == 0) readers.submit(task, Lane::demand);
            while (readers.help(*task, *worker)) {
            }
        }
        readers.give_back(std::move(worker));
    };
    std::thread other(call, 1);
    call(0);
    other.join();
    for (const auto& task : tasks) {
        task->wait();
        CHECK(task->each_job_once());
        CHECK(task->finished() == 1);
        CHECK_FALSE(task->finished_early);
    }
}

TEST_CASE("cancelling while threads work: a task is finished exactly if cancel() says so") {
    Readers readers;
    readers.expect(2);
    for (int i = 0; i < 400; ++i) {
        const auto task = make(3);
        readers.submit(task, i % 2 == 0 ? Lane::bulk : Lane::demand);
        // Cancels after 0 to 3 jobs. There is no yield here: on a busy machine, each takes milliseconds.
        while (task->jobs_run() < i % 4) {
        }
        const bool dropped = readers.cancel(*task);
        if (!dropped) task->wait();
        CHECK(task->finished() == (dropped ? 0 : 1));
        CHECK_FALSE(task->finished_early);
    }
}

TEST_CASE("thousands of tasks behind a slow one are done once by callers, and are freed when it ends") {
    constexpr std::size_t count = 50'000;
    Readers readers;
    readers.expect(1);
    Gate gate;
    const auto slow = held(2, gate);  // stays in front, because its second job has not begun
    readers.submit(slow, Lane::demand);
    gate.wait_for_arrivals(1);
    std::vector<std::weak_ptr<Recorded>> tasks;
    Worker worker;
    std::size_t helped = 0;
    std::size_t finished = 0;
    for (std::size_t i = 0; i < count; ++i) {
        const auto task = make(1);
        tasks.push_back(task);
        readers.submit(task, Lane::demand);
        if (readers.help(*task, worker)) ++helped;
        finished += task->finished() == 1 && task->each_job_once() ? 1 : 0;
    }
    CHECK(helped == count);
    CHECK(finished == count);
    gate.open();
    slow->wait();
    const auto last = make(1);
    readers.submit(last, Lane::bulk);
    last->wait();  // the thread has walked through the lane of demand
    std::size_t alive = 0;
    for (const auto& task : tasks) alive += task.expired() ? 0 : 1;
    CHECK(alive == 0);
}

}  // namespace readers_test
