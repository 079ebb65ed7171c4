// Tests parallel loops.
#include "base/pool.hpp"
#include "child_process.hpp"
#include "doctest_safemap.hpp"

#include <unistd.h>
#include <algorithm>

#include <atomic>
#include <chrono>
#include <stdexcept>
#include <string>
#include <thread>
#include <utility>
#include <vector>

namespace pool_test {

using namespace safemap;

TEST_CASE("every index is processed once, and no worker number is used twice at a time") {
    for (const unsigned threads : {1U, 2U, 3U, 8U})
        for (const std::size_t count : {0U, 1U, 2U, 1000U}) {
            std::vector<std::atomic<int>> done(count);
            std::vector<std::atomic<int>> busy(threads);
            std::atomic<bool> clash{false};
            parallel_for(count, threads, [&](std::size_t i, unsigned worker) {
                if (worker >= threads || busy[worker].fetch_add(1) != 0) clash = true;
                done[i]++;
                busy[worker]--;
            });
            CHECK_FALSE(clash);
            for (auto& d : done) CHECK(d == 1);
        }
}

TEST_CASE("loops nest without deadlock") {
    std::atomic<int> total{0};
    parallel_for(8, 4, [&](std::size_t, unsigned) {
        parallel_for(8, 4, [&](std::size_t, unsigned) { parallel_for(4, 4, [&](std::size_t, unsigned) { total++; }); });
    });
    CHECK(total == 8 * 8 * 4);
}

TEST_CASE("the first exception reaches the caller and stops the rest") {
    std::atomic<int> begun{0};
    CHECK_THROWS_AS(parallel_for(1'000'000, 4,
                                 [&](std::size_t i, unsigned) {
                                     begun++;
                                     if (i == 10) throw std::runtime_error("ten");
                                 }),
                    std::runtime_error);
    CHECK(begun < 1'000'000);
}

TEST_CASE("the failure of the lowest number reaches the caller, whichever thread is the first to fail") {
    for (const unsigned threads : {1U, 2U, 8U}) {
        std::string failed;
        try {
            parallel_for(100, threads, [](std::size_t i, unsigned) {
                if (i < 3) return;
                std::this_thread::sleep_for(std::chrono::milliseconds(i < 11 ? 11 - i : 0));
                throw std::runtime_error(std::to_string(i));
            });
        } catch (const std::runtime_error& error) {
            failed = error.what();
        }
        CHECK(failed == "3");
    }
}

TEST_CASE("ticks run on the calling thread, also while it waits, and their exceptions stop the loop") {
    const auto caller = std::this_thread::get_id();
    int ticks = 0;
    std::atomic<bool> elsewhere{false};
    parallel_for(
        2, 2,
        [&](std::size_t, unsigned worker) {
            std::this_thread::sleep_for(std::chrono::milliseconds(worker == 0 ? 1 : 350));
        },
        [&] {
            ++ticks;
            if (std::this_thread::get_id() != caller) elsewhere = true;
        });
    CHECK(ticks >= 1);
    CHECK_FALSE(elsewhere);

    std::atomic<int> begun{0};
    const auto work = [&](std::size_t, unsigned) {
        begun++;
        std::this_thread::sleep_for(std::chrono::microseconds(50));
    };
    CHECK_THROWS_AS(parallel_for(100'000, 2, work, [] { throw std::runtime_error("stop"); }), std::runtime_error);
    CHECK(begun < 100'000);
}

TEST_CASE("an exception of a tick ends the loop, also if the work that asked handles it") {
    for (const unsigned threads : {1U, 4U})
        for (const bool fails_later : {false, true}) {
            CAPTURE(threads);
            CAPTURE(fails_later);
            bool thrown = false;
            std::atomic<int> handled{0};
            std::string failed;
            try {
                parallel_for(
                    threads, threads,
                    [&](std::size_t, unsigned worker) {
                        // The other threads leave one call to the caller.
                        while (worker != 0 && handled == 0) std::this_thread::yield();
                        if (worker != 0) return;
                        try {
                            Interruption::ask();
                        } catch (const std::runtime_error&) {
                            ++handled;
                        }
                        if (fails_later) throw std::runtime_error("work");
                    },
                    [&] {
                        if (!std::exchange(thrown, true)) throw std::runtime_error("tick");
                    });
            } catch (const std::runtime_error& error) {
                failed = error.what();
            }
            CHECK(handled == 1);
            CHECK(failed == "tick");
        }
}

TEST_CASE("a forked child has a pool of its own") {
    parallel_for(8, 4, [](std::size_t, unsigned) {});
    CHECK(true_in_child([] {
        std::atomic<int> total{0};
        parallel_for(100, 4, [&](std::size_t, unsigned) { total++; });
        return total == 100;
    }));
}

TEST_CASE("zero threads means one per processor, and no operation takes more than its limits") {
    const unsigned processors = std::max(std::thread::hardware_concurrency(), 1U);
    for (const ThreadLimits limits : {any_threads, bulk_threads, saving_threads, uploading_threads}) {
        CHECK(thread_count(0, limits) == std::min(processors, limits.unasked));
        CHECK(thread_count(3, limits) == 3);
        CHECK(thread_count(100'000, limits) == limits.most);
    }
}

}  // namespace pool_test
