// Random schedules of several threads on two uploaders under one budget, which are destroyed and made anew at any
// moment. Others go on with what outlives them: leases, requests, orders, bundles, capsules, copies of a fill. Also
// without reader threads, and in a process that forks meanwhile. Values are always right, the budget is never exceeded,
// nothing hangs, and the device gets all memory back.

#include "child_process.hpp"
#include "device/schedule.hpp"
#include "doctest_safemap.hpp"
#include "soak.hpp"

#include <safemap/advanced/device_backend.hpp>
#include <safemap/advanced/device_dlpack.hpp>
#include <safemap/device.hpp>
#include <safemap/uploader.hpp>

#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <latch>
#include <memory>
#include <mutex>
#include <optional>
#include <random>
#include <shared_mutex>
#include <span>
#include <stop_token>
#include <string>
#include <thread>
#include <utility>
#include <vector>

namespace uploader_schedule_test {

using namespace safemap;

namespace {

constexpr std::uint64_t own_bytes = 3'000;  // memory of a thread, for fill()
constexpr std::size_t thread_count = 4;

struct Play : Schedule {
    bool has_readers = true;
    bool forks = false;
};

/// An uploader that any thread may replace. Calls of its members share the mutex, so that none is in progress when it
/// is destroyed.
struct Shelf {
    std::shared_mutex mutex;
    std::unique_ptr<Uploader> uploader;
    std::vector<Bundle> bundles;
};

struct Stage : ScheduleGround {
    const Play play;
    const unsigned readers;
    std::optional<DeviceBudget> budget;
    std::vector<std::vector<std::size_t>> numbers;  // the tensors of each bundle
    std::array<Shelf, 2> shelves;
    std::atomic<int> ended = 0;   // uploaders that were destroyed
    std::atomic<int> forked = 0;  // children that did well
    std::atomic<int> filled = 0;
    std::atomic<unsigned> arrived = 0;  // calls of the hook
    std::atomic<bool> is_over = false;  // nothing fails any more

    Stage(const Play& of, unsigned seed) : ScheduleGround(of, seed), play(of), readers(1 + seed % 3) {
        budget.emplace(device, options());
        const std::uint64_t part = of.budget / 16;
        // The first of these share blocks if the budget is the larger one.
        for (const std::uint64_t size : {std::uint64_t{0}, std::uint64_t{1}, std::uint64_t{300}, std::uint64_t{2'000},
                                         own_bytes, part, part, part + 100, 2 * part, 3 * part, 4 * part, 5 * part})
            add(size).counted.slow(size % 3 == 0 ? 30 : 0);
        for (std::size_t i = 0; i < stored.size(); ++i) numbers.push_back({i});
        for (const auto& several : std::vector<std::vector<std::size_t>>{{1, 2, 3}, {4, 9}, {2, 9, 10}, {3, 5}, {0, 7}})
            numbers.push_back(several);
        for (Shelf& shelf : shelves) fill(shelf);
    }
    void fill(Shelf& shelf) {
        const auto hook = [this](NativeStream, std::span<const FillTarget>) {
            if (++arrived % 8 == 0 && play.fails == Fails::reads && !is_over)
                throw Error(Errc::io_error, "the hook is at its end");
        };
        shelf.uploader =
            std::make_unique<Uploader>(*budget, no_tensors(), UploadOptions{.readers = readers, .on_arrival = hook});
        shelf.bundles.clear();
        for (const auto& several : numbers) {
            std::vector<LazyTensor> tensors;
            for (const std::size_t i : several) tensors.push_back(stored[i].tensor);
            shelf.bundles.push_back(shelf.uploader->bundle(tensors));
        }
    }
    bool has_value(const DeviceMemory& memory, std::uint64_t offset, std::size_t i) {
        std::vector<std::byte> bytes(values[i].size());
        device->copy_to_host(bytes, memory, offset);
        return bytes.empty() || std::memcmp(bytes.data(), values[i].data(), bytes.size()) == 0;
    }
    bool has_values(const Lease& lease, std::size_t number) {
        for (std::size_t i = 0; i < numbers[number].size(); ++i) {
            const DeviceTensor& tensor = lease.tensors()[i];
            if (!has_value(*tensor.memory(), tensor.offset(), numbers[number][i])) return false;
        }
        return true;
    }
    int over_budget() const {
        const bool by_device = fake && fake->peak > schedule.budget + thread_count * own_bytes;
        return (by_device ? 1 : 0) + (budget->stats().peak_device_bytes > schedule.budget ? 1 : 0);
    }
};

/// One thread of a schedule, and what it keeps.
class Actor {
public:
    Actor(Stage& stage, unsigned seed, Violations& violations)
        : stage_(stage), violations_(violations), random_(seed), own_(stage.device->allocate(own_bytes)) {}
    ~Actor() {
        end_fill();
        while (!capsules_.empty()) drop_capsule();
    }
    Actor(const Actor&) = delete;
    Actor& operator=(const Actor&) = delete;

    void act(int steps) {
        for (int step = 0; step < steps; ++step) {
            stage_.fail_something(random_);
            try {
                act_once(stage_.shelves[below(2)]);
            } catch (const Error& error) {
                note(error);
            }
            // A lease still has its values, whatever other threads did.
            check_some();
            violations_.over_budget += stage_.over_budget();
        }
    }
    void check_some() {
        if (leases_.empty()) return;
        const Taken& one = leases_[below(leases_.size())];
        if (!stage_.has_values(one.lease, one.number)) ++violations_.wrong_values;
    }

private:
    struct Taken {
        std::size_t number;
        Lease lease;
        std::stop_source stop = {};  // for a request
    };
    using Calls = std::shared_lock<std::shared_mutex>;

    std::size_t below(std::size_t n) { return random_() % n; }
    std::size_t any() { return below(stage_.numbers.size()); }

    void act_once(Shelf& shelf) {
        switch (below(24)) {
            case 0: return replace(shelf);
            case 1: return follow(shelf);
            case 2: return end_order();
            case 3: return ask(shelf);
            case 4:
            case 5: return answer();
            case 6: return try_take(shelf);
            case 7: return prefetch(shelf);
            case 8: return sleep_or_wake(shelf);
            case 9: return evict(shelf);
            case 10: return fill_own(shelf);
            case 11: return end_fill();
            case 12: return make_capsule();
            case 13: return fork(shelf);
            case 14:
            case 15:
                if (!leases_.empty()) take_any(leases_);
                return;
            case 16:
            case 17:
            case 18:
            case 19: return next();
            default: return take(shelf);
        }
    }
    void note(const Error& error) {
        if (error.code() == Errc::budget_exceeded) ++violations_.refused;
        else if (error.code() == Errc::deadline_passed || error.code() == Errc::cancelled) ++violations_.late;
        else if (stage_.is_expected(error)) ++violations_.failed;
        else if (!is_second_order(error)) violations_.add_strange(error);
    }
    static bool is_second_order(const Error& error) {
        return error.code() == Errc::invalid_argument && error.message().ends_with("end that first");
    }
    Request any_request(std::stop_token stop = {}) {
        Request request{.priority = static_cast<int>(below(3)), .monitor = {.stop = std::move(stop)}};
        if (below(4) == 0) request.deadline = std::chrono::steady_clock::now() + std::chrono::microseconds(below(500));
        return request;
    }
    static Taken take_any(std::vector<Taken>& from, std::size_t at) {
        std::swap(from[at], from.back());
        Taken taken = std::move(from.back());
        from.pop_back();
        return taken;
    }
    Taken take_any(std::vector<Taken>& from) { return take_any(from, below(from.size())); }
    void hold(std::size_t number, Lease lease) {
        ++violations_.acquired;
        if (!stage_.has_values(lease, number)) ++violations_.wrong_values;
        if (leases_.size() < 3 && below(2) == 0) leases_.push_back({number, std::move(lease)});
    }

    /// Destroys the uploader of a shelf, which is in use by nobody but what outlives it, and makes another one.
    void replace(Shelf& shelf) {
        if (below(4) != 0) return;
        std::unique_ptr<Uploader> old;
        std::vector<Bundle> handles;  // half of them end before the uploader
        {
            const std::lock_guard lock(shelf.mutex);
            old = std::move(shelf.uploader);
            handles.assign(shelf.bundles.begin(), shelf.bundles.begin() + 8);
            stage_.fill(shelf);
        }
        old.reset();
        ++stage_.ended;
    }
    void take(Shelf& shelf) {
        const Calls calls(shelf.mutex);
        const std::size_t number = any();
        hold(number, shelf.uploader->acquire(shelf.bundles[number], {}, any_request()));
    }
    void try_take(Shelf& shelf) {
        const Calls calls(shelf.mutex);
        const std::size_t number = any();
        if (auto lease = shelf.uploader->try_acquire(shelf.bundles[number])) hold(number, *std::move(lease));
    }
    void ask(Shelf& shelf) {
        if (tickets_.size() > 2) return;
        const Calls calls(shelf.mutex);
        Taken asked{any(), {}};
        asked.lease = shelf.uploader->request(shelf.bundles[asked.number], any_request(asked.stop.get_token()));
        tickets_.push_back(std::move(asked));
    }
    /// Waits for a lease that was requested, or drops it. Its uploader may be there or not.
    void answer() {
        if (tickets_.empty()) return;
        Taken asked = take_any(tickets_);
        static_cast<void>(asked.lease.ready());
        if (below(4) == 0) return asked.lease.release();
        if (below(4) == 0) asked.stop.request_stop();
        asked.lease.wait();
        hold(asked.number, std::move(asked.lease));
    }
    void prefetch(Shelf& shelf) {
        const Calls calls(shelf.mutex);
        shelf.uploader->prefetch(std::vector{shelf.bundles[any()], shelf.bundles[any()]});
    }
    void evict(Shelf& shelf) {
        const Calls calls(shelf.mutex);
        shelf.uploader->evict(shelf.bundles[any()]);
    }
    void sleep_or_wake(Shelf& shelf) {
        const Calls calls(shelf.mutex);
        if (below(3) == 0) static_cast<void>(shelf.uploader->sleep());
        else shelf.uploader->wake();
    }
    void follow(Shelf& shelf) {
        const Calls calls(shelf.mutex);
        order_.end();
        steps_.clear();
        std::vector<Bundle> bundles;
        for (std::size_t i = 1 + below(12); i > 0; --i) {
            steps_.push_back(any());
            bundles.push_back(shelf.bundles[steps_.back()]);
        }
        order_ = below(4) > 0 ? shelf.uploader->follow(bundles) : shelf.uploader->follow_once(bundles);
        ++violations_.followed;
    }
    void next() {
        if (order_.upcoming() == order_.size()) return;
        const std::size_t number = steps_[order_.upcoming()];
        hold(number, order_.next({}, any_request()));
    }
    void end_order() {
        if (below(2) == 0 && order_.size() > 0) order_.reset();
        else order_.end();
    }
    /// Fills own memory. Its copies may still be in progress when the uploader ends.
    void fill_own(Shelf& shelf) {
        end_fill();
        const Calls calls(shelf.mutex);
        filled_with_ = 1 + below(4);
        const FillTarget target{stage_.stored[filled_with_].tensor, own_->handle(), own_bytes};
        filled_ = shelf.uploader->fill(std::span(&target, 1));
    }
    void end_fill() {
        const auto event = std::move(filled_);
        if (!event) return;
        event->wait();
        ++stage_.filled;
        if (!stage_.has_value(*own_, 0, filled_with_)) ++violations_.wrong_values;
    }
    /// Gives a lease to a capsule, or ends one. DLPack does not know the fake device.
    void make_capsule() {
        if (!capsules_.empty()) return drop_capsule();
        if (leases_.empty() || stage_.fake) return;
        auto lease = std::make_shared<Lease>(take_any(leases_).lease);
        const DeviceTensor& tensor = lease->tensors()[0];
        capsules_.push_back(dlpack::export_versioned(std::move(lease), tensor, {}));
    }
    void drop_capsule() {
        dlpack::ManagedTensorVersioned* const capsule = capsules_.back();
        capsules_.pop_back();
        capsule->deleter(capsule);
    }

    void fork(Shelf& shelf) {
        if (!stage_.play.forks || below(8) != 0) return;
        const Calls calls(shelf.mutex);
        if (true_in_child([&] { return behaves_in_child(shelf); })) ++stage_.forked;
        else violations_.add_strange(Error(Errc::io_error, "the child process fails"));
    }
    /// Does what a child of the process may do, while locks are held by threads that the child does not have.
    bool behaves_in_child(Shelf& shelf) {
        ::alarm(60);
        const auto refused = [](auto&& call) {
            const auto error = error_of(call);
            return error && error->code() == Errc::invalid_argument;
        };
        bool good = refused([&] { shelf.uploader->prefetch(shelf.bundles[5]); }) &&
                    refused([&] { static_cast<void>(shelf.uploader->sleep()); }) &&
                    refused([&] { static_cast<void>(shelf.uploader->stats()); }) &&
                    refused([&] { shelf.uploader->evict(shelf.bundles[5]); });
        if (!stage_.fake) {
            for (const Taken& one : leases_) good = good && stage_.has_values(one.lease, one.number);
            for (std::size_t i = 0; i < stage_.numbers.size(); ++i)
                if (const auto lease = shelf.uploader->try_acquire(shelf.bundles[i]))
                    good = good && stage_.has_values(*lease, i);
        }
        for (Taken& ticket : tickets_) good = good && ticket.lease.ready();
        tickets_.clear();
        leases_.clear();
        order_.end();
        shelf.bundles.clear();
        shelf.uploader.reset();
        Uploader anew(Device::open("host"), no_tensors(), {.readers = 1});
        const Lease lease = anew.acquire(anew.bundle(std::span(&stage_.stored[3].tensor, 1)));
        return good && std::ranges::equal(lease.tensors()[0].host_bytes(), stage_.values[3]);
    }

    Stage& stage_;
    Violations& violations_;
    std::mt19937 random_;
    const std::shared_ptr<DeviceMemory> own_;
    std::shared_ptr<DeviceEvent> filled_ = {};  // copies that may be in progress
    std::size_t filled_with_ = 0;
    std::vector<Taken> leases_;
    std::vector<Taken> tickets_;
    std::vector<dlpack::ManagedTensorVersioned*> capsules_;
    UploadOrder order_;
    std::vector<std::size_t> steps_;
};

/// Returns the number of reader threads of this process.
std::size_t count_readers() {
    std::size_t count = 0;
    for (const auto& task : std::filesystem::directory_iterator("/proc/self/task")) {
        std::string name;
        std::getline(std::ifstream(task.path() / "comm"), name);
        count += name == "safemap-reader" ? 1 : 0;
    }
    return count;
}

/// Acquires each bundle alone. Nothing is leased, so that each one fits.
void acquire_each(Stage& stage) {
    for (Shelf& shelf : stage.shelves)
        for (std::size_t i = 0; i < stage.numbers.size(); ++i) {
            CAPTURE(i);
            // Faults of uploads that nobody waited for may still be pending. Each one is thrown once.
            for (std::size_t k = 0; stage.schedule.fails != Fails::nothing && k < stage.numbers[i].size(); ++k)
                static_cast<void>(error_of([&] { static_cast<void>(shelf.uploader->acquire(shelf.bundles[i])); }));
            Lease lease;
            CHECK_OK(lease = shelf.uploader->acquire(shelf.bundles[i]));
            CHECK(stage.has_values(lease, i));
        }
}

/// All that happened in some schedules.
struct Tally {
    int leases = 0;
    int ended = 0;
    int filled = 0;
    int forked = 0;
};

void run_play(const Play& play, unsigned seed, Tally& tally) {
    CAPTURE(seed);
    const Watchdog watchdog(seed);
    Stage stage(play, seed);
    Violations violations;
    std::vector<std::unique_ptr<Actor>> actors;
    std::latch begin(1);
    std::vector<std::thread> threads;
    for (unsigned t = 0; t < thread_count; ++t) {
        actors.push_back(std::make_unique<Actor>(stage, seed * 100 + t, violations));
        threads.emplace_back([&begin, &actor = *actors.back()] {
            begin.wait();
            actor.act(100);
        });
    }
    std::optional<NoMoreThreads> none;
    if (!play.has_readers) none.emplace();
    for (Shelf& shelf : stage.shelves)
        CHECK_OK(shelf.uploader->prefetch(shelf.bundles[3]));  // no child has the uploaders
    begin.count_down();
    for (std::thread& thread : threads) thread.join();

    violations.check();
    CHECK(violations.followed.load() > 0);
    CHECK(soon([&] { return (count_readers() > 0) == play.has_readers; }));
    stage.is_over = true;
    stage.stop_failing();
    if (seed % 2 == 0) {
        actors.clear();
        acquire_each(stage);
    }
    for (Shelf& shelf : stage.shelves) {
        shelf.uploader.reset();
        shelf.bundles.clear();
    }
    for (const auto& actor : actors) actor->check_some();
    actors.clear();
    CHECK(violations.wrong_values.load() == 0);
    CHECK(stage.over_budget() == 0);
    CHECK(soon([&] { return stage.budget->stats().device_bytes == 0; }));
    CHECK(stage.arrived > 0);
    if (stage.fake) {
        CHECK(soon([&] { return stage.budget->stats().host_bytes == 0; }));
        CHECK(soon([&] { return *stage.fake->live_staging <= stage.budget->stats().peak_staging_bytes; }));
        CHECK(stage.fake->allocated == 0);
        CHECK(stage.fake->was_used_well());
    }
    tally.leases += violations.acquired;
    tally.ended += stage.ended;
    tally.filled += stage.filled;
    tally.forked += stage.forked;
}

/// Plays with a small budget, and with one in which small groups share blocks, until there were so many leases.
void play_until(int leases, Play play) {
    const unsigned first = soak::seed(0) % 1'000'000;
    Tally tally;
    unsigned i = 0;
    for (; tally.leases < leases && i < 10'000; ++i) {
        play.budget = i % 4 == 3 ? 1'200'000 : 40'000;
        run_play(play, first + i, tally);
    }
    MESSAGE(tally.leases << " leases, " << tally.ended << " uploaders ended, " << tally.filled << " fills, "
                         << tally.forked << " forks in " << i << " schedules");
    CHECK(tally.leases >= leases);
    if (!soak::whole()) return;  // a few schedules may be without
    CHECK(tally.ended > leases / 100);
    CHECK(tally.filled > leases / 100);
    CHECK(tally.forked >= (play.forks ? leases / 100 : 0));
}

int leases(int all) { return soak::rounds(all, 100); }

}  // namespace

TEST_CASE("random uploaders on the host") { play_until(leases(12'000), {}); }

TEST_CASE("random uploaders through staging buffers, and in mapped memory") {
    play_until(leases(12'000), {{.staged = true}});
    play_until(leases(6'000), {{.mapped = true}});
}

TEST_CASE("random uploaders with reads, copies and allocations that fail") {
    for (const Fails fails : {Fails::reads, Fails::copies, Fails::allocations})
        play_until(leases(6'000), {{.staged = true, .fails = fails}});
}

TEST_CASE("random uploaders without reader threads") {
    play_until(leases(6'000), {{}, false});
    play_until(leases(6'000), {{.staged = true}, false});
}

// The allocator of a sanitizer may be locked in a child for ever.
#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
TEST_CASE("random uploaders in a process that forks") {
    play_until(leases(6'000), {{}, true, true});
    play_until(leases(6'000), {{.staged = true}, true, true});
}
#endif

}  // namespace uploader_schedule_test
