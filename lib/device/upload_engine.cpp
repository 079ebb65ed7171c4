// Brings tensors to a device under a budget. From top to bottom:
//   - LeasedTensors: a lease, and the tensors in it by name.
//   - Upload, Step, Want: a tensor on its way, a piece of work for it, and an acquire that waits for it.
//   - Entries: one for each tensor that is known, from the first request to the last lease.
//   - Acquiring: gets room for leases, then for absent tensors; also prefetch and evict.
//   - Uploads: a tensor on its way is cut into blocks, which threads claim as steps. It is resident when all copies are
//     done.
//   - Threads: readers that take any step, and workers that are lent to threads that acquire.
//
// An acquire first leases all tensors that it wants, which needs room for leases only. The bytes of all leased tensors
// stay within the budget, so a leased tensor can be brought by waiting only for what is already moving. Then the
// acquire begins uploads of absent tensors as room comes free. It reads blocks of its own tensors like any reader, and
// sleeps only if other threads have the last of these blocks in hand.

#include "device/upload_engine.hpp"

#include "base/checked.hpp"
#include "base/pool.hpp"
#include "base/text.hpp"
#include "lazy/blocks.hpp"
#include "lazy/page_cache.hpp"
#include "lazy/stored_tensor.hpp"

#include <safemap/error.hpp>

#include <pthread.h>

#include <algorithm>
#include <cstring>
#include <new>
#include <numeric>
#include <utility>

namespace safemap::SAFEMAP_ABI::device {
namespace {

// With blocks of this size, two threads that claim blocks reach the disk's limit. Loaders for GPUs converge on such
// sizes, too (4 to 16 MiB).
constexpr std::uint64_t block_bytes = 8_MiB;
// Tiles of transposed tensors pass through a buffer of each reader, so they are smaller.
constexpr std::uint64_t tile_bytes = 2_MiB;
constexpr std::uint64_t least_staging = 4_KiB;

/// Returns the bytes that have to be read for `bytes` of a value: more or fewer if the tensor is cast.
std::uint64_t stored_bytes(const LazyTensor& tensor, std::uint64_t bytes) {
    if (tensor.dtype() == tensor.stored()->dtype()) return bytes;
    return bytes / element_size(tensor.dtype()) * element_size(tensor.stored()->dtype());
}

/// Throws a copy of `fault`. Each thread gets an Error of its own, to add context to.
[[noreturn]] void throw_copy(const std::exception_ptr& fault) {
    try {
        std::rethrow_exception(fault);
    } catch (const Error& error) {
        throw Error(error);
    }
}

/// Returns what `work` throws, or null if it throws nothing. Adds the tensor's name to an Error if there is memory for
/// it.
template <class Work> std::exception_ptr fault_of(const LazyTensor& tensor, Work&& work) noexcept {
    try {
        work();
        return nullptr;
    } catch (Error& error) {
        try {
            error.with_tensor(tensor.name());
        } catch (...) {
        }
        return std::current_exception();
    } catch (...) {
        return std::current_exception();
    }
}

std::uint64_t choose_budget(const Device& device, const UploadOptions& options) {
    if (options.device_budget > 0) return options.device_budget;
    return device.free_memory() / 10 * 9;
}

std::uint64_t choose_staging(const UploadOptions& options) {
    if (options.staging_bytes >= least_staging) return options.staging_bytes;
    throw Error(Errc::invalid_argument, "staging_bytes is " + std::to_string(options.staging_bytes) +
                                            "; expected at least " + std::to_string(least_staging));
}

}  // namespace

// ---- LeasedTensors

LeasedTensors::LeasedTensors(std::shared_ptr<UploadEngine> engine, std::size_t count) : engine_(std::move(engine)) {
    ids_.reserve(count);
    tensors_.reserve(count);
}

LeasedTensors::~LeasedTensors() {
    tensors_.clear();  // otherwise evicting would not free the memory
    engine_->release(ids_);
}

void LeasedTensors::index_names() {
    by_name_.resize(tensors_.size());
    std::iota(by_name_.begin(), by_name_.end(), 0U);
    std::ranges::sort(by_name_, {}, [&](std::uint32_t i) -> const std::string& { return tensors_[i].name; });
}

const DeviceTensor* LeasedTensors::find(std::string_view name) const noexcept {
    const auto name_of = [&](std::uint32_t i) { return std::string_view(tensors_[i].name); };
    const auto at = std::ranges::lower_bound(by_name_, name, {}, name_of);
    return at != by_name_.end() && name_of(*at) == name ? &tensors_[*at] : nullptr;
}

// ---- Types of the engine

/// One tensor on its way. The engine's mutex guards all members except the members that allocate() sets, which do not
/// change afterwards.
struct UploadEngine::Upload {
    enum class Phase : std::uint8_t { queued, allocating, reading, finished };

    Upload(Id of, LazyTensor lazy) : id(of), tensor(std::move(lazy)) {}

    const Id id;
    const LazyTensor tensor;
    std::shared_ptr<DeviceMemory> memory = {};
    std::optional<Blocks> blocks = {};
    std::uint64_t block_count = 0;

    Phase phase = Phase::queued;
    std::uint64_t next = 0;     // next block to read
    std::uint64_t running = 0;  // steps in progress
    bool demanded = false;      // true if it is in demanded_
    std::exception_ptr fault = {};
    std::vector<std::shared_ptr<DeviceEvent>> copies = {};  // copies that may not be done

    /// Returns true if there is nothing left to begin.
    bool exhausted() const noexcept {
        if (phase == Phase::reading) return next == block_count || fault;
        return phase == Phase::finished;
    }
};

/// A piece of work for an upload that a thread does without holding the lock.
struct UploadEngine::Step {
    std::shared_ptr<Upload> upload;
    bool allocate;
    std::uint64_t block;

    static std::optional<Step> of(const std::shared_ptr<Upload>& upload) {
        using Phase = Upload::Phase;
        if (upload->phase == Phase::queued) {
            upload->phase = Phase::allocating;
            ++upload->running;
            return Step{upload, true, 0};
        }
        if (upload->phase != Phase::reading || upload->exhausted()) return std::nullopt;
        ++upload->running;
        return Step{upload, false, upload->next++};
    }
};

/// A tensor that an acquire waits for, and its upload as soon as the acquire has seen one.
struct UploadEngine::Want {
    Id id;
    bool alone;  ///< true if no other tensor is wanted
    std::shared_ptr<Upload> upload = {};
};

UploadEngine::UploadEngine(std::shared_ptr<Device> device, const UploadOptions& options)
    : device_(std::move(device)),
      reader_count_(thread_count(options.readers, uploading_threads)),
      residency_(choose_budget(*device_, options)) {
    const std::uint64_t staging = choose_staging(options);
    const std::uint64_t buffer = std::min(block_bytes, staging);
    staging_ = std::make_unique<StagingRing>(device_, buffer, staging / buffer);
}

UploadEngine::~UploadEngine() { stop(); }

void UploadEngine::stop() noexcept {
    Lock lock(mutex_);
    stopping_ = true;
    work_.notify_all();
    lock.unlock();
    for (std::thread& thread : threads_) thread.join();

    lock.lock();
    threads_.clear();
    demanded_.clear();
    prefetched_.clear();
    for (Id id = 0; id < entries_.size(); ++id) {
        if (!entries_[id].tensor) continue;
        if (const auto upload = std::exchange(entries_[id].upload, nullptr)) {
            for (const auto& copy : upload->copies) wait_until_done(*copy);
            upload->memory.reset();
            residency_.give_up(id);
        }
        release_if_unused(lock, id);
    }
}

UploadStats UploadEngine::stats() const {
    const std::lock_guard lock(mutex_);
    UploadStats stats = stats_;
    stats.resident_bytes = residency_.resident();
    stats.peak_device_bytes = residency_.peak();
    stats.peak_staging_bytes = staging_->allocated();
    return stats;
}

// ---- Entries

UploadEngine::Id UploadEngine::entry_of(const LazyTensor& tensor, Keep keep) {
    auto id = find(tensor);
    if (!id) {
        auto own = std::make_unique<const LazyTensor>(tensor);
        const auto at = known_.emplace(own.get(), Id{}).first;
        try {
            id = at->second = residency_.add(tensor.nbytes());
            if (*id >= entries_.size()) entries_.resize(std::size_t{*id} + 1);
        } catch (...) {
            known_.erase(at);
            throw;
        }
        entries_[*id] = {.tensor = std::move(own)};
    }
    Entry& entry = entries_[*id];
    entry.keep = entry.keep || keep == Keep::yes;
    return *id;
}

std::optional<UploadEngine::Id> UploadEngine::find(const LazyTensor& tensor) const {
    const auto at = known_.find(&tensor);
    if (at == known_.end()) return std::nullopt;
    return at->second;
}

void UploadEngine::release(std::span<const Id> ids) noexcept {
    Lock lock(mutex_);
    for (const Id id : ids) residency_.release(id);
    for (const Id id : ids) release_if_unused(lock, id);
    changed_.notify_all();
}

/// Frees and forgets a tensor that is not leased and need not be kept.
void UploadEngine::release_if_unused(Lock& lock, Id id) noexcept {
    const Entry& entry = entries_[id];
    if (!entry.tensor || residency_.leased(id) || (entry.keep && !stopping_)) return;
    const auto state = residency_.state(id);
    if (state == Residency::State::resident) drop(lock, std::span(&id, 1));
    else if (state == Residency::State::absent) forget(id);
}

/// Frees resident tensors. Releases the lock meanwhile. A tensor counts against the budget until its memory is free.
void UploadEngine::drop(Lock& lock, std::span<const Id> victims) noexcept {
    for (const Id id : victims) residency_.leave(id);
    for (const Id id : victims) {
        auto memory = std::move(entries_[id].memory);
        lock.unlock();
        memory.reset();
        lock.lock();
        residency_.gone(id);
        if (!entries_[id].keep && !residency_.leased(id)) forget(id);
    }
    changed_.notify_all();
}

void UploadEngine::forget(Id id) noexcept {
    try {
        known_.erase(entries_[id].tensor.get());
    } catch (const std::bad_alloc&) {
        // Hashing copies a view, which allocates for more than eight dimensions. Erasing by position does not.
        std::erase_if(known_, [&](const auto& known) { return known.second == id; });
    }
    entries_[id] = {};
    residency_.remove(id);
}

// ---- Acquiring

std::shared_ptr<LeasedTensors> UploadEngine::acquire(std::span<const LazyTensor> tensors, Keep keep) {
    const auto started = std::chrono::steady_clock::now();
    // Created before the lock, so that an exception releases the lock before the leases.
    const auto held = std::make_shared<LeasedTensors>(shared_from_this(), tensors.size());
    Lock lock(mutex_);
    lease_all(lock, tensors, keep, *held);
    const auto note_stall = [&] { stats_.stalled += std::chrono::steady_clock::now() - started; };
    try {
        if (bring(lock, held->ids_)) note_stall();
    } catch (...) {
        note_stall();
        throw;
    }

    for (std::size_t i = 0; i < tensors.size(); ++i)
        held->tensors_.push_back({.name = tensors[i].name(),
                                  .dtype = tensors[i].dtype(),
                                  .shape = tensors[i].shape(),
                                  .nbytes = tensors[i].nbytes(),
                                  .memory = entries_[held->ids_[i]].memory});
    lock.unlock();
    held->index_names();
    return held;
}

void UploadEngine::lease_all(Lock& lock, std::span<const LazyTensor> tensors, Keep keep, LeasedTensors& held) {
    const std::uint64_t leased_before = residency_.leased_bytes();
    for (const LazyTensor& tensor : tensors) {
        const std::uint64_t bytes = tensor.nbytes();
        if (bytes > residency_.budget())
            throw Error(Errc::budget_exceeded,
                        bytes_text(bytes) + " needed at once, but the budget is " + bytes_text(residency_.budget()))
                .with_tensor(tensor.name());
        const Id id = entry_of(tensor, keep);
        if (!residency_.leased(id) && bytes > residency_.budget() - residency_.leased_bytes()) {
            release_if_unused(lock, id);
            refuse(tensors, leased_before);
        }
        residency_.lease(id);
        held.ids_.push_back(id);
    }
}

void UploadEngine::refuse(std::span<const LazyTensor> tensors, std::uint64_t leased) const {
    std::uint64_t needed = 0;
    for (const LazyTensor& tensor : tensors)
        needed = checked_add(needed, tensor.nbytes()).value_or(std::numeric_limits<std::uint64_t>::max());
    throw Error(Errc::budget_exceeded, bytes_text(needed) + " needed at once, " + bytes_text(leased) +
                                           " already leased, but the budget is " + bytes_text(residency_.budget()));
}

/// Waits until all of `ids`, which are leased, are resident. Returns false if they already were.
bool UploadEngine::bring(Lock& lock, std::span<const Id> ids) {
    const auto resident = [&](Id id) { return residency_.state(id) == Residency::State::resident; };
    if (std::ranges::all_of(ids, resident)) return false;

    std::vector<Want> wants;
    wants.reserve(ids.size());
    for (const Id id : ids) wants.push_back({.id = id, .alone = ids.size() == 1});

    // Positions in `wants`: tensors before `here` have arrived, tensors before `begun` are resident or arriving, and
    // tensors before `spent` leave nothing to read.
    std::size_t here = 0;
    std::size_t begun = 0;
    std::size_t spent = 0;
    const auto own_step = [&]() -> std::optional<Step> {
        while (spent < begun && (!wants[spent].upload || wants[spent].upload->exhausted())) ++spent;
        for (std::size_t i = spent; i < begun; ++i)
            if (wants[i].upload)
                if (auto step = Step::of(wants[i].upload)) return step;
        return std::nullopt;
    };

    std::unique_ptr<Worker> worker = borrow_worker();
    for (;;) {
        while (here < begun && arrived(wants[here])) ++here;
        while (begun < wants.size() && start_upload(lock, wants[begun])) ++begun;
        if (here == wants.size()) break;
        auto step = own_step();
        // While there is no room, this thread helps with the uploads that are in the way.
        if (!step && begun < wants.size()) step = next_step();
        if (step) run(lock, *step, *worker);
        else if (here == begun || !arrived(wants[here])) changed_.wait(lock);
    }
    idle_.push_back(std::move(worker));
    return true;
}

bool UploadEngine::arrived(const Want& want) const {
    if (residency_.state(want.id) == Residency::State::resident) return true;
    if (want.upload && want.upload->phase == Upload::Phase::finished && want.upload->fault)
        throw_copy(want.upload->fault);
    return false;
}

/// Makes sure that a tensor is resident or arriving. Returns false if that has to wait for room. May release the lock
/// meanwhile, but not after it has found that there is no room.
bool UploadEngine::start_upload(Lock& lock, Want& want) {
    using State = Residency::State;
    for (;;) {
        const State state = residency_.state(want.id);
        if (state == State::resident) return true;
        if (state == State::leaving) return false;
        if (state == State::arriving) {
            want.upload = entries_[want.id].upload;
            if (want.upload->demanded) return true;
            want.upload->demanded = true;
            demanded_.push_back(want.upload);
            wake_readers();
            return true;
        }

        if (const auto fault = std::exchange(entries_[want.id].fault, nullptr)) throw_copy(fault);
        const std::uint64_t bytes = residency_.bytes(want.id);
        auto room = residency_.room_for(bytes);
        if (!room.now && room.victims.empty()) {
            take_back_queued(bytes);
            room = residency_.room_for(bytes);
        }
        if (room.now) {
            want.upload = begin(want.id, demanded_);
            want.upload->demanded = true;
            // A single block is read sooner than another thread wakes up.
            if (!want.alone || bytes > block_bytes) wake_readers();
            return true;
        }
        if (room.victims.empty()) return false;
        stats_.evictions += room.victims.size();
        drop(lock, room.victims);
    }
}

/// Cancels prefetches that no thread has begun and no thread waits for, the latest first, until there is room for
/// `bytes`.
void UploadEngine::take_back_queued(std::uint64_t bytes) {
    const auto needed = [&] {
        const auto room = residency_.room_for(bytes);
        return !room.now && room.victims.empty();
    };
    for (std::size_t i = prefetched_.size(); i-- > 0 && needed();) {
        Upload& upload = *prefetched_[i];
        if (upload.phase != Upload::Phase::queued || residency_.leased(upload.id)) continue;
        upload.phase = Upload::Phase::finished;
        residency_.give_up(upload.id);
        entries_[upload.id].upload.reset();
    }
}

void UploadEngine::prefetch(std::span<const LazyTensor> tensors) {
    Lock lock(mutex_);
    // Tensors of this call are not evicted to make room for other tensors of this call.
    const auto since = residency_.now();
    std::vector<Id> ids;
    ids.reserve(tensors.size());
    for (const LazyTensor& tensor : tensors) {
        ids.push_back(entry_of(tensor, Keep::yes));
        residency_.touch(ids.back());
    }

    for (const Id id : ids) {
        const auto idle = [&] { return residency_.state(id) == Residency::State::absent && !entries_[id].fault; };
        auto room = residency_.spare_room_for(residency_.bytes(id), since);
        while (idle() && !room.now && !room.victims.empty()) {
            stats_.evictions += room.victims.size();
            drop(lock, room.victims);
            room = residency_.spare_room_for(residency_.bytes(id), since);
        }
        if (!idle() || !room.now) continue;
        begin(id, prefetched_);
        wake_readers();
    }
}

void UploadEngine::evict(std::span<const LazyTensor> tensors) {
    Lock lock(mutex_);
    std::vector<Id> victims;
    victims.reserve(tensors.size());
    for (const LazyTensor& tensor : tensors) {
        const auto id = find(tensor);
        if (id && residency_.state(*id) == Residency::State::resident && !residency_.leased(*id))
            victims.push_back(*id);
    }
    std::ranges::sort(victims);
    victims.erase(std::unique(victims.begin(), victims.end()), victims.end());
    stats_.evictions += victims.size();
    drop(lock, victims);
}

// ---- Uploads

std::shared_ptr<UploadEngine::Upload> UploadEngine::begin(Id id, std::deque<std::shared_ptr<Upload>>& queue) {
    auto upload = std::make_shared<Upload>(id, *entries_[id].tensor);
    while (!queue.empty() && queue.front()->exhausted()) queue.pop_front();
    queue.push_back(upload);
    entries_[id].upload = upload;
    residency_.begin(id);
    return upload;
}

std::optional<UploadEngine::Step> UploadEngine::next_step() {
    for (auto* queue : {&demanded_, &prefetched_}) {
        while (!queue->empty() && queue->front()->exhausted()) queue->pop_front();
        for (const auto& upload : *queue)
            if (auto step = Step::of(upload)) return step;
    }
    return std::nullopt;
}

void UploadEngine::run(Lock& lock, const Step& step, Worker& worker) {
    Upload& upload = *step.upload;
    lock.unlock();
    std::exception_ptr fault = fault_of(upload.tensor, [&] { perform(step, worker); });
    lock.lock();

    if (fault && !upload.fault) upload.fault = std::move(fault);
    --upload.running;
    if (step.allocate) {
        upload.phase = Upload::Phase::reading;
        if (upload.block_count > 1) {  // others can take part now
            work_.notify_all();
            changed_.notify_all();
        }
    }
    if (upload.exhausted() && upload.running == 0) finish(lock, upload);
}

/// Finishes an upload after its last step. The tensor is resident when its copies are done.
void UploadEngine::finish(Lock& lock, Upload& upload) {
    lock.unlock();
    const auto attempt = [&upload](auto&& work) {
        const std::exception_ptr fault = fault_of(upload.tensor, work);
        if (!upload.fault) upload.fault = fault;
    };
    for (const auto& copy : upload.copies) attempt([&] { copy->wait(); });
    upload.copies.clear();
    attempt([&] { require_unchanged({&upload.tensor, 1}); });
    if (upload.fault) upload.memory.reset();
    lock.lock();

    Entry& entry = entries_[upload.id];
    entry.upload.reset();
    upload.phase = Upload::Phase::finished;
    if (upload.fault) {
        residency_.give_up(upload.id);
        // Threads that wait for the tensor see the upload's fault. If no thread waits, the next acquire of the tensor
        // throws it.
        if (!residency_.leased(upload.id)) entry.fault = upload.fault;
    } else {
        entry.memory = std::move(upload.memory);
        residency_.arrive(upload.id);
        stats_.uploaded_bytes += residency_.bytes(upload.id);
    }
    release_if_unused(lock, upload.id);
    changed_.notify_all();
}

void UploadEngine::perform(const Step& step, Worker& worker) {
    Upload& upload = *step.upload;
    if (step.allocate) allocate(upload);
    else if (!upload.memory->host_bytes().empty()) read_direct(upload, step.block, worker);
    else read_staged(upload, step.block, worker);
}

void UploadEngine::allocate(Upload& upload) {
    const std::uint64_t bytes = upload.tensor.nbytes();
    upload.memory = device_->allocate(bytes);
    if (bytes == 0) return;
    const bool direct = !upload.memory->host_bytes().empty();
    upload.blocks.emplace(upload.tensor, direct ? block_bytes : staging_->buffer_bytes());
    if (direct && !upload.blocks->ranges()) upload.blocks.emplace(upload.tensor, tile_bytes);
    upload.block_count = upload.blocks->count();
}

/// Reads into memory that this process can write.
void UploadEngine::read_direct(Upload& upload, std::uint64_t block, Worker& worker) {
    const LazyTensor& tensor = upload.tensor;
    const auto to = upload.memory->host_bytes();
    const bool straight = upload.blocks->ranges();
    const auto buffer = straight ? to.subspan(upload.blocks->range(block).offset) : worker.buffer(tile_bytes);
    const auto bytes = upload.blocks->gather(block, tensor, worker.gatherer, buffer);
    if (!straight)
        upload.blocks->scatter(block, [&](std::uint64_t at, std::uint64_t from, std::uint64_t size) {
            std::memcpy(to.data() + at, bytes.data() + from, size);
        });
    const std::lock_guard lock(mutex_);
    stats_.bytes_pread += stored_bytes(tensor, bytes.size());
}

/// Reads through a staging buffer. The copies may still be in progress when this returns.
void UploadEngine::read_staged(Upload& upload, std::uint64_t block, Worker& worker) {
    const LazyTensor& tensor = upload.tensor;
    StagingRing::Loan loan = staging_->take();
    const auto buffer = loan.buffer()->bytes();
    // A device copies in order, so the last event is enough for all copies of this block.
    std::shared_ptr<DeviceEvent> last;
    const auto copy = [&](std::uint64_t at, std::uint64_t from, std::uint64_t size) {
        last = device_->copy_to_device(upload.memory, at, loan.buffer(), {from, size});
        loan.fence(last);
    };
    std::uint64_t bytes = 0;
    try {
        bytes = upload.blocks->gather(block, tensor, worker.gatherer, buffer).size();
        upload.blocks->scatter(block, copy);
    } catch (...) {
        track(upload, std::move(last), 0);
        throw;
    }
    track(upload, std::move(last), stored_bytes(tensor, bytes));
}

/// Remembers a copy that finish() has to wait for, and drops the copies that are done. A copy counts as not done if its
/// event throws.
void UploadEngine::track(Upload& upload, std::shared_ptr<DeviceEvent> copy, std::uint64_t bytes_read) {
    const auto is_done = [](const std::shared_ptr<DeviceEvent>& earlier) {
        try {
            return earlier->done();
        } catch (...) {
            return false;  // finish() reports the fault
        }
    };
    std::vector<std::shared_ptr<DeviceEvent>> done;
    try {
        const std::lock_guard lock(mutex_);
        stats_.bytes_pread += bytes_read;
        if (copy) upload.copies.push_back(copy);
        const auto pending = std::partition(upload.copies.begin(), upload.copies.end(), is_done);
        done.assign(upload.copies.begin(), pending);
        upload.copies.erase(upload.copies.begin(), pending);
    } catch (...) {
        if (copy) wait_until_done(*copy);  // there may be no memory to remember the copy
        throw;
    }
    for (const auto& earlier : done) earlier->wait();  // does not block, but throws if the copy has failed
}

// ---- Threads

std::unique_ptr<Worker> UploadEngine::borrow_worker() {
    if (idle_.empty()) return std::make_unique<Worker>();
    auto worker = std::move(idle_.back());
    idle_.pop_back();
    return worker;
}

void UploadEngine::wake_readers() {
    try {
        while (threads_.size() < reader_count_) threads_.emplace_back([this] { read_until_stopped(); });
    } catch (const std::exception&) {
        // No thread, or no memory for one: a thread that acquires reads alone.
    }
    work_.notify_all();
}

void UploadEngine::read_until_stopped() {
    ::pthread_setname_np(::pthread_self(), "safemap-reader");
    std::optional<Worker> worker;
    try {
        worker.emplace();
    } catch (const std::bad_alloc&) {
        return;  // a thread that acquires reads alone
    }
    Lock lock(mutex_);
    while (!stopping_) {
        if (const auto step = next_step()) run(lock, *step, *worker);
        else work_.wait(lock);
    }
}

}  // namespace safemap::SAFEMAP_ABI::device
