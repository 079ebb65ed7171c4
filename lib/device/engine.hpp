// Brings tensors to a device under a budget: who asks, who reads, who waits. Knows tensors, not checkpoints.
#pragma once

#include "device/residency.hpp"
#include "device/staging.hpp"
#include "lazy/bulk.hpp"
#include "lazy/same_tensor.hpp"

#include <safemap/lazy_tensor.hpp>
#include <safemap/uploader.hpp>

#include <chrono>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <exception>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string_view>
#include <thread>
#include <vector>

namespace safemap::SAFEMAP_ABI::device {

class Engine;

/// Tensors that are leased; the lease ends with it.
class Held {
public:
    Held(std::shared_ptr<Engine> engine, std::size_t count);
    ~Held();
    Held(const Held&) = delete;
    Held& operator=(const Held&) = delete;

    std::span<const DeviceTensor> tensors() const noexcept { return tensors_; }
    const DeviceTensor* find(std::string_view name) const noexcept;

private:
    friend class Engine;
    void index_names();

    std::shared_ptr<Engine> engine_;
    std::vector<Residency::Id> ids_;  // leased so far, one by one with tensors_ when acquired
    std::vector<DeviceTensor> tensors_;
    std::vector<std::uint32_t> by_name_;
};

/// Whether a tensor stays on the device after its last lease, until its room is needed.
enum class Keep : std::uint8_t { no, yes };

/// Tensors are told apart by what they are, not by name: tied tensors share memory. One mutex guards all bookkeeping
/// and is never held while memory is allocated or freed, while anything is read, or while a copy is waited for.
class Engine : public std::enable_shared_from_this<Engine> {
public:
    /// Threads start with the first work there is for them.
    Engine(std::shared_ptr<Device> device, const UploadOptions& options);
    ~Engine();
    Engine(const Engine&) = delete;
    Engine& operator=(const Engine&) = delete;

    /// As Uploader::acquire. The calling thread takes part in the reading.
    std::shared_ptr<Held> acquire(std::span<const LazyTensor> tensors, Keep keep);
    void prefetch(std::span<const LazyTensor> tensors);
    void evict(std::span<const LazyTensor> tensors);
    UploadStats stats() const;

    /// Joins the readers, each after the block it is at, and frees what is not leased. Leases stay valid; what they
    /// hold is freed when they end. Nothing may be asked for any more.
    void stop() noexcept;

private:
    friend class Held;
    using Id = Residency::Id;
    using Lock = std::unique_lock<std::mutex>;

    struct Upload;
    struct Step;
    struct Want;

    /// A tensor that is on the device, on its way, asked for, or of which a fault is still to be told.
    struct Entry {
        std::unique_ptr<const LazyTensor> tensor = {};  // the key in known_
        bool keep = false;
        std::shared_ptr<DeviceMemory> memory = {};  // while resident
        std::shared_ptr<Upload> upload = {};        // while arriving
        std::exception_ptr fault = {};              // of a prefetch, until somebody acquires
    };

    // Entries.
    Id entry_of(const LazyTensor& tensor, Keep keep);
    std::optional<Id> find(const LazyTensor& tensor) const;
    void release(std::span<const Id> ids) noexcept;
    void settle(Lock& lock, Id id) noexcept;
    void drop(Lock& lock, std::span<const Id> victims) noexcept;
    void forget(Id id) noexcept;

    // Acquiring.
    void lease_all(Lock& lock, std::span<const LazyTensor> tensors, Keep keep, Held& held);
    [[noreturn]] void refuse(std::span<const LazyTensor> tensors, std::uint64_t leased) const;
    bool bring(Lock& lock, std::span<const Id> ids);
    bool arrived(const Want& want) const;
    bool set_off(Lock& lock, Want& want);
    void take_back_queued(std::uint64_t bytes);

    // Uploads.
    std::shared_ptr<Upload> begin(Id id, std::deque<std::shared_ptr<Upload>>& queue);
    std::optional<Step> next_step();
    void run(Lock& lock, const Step& step, Worker& worker);
    void finish(Lock& lock, Upload& upload);
    void perform(const Step& step, Worker& worker);
    void allocate(Upload& upload);
    void read_direct(Upload& upload, std::uint64_t block, Worker& worker);
    void read_staged(Upload& upload, std::uint64_t block, Worker& worker);
    void track(Upload& upload, std::shared_ptr<DeviceEvent> copy, std::uint64_t bytes_read);

    // Threads.
    void wake_readers();
    void read_until_stopped();
    std::unique_ptr<Worker> borrow_worker();

    const std::shared_ptr<Device> device_;
    const unsigned reader_count_;
    std::unique_ptr<StagingRing> staging_;

    mutable std::mutex mutex_;
    std::condition_variable work_;     // for readers: there may be a step to take
    std::condition_variable changed_;  // for who acquires: something arrived, failed or left
    Residency residency_;
    std::vector<Entry> entries_;  // by Id
    TensorTable<Id> known_;
    // What readers work on: first what somebody waits for. An upload may stand in both, and stays until a reader
    // finds nothing left to do in it.
    std::deque<std::shared_ptr<Upload>> demanded_;
    std::deque<std::shared_ptr<Upload>> prefetched_;
    std::vector<std::unique_ptr<Worker>> idle_;  // of threads that acquire
    std::vector<std::thread> threads_;
    bool stopping_ = false;
    UploadStats stats_;
};

}  // namespace safemap::SAFEMAP_ABI::device
