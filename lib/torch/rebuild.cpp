// Turns the nodes of a pickle into the nodes of a tree. Each node is read by the file for its kind:
//
//   tree_draft.hpp     the tree while it grows, and the paths of its nodes in errors
//   containers.hpp     lists, dictionaries and similar classes
//   tensor_calls.hpp   the table of functions that make tensors
//   numpy.hpp          NumPy's arrays, scalars and dtypes
//   python_values.hpp  the table of functions that make plain values
//   object_parts.hpp   everything else: opaque objects, whose parts keep their names
//
// Most pickles are flat state dicts. FlatItems reads them without a tree, and gives up at the first item that torch
// would not write there. Rebuilder reads everything else, and builds the tree.
//
// Tested by tests/torch/rebuild_test.cpp.
#include "torch/rebuild.hpp"

#include "base/name_index.hpp"
#include "base/text.hpp"
#include "state/names.hpp"
#include "torch/containers.hpp"
#include "torch/embedded.hpp"
#include "torch/globals.hpp"
#include "torch/named_globals.hpp"
#include "torch/numpy.hpp"
#include "torch/object_parts.hpp"
#include "torch/python_values.hpp"
#include "torch/tensor_calls.hpp"
#include "torch/tree_draft.hpp"

#include <algorithm>
#include <utility>

namespace safemap::SAFEMAP_ABI::torch {

namespace {

using Id = PickleGraph::Id;
using Kind = PickleGraph::Kind;
using NodeId = StateTree::NodeId;
using Node = StateTree::Node;
using Opaque = StateTree::Opaque;
using Sequence = StateTree::Sequence;
using Constant = StateTree::Constant;

/// Longest integer, in bytes, that is printed: printing costs the square of its length, and real files have no longer
/// ones.
constexpr std::size_t max_printed_integer = 4096;

constexpr std::string_view unknown_class = "an object of an unknown class";
constexpr std::string_view ordered_dict = "collections.OrderedDict";

/// The root of a state dict: its items and, if it is an OrderedDict, the call that makes it, without its items.
struct FlatRoot {
    std::optional<PickleGraph::Call> made = {};
    std::span<const Id> items = {};
};
FlatRoot flat_root(const PickleGraph& pickle) {
    const Id root = pickle.root();
    if (pickle.kind(root) == Kind::dict) return {.items = pickle.items(root)};
    if (!is_call_of(pickle, root, ordered_dict)) return {};
    PickleGraph::Call made = pickle.call(root);
    const bool of_nothing = pickle.items(made.arguments).empty() && made.keywords == PickleGraph::nothing;
    if (!of_nothing || !made.appends.empty()) return {};
    const auto items = std::exchange(made.items, {});
    return {.made = made, .items = items};
}

/// The reader of a flat state dict, whose items are texts and the most common kind of torch.save's tensors. Stops at
/// any other item. Throws errors without the tensor's name; the caller then reads the tree, which finds them again and
/// adds the name.
class FlatItems {
public:
    FlatItems(TreeDraft& draft, TensorReader& tensors)
        : draft_(draft), pickle_(draft.pickle()), tensors_(tensors), met_(pickle_.size()) {}

    /// Returns the tensors, or nothing if there are other items.
    std::optional<std::vector<LazyTensor>> read(std::span<const Id> items) {
        std::vector<LazyTensor> out;
        out.reserve(items.size() / 2);
        for (std::size_t i = 0; i + 1 < items.size(); i += 2) {
            const auto name = name_of(items[i]);
            auto tensor = name ? plain_tensor(items[i + 1]) : std::nullopt;
            if (!tensor) return std::nullopt;
            // The charge is the same as for the tree.
            draft_.spend(2 * entry_cost + tensor_cost + 2 * name->size());
            out.push_back(tensor->renamed(std::string(*name)));
        }
        bool distinct = true;
        NameIndex().add_all(NamesOf(out), [&](auto, auto) { distinct = false; });
        if (!distinct) return std::nullopt;
        return out;
    }
    /// Returns true if plain_tensor() may accept a node. Looks at the node alone.
    static bool looks_plain(const PickleGraph& pickle, Id id) {
        return is_call_of(pickle, id, "torch._utils._rebuild_tensor_v2");
    }

private:
    std::optional<std::string_view> name_of(Id key) {
        if (pickle_.kind(key) != Kind::text) return std::nullopt;
        const std::string_view name = pickle_.text(key);
        name_bytes_ += name.size();
        if (!state::verbatim_name(name) || name_bytes_ > state::max_name_bytes) return std::nullopt;
        return name;
    }
    /// Describes a tensor without attributes or requires_grad; returns nothing for any other node. Also returns nothing
    /// if the node was met before: one object under two names is one node of a tree.
    std::optional<LazyTensor> plain_tensor(Id id) {
        if (pickle_.kind(id) != Kind::call || met_[id]) return std::nullopt;
        met_[id] = true;
        const auto said = pickle_.call(id);
        if (said.callee != function_ && !looks_plain(pickle_, id)) return std::nullopt;
        function_ = said.callee;
        const bool changed = !said.states.empty() || !said.items.empty() || !said.appends.empty();
        const auto arguments = pickle_.items(said.arguments);
        if (changed || said.keywords != PickleGraph::nothing || arguments.size() < 6 || arguments.size() > 7)
            return std::nullopt;
        const bool requires_grad = pickle_.kind(arguments[4]) == Kind::boolean && pickle_.boolean(arguments[4]);
        if (requires_grad || pickle_.kind(arguments[0]) != Kind::persistent) return std::nullopt;
        return tensors_.describe({.storage = arguments[0],
                                  .offset = arguments[1],
                                  .size = arguments[2],
                                  .stride = arguments[3],
                                  .metadata = arguments.size() > 6 ? arguments[6] : PickleGraph::nothing});
    }

    TreeDraft& draft_;
    const PickleGraph& pickle_;
    TensorReader& tensors_;
    std::vector<bool> met_;               ///< by node: true if the node was met
    Id function_ = PickleGraph::nothing;  ///< function of the last tensor
    std::size_t name_bytes_ = 0;
};

class Rebuilder {
public:
    Rebuilder(const PickleGraph& pickle, const Storages& storages, FaultSink& faults)
        : pickle_(pickle),
          draft_(pickle),
          context_{draft_, storages, faults, TensorReader(pickle, storages, draft_.allowance())} {}

    Rebuilt run() {
        draft_.tree().set_root(draft_.refer(pickle_.root(), {}));
        return fill();
    }
    Rebuilt run(std::span<const NamedValue> parts) {
        const NodeId root = draft_.add(StateTree::Dict{}, {});
        StateTree::Dict dict;
        for (const NamedValue& part : parts) {
            draft_.spend(sizeof(Node) + entry_cost + child_cost + 2 * part.name.size());
            const TreeDraft::Place place{.parent = root, .child = dict.items.size()};
            const NodeId key = draft_.add(part.name, place);
            dict.items.emplace_back(key, draft_.refer(part.value, place));
        }
        draft_.tree()[root] = std::move(dict);
        draft_.tree().set_root(root);
        return fill();
    }
    /// Reads a flat state dict. Returns nothing if the root is something else, or has items that only a tree can
    /// represent.
    std::optional<Rebuilt> run_flat(const FlatRoot& root) {
        auto items = FlatItems(draft_, context_.tensors).read(root.items);
        if (!items) return std::nullopt;
        const NodeId self = draft_.add(StateTree::Dict{}, {});
        draft_.tree().set_root(self);
        if (root.made) draft_.tree()[self] = *container_call(draft_, ordered_dict, *root.made, self);
        Rebuilt out = fill();
        const auto shared = [this](Id id) { return draft_.is_referred(id); };
        if (shared(pickle_.root()) || std::any_of(root.items.begin(), root.items.end(), shared)) return std::nullopt;
        // Copied, not moved: the copy does not keep the memory that was reserved for more nodes.
        out.flat = state::FlatDict{.rest = std::as_const(out.tree), .items = std::move(*items)};
        out.tree = {};
        return out;
    }

private:
    Rebuilt fill() {
        draft_.fill([this](Id id, NodeId self) { return interpret(id, self); });
        Rebuilt out{.tree = {}, .notes = notes_of_calls(pickle_, draft_.allowance())};
        if (auto note = context_.tensors.note()) out.notes.push_back(std::move(*note));
        for (const Id id : pickle_.taken_lists())
            out.taken_lists.push_back(draft_.is_referred(id) ? draft_.refer(id, {}) : StateTree::no_node);
        out.tree = std::move(draft_.tree());
        return out;
    }

    Node interpret(Id id, NodeId self) {
        switch (pickle_.kind(id)) {
            case Kind::none: return StateTree::None{};
            case Kind::boolean: return pickle_.boolean(id);
            case Kind::integer: return pickle_.integer(id);
            case Kind::big_integer: return big_integer(id);
            case Kind::real: return pickle_.real(id);
            case Kind::text: return std::string(pickle_.text(id));
            case Kind::bytes: return StateTree::Bytes{.bytes = std::string(pickle_.text(id))};
            case Kind::bytearray:
                return StateTree::Bytes{.bytes = std::string(pickle_.text(id)), .mutable_array = true};
            case Kind::list: return sequence(draft_, Sequence::Kind::list, pickle_.nodes_in(id), self);
            case Kind::tuple: return sequence(draft_, Sequence::Kind::tuple, pickle_.items(id), self);
            case Kind::set: return sequence(draft_, Sequence::Kind::set, pickle_.items(id), self);
            case Kind::frozenset: return sequence(draft_, Sequence::Kind::frozenset, pickle_.items(id), self);
            case Kind::dict: return dictionary(draft_, pickle_.items(id), self);
            case Kind::global: return constant(id);
            case Kind::persistent: return persistent(id, self);
            case Kind::call: break;
        }
        return call(id, self);
    }

    Node big_integer(Id id) const {
        if (pickle_.text(id).size() <= max_printed_integer) return StateTree::BigInt{pickle_.decimal(id)};
        return Opaque{.type = "builtins.int", .why = "an integer of " + bytes_text(pickle_.text(id).size())};
    }

    Node constant(Id id) const {
        if (const auto dtype = context_.tensors.dtype(id))
            return Constant{.kind = Constant::Kind::dtype, .text = std::string(torch_name(*dtype))};
        return Constant{.kind = Constant::Kind::other, .text = dotted(pickle_.global(id))};
    }

    Node persistent(Id id, NodeId self) {
        if (const Id named = class_of(pickle_, id); named != id) return constant(named);
        if (is_stored_tensor(context_, id)) return context_.guarded(self, [&] { return stored_tensor(context_, id); });
        if (const auto name = storage_class(pickle_, id)) return storage_object("torch." + std::string(*name));
        return Opaque{.type = "a persistent id", .why = "an object that is stored elsewhere"};
    }

    Node call(Id id, NodeId self) {
        const auto said = pickle_.call(id);
        const Id callee = class_of(pickle_, said.callee);
        ObjectParts parts(draft_, self);
        if (pickle_.kind(callee) != Kind::global)
            return parts.call("the result of a call", std::string(unknown_class), said);
        const auto global = pickle_.global(callee);
        const Function& called = function_of(callee);
        const std::string& function = called.name;
        if (called.runs_code) return parts.call(function, "a call of " + function + ", which was not made", said);
        if (auto node = tensor_call(context_, global, function, said, parts)) return std::move(*node);
        if (global.module.starts_with("numpy"))
            if (auto node = numpy_call(context_, id, function, said, parts)) return std::move(*node);
        if (auto node = container_call(draft_, function, said, self)) return std::move(*node);
        if (said.states.empty() && said.items.empty() && said.appends.empty()) {
            if (function == load_from_bytes) return storage_object("torch.Storage");
            if (auto node = python_value(pickle_, function, pickle_.items(said.arguments), draft_.allowance()))
                return std::move(*node);
        }
        return parts.call(function, std::string(unknown_class), said);
    }

    /// A global that is called, identified by its node.
    struct Function {
        Id id = PickleGraph::nothing;
        std::string name = {};
        bool runs_code = false;
    };
    /// Returns the function of a call. Keeps the last one: most calls have the same function as the call before.
    const Function& function_of(Id id) {
        const auto global = pickle_.global(id);
        if (id != function_.id) function_ = {id, dotted(global), runs_code(global)};
        return function_;
    }

    const PickleGraph& pickle_;
    Function function_;
    TreeDraft draft_;
    TensorContext context_;
};

/// Adds the globals of a pickle, and of the files embedded in it even if their values are dropped: Python would load
/// them as well.
void add_globals(const PickleGraph& pickle, const Storages& storages, NamedGlobals::Known* known) {
    if (storages.globals == nullptr) return;
    storages.globals->add(pickle, storages.record, known);
    Allowance allowance = pickle.allowance();
    const bool any_embedded = names_global(pickle, load_from_bytes);
    for (Id id = 0; any_embedded && id < pickle.size(); ++id) {
        if (!is_embedded(pickle, id)) continue;
        try {
            embedded_storage(pickle, id, storages, allowance);
        } catch (const Error& error) {
            storages.globals->refuse();
            const bool must_be_read = storages.globals->strict() || storages.refuses_code;
            if (must_be_read || remedy(error.code()) != Remedy::reject_data) throw;
            storages.globals->add_unread(storages.record);
            if (allowance.left() == 0) break;
        }
    }
    storages.globals->refuse();
    if (storages.refuses_code) storages.globals->refuse_code();
}

}  // namespace

Rebuilt rebuild(const PickleGraph& pickle, const Storages& storages, FaultSink& faults) {
    add_globals(pickle, storages, is_known);
    return Rebuilder(pickle, storages, faults).run();
}

Rebuilt rebuild_state(const PickleGraph& pickle, const Storages& storages, FaultSink& faults) {
    add_globals(pickle, storages, is_known);
    const FlatRoot root = flat_root(pickle);
    if (root.items.size() > 1 && FlatItems::looks_plain(pickle, root.items[1])) {
        try {
            ThrowFirst thrown;
            if (auto flat = Rebuilder(pickle, storages, thrown).run_flat(root)) return std::move(*flat);
        } catch (const Error&) {
            // The error is found again below, and reported there.
        }
    }
    return Rebuilder(pickle, storages, faults).run();
}

Rebuilt rebuild(const PickleGraph& pickle, std::span<const NamedValue> parts, const Storages& storages,
                FaultSink& faults, NamedGlobals::Known* known) {
    add_globals(pickle, storages, known);
    return Rebuilder(pickle, storages, faults).run(parts);
}

}  // namespace safemap::SAFEMAP_ABI::torch
