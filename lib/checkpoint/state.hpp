// The state that a Checkpoint shares with its copies, and the origin that it was derived from.
#pragma once

#include "base/name_index.hpp"
#include "checkpoint/sorted_names.hpp"
#include "state/contents.hpp"

#include <safemap/advanced/names.hpp>
#include <safemap/checkpoint.hpp>

#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace safemap::SAFEMAP_ABI {

/// The shared state of a checkpoint. Immutable after construction. Names are found by number: tensors first, then
/// aliases.
struct Checkpoint::State {
private:
    auto name_of() const {
        return [this](std::uint32_t i) -> std::string_view {
            const std::size_t tensors = contents.tensors.size();
            return i < tensors ? contents.tensors[i].name() : aliases[i - tensors].name();
        };
    }

public:
    static constexpr std::uint32_t not_selected = UINT32_MAX;

    /// For select() and renamed(), `numbers` has the number in this state of each tensor of `origin`, or not_selected.
    explicit State(state::Contents contents, std::shared_ptr<const State> origin = {},
                   std::vector<std::uint32_t> numbers = {});

    /// Returns the state of a checkpoint that was opened at the path `where`: of the part and with the averages that
    /// `options` choose.
    static std::shared_ptr<const State> opened(state::Contents contents, const std::string& where,
                                               const OpenOptions& options);
    /// Returns the state of a checkpoint with some or all names of `from`: `after[i]` is the new name for `names[i]`.
    /// `names` is in the order of all_names().
    static std::shared_ptr<const State> derive(const Checkpoint& from, const std::vector<NamedTensor>& names,
                                               std::vector<std::string> after);

    std::optional<std::uint32_t> number(std::string_view name) const { return names.find(name, name_of()); }
    /// Returns null if there is no such name.
    const LazyTensor* find(std::string_view name) const noexcept;
    /// Returns null if there is no tree. Creates the tree of a flat state dict on the first call.
    const StateTree* tree() const;

    state::Contents contents;
    std::uint64_t total_bytes;
    std::vector<LazyTensor> aliases;  // tensors under their other names
    NameIndex names;
    checkpoint::SortedNames sorted_names;
    std::shared_ptr<const State> origin;  // state before every select() and renamed(); null if there was none
    std::vector<std::uint32_t> numbers;   // by tensor number in `origin`

private:
    mutable std::once_flag asked_for_tree;
    mutable std::shared_ptr<const StateTree> made_tree;

    void index_tensors();
    void alias_by_metadata();
    void add_aliases(const AliasGroup& group);
};

}  // namespace safemap::SAFEMAP_ABI
