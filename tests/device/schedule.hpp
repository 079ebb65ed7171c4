// The ground that random schedules share: a device, caches on it that share a budget, tensors whose values are known,
// calls and threads that fail, violations, and a watchdog.
#pragma once

#include "device/cache_fixture.hpp"
#include "device/counted.hpp"
#include "device/fake_device.hpp"

#include <safemap/device.hpp>
#include <safemap/error.hpp>

#include <pthread.h>

#include <atomic>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <random>
#include <string>
#include <thread>
#include <vector>

/// Which calls fail in a schedule.
enum class Fails : std::uint8_t { nothing, reads, copies, allocations };

struct Schedule {
    std::uint64_t budget = 40'000;
    bool staged = false;
    bool mapped = false;
    Fails fails = Fails::nothing;
    unsigned caches = 1;  // 0: the test makes a DeviceBudget
    bool keeps_addresses = false;
};

/// Violations of the threads of a schedule, checked after they end.
struct Violations {
    std::atomic<int> wrong_values = 0;
    std::atomic<int> over_budget = 0;
    std::atomic<int> strange_errors = 0;
    std::atomic<int> acquired = 0;
    std::atomic<int> followed = 0;
    std::atomic<int> refused = 0;
    std::atomic<int> failed = 0;
    std::atomic<int> late = 0;

    /// Counts an error that was not expected, and keeps the text of the first one.
    void add_strange(const safemap::Error& error);
    /// Checks that nothing is wrong, and that there were leases.
    void check() const;

private:
    std::mutex mutex_ = {};
    std::string strange_ = {};
};

/// Ends the process if it is not destroyed in time, because threads that hang cannot be joined.
class Watchdog {
public:
    explicit Watchdog(unsigned seed);
    ~Watchdog();
    Watchdog(const Watchdog&) = delete;
    Watchdog& operator=(const Watchdog&) = delete;

private:
    std::mutex mutex_;
    std::condition_variable ended_;
    bool over_ = false;
    std::thread thread_;
};

/// While it lives, no thread can be started: the system has no room for its stack.
class NoMoreThreads {
public:
    NoMoreThreads();
    ~NoMoreThreads();
    NoMoreThreads(const NoMoreThreads&) = delete;
    NoMoreThreads& operator=(const NoMoreThreads&) = delete;

private:
    pthread_attr_t before_ = {};
};

struct ScheduleGround {
    const Schedule schedule;
    const std::uint64_t host_bytes;  // budget of the host tier
    std::shared_ptr<safemap::Device> device = safemap::Device::open("host");
    std::shared_ptr<FakeDevice> fake = {};  // the same device, if it is a fake
    std::shared_ptr<safemap::device::Cache> shared = {};
    std::vector<std::unique_ptr<CacheFixture>> caches = {};
    CacheFixture* cache = nullptr;  // the first one
    std::vector<Bytes> stored = {};
    std::vector<std::vector<std::byte>> values = {};  // parallel to stored

    ScheduleGround(const Schedule& wanted, unsigned seed);
    safemap::DeviceBudgetOptions options() const {
        return {.device_bytes = schedule.budget, .staging_bytes = 12'288, .host_bytes = host_bytes};
    }

    /// Adds a tensor of `size` bytes.
    const Bytes& add(std::uint64_t size);

    /// Makes a call fail now and then, of the kind that the schedule says.
    void fail_something(std::mt19937& random) const;
    void stop_failing() const;
    /// Returns true for an error of the calls that fail.
    bool is_expected(const safemap::Error& error) const;
    /// Returns how many of the counts of device memory are above the budget.
    int over_budget() const;
};
