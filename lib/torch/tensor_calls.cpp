// Makes tensors from calls. A table lists the functions that make tensors, how many arguments each takes and the method
// that reads its calls; named_globals.cpp asks the table which functions are known. From the top:
//
//   storages        _rebuild_tensor and its variants: a storage and a view of it
//   wrappers        parameters, buffers, subclasses, tensors of other devices: a tensor around a tensor
//   opaque tensors  quantized, sparse, nested and on the meta device: their parts are kept under names
//   states          attributes that were set on a tensor after it was made
//   old tensors     tensor classes before torch 0.4, which are called themselves
//   rows            the table
//   stored_tensor   tensors of the oldest files, which are named by keys
//
// The reference is torch/_utils.py and torch/_tensor.py, 2.13. Tested by tests/torch/rebuild_test.cpp.
#include "torch/tensor_calls.hpp"

#include "torch/globals.hpp"
#include "torch/numpy.hpp"
#include "torch/python_values.hpp"
#include "torch/storage_id.hpp"
#include "torch/storage_types.hpp"

#include <algorithm>
#include <limits>
#include <span>
#include <variant>

namespace safemap::SAFEMAP_ABI::torch {

namespace {

using Id = PickleGraph::Id;
using Kind = PickleGraph::Kind;
using Node = StateTree::Node;
using Opaque = StateTree::Opaque;
using Arguments = std::span<const Id>;

/// Most wrappers around one tensor, as in Parameter of Parameter of …; torch writes two, and each costs a C++ call
/// here.
constexpr int max_wrappers = 16;

constexpr std::string_view parameter_class = "torch.nn.parameter.Parameter";
/// Prefix of functions that make tensors. Each version of torch has more of them.
constexpr std::string_view rebuild_functions = "torch._utils._rebuild_";

/// Returns true if instances of the class are tensors and nothing more.
bool is_plain_tensor_class(std::string_view type) {
    return type == "torch.Tensor" || type == "torch._tensor.Tensor" || type == parameter_class ||
           type == "torch.nn.parameter.Buffer";
}

void require(bool formed, std::string_view function, std::size_t given) {
    if (formed) return;
    throw Error(Errc::bad_tensor, std::string(function) + " with " + std::to_string(given) +
                                      " arguments, which do not describe a tensor");
}

/// The reader of one call and of the calls nested in it. Makes one node.
class TensorCall {
public:
    TensorCall(TensorContext& context, ObjectParts& parts)
        : context_(context),
          draft_(context.draft),
          pickle_(draft_.pickle()),
          tensors_(context.tensors),
          parts_(parts) {}

    std::optional<Node> call(const PickleGraph::Global& callee, const std::string& function,
                             const PickleGraph::Call& said) {
        const bool made_of_nothing = pickle_.items(said.arguments).empty() && is_plain_tensor_class(function);
        if (makes_tensor(function) && !made_of_nothing)
            return context_.guarded(parts_.self(), [&] { return made_with_states(function, said); });
        return old_tensor(callee, function, said);
    }

    struct Row {
        std::string_view name;
        std::size_t least, most;  ///< numbers of arguments
        Node (TensorCall::*make)(Arguments);
    };
    static const Row* row(std::string_view function) noexcept;
    static bool makes_tensor(std::string_view function) noexcept {
        return function.starts_with(rebuild_functions) || row(function) != nullptr;
    }

    // Storages.

    Node tensor(Arguments arguments) { return strided(arguments); }
    Node tensor_v2(Arguments arguments) { return strided(arguments, {}, optional(arguments, 6), truth(arguments[4])); }
    Node tensor_v3(Arguments arguments) {
        const auto dtype = tensors_.dtype(arguments[6]);
        require(dtype.has_value(), "torch._utils._rebuild_tensor_v3", arguments.size());
        return strided(arguments, dtype, optional(arguments, 7), truth(arguments[4]));
    }

    // Wrappers.

    Node parameter(Arguments arguments) {
        return parameter_of(arguments[0], arguments.size() < 2 || truth(arguments[1]));
    }
    Node parameter_with_state(Arguments arguments) {
        Node node = parameter(arguments);
        if (arguments.size() < 4) return node;
        return with_state(std::move(node), std::string(parameter_class), arguments[3]);
    }
    Node buffer(Arguments arguments) { return tensor_at(arguments[0]); }

    /// Reads a tensor of a device that torch saves through the CPU. On the device, the tensor may have another dtype.
    Node device_tensor(Arguments arguments) {
        Node node = tensor_at(arguments[0]);
        auto* const made = std::get_if<StateTree::Tensor>(&node);
        if (made != nullptr) {
            made->numpy = false;
            made->requires_grad = made->requires_grad || truth(arguments[3]);
        }
        if (made == nullptr || tensors_.dtype(arguments[1]) == made->tensor.dtype()) return node;
        Opaque out{.type = "torch.Tensor",
                   .why = "a tensor of another device; it is kept in the dtype that it has on the CPU"};
        parts_.add_itself(out, std::move(node));
        return out;
    }

    /// Reads (function, class, arguments, state): a tensor with attributes, or of a class of its own.
    Node subclass(Arguments arguments) {
        const bool formed = pickle_.kind(arguments[0]) == Kind::global && pickle_.kind(arguments[2]) == Kind::tuple;
        require(formed, "_rebuild_from_type_v2", arguments.size());
        const std::string function = dotted(pickle_.global(arguments[0]));
        const auto given = pickle_.items(arguments[2]);
        const std::string type = class_name(pickle_, arguments[1]);
        if (makes_tensor(function)) {
            unwrap();
            return with_state(made(function, given), type, arguments[3]);
        }
        if (function == "torch.nested._internal.nested_tensor._rebuild_njt" && given.size() == 1)
            return jagged(type, given[0], arguments[3]);
        Opaque out = unknown(type, function, given);
        parts_.add_state(out, arguments[3]);
        return out;
    }

    // Opaque tensors.

    Node meta_tensor(Arguments arguments) {
        Opaque out = without_data();
        parts_.add_named(out, {"dtype", "size", "stride", "requires_grad"}, arguments);
        return on_meta(std::move(out));
    }

    /// Reads a quantized tensor: (storage, offset, size, stride, quantizer, requires_grad, hooks).
    Node quantized(Arguments arguments) {
        const auto quantizer = pickle_.items(arguments[4]);
        const bool formed = pickle_.kind(arguments[4]) == Kind::tuple && !quantizer.empty() &&
                            pickle_.kind(quantizer[0]) == Kind::global;
        require(formed, "_rebuild_qtensor", arguments.size());
        const std::string scheme(pickle_.global(quantizer[0]).name);
        Opaque out{.type = "torch.Tensor",
                   .why = "a quantized tensor (" + scheme +
                          "); its parts are kept, its numbers only with a structure document",
                   .form = Opaque::Form::quantized};
        const bool requires_grad = truth(arguments[5]);
        const Dtype dtype = tensors_.storage_dtype(arguments[0]);
        if (dtype == Dtype::quint4x2 || dtype == Dtype::quint2x4) {
            // Elements share bytes, and rows are padded, so only the storage as a whole is a tensor.
            if (auto bytes = tensors_.whole(arguments[0]))
                parts_.add_itself(out, StateTree::Tensor{.tensor = std::move(*bytes), .requires_grad = requires_grad});
            parts_.add_named(out, {"offset", "size", "stride"}, arguments.subspan(1));
        } else {
            parts_.add_itself(out, strided(arguments, {}, PickleGraph::nothing, requires_grad));
        }
        if (scheme.starts_with("per_tensor")) parts_.add_named(out, {"scheme", "scale", "zero_point"}, quantizer);
        else parts_.add_named(out, {"scheme", "scales", "zero_points", "axis"}, quantizer);
        return out;
    }

    /// Reads a sparse tensor: (layout, data).
    Node sparse(Arguments arguments) {
        const auto data = pickle_.items(arguments[1]);
        require(pickle_.kind(arguments[1]) == Kind::tuple && data.size() >= 3, "_rebuild_sparse_tensor",
                arguments.size());
        std::string layout = "sparse";
        if (pickle_.kind(arguments[0]) == Kind::call) {
            const auto made = python_value(pickle_, "torch.serialization._get_layout",
                                           pickle_.items(pickle_.call(arguments[0]).arguments), draft_.allowance());
            if (made) layout = std::get<StateTree::Constant>(*made).text;
        }
        Opaque out{.type = "torch.Tensor",
                   .why = "a sparse tensor (" + layout + "); its parts are kept",
                   .form = Opaque::Form::sparse};
        parts_.add(out, "layout", arguments[0]);
        if (layout == "sparse_coo") parts_.add_named(out, {"indices", "values", "size", "is_coalesced"}, data);
        else parts_.add_named(out, {"compressed_indices", "plain_indices", "values", "size"}, data);
        return out;
    }

    Node nested(Arguments arguments) {
        Opaque out{.type = "torch.Tensor", .why = "a nested tensor; its parts are kept", .form = Opaque::Form::nested};
        parts_.add_named(out, {"buffer", "sizes", "strides", "offsets"}, arguments);
        return out;
    }

    Node wrapper_subclass(Arguments arguments) {
        Opaque out{.type = class_name(pickle_, arguments[0]),
                   .why = "a tensor subclass without data of its own; its parts are kept"};
        parts_.add_named(out, {"dtype", "size", "stride", "storage_offset", "layout", "device", "requires_grad"},
                         arguments.subspan(1));
        return out;
    }

private:
    /// Returns what a function that makes tensors would return: a tensor, or an opaque object.
    Node made(std::string_view function, Arguments arguments) {
        const Row* const row = TensorCall::row(function);
        if (row == nullptr) return unknown("torch.Tensor", function, arguments);
        require(arguments.size() >= row->least && arguments.size() <= row->most, function, arguments.size());
        return (this->*row->make)(arguments);
    }
    Node made_with_states(std::string_view function, const PickleGraph::Call& said) {
        Node node = made(function, pickle_.items(said.arguments));
        // Some classes have their attributes set after they are made.
        for (const Id state : said.states) node = with_state(std::move(node), "torch.Tensor", state);
        return node;
    }
    Opaque unknown(std::string type, std::string_view function, Arguments arguments) {
        Opaque out{.type = std::move(type),
                   .why = "a tensor made by " + std::string(function) + ", which safemap does not know"};
        parts_.add_arguments(out, arguments);
        return out;
    }
    void unwrap() {
        if (++wrappers_ > max_wrappers) throw bad_tensor("too many wrappers around a tensor");
    }
    static Opaque without_data() {
        return {.type = "torch.Tensor", .why = "a tensor on the meta device, which has no data"};
    }
    /// Adds the part that tells a tensor without data from other objects.
    Opaque on_meta(Opaque out) {
        parts_.add_value(out, "device", StateTree::Constant{StateTree::Constant::Kind::device, "meta"});
        return out;
    }

    bool truth(Id id) const { return pickle_.kind(id) == Kind::boolean && pickle_.boolean(id); }
    static Id optional(Arguments arguments, std::size_t place) {
        return place < arguments.size() ? arguments[place] : PickleGraph::nothing;
    }

    /// Reads a view of a storage: (storage, offset, size, stride). A tensor on the meta device becomes an opaque
    /// object.
    Node strided(Arguments arguments, std::optional<Dtype> dtype = {}, Id metadata = PickleGraph::nothing,
                 bool requires_grad = false) {
        const TensorReader::Parts said{.storage = arguments[0],
                                       .offset = arguments[1],
                                       .size = arguments[2],
                                       .stride = arguments[3],
                                       .dtype = dtype,
                                       .metadata = metadata};
        if (auto tensor = tensors_.describe(said))
            return StateTree::Tensor{.tensor = std::move(*tensor), .requires_grad = requires_grad};
        Opaque out = without_data();
        parts_.add_value(out, "dtype",
                         StateTree::Constant{.kind = StateTree::Constant::Kind::dtype,
                                             .text = std::string(torch_name(tensors_.dtype(said)))});
        parts_.add_named(out, {"storage_offset", "size", "stride"}, arguments.subspan(1));
        parts_.add_value(out, "requires_grad", requires_grad);
        return on_meta(std::move(out));
    }

    /// Returns the tensor that a node of the pickle makes. Throws bad_tensor if it makes none.
    Node tensor_at(Id id) {
        if (is_stored_tensor(context_, id)) return stored_tensor(context_, id);
        if (pickle_.kind(id) == Kind::call && pickle_.kind(pickle_.call(id).callee) == Kind::global) {
            const auto inner = pickle_.call(id);
            const auto callee = pickle_.global(inner.callee);
            const std::string function = dotted(callee);
            if (makes_tensor(function)) {
                unwrap();
                return made_with_states(function, inner);
            }
            if (auto node = old_tensor(callee, function, inner)) return std::move(*node);
            if (auto node = numpy_array(context_, inner, parts_)) return std::move(*node);
        }
        throw Error(Errc::bad_tensor, "expected a tensor");
    }

    Node parameter_of(Id tensor, bool requires_grad) {
        Node node = tensor_at(tensor);
        if (auto* made = std::get_if<StateTree::Tensor>(&node)) {
            made->parameter = true;
            made->requires_grad = requires_grad;
        } else if (auto* opaque = std::get_if<Opaque>(&node)) {
            parts_.remove(*opaque, "requires_grad");
            parts_.add_value(*opaque, "parameter", true);
            parts_.add_value(*opaque, "requires_grad", requires_grad);
        }
        return node;
    }

    /// Reads a nested tensor in the jagged layout: a dictionary of its parts. Leaves out attributes that repeat a part,
    /// as most do, under the same name or with an underscore before it.
    Opaque jagged(std::string type, Id parts, Id state) {
        Opaque out{.type = std::move(type), .why = "a nested tensor (jagged); its parts are kept"};
        parts_.add_state(out, parts);
        if (pickle_.kind(state) != Kind::dict) return out;
        const auto attributes = pickle_.items(state);
        draft_.spend(link_cost * attributes.size());
        for (std::size_t i = 0; i + 1 < attributes.size(); i += 2) {
            const std::string name = attribute_name(pickle_, attributes[i], i / 2);
            const bool again = parts_.has(name) || (name.starts_with('_') && parts_.has(name.substr(1)));
            if (!again) parts_.add(out, name, attributes[i + 1]);
        }
        return out;
    }

    // States.

    /// Adds the state that was set on a tensor. The result stays a tensor if its class is plain and the state has plain
    /// values only; otherwise it is an opaque object around the tensor.
    Node with_state(Node node, const std::string& type, Id state) {
        const bool plain_class = is_plain_tensor_class(type);
        if (auto* opaque = std::get_if<Opaque>(&node)) {
            if (!plain_class) {
                opaque->type = type;
                opaque->form = Opaque::Form::object;
            }
            parts_.add_state(*opaque, state);
            return node;
        }
        if (plain_class && only_plain_values(state)) {
            if (!is_plain(state)) std::get<StateTree::Tensor>(node).attributes = draft_.refer(state, {parts_.self()});
            return node;
        }
        Opaque out{.type = type, .why = "a tensor of a subclass or with attributes; it is kept as a plain tensor"};
        parts_.add_itself(out, std::move(node));
        parts_.add_state(out, state);
        return out;
    }
    bool only_plain_values(Id state) {
        if (pickle_.kind(state) == Kind::none) return true;
        if (pickle_.kind(state) != Kind::dict) return false;
        const auto items = pickle_.items(state);
        draft_.spend(link_cost * items.size());
        return std::all_of(items.begin(), items.end(), [this](Id id) { return is_plain(id); });
    }
    bool is_plain(Id id) const {
        const Kind kind = pickle_.kind(id);
        return kind != Kind::call && kind != Kind::persistent && pickle_.items(id).empty();
    }

    // Old tensors.

    /// Reads a tensor from before torch 0.4, or returns nothing if the call makes none:
    /// - torch.FloatTensor and similar classes, called without arguments; the state is (storage, offset, size, stride).
    /// - Variables and Parameters, called with (tensor, requires_grad, …).
    /// - Variables and Parameters, called without arguments; the state is (tensor, gradient, hooks, requires_grad,
    ///   volatile).
    std::optional<Node> old_tensor(const PickleGraph::Global& callee, const std::string& type,
                                   const PickleGraph::Call& said) {
        const bool variable = type == "torch.autograd.variable.Variable" || is_plain_tensor_class(type);
        const bool typed =
            (callee.module == "torch" || callee.module == "torch.cuda") && tensor_class_dtype(callee.name).has_value();
        const auto guarded = [this](auto make) { return context_.guarded(parts_.self(), make); };
        const auto arguments = pickle_.items(said.arguments);
        if (variable && arguments.size() == 4 && said.states.empty())
            return guarded([&] { return old_variable(arguments[0], arguments[1]); });
        if ((!variable && !typed) || said.states.size() != 1 || pickle_.kind(said.states[0]) != Kind::tuple)
            return std::nullopt;
        const auto state = pickle_.items(said.states[0]);
        if (state.size() == 4) return guarded([&] { return strided(state); });
        if (!variable || state.size() != 5) return std::nullopt;
        if (type != parameter_class) return guarded([&] { return old_variable(state[0], state[3]); });
        return guarded([&] {
            unwrap();
            return parameter_of(state[0], truth(state[3]));
        });
    }
    Node old_variable(Id tensor, Id requires_grad) {
        unwrap();
        Node node = tensor_at(tensor);
        if (auto* const made = std::get_if<StateTree::Tensor>(&node)) made->requires_grad = truth(requires_grad);
        return node;
    }

    TensorContext& context_;
    TreeDraft& draft_;
    const PickleGraph& pickle_;
    TensorReader& tensors_;
    ObjectParts& parts_;
    int wrappers_ = 0;  ///< wrappers that were entered
};

constexpr std::size_t any = std::numeric_limits<std::size_t>::max();
constexpr TensorCall::Row rows[]{
    {"torch._utils._rebuild_tensor", 4, 4, &TensorCall::tensor},
    {"torch._utils._rebuild_tensor_v2", 6, 7, &TensorCall::tensor_v2},
    {"torch._utils._rebuild_tensor_v3", 7, 8, &TensorCall::tensor_v3},
    {"torch._utils._rebuild_parameter", 1, any, &TensorCall::parameter},
    {"torch._utils._rebuild_parameter_with_state", 1, any, &TensorCall::parameter_with_state},
    {"torch.nn.parameter.Parameter", 1, any, &TensorCall::parameter},
    {"torch.nn.parameter.Buffer", 1, any, &TensorCall::buffer},
    {"torch._utils._rebuild_device_tensor_from_cpu_tensor", 4, 4, &TensorCall::device_tensor},
    {"torch._utils._rebuild_device_tensor_from_numpy", 4, 4, &TensorCall::device_tensor},
    {"torch._utils._rebuild_xla_tensor", 4, 4, &TensorCall::device_tensor},
    {"torch._tensor._rebuild_from_type", 4, 4, &TensorCall::subclass},
    {"torch._tensor._rebuild_from_type_v2", 4, 4, &TensorCall::subclass},
    {"torch._utils._rebuild_meta_tensor_no_storage", 4, 4, &TensorCall::meta_tensor},
    {"torch._utils._rebuild_qtensor", 6, any, &TensorCall::quantized},
    {"torch._utils._rebuild_sparse_tensor", 2, 2, &TensorCall::sparse},
    {"torch._utils._rebuild_sparse_csr_tensor", 2, 2, &TensorCall::sparse},
    {"torch._utils._rebuild_nested_tensor", 4, 4, &TensorCall::nested},
    {"torch._utils._rebuild_wrapper_subclass", 1, any, &TensorCall::wrapper_subclass},
};

const TensorCall::Row* TensorCall::row(std::string_view function) noexcept { return row_of(rows, function); }

}  // namespace

std::string TensorContext::report(Error& error, StateTree::NodeId self) {
    std::string why = error.message();
    std::string path = draft.path_of(self);
    draft.spend(fault_cost + 2 * (why.size() + path.size()));
    faults.fault(std::move(error.with_tensor(std::move(path))));
    return why;
}

std::optional<Node> tensor_call(TensorContext& context, const PickleGraph::Global& callee, const std::string& function,
                                const PickleGraph::Call& said, ObjectParts& parts) {
    return TensorCall(context, parts).call(callee, function, said);
}

bool is_tensor_function(std::string_view function) noexcept { return TensorCall::row(function) != nullptr; }

bool is_stored_tensor(const TensorContext& context, Id id) {
    const PickleGraph& pickle = context.draft.pickle();
    if (!context.storages.tensor || pickle.kind(id) != Kind::persistent) return false;
    return pickle.kind(pickle.persistent(id)) == Kind::integer;
}

Node stored_tensor(const TensorContext& context, Id id) {
    const PickleGraph& pickle = context.draft.pickle();
    auto tensor = context.storages.tensor(pickle.integer(pickle.persistent(id)));
    if (!tensor) return storage_object("torch.Storage");
    return StateTree::Tensor{.tensor = std::move(*tensor)};
}

Opaque storage_object(std::string type) { return {.type = std::move(type), .why = "a storage, not a tensor"}; }

}  // namespace safemap::SAFEMAP_ABI::torch
