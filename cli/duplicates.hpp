// Finds checkpoints that hold the same tensors, by the digests of their values.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

namespace safemap::cli {

/// Checkpoints that share tensors. Numbers are those of add().
struct Duplicates {
    /// Checkpoints whose tensors have the same values, each of them once.
    struct Copies {
        std::vector<std::size_t> checkpoints;
        std::uint64_t tensors = 0;
        std::uint64_t bytes = 0;
        bool same_names = true;
    };
    /// Two checkpoints with tensors in common. If one holds all tensors of the other, it comes first.
    struct Shared {
        std::size_t one = 0;
        std::size_t other = 0;
        bool contained = false;          ///< true if all tensors of `other` are in `one`
        std::uint64_t tensors = 0;       ///< number of those that both hold
        std::uint64_t bytes = 0;         ///< their size
        std::uint64_t more_tensors = 0;  ///< number of those that only `one` holds
        std::uint64_t more_bytes = 0;
        std::vector<std::string> more_parts = {};  ///< their names up to the first '.' or '/', sorted, at most four
    };
    std::vector<Copies> copies = {};  ///< largest first
    std::vector<Shared> shared = {};  ///< contained ones first, then the largest first; only the first of copies
};

/// Collects the digests of checkpoints. Keeps eight bytes for each tensor, and a text for each value.
class DuplicateSearch {
public:
    /// Adds a checkpoint.
    std::size_t add() { return rows_.emplace_back(), rows_.size() - 1; }
    /// Adds a tensor to the checkpoint that was added last. `value` is the same for tensors with the same dtype, shape
    /// and bytes; an empty text is a value of its own.
    void add_tensor(std::string_view name, std::string value, std::uint64_t bytes);
    /// Returns what the checkpoints share. Leaves out pairs of which neither holds the other if they share less than a
    /// tenth of the bytes of the smaller.
    Duplicates find();

private:
    struct Tensor {
        std::uint32_t value;
        std::uint32_t part;
        auto operator<=>(const Tensor&) const = default;
    };
    struct Row {
        std::vector<Tensor> tensors = {};  ///< sorted by find()
        std::size_t names = 0;             ///< a hash of the names, whatever their order
        std::uint64_t bytes = 0;
    };
    struct Value {
        std::uint64_t bytes = 0;
        std::vector<std::uint32_t> rows = {};
    };

    std::vector<std::size_t> take_copies(Duplicates& found) const;
    Duplicates::Shared compare(std::size_t one, std::size_t other) const;
    bool same_values(const Row& one, const Row& other) const;

    std::unordered_map<std::string, std::uint32_t> numbers_;  ///< numbers of values
    std::unordered_map<std::string, std::uint32_t> part_numbers_;
    std::vector<std::string> parts_;
    std::vector<Value> values_;
    std::vector<Row> rows_;
};

}  // namespace safemap::cli
