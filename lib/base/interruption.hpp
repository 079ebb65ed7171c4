// Lets a long read ask whether the operation that it belongs to still wants it.
#pragma once

#include <safemap/api.hpp>

#include <functional>

namespace safemap::SAFEMAP_ABI {

/// A question that long reads of this thread ask while the object lives: parallel_for() installs one for its work. The
/// question throws to stop the read. Objects of one thread nest, and end in the reverse order.
class Interruption {
public:
    explicit Interruption(std::function<void()> question);
    ~Interruption();
    Interruption(const Interruption&) = delete;
    Interruption& operator=(const Interruption&) = delete;

    /// Returns true if ask() has a question to ask on this thread.
    static bool possible() noexcept;
    /// Asks all questions of this thread, the newest first. A question may run code of the caller, so no lock may be
    /// held. Cheap, but not free: meant for every 50 ms of work.
    static void ask();

private:
    std::function<void()> question_;
    Interruption* outer_;
};

}  // namespace safemap::SAFEMAP_ABI
