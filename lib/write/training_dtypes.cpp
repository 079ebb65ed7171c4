// Finds the tensors of the optimizer's state: in the tree by what is around them, else by their names.
#include "write/training_dtypes.hpp"

#include "base/text.hpp"
#include "checkpoint/origin.hpp"
#include "state/structure.hpp"
#include "state/training.hpp"
#include "tensor/convert.hpp"
#include "write/quantized.hpp"

#include <algorithm>
#include <map>
#include <string>
#include <unordered_set>
#include <utility>
#include <vector>

namespace safemap::SAFEMAP_ABI::write {

namespace {

using TensorSet = std::unordered_set<const LazyTensor*>;

/// Returns the tensors of `checkpoint` that are not of the model. A tensor that the model has, too, is of the model.
TensorSet training_tensors(const Checkpoint& checkpoint) {
    TensorSet found;
    if (checkpoint::Origin::has_tree(checkpoint) && !checkpoint::Origin::is_flat(checkpoint)) {
        const StateTree& tree = *checkpoint.tree();
        const std::vector<bool> of_model = state::nodes_of_model(tree);
        TensorSet model;
        for (const auto& [id, name] : state::names_of_tensors(tree))
            if (const LazyTensor* const tensor = checkpoint::Origin::find(checkpoint, name))
                (of_model[id] ? model : found).insert(tensor);
        for (const LazyTensor* const tensor : model) found.erase(tensor);
        return found;
    }
    for (const LazyTensor& tensor : checkpoint::Origin::of(checkpoint))
        if (state::is_named_in_training(tensor.name()))
            if (const LazyTensor* const written = checkpoint::Origin::find(checkpoint, tensor.name()))
                found.insert(written);
    return found;
}

bool is_named_by(const std::vector<SaveOptions::DtypeOf>& dtypes, const LazyTensor& tensor) {
    return std::any_of(dtypes.begin(), dtypes.end(),
                       [&](const SaveOptions::DtypeOf& each) { return each.tensors.matches(tensor.name()); });
}

/// Counts tensors, and keeps the name of the first.
struct Counted {
    std::uint64_t tensors = 0;
    std::string first = {};

    void add(const LazyTensor& tensor) {
        if (tensors++ == 0) first = tensor.name();
    }
};

}  // namespace

void set_training_dtypes(const Checkpoint& checkpoint, const SaveOptions& options, Input& input) {
    if (!asks_for_casts(options) && !options.optimizer_dtype) return;
    const TensorSet training = training_tensors(checkpoint);
    const bool of_run = !training.empty() || checkpoint.layout() || checkpoint.parts().size() > 1;
    std::map<Dtype, std::vector<std::string>> stay;
    Counted kept;
    std::map<Dtype, Counted> narrowed;
    for (const LazyTensor& tensor : checkpoint) {
        std::optional<Dtype> to = asked_dtype(tensor, options);
        if (training.contains(&tensor) && is_castable(tensor.dtype()) && !is_named_by(options.dtype_of, tensor)) {
            const Dtype own = options.optimizer_dtype.value_or(tensor.dtype());
            stay[own].push_back(tensor.name());
            if (!options.optimizer_dtype && to && *to != own) kept.add(tensor);
            const bool is_kept = options.keep_dtype && options.keep_dtype->matches(tensor.name());
            to = is_kept ? tensor.dtype() : own;
        }
        if (tensor.dtype() == Dtype::f64 && to && *to != Dtype::f64 && (of_run || tensor.shape().empty()))
            narrowed[*to].add(tensor);
    }
    for (auto& [dtype, names] : stay) input.stay.push_back({Selection::names(std::move(names)), dtype});
    if (kept.tensors > 0)
        input.notes.push_back(
            counted(kept.tensors, "tensor") + " of the optimizer's state, " + safemap::quoted(kept.first) + " first, " +
            (kept.tensors == 1 ? "keeps its dtype" : "keep their dtypes") +
            "; --dtype-optimizer D (SaveOptions::optimizer_dtype) casts " + (kept.tensors == 1 ? "it" : "them"));
    for (const auto& [to, tensors] : narrowed)
        input.notes.push_back(counted(tensors.tensors, "F64 tensor is", "F64 tensors are") + " cast to " +
                              std::string(name(to)) + ", " + safemap::quoted(tensors.first) +
                              " first; --keep-dtype GLOB keeps F64");
}

}  // namespace safemap::SAFEMAP_ABI::write
