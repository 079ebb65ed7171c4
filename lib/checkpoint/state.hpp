// What a Checkpoint shares with its copies, and what it was made from.
#pragma once

#include "base/name_index.hpp"
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

/// Immutable once it is made. Names are found by number: tensors first, then aliases.
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

    /// Of select() and renamed(), `numbers` has the number here of each tensor of `origin`, or not_selected.
    explicit State(state::Contents contents, std::shared_ptr<const State> origin = {},
                   std::vector<std::uint32_t> numbers = {});

    /// Makes the state of a checkpoint with some of the names of `from`, or all of them: `after[i]` is the new name for
    /// `names[i]`, which are in the order of all_names().
    static std::shared_ptr<const State> derive(const Checkpoint& from, const std::vector<NamedTensor>& names,
                                               std::vector<std::string> after);

    std::optional<std::uint32_t> number(std::string_view name) const { return names.find(name, name_of()); }
    /// Returns null where there is no such name.
    const LazyTensor* find(std::string_view name) const noexcept;
    /// Returns null where there is none. That of a flat state dict is made when it is first asked for.
    const StateTree* tree() const;

    state::Contents contents;
    std::uint64_t total_bytes;
    std::vector<LazyTensor> aliases;  // under their other names
    NameIndex names;
    std::shared_ptr<const State> origin;  // before every select() and renamed(): null where there was none
    std::vector<std::uint32_t> numbers;   // by the number of a tensor in `origin`

private:
    mutable std::once_flag asked_for_tree;
    mutable std::shared_ptr<const StateTree> made_tree;

    void index_tensors();
    void alias_by_metadata();
    void add_aliases(const AliasGroup& group);
};

}  // namespace safemap::SAFEMAP_ABI
