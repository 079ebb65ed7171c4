// Chooses the device of a schedule, and the calls that fail in it.
#include "device/schedule.hpp"

#include "doctest_safemap.hpp"

#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <string>

void Violations::add_strange(const safemap::Error& error) {
    const std::lock_guard lock(mutex_);
    if (strange_errors++ == 0) strange_ = error.what();
}

void Violations::check() const {
    CAPTURE(strange_);
    CAPTURE(refused.load());
    CAPTURE(late.load());
    CAPTURE(failed.load());
    CHECK(wrong_values.load() == 0);
    CHECK(over_budget.load() == 0);
    CHECK(strange_errors.load() == 0);
    CHECK(acquired.load() > 0);
}

Watchdog::Watchdog(unsigned seed)
    : thread_([this, seed] {
          std::unique_lock lock(mutex_);
          if (ended_.wait_for(lock, std::chrono::seconds(120), [&] { return over_; })) return;
          std::fprintf(stderr, "the schedule with seed %u hangs\n", seed);
          std::abort();
      }) {}

Watchdog::~Watchdog() {
    {
        const std::lock_guard lock(mutex_);
        over_ = true;
    }
    ended_.notify_all();
    thread_.join();
}

NoMoreThreads::NoMoreThreads() {
    ::pthread_getattr_default_np(&before_);
    pthread_attr_t endless;
    ::pthread_attr_init(&endless);
    ::pthread_attr_setstacksize(&endless, std::size_t{1} << 47);
    ::pthread_setattr_default_np(&endless);
    ::pthread_attr_destroy(&endless);
}

NoMoreThreads::~NoMoreThreads() {
    ::pthread_setattr_default_np(&before_);
    ::pthread_attr_destroy(&before_);
}

ScheduleGround::ScheduleGround(const Schedule& wanted, unsigned seed)
    : schedule(wanted), host_bytes(seed / 4 % 4 * wanted.budget / 2) {
    if (schedule.staged || schedule.mapped) {
        device = fake = std::make_shared<FakeDevice>();
        fake->maps = schedule.mapped;
        fake->copy_microseconds = static_cast<int>(seed % 3) * 30;
    }
    if (schedule.caches == 0) return;
    shared = safemap::device::Cache::make(device, options());
    for (unsigned i = 0; i < schedule.caches; ++i)
        caches.push_back(std::make_unique<CacheFixture>(
            shared, safemap::UploadOptions{.readers = 1 + seed % 3, .keep_addresses = schedule.keeps_addresses}));
    cache = caches.front().get();
}

const Bytes& ScheduleGround::add(std::uint64_t size) {
    const std::string name = "t" + std::to_string(stored.size());
    stored.emplace_back(name, size);
    // Not read through the source, because its reads are counted.
    values.emplace_back();
    for (std::uint64_t i = 0; i < size; ++i) values.back().push_back(pattern(std::hash<std::string>()(name), i));
    return stored.back();
}

void ScheduleGround::fail_something(std::mt19937& random) const {
    if (random() % 8 != 0) return;
    const auto after = static_cast<std::int64_t>(random() % 4);
    switch (schedule.fails) {
        case Fails::nothing: break;
        case Fails::reads: stored[random() % stored.size()].counted.fail_after(after); break;
        case Fails::copies: fake->fail_copy = after; break;
        case Fails::allocations:
            if (after == 0) fake->fail_allocation = 0;
            else fake->full = after == 1;
            break;
    }
}

void ScheduleGround::stop_failing() const {
    for (const Bytes& bytes : stored) bytes.counted.fail_after(-1);
    if (!fake) return;
    fake->fail_copy = fake->fail_allocation = -1;
    fake->full = false;
}

bool ScheduleGround::is_expected(const safemap::Error& error) const {
    if (error.code() == safemap::Errc::out_of_memory) return schedule.fails == Fails::allocations;
    return error.code() == safemap::Errc::io_error &&
           (schedule.fails == Fails::reads || schedule.fails == Fails::copies);
}

int ScheduleGround::over_budget() const {
    std::uint64_t resident = 0;
    for (const auto& one : caches) resident += one->stats().resident_bytes;
    const std::uint64_t peak = shared->stats().peak_device_bytes;
    // The caches were asked one after the other, so tensors of one may have made way for those of the next.
    const bool by_cache = peak > schedule.budget || (caches.size() == 1 && resident > schedule.budget);
    const bool by_device = fake && fake->peak > schedule.budget;
    const bool by_tier = shared->stats().peak_host_bytes > host_bytes;
    return (by_cache ? 1 : 0) + (by_device ? 1 : 0) + (by_tier ? 1 : 0);
}
