// The positions of a compressed stream at which its decoder can go on. Pure logic, without a decoder.
#pragma once

#include <safemap/api.hpp>

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>

namespace safemap::SAFEMAP_ABI {

/// The state of a decoder at one position.
class StreamState {
public:
    virtual ~StreamState() = default;
};

/// States of one stream by position in the decoded bytes, in two levels:
/// - the first state of each `spacing()` bytes of the stream. The spacing begins at a block and doubles whenever there
///   are more than most_coarse states, so a stream of any size has enough of them;
/// - within the `spacing()` bytes that were decoded last, the first state of each block, or of each 1/64 of the
///   spacing. Reads further and further back find a state near them, although those of the whole stream are far apart.
class StreamIndex {
public:
    static constexpr std::uint64_t block = std::uint64_t{1} << 20;
    static constexpr std::size_t most_coarse = 224;
    static constexpr std::size_t most_fine = 64;
    static constexpr std::size_t most = most_coarse + most_fine;

    struct Found {
        std::uint64_t position = 0;
        const StreamState* state = nullptr;
    };

    /// Returns true if a state at `position` is worth its memory. False at 0, where a stream begins.
    bool wants(std::uint64_t position) const;
    /// Adds a state that is wanted.
    void add(std::uint64_t position, std::unique_ptr<StreamState> state);
    /// Returns the last state that is not behind `offset`.
    std::optional<Found> best(std::uint64_t offset) const;
    /// Drops at least half of the states, and keeps the rest as far apart as that allows. Returns the number of states
    /// that are left, which may be 0.
    std::size_t thin();
    void clear();

    std::size_t count() const noexcept { return coarse_.size() + fine_.size(); }
    std::uint64_t spacing() const noexcept { return spacing_; }

private:
    using States = std::map<std::uint64_t, std::unique_ptr<StreamState>>;

    std::uint64_t fine_spacing() const noexcept { return spacing_ / most_fine > block ? spacing_ / most_fine : block; }
    static bool holds(const States& states, std::uint64_t position, std::uint64_t spacing);
    void widen();

    std::uint64_t spacing_ = block;
    States coarse_;
    States fine_;
};

}  // namespace safemap::SAFEMAP_ABI
