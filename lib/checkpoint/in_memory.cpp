// Makes checkpoints of tensors and of nested state dicts that the caller has. Tested by
// tests/checkpoint/in_memory_test.cpp.
#include <safemap/checkpoint.hpp>

#include "base/faults.hpp"
#include "base/memory_source.hpp"
#include "base/name_index.hpp"
#include "base/text.hpp"
#include "checkpoint/near_names.hpp"
#include "checkpoint/state.hpp"
#include "lazy/stored_tensor.hpp"
#include "open/read.hpp"

#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <tuple>
#include <unordered_map>
#include <unordered_set>
#include <utility>
#include <variant>
#include <vector>

namespace safemap::SAFEMAP_ABI {

using state::Contents;

namespace {

/// The ties that a caller declares for tensors of its own: a group for each tensor that has other names.
class DeclaredTies {
public:
    /// Keeps references. Throws name_collision if two tensors have one name.
    DeclaredTies(std::span<const LazyTensor> tensors, const std::map<std::string, std::string>& metadata)
        : tensors_(tensors), metadata_(metadata) {
        names_.add_all(NamesOf(tensors_), [&](std::uint32_t first, std::uint32_t) {
            throw Error(Errc::name_collision, "two tensors have the name " + safemap::quoted(tensors_[first].name()));
        });
    }

    void add(const AliasGroup& names) {
        if (names.empty()) throw Error(Errc::invalid_argument, "a group of names of a tied tensor is empty");
        const auto tensor = names_.find(names.front(), NamesOf(tensors_));
        if (!tensor) checkpoint::throw_not_found(names.front(), {tensors_, {}});
        for (std::size_t i = 1; i < names.size(); ++i) add(names[i], *tensor);
    }

    std::vector<AliasGroup> take() { return std::move(groups_); }

private:
    void add(const std::string& other, std::uint32_t tensor) {
        const std::string& stored = tensors_[tensor].name();
        if (names_.find(other, NamesOf(tensors_)) || !others_.insert(other).second)
            throw Error(Errc::name_collision, "the other name " + safemap::quoted(other) + " of the tensor " +
                                                  safemap::quoted(stored) + " is given twice");
        const auto pair = metadata_.find(other);
        if (pair != metadata_.end() && pair->second != stored)
            throw Error(Errc::name_collision, "the other name " + safemap::quoted(other) + " of the tensor " +
                                                  safemap::quoted(stored) + " is a metadata key with another value");
        const auto [group, fresh] = group_of_.try_emplace(tensor, groups_.size());
        if (fresh) groups_.push_back({stored});
        groups_[group->second].push_back(other);
    }

    std::span<const LazyTensor> tensors_;
    const std::map<std::string, std::string>& metadata_;
    NameIndex names_;
    std::unordered_set<std::string_view, NameHash> others_;
    std::unordered_map<std::uint32_t, std::size_t> group_of_;
    std::vector<AliasGroup> groups_;
};

/// Gives tensors over the same bytes of memory one stored tensor, as tensors of one storage have in a `.pt`.
class SharedMemory {
public:
    LazyTensor shared(const LazyTensor& tensor) {
        const StoredTensor& stored = *tensor.stored();
        if (!stored.in_one_run()) return tensor;
        const auto memory = bytes_in_memory(stored.source(0), {.offset = stored.locate(0).offset});
        if (!memory) return tensor;
        const auto& first =
            known_.try_emplace({memory->data(), stored.dtype(), stored.element_count()}, tensor.stored()).first->second;
        if (first == tensor.stored()) return tensor;
        return LazyTensor(tensor.name(), first, tensor.strided_view(), tensor.decoding()).cast(tensor.dtype());
    }

private:
    std::map<std::tuple<const std::byte*, Dtype, std::uint64_t>, std::shared_ptr<const StoredTensor>> known_;
};

/// Makes the tensors of a tree as those of a `.pt` are: without names, and tied if they share memory.
void prepare_tensors(StateTree& tree) {
    SharedMemory memory;
    for (StateTree::NodeId id = 0; id < tree.size(); ++id)
        if (auto* const node = std::get_if<StateTree::Tensor>(&tree[id]))
            node->tensor = memory.shared(node->tensor).renamed({});
}

/// Throws name_collision if a name of a tensor occurs twice: dictionaries of the caller may repeat a key.
void require_distinct_names(const Contents& contents) {
    std::vector<std::string_view> names;
    for (const LazyTensor& tensor : contents.tensors) names.emplace_back(tensor.name());
    for (const AliasGroup& group : contents.aliases) names.insert(names.end(), group.begin() + 1, group.end());
    NameIndex().add_all(NamesOf(names), [&](std::uint32_t first, std::uint32_t) {
        throw Error(Errc::name_collision, "two tensors of the tree have the name " + safemap::quoted(names[first]));
    });
}

}  // namespace

Checkpoint Checkpoint::of(std::span<const LazyTensor> tensors, std::map<std::string, std::string> metadata,
                          std::span<const AliasGroup> aliases) {
    DeclaredTies ties(tensors, metadata);
    for (const AliasGroup& group : aliases) ties.add(group);
    Contents contents;
    contents.tensors.assign(tensors.begin(), tensors.end());
    contents.aliases = ties.take();
    contents.metadata.assign(metadata.begin(), metadata.end());
    contents.has_metadata = !metadata.empty();
    ThrowFirst faults;
    open::take_structure(contents, Policy::compatible, faults);
    return Checkpoint(State::opened(std::move(contents), {}, {}));
}

Checkpoint Checkpoint::of(StateTree tree, const OpenOptions& options) {
    tree = tree.subtree(tree.root());
    prepare_tensors(tree);
    Contents contents;
    contents.format = Format::torch;
    state::set_tree(contents, std::move(tree));
    require_distinct_names(contents);
    return Checkpoint(State::opened(std::move(contents), {}, options));
}

}  // namespace safemap::SAFEMAP_ABI
