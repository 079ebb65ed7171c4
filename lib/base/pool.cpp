// Implements the process-wide pool: its threads sleep until a loop asks for help.
#include "base/pool.hpp"

#include <safemap/error.hpp>

#include <pthread.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <deque>
#include <exception>
#include <limits>
#include <memory>
#include <mutex>
#include <new>
#include <thread>
#include <utility>
#include <vector>

namespace safemap::SAFEMAP_ABI {

namespace {

constexpr std::chrono::milliseconds tick_interval{100};

// One parallel_for(). Every thread that works on it has a worker number. The loop is over when all helpers have
// finished.
struct Loop {
    Loop(std::size_t count_, unsigned threads, const std::function<void(std::size_t, unsigned)>& work_)
        : count(count_), limit(threads), work(work_) {}

    void run(unsigned worker, const std::function<void()>& between) noexcept {
        std::size_t at = of_tick;
        const auto tick = [&] {
            if (!between) return;
            const std::size_t call = std::exchange(at, of_tick);
            try {
                between();
            } catch (...) {
                fail(of_tick, std::current_exception());  // now, because the work that asked may handle it
                at = call;
                throw;
            }
            at = call;
        };
        try {
            const Interruption interruption([this, &at, &tick] {
                if (failed.load(std::memory_order_relaxed) < at)
                    throw Error(Errc::cancelled, "another thread has failed");
                tick();
            });
            for (;;) {
                const std::size_t i = next.fetch_add(1);
                if (i >= count) return;
                at = i + 1;
                work(i, worker);
                tick();
            }
        } catch (...) {
            fail(at, std::current_exception());
        }
    }

    // Calls are given out in order: all before the one that fails have begun, and one of them may still fail.
    void fail(std::size_t at, std::exception_ptr error) noexcept {
        next.store(count);
        const std::lock_guard lock(mutex);
        if (at >= failed.load(std::memory_order_relaxed)) return;
        first_error = std::move(error);
        failed.store(at, std::memory_order_relaxed);
    }

    // Places of failures in their order: tick() before all calls of work(), then work(i) at i + 1.
    static constexpr std::size_t of_tick = 0;

    const std::size_t count;
    const unsigned limit;
    const std::function<void(std::size_t, unsigned)>& work;
    std::atomic<std::size_t> next{0};                                          // may exceed count by one per worker
    std::atomic<std::size_t> failed{std::numeric_limits<std::size_t>::max()};  // the first place that has failed

    std::mutex mutex;  // guards everything below
    std::condition_variable idle;
    unsigned joined = 1;  // worker numbers given out; the caller has 0
    unsigned active = 0;  // helpers at work
    bool closed = false;  // no helper may join anymore
    std::exception_ptr first_error;
};

class Pool {
public:
    ~Pool() {
        {
            const std::lock_guard lock(mutex_);
            stopping_ = true;
        }
        wake_.notify_all();
        for (auto& thread : threads_) thread.join();
    }

    // Offers a loop to `helpers` pool threads, and starts missing threads. Failing to get help is not an error: the
    // caller does the work.
    void offer(const std::shared_ptr<Loop>& loop, unsigned helpers) noexcept {
        const std::lock_guard lock(mutex_);
        try {
            while (threads_.size() < helpers) threads_.emplace_back([this] { serve(); });
        } catch (const std::exception&) {
        }
        try {
            for (unsigned i = 0; i < helpers; ++i) offers_.push_back(loop);
        } catch (const std::bad_alloc&) {
        }
        wake_.notify_all();
    }

    void withdraw(const std::shared_ptr<Loop>& loop) {
        const std::lock_guard lock(mutex_);
        std::erase(offers_, loop);
    }

private:
    void serve() {
        for (;;) {
            std::shared_ptr<Loop> loop;
            {
                std::unique_lock lock(mutex_);
                wake_.wait(lock, [&] { return stopping_ || !offers_.empty(); });
                if (stopping_) return;
                loop = std::move(offers_.front());
                offers_.pop_front();
            }
            help(*loop);
        }
    }

    static void help(Loop& loop) {
        unsigned worker = 0;
        {
            const std::lock_guard lock(loop.mutex);
            if (loop.closed || loop.joined >= loop.limit) return;
            worker = loop.joined++;
            ++loop.active;
        }
        loop.run(worker, {});
        const std::lock_guard lock(loop.mutex);
        --loop.active;
        loop.idle.notify_all();
    }

    std::mutex mutex_;
    std::condition_variable wake_;
    std::deque<std::shared_ptr<Loop>> offers_;
    std::vector<std::thread> threads_;
    bool stopping_ = false;
};

std::mutex pool_mutex;
std::unique_ptr<Pool> pool_instance;

// A forked child has no pool threads, so it drops the pool (and leaks its memory) and makes its own.
void forget_pool_in_child() {
    static_cast<void>(pool_instance.release());
    pool_mutex.unlock();
}

Pool& pool() {
    static const bool registered = [] {
        ::pthread_atfork([] { pool_mutex.lock(); }, [] { pool_mutex.unlock(); }, forget_pool_in_child);
        return true;
    }();
    static_cast<void>(registered);
    const std::lock_guard lock(pool_mutex);
    if (!pool_instance) pool_instance = std::make_unique<Pool>();
    return *pool_instance;
}

}  // namespace

unsigned thread_count(unsigned wanted, ThreadLimits limits) noexcept {
    if (wanted != 0) return std::min(wanted, limits.most);
    return std::clamp(std::thread::hardware_concurrency(), 1U, limits.unasked);
}

void parallel_for(std::size_t count, unsigned threads, const std::function<void(std::size_t, unsigned)>& work,
                  const std::function<void()>& tick) {
    const auto limit = static_cast<unsigned>(std::clamp<std::size_t>(count, 1, thread_count(threads)));
    const auto loop = std::make_shared<Loop>(count, limit, work);
    if (limit > 1) pool().offer(loop, limit - 1);

    loop->run(0, tick);

    if (limit > 1) pool().withdraw(loop);
    std::unique_lock lock(loop->mutex);
    loop->closed = true;
    while (loop->active > 0) {
        loop->idle.wait_for(lock, tick_interval);
        if (!tick || loop->active == 0 || loop->first_error) continue;
        lock.unlock();
        try {
            tick();
        } catch (...) {
            loop->fail(Loop::of_tick, std::current_exception());
        }
        lock.lock();
    }
    // Move the exception out: a helper that comes too late may keep the loop alive longer than the caller keeps the
    // exception.
    if (loop->first_error) std::rethrow_exception(std::exchange(loop->first_error, nullptr));
}

namespace {

thread_local Interruption* innermost = nullptr;

}  // namespace

Interruption::Interruption(std::function<void()> question)
    : question_(std::move(question)), outer_(std::exchange(innermost, this)) {}

Interruption::~Interruption() { innermost = outer_; }

bool Interruption::possible() noexcept { return innermost != nullptr; }

void Interruption::ask() {
    for (const Interruption* each = innermost; each != nullptr; each = each->outer_) each->question_();
}

}  // namespace safemap::SAFEMAP_ABI
