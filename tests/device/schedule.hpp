// The ground that random schedules share: a device, caches on it that share a budget, tensors whose values are known,
// and calls that fail.
#pragma once

#include "device/cache_fixture.hpp"
#include "device/counted.hpp"
#include "device/fake_device.hpp"

#include <safemap/device.hpp>
#include <safemap/error.hpp>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <random>
#include <vector>

/// Which calls fail in a schedule.
enum class Fails : std::uint8_t { nothing, reads, copies, allocations };

struct Schedule {
    std::uint64_t budget = 40'000;
    bool staged = false;
    bool mapped = false;
    Fails fails = Fails::nothing;
    unsigned caches = 1;
    bool keeps_addresses = false;
};

struct ScheduleGround {
    const Schedule schedule;
    std::shared_ptr<safemap::Device> device = safemap::Device::open("host");
    std::shared_ptr<FakeDevice> fake = {};  // the same device, if it is a fake
    std::shared_ptr<safemap::device::Cache> shared = {};
    std::vector<std::unique_ptr<CacheFixture>> caches = {};
    CacheFixture* cache = nullptr;  // the first one
    std::vector<Bytes> stored = {};
    std::vector<std::vector<std::byte>> values = {};  // parallel to stored

    ScheduleGround(const Schedule& wanted, unsigned seed);

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
