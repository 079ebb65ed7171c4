// The upload engine: brings tensors to a device under a budget. Knows tensors, not checkpoints.
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

class UploadEngine;

/// Tensors that are leased. The destructor ends the lease.
class LeasedTensors {
public:
    LeasedTensors(std::shared_ptr<UploadEngine> engine, std::size_t count);
    ~LeasedTensors();
    LeasedTensors(const LeasedTensors&) = delete;
    LeasedTensors& operator=(const LeasedTensors&) = delete;

    std::span<const DeviceTensor> tensors() const noexcept { return tensors_; }
    const DeviceTensor* find(std::string_view name) const noexcept;

private:
    friend class UploadEngine;
    void index_names();

    std::shared_ptr<UploadEngine> engine_;
    std::vector<Residency::Id> ids_;  // leases so far; parallel to tensors_ once acquired
    std::vector<DeviceTensor> tensors_;
    std::vector<std::uint32_t> by_name_;
};

/// The fate of a tensor after its last lease: freed at once (no), or kept on the device until its room is needed (yes).
enum class Keep : std::uint8_t { no, yes };

/// An engine that uploads tensors and leases them. It identifies tensors by what they are, not by name: tied tensors
/// share memory. One mutex guards all bookkeeping. It is never held while memory is allocated or freed, while anything
/// is read, or while a copy is waited for.
class UploadEngine : public std::enable_shared_from_this<UploadEngine> {
public:
    /// Starts no thread. Threads start with the first work for them.
    UploadEngine(std::shared_ptr<Device> device, const UploadOptions& options);
    ~UploadEngine();
    UploadEngine(const UploadEngine&) = delete;
    UploadEngine& operator=(const UploadEngine&) = delete;

    /// Does the same as Uploader::acquire. The calling thread takes part in the reading.
    std::shared_ptr<LeasedTensors> acquire(std::span<const LazyTensor> tensors, Keep keep);
    void prefetch(std::span<const LazyTensor> tensors);
    void evict(std::span<const LazyTensor> tensors);
    UploadStats stats() const;

    /// Joins the readers, each after its current block, and frees the tensors that are not leased. Leases stay valid,
    /// and their tensors are freed when they end. Nothing may be requested after this call.
    void stop() noexcept;

private:
    friend class LeasedTensors;
    using Id = Residency::Id;
    using Lock = std::unique_lock<std::mutex>;

    struct Upload;
    struct Step;
    struct Want;

    /// A tensor that is on the device, on its way, or requested, or that has a fault still to be reported.
    struct Entry {
        std::unique_ptr<const LazyTensor> tensor = {};  // the key in known_
        bool keep = false;
        std::shared_ptr<DeviceMemory> memory = {};  // set while resident
        std::shared_ptr<Upload> upload = {};        // set while arriving
        std::exception_ptr fault = {};              // fault of a prefetch, until the next acquire of the tensor
    };

    // Entries.
    Id entry_of(const LazyTensor& tensor, Keep keep);
    std::optional<Id> find(const LazyTensor& tensor) const;
    void release(std::span<const Id> ids) noexcept;
    void release_if_unused(Lock& lock, Id id) noexcept;
    void drop(Lock& lock, std::span<const Id> victims) noexcept;
    void forget(Id id) noexcept;

    // Acquiring.
    void lease_all(Lock& lock, std::span<const LazyTensor> tensors, Keep keep, LeasedTensors& held);
    [[noreturn]] void refuse(std::span<const LazyTensor> tensors, std::uint64_t leased) const;
    bool bring(Lock& lock, std::span<const Id> ids);
    bool arrived(const Want& want) const;
    bool start_upload(Lock& lock, Want& want);
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
    std::condition_variable changed_;  // for threads that acquire: something arrived, failed or left
    Residency residency_;
    std::vector<Entry> entries_;  // by Id
    TensorTable<Id> known_;
    // Queues of uploads for the readers. Uploads that a thread waits for come first. An upload may be in both queues,
    // and stays in a queue until a reader finds nothing left to do for it.
    std::deque<std::shared_ptr<Upload>> demanded_;
    std::deque<std::shared_ptr<Upload>> prefetched_;
    std::vector<std::unique_ptr<Worker>> idle_;  // workers for threads that acquire
    std::vector<std::thread> threads_;
    bool stopping_ = false;
    UploadStats stats_;
};

}  // namespace safemap::SAFEMAP_ABI::device
