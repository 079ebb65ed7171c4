// Tests the shares of memory of pickles that are read side by side, and that a pickle that needs more is read alone.
#include "pickle/memory_share.hpp"

#include "doctest_safemap.hpp"

#include "pickle/pickle.hpp"

#include <atomic>
#include <mutex>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

namespace memory_share_test {

using namespace safemap;

namespace {

constexpr std::uint64_t whole = PickleLimits::least_memory;

/// A pickle of that many values, each of which takes memory.
std::string lists(std::size_t count) { return "(" + std::string(count, ']') + "l."; }

}  // namespace

TEST_CASE("objects of a thread nest, and an inner one gives no more than an outer one") {
    CHECK(MemoryShare::least() == whole);
    CHECK(MemoryShare::most() == MemoryShare::no_limit);
    {
        const MemoryShare outer(1000, 5000);
        CHECK(MemoryShare::least() == 1000);
        {
            const MemoryShare inner(2000, 9000);
            CHECK(MemoryShare::least() == 1000);
            CHECK(MemoryShare::most() == 5000);
            const MemoryShare innermost(10, 20);
            CHECK(MemoryShare::least() == 10);
            CHECK(MemoryShare::most() == 20);
        }
        CHECK(MemoryShare::least() == 1000);
        std::uint64_t elsewhere = 0;
        std::thread([&] { elsewhere = MemoryShare::least(); }).join();
        CHECK(elsewhere == whole);
    }
    CHECK(MemoryShare::least() == whole);
}

TEST_CASE("a share lowers the limits of small pickles, and those of large ones follow their bytes") {
    const MemoryShare share(whole / 8);
    CHECK(PickleLimits::of_packed(0).max_memory == whole / 8);
    CHECK(PickleLimits::of_packed(0).max_bytes == PickleLimits::least_bytes / 8);
    CHECK(PickleLimits::of_packed(16 << 20).max_memory == std::uint64_t{1} << 30);
    const MemoryShare rest(whole / 8, 1 << 20);
    CHECK(PickleLimits::of_packed(16 << 20).max_memory == 1 << 20);
}

TEST_CASE("a share was too small if something exceeded it, and more is around it") {
    MemoryShare::exceed();
    CHECK(!MemoryShare::was_too_small());
    const MemoryShare share(1000);
    CHECK(!MemoryShare::was_too_small());
    {
        const MemoryShare same(1000);
        MemoryShare::exceed();
        CHECK(!MemoryShare::was_too_small());
    }
    CHECK(MemoryShare::was_too_small());
    const MemoryShare fresh(10);
    CHECK(!MemoryShare::was_too_small());
}

TEST_CASE("threads share the memory, and what is left over is read alone, in order") {
    constexpr std::size_t count = 40;
    for (const unsigned threads : {1U, 2U, 5U, 8U}) {
        CAPTURE(threads);
        std::atomic<unsigned> running = 0;
        std::atomic<bool> wrong = false;
        std::vector<int> calls(count);
        std::vector<std::size_t> alone;
        std::mutex mutex;
        parallel_for_pickles(count, threads, [&](std::size_t i) {
            const unsigned now = ++running;
            const std::uint64_t memory = MemoryShare::least();
            const std::lock_guard lock(mutex);
            const bool again = ++calls[i] == 2;
            if (again || threads == 1 ? memory != whole : memory > whole / threads) wrong = true;
            if (again && now != 1) wrong = true;
            if (again) alone.push_back(i);
            --running;
            if (i % 7 == 3) MemoryShare::exceed();
        });
        CHECK(!wrong);
        // One thread has the whole limit.
        CHECK(alone == (threads == 1 ? std::vector<std::size_t>() : std::vector<std::size_t>{3, 10, 17, 24, 31, 38}));
        for (std::size_t i = 0; i < count; ++i) CHECK(calls[i] == (threads > 1 && i % 7 == 3 ? 2 : 1));
    }
}

TEST_CASE("fewer pickles than threads have larger shares") {
    for (std::size_t count = 0; count < 4; ++count) {
        std::atomic<bool> wrong = false;
        parallel_for_pickles(count, 8, [&](std::size_t) {
            if (MemoryShare::least() != whole / count) wrong = true;
        });
        CHECK(!wrong);
    }
}

TEST_CASE("an exception passes, and nothing is read alone after it") {
    int calls = 0;
    CHECK_THROWS_AS(parallel_for_pickles(3, 1,
                                         [&](std::size_t i) {
                                             ++calls;
                                             MemoryShare::exceed();
                                             if (i == 1) throw std::runtime_error("other");
                                         }),
                    std::runtime_error);
    CHECK(calls == 2);
    CHECK(MemoryShare::least() == whole);
}

TEST_CASE("a pickle that needs more than a share is read, one that needs more than all is refused") {
    const std::vector<std::string> pickles{lists(10), lists(30'000), lists(10), lists(100'000), lists(30'000)};
    std::vector<std::string> said(pickles.size());
    std::vector<int> calls(pickles.size());
    const MemoryShare all(8 << 20);
    parallel_for_pickles(pickles.size(), 4, [&](std::size_t i) {
        ++calls[i];
        try {
            said[i] = std::to_string(read_pickle(pickles[i], PickleLimits::of_packed(0)).size());
        } catch (const Error& error) {
            said[i] = name(error.code());
        }
    });
    CHECK(said == std::vector<std::string>{"11", "30001", "11", "pickle_too_large", "30001"});
    CHECK(calls == std::vector<int>{1, 2, 1, 2, 2});
}

}  // namespace memory_share_test
