// Tests the bookkeeping of resident tensors against a slow reference.
#include "device/residency.hpp"

#include "doctest_safemap.hpp"

#include <algorithm>
#include <random>
#include <vector>

using safemap::device::Residency;
using State = Residency::State;

namespace {

/// A slow reference: keeps every event, and adds everything up at each query.
struct Model {
    struct Tensor {
        std::uint64_t bytes = 0;
        int leases = 0;
        State state = State::absent;
        std::uint64_t used = 0;
    };
    std::vector<Tensor> tensors;
    std::uint64_t clock = 0;

    template <class Which> std::uint64_t sum(Which which) const {
        std::uint64_t total = 0;
        for (const Tensor& tensor : tensors)
            if (which(tensor)) total += tensor.bytes;
        return total;
    }
    static bool evictable(const Tensor& tensor) { return tensor.state == State::resident && tensor.leases == 0; }
    std::uint64_t occupied() const {
        return sum([](const Tensor& t) { return t.state != State::absent; });
    }
    std::uint64_t wanted() const {
        return sum(
            [](const Tensor& t) { return t.leases > 0 && (t.state == State::absent || t.state == State::leaving); });
    }

    /// Tries every number of least recently used tensors.
    Residency::Room room_for(std::uint64_t bytes, std::uint64_t kept, std::uint64_t since, std::uint64_t budget) const {
        if (occupied() + kept + bytes <= budget) return {true, {}};
        const auto leaving = sum([](const Tensor& t) { return t.state == State::leaving; });
        std::vector<Residency::Id> order;
        for (Residency::Id id = 0; id < tensors.size(); ++id)
            if (evictable(tensors[id]) && tensors[id].used <= since && tensors[id].bytes > 0) order.push_back(id);
        std::sort(order.begin(), order.end(), [&](auto a, auto b) { return tensors[a].used < tensors[b].used; });
        for (std::size_t n = 0; n <= order.size(); ++n) {
            std::uint64_t freed = leaving;
            for (std::size_t i = 0; i < n; ++i) freed += tensors[order[i]].bytes;
            if (occupied() - freed + kept + bytes <= budget)
                return {false, {order.begin(), order.begin() + static_cast<std::ptrdiff_t>(n)}};
        }
        return {};
    }
};

}  // namespace

TEST_CASE("random schedules keep the budget and agree with the slow reference") {
    for (unsigned seed = 0; seed < 200; ++seed) {
        CAPTURE(seed);
        std::mt19937 random(seed);
        const std::uint64_t budget = 20 + random() % 100;
        Residency residency(budget);
        Model model;
        const std::size_t count = 1 + random() % 12;
        for (std::size_t i = 0; i < count; ++i) {
            const std::uint64_t bytes = random() % 4 == 0 ? 0 : random() % 40;
            REQUIRE(residency.add(bytes) == i);
            model.tensors.push_back({bytes, 0, State::absent, 0});
        }

        std::uint64_t peak = 0;
        for (int step = 0; step < 400; ++step) {
            CAPTURE(step);
            const auto id = static_cast<Residency::Id>(random() % count);
            auto& tensor = model.tensors[id];
            const bool was_evictable = Model::evictable(tensor);
            const auto since = model.clock - std::min<std::uint64_t>(model.clock, random() % 6);

            // Compares the room before something changes.
            const auto room = residency.room_for(tensor.bytes);
            const auto expected = model.room_for(tensor.bytes, 0, model.clock, budget);
            CHECK(room.now == expected.now);
            CHECK(room.victims == expected.victims);
            const auto spare = residency.spare_room_for(tensor.bytes, since);
            const auto expected_spare = model.room_for(tensor.bytes, model.wanted(), since, budget);
            CHECK(spare.now == expected_spare.now);
            CHECK(spare.victims == expected_spare.victims);

            bool used = false;
            switch (random() % 8) {
                case 0:
                    residency.lease(id);
                    ++tensor.leases;
                    break;
                case 1:
                    if (tensor.leases == 0) break;
                    residency.release(id);
                    --tensor.leases;
                    break;
                case 2:
                    residency.touch(id);
                    used = was_evictable;
                    break;
                case 3:
                    if (tensor.state != State::absent || !room.now) break;
                    residency.begin(id);
                    tensor.state = State::arriving;
                    break;
                case 4:
                    if (tensor.state != State::arriving) break;
                    residency.arrive(id);
                    tensor.state = State::resident;
                    break;
                case 5:
                    if (tensor.state != State::arriving) break;
                    residency.give_up(id);
                    tensor.state = State::absent;
                    break;
                case 6:
                    if (!was_evictable) break;
                    residency.leave(id);
                    tensor.state = State::leaving;
                    break;
                case 7:
                    if (tensor.state != State::leaving) break;
                    residency.gone(id);
                    tensor.state = State::absent;
                    break;
            }
            if (Model::evictable(tensor) && (used || !was_evictable)) tensor.used = ++model.clock;

            peak = std::max(peak, model.occupied());
            CHECK(residency.now() == model.clock);
            CHECK(residency.state(id) == tensor.state);
            CHECK(residency.leased(id) == (tensor.leases > 0));
            CHECK(residency.occupied() == model.occupied());
            CHECK(residency.peak() == peak);
            CHECK(residency.occupied() <= budget);
            CHECK(residency.leased_bytes() == model.sum([](const Model::Tensor& t) { return t.leases > 0; }));
            CHECK(residency.resident() == model.sum([](const Model::Tensor& t) { return t.state == State::resident; }));
        }
    }
}

TEST_CASE("numbers of removed tensors are reused") {
    Residency residency(10);
    const auto first = residency.add(3);
    const auto second = residency.add(4);
    residency.remove(first);
    CHECK(residency.add(5) == first);
    CHECK(residency.bytes(first) == 5);
    CHECK(residency.bytes(second) == 4);
    CHECK(residency.state(first) == State::absent);
}

TEST_CASE("the least recently used tensor is evicted first") {
    Residency residency(3);
    std::vector<Residency::Id> ids;
    for (int i = 0; i < 4; ++i) ids.push_back(residency.add(1));
    for (int i = 0; i < 3; ++i) {
        residency.begin(ids[static_cast<std::size_t>(i)]);
        residency.arrive(ids[static_cast<std::size_t>(i)]);
    }
    residency.lease(ids[0]);
    residency.release(ids[0]);
    CHECK(residency.room_for(1).victims == std::vector{ids[1]});
    CHECK(residency.room_for(3).victims == std::vector{ids[1], ids[2], ids[0]});
    residency.lease(ids[1]);
    CHECK(residency.room_for(1).victims == std::vector{ids[2]});
    CHECK(residency.room_for(3).victims.empty());
    CHECK_FALSE(residency.room_for(3).now);
}
