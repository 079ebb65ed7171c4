// Calls that make tensors: what torch.save writes for those of each kind and era, and what NumPy does.
#pragma once

#include "base/faults.hpp"
#include "torch/object_parts.hpp"
#include "torch/rebuild.hpp"
#include "torch/tensors.hpp"

#include <optional>
#include <string>
#include <string_view>

namespace safemap::SAFEMAP_ABI::torch {

/// What all calls of one pickle share.
struct TensorContext {
    TreeDraft& draft;
    const Storages& storages;
    FaultSink& faults;
    TensorReader tensors;

    /// What `make` makes of a node. A tensor with a fault is reported under its name, and an opaque object stands in
    /// its place.
    template <class Make> StateTree::Node guarded(StateTree::NodeId self, Make&& make) {
        try {
            return make();
        } catch (Error& error) {
            return StateTree::Opaque{.type = "torch.Tensor", .why = report(error, self)};
        }
    }

private:
    std::string report(Error& error, StateTree::NodeId self);
};

/// A tensor, or an opaque object where it is of a kind that no tensor of safemap's can be; nothing where the call makes
/// none. `function` is the name of `callee`, dotted.
std::optional<StateTree::Node> tensor_call(TensorContext& context, const PickleGraph::Global& callee,
                                           const std::string& function, const PickleGraph::Call& said,
                                           ObjectParts& parts);
/// Whether it is one of the functions that tensor_call() has a row for.
bool is_tensor_function(std::string_view function) noexcept;

/// In the oldest files persistent ids are the keys of tensors.
bool is_stored_tensor(const TensorContext& context, PickleGraph::Id id);
/// An opaque object where it is a storage.
StateTree::Node stored_tensor(const TensorContext& context, PickleGraph::Id id);
StateTree::Opaque storage_object(std::string type);

}  // namespace safemap::SAFEMAP_ABI::torch
