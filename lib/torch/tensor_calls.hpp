// Reads calls that make tensors, of every kind and age that torch.save writes, and tensors that wrap NumPy arrays.
#pragma once

#include "base/faults.hpp"
#include "torch/object_parts.hpp"
#include "torch/rebuild.hpp"
#include "torch/tensors.hpp"

#include <optional>
#include <string>
#include <string_view>

namespace safemap::SAFEMAP_ABI::torch {

/// The state that all calls of one pickle share.
struct TensorContext {
    TreeDraft& draft;
    const Storages& storages;
    FaultSink& faults;
    TensorReader tensors;

    /// Returns the node that `make` makes. If `make` throws, reports the fault under the tensor's name and returns an
    /// opaque object in its place.
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

/// Returns the tensor that a call makes, or an opaque object if safemap has no tensors of its kind. Returns nothing if
/// the call makes no tensor. `function` is the dotted name of `callee`.
std::optional<StateTree::Node> tensor_call(TensorContext& context, const PickleGraph::Global& callee,
                                           const std::string& function, const PickleGraph::Call& said,
                                           ObjectParts& parts);
/// Returns true if tensor_call() has a row for the function.
bool is_tensor_function(std::string_view function) noexcept;

/// Returns true if a node is a persistent id that is the key of a tensor, as in the oldest files.
bool is_stored_tensor(const TensorContext& context, PickleGraph::Id id);
/// Returns the tensor that a key names, or an opaque object if the key is that of a storage.
StateTree::Node stored_tensor(const TensorContext& context, PickleGraph::Id id);
StateTree::Opaque storage_object(std::string type);

}  // namespace safemap::SAFEMAP_ABI::torch
