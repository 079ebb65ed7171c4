// Streams that are held back on a real device.

#include "cuda/relay/relay.hpp"

namespace relay {
namespace {

constexpr std::size_t most_words = 4096;

}  // namespace

Holds& holds() {
    static Holds& only = *new Holds;
    return only;
}

/// The default streams of threads have one handle.
Holds::Key Holds::key_of(void* stream) {
    return {stream, is_default(stream) ? std::this_thread::get_id() : std::thread::id()};
}

void Holds::prepare() {
    const std::lock_guard lock(mutex_);
    if (words_ != nullptr) return;
    void* memory = nullptr;
    SAFEMAP_RELAY_FORWARD(cuMemHostAlloc, &memory, most_words * sizeof *words_, cu_mem_host_portable_mapped);
    if (memory == nullptr) return;
    words_ = static_cast<std::uint32_t*>(memory);
    for (std::size_t i = 0; i < most_words; ++i) words_[i] = 0;
    targets_.resize(most_words);
    SAFEMAP_RELAY_FORWARD(cuMemHostGetDevicePointer_v2, &device_words_, memory, 0U);
}

void Holds::hold(void* stream) {
    CuPointer word = 0;
    std::uint32_t target = 0;
    {
        const std::lock_guard lock(mutex_);
        const auto [at, is_new] = slots_.try_emplace(key_of(stream), Slot{});
        Slot& slot = at->second;
        if (is_new) slot.word = slots_.size() - 1;
        if (slot.held) return;
        if (words_ == nullptr || slot.word >= most_words) return complain("there is no word to hold a stream");
        slot.held = true;
        slot.since = Clock::now();
        target = ++targets_[slot.word];
        word = device_words_ + slot.word * sizeof *words_;
        if (!watched_) std::thread([this] { watch(); }).detach();
        watched_ = true;
    }
    SAFEMAP_RELAY_FORWARD(cuStreamWaitValue32_v2, static_cast<CuStream>(stream), word, target, cu_wait_at_least);
}

void Holds::let_go(Slot& slot) {
    if (!slot.held) return;
    slot.held = false;
    __atomic_store_n(words_ + slot.word, targets_[slot.word], __ATOMIC_SEQ_CST);
}

void Holds::release(void* stream) {
    const std::lock_guard lock(mutex_);
    const auto found = slots_.find(key_of(stream));
    if (found != slots_.end()) let_go(found->second);
}

void Holds::release_all() {
    const std::lock_guard lock(mutex_);
    for (auto& [key, slot] : slots_) let_go(slot);
}

void Holds::reset() {
    release_all();
    const std::lock_guard lock(mutex_);
    slots_.clear();
}

/// Releases streams that are held for too long: perhaps the thread that would release one waits for it.
void Holds::watch() {
    for (;;) {
        std::this_thread::sleep_for(std::chrono::milliseconds(100));
        bool late = false;
        {
            const std::lock_guard lock(mutex_);
            for (auto& [key, slot] : slots_) {
                if (!slot.held || Clock::now() - slot.since < patience) continue;
                let_go(slot);
                late = true;
            }
        }
        if (!late) continue;
        complain("a stream was held for too long");
        find("a stream was held for too long");
    }
}

}  // namespace relay
