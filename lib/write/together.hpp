// The steps of a save. The processes of a team take them together: all do a step, or one does; then all know how it
// ended.
#pragma once

#include <safemap/advanced/team.hpp>
#include <safemap/progress.hpp>

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <utility>

namespace safemap::SAFEMAP_ABI::write {

/// Numbers and texts as bytes, in order.
class Packer {
public:
    Packer& number(std::uint64_t number);
    Packer& text(std::string_view text);
    std::string take() { return std::move(bytes_); }

private:
    std::string bytes_;
};

/// Reads what a Packer wrote. Throws io_error if bytes are missing.
class Unpacker {
public:
    explicit Unpacker(std::string_view bytes) : rest_(bytes) {}

    std::uint64_t number();
    /// Valid as long as the bytes.
    std::string_view text();
    bool done() const noexcept { return rest_.empty(); }

private:
    std::string_view take(std::uint64_t size);
    std::string_view rest_;
};

/// The steps of a save by this process alone. steps_of() gives those of a team, of which rank 0 leads.
class Together {
public:
    using Step = std::function<void()>;
    using Say = std::function<std::string()>;
    using Hear = std::function<void(std::string_view said, unsigned rank)>;

    virtual ~Together() = default;
    virtual unsigned rank() const noexcept { return 0; }
    virtual unsigned size() const noexcept { return 1; }
    bool leads() const noexcept { return rank() == 0; }

    /// Runs `step` on every rank and waits for all. If the step fails anywhere, stops the ranks that are still at it,
    /// and throws on every rank the error of the lowest rank that failed.
    virtual void all(const Step& step) { step(); }
    /// Runs `step` on the leader while the others wait. Throws on every rank what it throws on the leader.
    virtual void lead(const Step& step) { step(); }
    /// In a team: runs `say` on the leader, then `hear` with its text on each other rank. Both are steps.
    virtual void share(const Say&, const Hear&) {}
    /// In a team: runs `say` on each rank but the leader, then `hear` on the leader with each text. Both are steps.
    virtual void collect(const Say&, const Hear&) {}

    // For work inside of all():
    /// Sends a message to the leader, on which on_message(text) is called. May be called from any thread.
    virtual void tell_leader(std::string) {}
    std::function<void(std::string_view message)> on_message = {};
    /// Returns a monitor for the work of a step: it also sends and takes messages, and ends the work if another rank
    /// has failed. `monitor` must outlive it.
    virtual Monitor watching(const Monitor& monitor) { return monitor; }
};

/// Returns the steps of the processes of `team`, which must outlive them; those of this process alone if it is null, or
/// has no other process.
std::unique_ptr<Together> steps_of(Team* team);

}  // namespace safemap::SAFEMAP_ABI::write
