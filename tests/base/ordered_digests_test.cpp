// Tests digests of items whose pieces come from several workers and are hashed in order.
#include "base/ordered_digests.hpp"

#include "base/pool.hpp"
#include "doctest_safemap.hpp"

#include <algorithm>
#include <chrono>
#include <random>
#include <thread>

namespace ordered_digests_test {

using namespace safemap;

namespace {

std::vector<std::byte> random_bytes(std::size_t size, std::mt19937& random) {
    std::vector<std::byte> bytes(size);
    std::generate(bytes.begin(), bytes.end(), [&] { return static_cast<std::byte>(random()); });
    return bytes;
}

struct Piece {
    std::size_t item;
    std::size_t offset;
    std::size_t size;
};

}  // namespace

TEST_CASE("digests do not depend on the pieces of the items or on the workers") {
    std::random_device device;
    for (int round = 0; round < 30; ++round) {
        const unsigned seed = device();
        CAPTURE(seed);
        std::mt19937 random(seed);
        std::vector<std::vector<std::byte>> items(1 + random() % 20);
        std::vector<Piece> pieces;
        for (std::size_t i = 0; i < items.size(); ++i) {
            items[i] = random_bytes(random() % 3 == 0 ? 0 : random() % 5'000, random);
            for (std::size_t at = 0; at < items[i].size();) {
                const std::size_t size = std::min<std::size_t>(1 + random() % 1'000, items[i].size() - at);
                pieces.push_back({i, at, size});
                at += size;
            }
        }
        OrderedDigests digests(items.size());
        parallel_for(pieces.size(), 1 + random() % 8, [&](std::size_t i, unsigned) {
            const Piece& piece = pieces[i];
            if (i % 7 == 0) std::this_thread::sleep_for(std::chrono::microseconds(200));
            const auto bytes = std::span(items[piece.item]).subspan(piece.offset, piece.size);
            CHECK(digests.feed(piece.item, items[piece.item].size(), piece.offset, bytes));
        });
        for (std::size_t i = 0; i < items.size(); ++i) CHECK(digests.of(i) == xxh3(items[i]));
    }
}

TEST_CASE("a worker that waits for an abandoned item gets an error, and the others continue") {
    const std::vector<std::byte> bytes(10);
    for (const bool all : {false, true}) {
        OrderedDigests digests(2);
        std::thread waiting([&] { CHECK_FALSE(digests.feed(0, 20, 10, bytes)); });
        std::this_thread::sleep_for(std::chrono::milliseconds(5));
        if (all) digests.abandon_all();
        else digests.abandon(0);
        waiting.join();
        CHECK_FALSE(digests.feed(0, 20, 0, bytes));
        CHECK(digests.feed(1, 20, 0, bytes) == !all);
        CHECK(digests.feed(1, 20, 10, bytes) == !all);
    }
}

TEST_CASE("a wait on the caller's thread reports progress and can be stopped") {
    const std::vector<std::byte> bytes(10);
    OrderedDigests digests(1);
    int told = 0;
    Monitor monitor;
    monitor.on_progress = [&](const Progress&) { return ++told < 2; };
    Watch watch(monitor, "waiting", 20);
    CHECK_FAULT(digests.feed(0, 20, 10, bytes, &watch), Errc::cancelled);
    CHECK(told == 2);
}

}  // namespace ordered_digests_test
