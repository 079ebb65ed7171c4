// The closed table: what each known function of a PyTorch pickle means. Tested by tests/torch/rebuild_test.cpp.
#include "torch/rebuild.hpp"

#include "base/text.hpp"
#include "state/modules.hpp"
#include "state/names.hpp"
#include "torch/embedded.hpp"
#include "torch/globals.hpp"
#include "torch/numpy.hpp"
#include "torch/python_values.hpp"
#include "torch/storage_types.hpp"
#include "torch/tensors.hpp"

#include <algorithm>
#include <array>
#include <map>
#include <optional>
#include <span>
#include <unordered_map>
#include <unordered_set>
#include <variant>

namespace safemap::SAFEMAP_ABI::torch {

namespace {

using Id = PickleGraph::Id;
using Kind = PickleGraph::Kind;
using NodeId = StateTree::NodeId;
using Node = StateTree::Node;
using Opaque = StateTree::Opaque;
using Sequence = StateTree::Sequence;
using Constant = StateTree::Constant;

/// Parameter of Parameter of …; torch writes two, and each costs a C++ call here.
constexpr int max_wrappers = 16;
/// Longer integers cost the square of their length to print, and nobody counts that far.
constexpr std::size_t max_printed_integer = 4096;
/// Levels and bytes of a tensor's path in an error.
constexpr std::size_t max_path_levels = 64;
constexpr std::size_t max_path_bytes = 2000;
/// Of an attribute's name, which each object that has it copies; longer ones are called by their place.
constexpr std::size_t max_key_bytes = 1024;
/// Functions that run code, each with a note of its own.
constexpr std::size_t most_calls_noted = 16;

// What is charged for, in bytes of memory, beyond the nodes of the pickle; see PickleLimits.
constexpr std::uint64_t link_cost = 4;
constexpr std::uint64_t child_cost = 192;
constexpr std::uint64_t argument_cost = 64;
constexpr std::uint64_t tensor_cost = 1024;
constexpr std::uint64_t opaque_cost = 384;
constexpr std::uint64_t fault_cost = 512;

/// What a node takes beside its place in the tree, here and as a name.
struct NodeCost {
    std::uint64_t operator()(const std::string& text) const { return text.size(); }
    std::uint64_t operator()(const StateTree::Bytes& value) const { return value.bytes.size(); }
    std::uint64_t operator()(const StateTree::BigInt& value) const { return value.decimal.size(); }
    std::uint64_t operator()(const Constant& value) const { return value.text.size(); }
    std::uint64_t operator()(const StateTree::NumpyScalar& value) const { return value.dtype.size(); }
    std::uint64_t operator()(const StateTree::Tensor&) const { return tensor_cost; }
    std::uint64_t operator()(const Opaque& value) const {
        return opaque_cost + 2 * (value.type.size() + value.why.size());
    }
    template <class Other> std::uint64_t operator()(const Other&) const { return 0; }
};

/// A class whose instances are tensors and nothing more.
bool is_plain_tensor_class(std::string_view type) {
    constexpr std::array known{
        std::string_view("torch.Tensor"),
        std::string_view("torch._tensor.Tensor"),
        std::string_view("torch.nn.parameter.Parameter"),
        std::string_view("torch.nn.parameter.Buffer"),
    };
    return std::find(known.begin(), known.end(), type) != known.end();
}

constexpr std::string_view unknown_class = "an object of a class that safemap does not know";

class Rebuilder {
public:
    Rebuilder(const PickleGraph& pickle, const Storages& storages, FaultSink& faults)
        : pickle_(pickle),
          storages_(storages),
          faults_(faults),
          allowance_(pickle.allowance()),
          tensors_(pickle, storages, allowance_),
          nodes_(pickle.size(), StateTree::no_node) {
        out_.tree.reserve(pickle.size());
        sources_.reserve(pickle.size());
        places_.reserve(pickle.size());
    }

    Rebuilt run() {
        out_.tree.set_root(refer(pickle_.root(), {}));
        return fill();
    }
    Rebuilt run(std::span<const NamedValue> parts) {
        const NodeId root = add(StateTree::Dict{}, PickleGraph::nothing, {});
        StateTree::Dict dict;
        for (const NamedValue& part : parts) {
            allowance_.spend(sizeof(Node) + entry_cost + child_cost + 2 * part.name.size());
            const Place place{.parent = root, .child = dict.items.size()};
            const NodeId key = add(part.name, PickleGraph::nothing, place);
            dict.items.emplace_back(key, refer(part.value, place));
        }
        out_.tree[root] = std::move(dict);
        out_.tree.set_root(root);
        return fill();
    }

private:
    /// Breadth first: a node is numbered when it is first referred to, and filled when its turn comes.
    Rebuilt fill() {
        for (NodeId id = 0; id < sources_.size(); ++id) {
            if (sources_[id] == PickleGraph::nothing) continue;
            Node node = interpret(sources_[id], id);
            allowance_.spend(std::visit(NodeCost(), node));
            out_.tree[id] = std::move(node);
        }
        note_calls();
        if (auto note = tensors_.note()) out_.notes.push_back(std::move(*note));
        return std::move(out_);
    }

    /// Where a node was first found, for its path.
    struct Place {
        NodeId parent = StateTree::no_node;
        std::size_t child = 0;
    };

    NodeId add(Node node, Id source, Place place) {
        sources_.push_back(source);
        places_.push_back(place);
        return out_.tree.add(std::move(node));
    }
    NodeId refer(Id id, Place place) {
        if (nodes_[id] == StateTree::no_node) nodes_[id] = add(StateTree::None{}, id, place);
        return nodes_[id];
    }

    // Plain values and containers.

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
            case Kind::list: return sequence(Sequence::Kind::list, pickle_.items(id), self);
            case Kind::tuple: return sequence(Sequence::Kind::tuple, pickle_.items(id), self);
            case Kind::set: return sequence(Sequence::Kind::set, pickle_.items(id), self);
            case Kind::frozenset: return sequence(Sequence::Kind::frozenset, pickle_.items(id), self);
            case Kind::dict: return dict(pickle_.items(id), self);
            case Kind::global: return constant(id);
            case Kind::persistent: return persistent(id, self);
            case Kind::call: break;
        }
        if (!names_.empty()) names_ = {};  // clear() would cost the most names ever there were
        if (!attributes_.empty()) attributes_ = {};
        repeated_names_ = 0;
        return call(id, self);
    }

    Node big_integer(Id id) const {
        if (pickle_.text(id).size() <= max_printed_integer) return StateTree::BigInt{pickle_.decimal(id)};
        return Opaque{.type = "builtins.int", .why = "an integer of " + bytes_text(pickle_.text(id).size())};
    }

    Sequence sequence(Sequence::Kind kind, std::span<const Id> items, NodeId self) {
        allowance_.spend(link_cost * items.size());
        Sequence out{.kind = kind};
        out.items.reserve(items.size());
        for (const Id item : items) out.items.push_back(refer(item, {.parent = self, .child = out.items.size()}));
        return out;
    }

    StateTree::Dict dict(std::span<const Id> items, NodeId self) {
        StateTree::Dict out;
        put_items(out, items, self);
        return out;
    }

    /// As Python does it: a key that is there already keeps its place and gets the new value.
    void put_items(StateTree::Dict& out, std::span<const Id> items, NodeId self) {
        allowance_.spend(entry_cost * (items.size() / 2));
        SeenKeys seen(allowance_);
        out.items.reserve(items.size() / 2);
        for (std::size_t i = 0; i + 1 < items.size(); i += 2) {
            const std::size_t place = seen.place_of(pickle_, items[i], out.items.size());
            // The key before the value: the path of a value that is wrong is made of keys.
            if (place == out.items.size())
                out.items.emplace_back(refer(items[i], {.parent = self, .child = place}), StateTree::no_node);
            out.items[place].second = refer(items[i + 1], {.parent = self, .child = place});
        }
    }

    Node constant(Id id) const {
        const auto global = pickle_.global(id);
        if (const auto dtype = tensors_.dtype(id)) {
            return Constant{.kind = Constant::Kind::dtype, .text = std::string(torch_name(*dtype))};
        }
        return Constant{.kind = Constant::Kind::other, .text = dotted(global)};
    }

    Node persistent(Id id, NodeId self) {
        if (const Id named = class_of(pickle_, id); named != id) return constant(named);
        if (is_stored_tensor(id)) return guarded(self, [&] { return stored_tensor(id); });
        if (const auto class_name = storage_class(pickle_, id)) {
            return storage_object("torch." + std::string(*class_name));
        }
        return Opaque{.type = "a persistent id", .why = "an object that is stored elsewhere"};
    }
    static Node storage_object(std::string type) {
        return Opaque{.type = std::move(type), .why = "a storage, which is no tensor"};
    }

    // Calls.

    Node call(Id id, NodeId self) {
        const auto said = pickle_.call(id);
        const Id callee = class_of(pickle_, said.callee);
        if (pickle_.kind(callee) != Kind::global) {
            return opaque_call("the result of a call", std::string(unknown_class), said, self);
        }
        const auto global = pickle_.global(callee);
        if (runs_code(global)) {
            return opaque_call(dotted(global), "a call of " + dotted(global) + ", which was not made", said, self);
        }
        const std::string function = dotted(global);
        const auto arguments = pickle_.items(said.arguments);
        const bool made_of_nothing = arguments.empty() && is_plain_tensor_class(function);
        if (is_tensor_function(function) && !made_of_nothing) {
            return guarded(self, [&] { return with_states(tensor_call(function, arguments, self, 0), said, self); });
        }
        if (auto node = old_tensor(global, said, self, 0)) return std::move(*node);
        if (global.module.starts_with("numpy")) {
            if (auto node = numpy_call(id, function, said, self)) return std::move(*node);
        }
        if (auto node = plain_call(function, arguments, said, self)) return std::move(*node);
        return opaque_call(function, std::string(unknown_class), said, self);
    }

    /// Values that Python's own classes have; nothing where the call is of none of them, or has other arguments.
    std::optional<Node> plain_call(std::string_view function, std::span<const Id> arguments,
                                   const PickleGraph::Call& said, NodeId self) {
        if (function == "collections.OrderedDict") return mapping(true, arguments, said, self);
        if (function == "collections.Counter") return counter(arguments, said, self);
        if (function == "collections.defaultdict") return default_dict(arguments, said, self);
        if (function == "builtins.dict") return mapping(false, arguments, said, self);
        if (!said.states.empty() || !said.items.empty() || !said.appends.empty()) return std::nullopt;
        if (function == "torch.Size") return members(Sequence::Kind::size, arguments, self);
        if (function == "builtins.set") return members(Sequence::Kind::set, arguments, self);
        if (function == "builtins.frozenset") return members(Sequence::Kind::frozenset, arguments, self);
        if (function == "builtins.list") return members(Sequence::Kind::list, arguments, self);
        if (function == "builtins.tuple") return members(Sequence::Kind::tuple, arguments, self);
        if (function == load_from_bytes) return storage_object("torch.Storage");
        return python_value(pickle_, function, arguments, allowance_);
    }

    /// A dictionary class, made of nothing, a dictionary or a list of pairs; then its items; then its attributes.
    std::optional<Node> mapping(bool ordered, std::span<const Id> arguments, const PickleGraph::Call& said,
                                NodeId self) {
        std::vector<Id> items;
        if (arguments.size() > 1 || (arguments.size() == 1 && !take_pairs(arguments[0], items))) return std::nullopt;
        items.insert(items.end(), said.items.begin(), said.items.end());
        StateTree::Dict out{.ordered = ordered};
        put_items(out, items, self);
        for (const Id state : said.states) {
            if (pickle_.kind(state) != Kind::dict) continue;
            const auto attributes = pickle_.items(state);
            allowance_.spend(link_cost * attributes.size());
            for (std::size_t i = 0; i + 1 < attributes.size(); i += 2)
                if (pickle_.kind(attributes[i]) == Kind::text)
                    set_attribute(out, attribute_name(attributes[i], i / 2),
                                  refer(attributes[i + 1], {.parent = self}));
        }
        return out;
    }
    /// As Python does it: one that is there already gets the new value.
    void set_attribute(StateTree::Dict& dict, std::string name, NodeId value) {
        allowance_.spend(child_cost + 2 * name.size());
        const auto [known, fresh] = attributes_.try_emplace(name, dict.attributes.size());
        if (fresh) dict.attributes.emplace_back(std::move(name), value);
        else dict.attributes[known->second].second = value;
    }
    bool take_pairs(Id id, std::vector<Id>& items) {
        const auto members = pickle_.items_or_nothing(id);
        allowance_.spend(link_cost * members.size());
        if (pickle_.kind(id) == Kind::dict) {
            items.assign(members.begin(), members.end());
            return true;
        }
        if (pickle_.kind(id) != Kind::list) return false;
        for (const Id member : members) {
            const auto pair = pickle_.items_or_nothing(member);
            const Kind kind = pickle_.kind(member);
            if ((kind != Kind::list && kind != Kind::tuple) || pair.size() != 2) return false;
            items.insert(items.end(), pair.begin(), pair.end());
        }
        return true;
    }
    std::optional<Node> counter(std::span<const Id> arguments, const PickleGraph::Call& said, NodeId self) {
        auto out = mapping(false, arguments, said, self);
        if (out) add_class(std::get<StateTree::Dict>(*out), said, self);
        return out;
    }
    std::optional<Node> default_dict(std::span<const Id> arguments, const PickleGraph::Call& said, NodeId self) {
        if (arguments.size() > 1) return std::nullopt;
        auto out = mapping(false, {}, said, self);
        auto& dict = std::get<StateTree::Dict>(*out);
        add_class(dict, said, self);
        if (!arguments.empty()) set_attribute(dict, "default_factory", refer(arguments[0], {.parent = self}));
        return out;
    }
    void add_class(StateTree::Dict& dict, const PickleGraph::Call& said, NodeId self) {
        set_attribute(dict, "__class__", refer(class_of(pickle_, said.callee), {.parent = self}));
    }

    std::optional<Node> members(Sequence::Kind kind, std::span<const Id> arguments, NodeId self) {
        if (arguments.empty()) return Sequence{.kind = kind};
        if (arguments.size() > 1) return std::nullopt;
        const Kind given = pickle_.kind(arguments[0]);
        if (given != Kind::list && given != Kind::tuple && given != Kind::set) return std::nullopt;
        return sequence(kind, pickle_.items(arguments[0]), self);
    }

    // NumPy.

    std::optional<Node> numpy_call(Id id, std::string_view function, const PickleGraph::Call& said, NodeId self) {
        if (const auto dtype = numpy_dtype(pickle_, id))
            return Constant{.kind = Constant::Kind::numpy_dtype, .text = dtype->text};
        if (const auto array = numpy_array(pickle_, said))
            return guarded(self, [&] { return numpy_array_node(*array, self); });
        if (function == "numpy._core.multiarray.scalar") return guarded(self, [&] { return numpy_scalar(said, self); });
        return std::nullopt;
    }

    Node numpy_array_node(const NumpyArray& array, NodeId self) {
        const std::string type = array.type == PickleGraph::nothing ? "numpy.ndarray" : type_name(array.type);
        const auto dtype = numpy_dtype(pickle_, array.dtype);
        if (!dtype || !dtype->dtype) return numpy_parts(array, type, self);
        Node tensor =
            StateTree::Tensor{.tensor = numpy_tensor(pickle_, array, *dtype, storages_, allowance_), .numpy = true};
        if (type == "numpy.ndarray") return tensor;
        Opaque out{.type = type, .why = "a NumPy array of a class of its own; it is kept as a plain one"};
        add_itself(out, std::move(tensor), self);
        return out;
    }

    /// Of texts, records, dates, objects.
    Opaque numpy_parts(const NumpyArray& array, std::string type, NodeId self) {
        const auto dtype = numpy_dtype(pickle_, array.dtype);
        Opaque out{.type = std::move(type),
                   .why = "a NumPy array of " + (dtype ? dtype->text : std::string("records")) +
                          ", which no tensor can be; its parts are kept"};
        add_child(out, "dtype", array.dtype, self);
        add_child(out, "shape", array.shape, self);
        out.children.emplace_back(unique("fortran"), add(array.fortran, PickleGraph::nothing, {.parent = self}));
        add_child(out, "data", array.data, self);
        return out;
    }

    /// (dtype, bytes), or of objects the object itself.
    Node numpy_scalar(const PickleGraph::Call& said, NodeId self) {
        const auto arguments = pickle_.items(said.arguments);
        const auto dtype = arguments.size() == 2 ? numpy_dtype(pickle_, arguments[0]) : std::nullopt;
        if (!dtype || dtype->kind == 'O')
            return opaque_call("numpy.generic", "a NumPy scalar of records or objects; its parts are kept", said, self);
        const auto bytes = bytes_of(pickle_, arguments[1], allowance_);
        if (!bytes) throw Error(Errc::bad_tensor, "a NumPy scalar that is not made of bytes");
        allowance_.spend(sizeof(Node) + bytes->size());
        const NodeId value = add(numpy_value(*dtype, *bytes), PickleGraph::nothing, {.parent = self});
        return StateTree::NumpyScalar{.dtype = numpy_class(*dtype), .value = value};
    }

    // Tensors.

    static bool is_tensor_function(std::string_view function) {
        constexpr std::string_view utils = "torch._utils._rebuild_";
        constexpr std::array others{
            std::string_view("torch._tensor._rebuild_from_type"),
            std::string_view("torch._tensor._rebuild_from_type_v2"),
            std::string_view("torch.nn.parameter.Parameter"),
            std::string_view("torch.nn.parameter.Buffer"),
        };
        return function.starts_with(utils) || std::find(others.begin(), others.end(), function) != others.end();
    }

    /// A tensor with a fault is reported under its name, and an opaque object stands in its place.
    template <class Make> Node guarded(NodeId self, Make&& make) {
        try {
            return make();
        } catch (Error& error) {
            std::string why = error.message();
            std::string path = path_of(self);
            allowance_.spend(fault_cost + 2 * (why.size() + path.size()));
            faults_.fault(std::move(error.with_tensor(std::move(path))));
            return Opaque{.type = "torch.Tensor", .why = std::move(why)};
        }
    }

    static void require(bool formed, std::string_view function, std::size_t given) {
        if (formed) return;
        throw Error(Errc::bad_tensor, std::string(function) + " with " + std::to_string(given) +
                                          " arguments, or with arguments that make no tensor");
    }

    /// What a function that gives a tensor would give: a tensor, or an opaque object.
    Node tensor_call(std::string_view function, std::span<const Id> arguments, NodeId self, int wrappers) {
        const std::size_t given = arguments.size();
        if (wrappers > max_wrappers) throw Error(Errc::bad_tensor, "wrappers around wrappers around a tensor");
        constexpr std::string_view utils = "torch._utils._rebuild_";
        const std::string_view short_name = function.starts_with(utils) ? function.substr(utils.size()) : function;
        if (short_name == "tensor") {
            require(given == 4, function, given);
            return strided(arguments, {}, PickleGraph::nothing, false, self);
        }
        if (short_name == "tensor_v2") {
            require(given == 6 || given == 7, function, given);
            return strided(arguments, {}, given == 7 ? arguments[6] : PickleGraph::nothing, truth(arguments[4]), self);
        }
        if (short_name == "tensor_v3") {
            require((given == 7 || given == 8) && tensors_.dtype(arguments[6]), function, given);
            return strided(arguments, tensors_.dtype(arguments[6]), given == 8 ? arguments[7] : PickleGraph::nothing,
                           truth(arguments[4]), self);
        }
        if (short_name == "parameter" || short_name == "parameter_with_state" ||
            short_name == "torch.nn.parameter.Parameter") {
            require(given >= 1, function, given);
            Node node = parameter(arguments[0], given < 2 || truth(arguments[1]), self, wrappers);
            if (short_name != "parameter_with_state" || given < 4) return node;
            return with_state(std::move(node), "torch.nn.parameter.Parameter", arguments[3], self);
        }
        if (short_name == "torch.nn.parameter.Buffer") {
            require(given >= 1, function, given);
            return tensor_at(arguments[0], self, wrappers);
        }
        if (short_name == "device_tensor_from_cpu_tensor" || short_name == "device_tensor_from_numpy" ||
            short_name == "xla_tensor") {
            require(given == 4, function, given);
            return device_tensor(arguments, self, wrappers);
        }
        if (short_name == "torch._tensor._rebuild_from_type" || short_name == "torch._tensor._rebuild_from_type_v2") {
            require(given == 4, function, given);
            return subclass(arguments, self, wrappers);
        }
        if (short_name == "meta_tensor_no_storage") {
            require(given == 4, function, given);
            Opaque out = meta_tensor();
            add_named(out, {"dtype", "size", "stride", "requires_grad"}, arguments, self);
            return out;
        }
        if (short_name == "qtensor") {
            require(given >= 6, function, given);
            return quantized(arguments, self);
        }
        if (short_name == "sparse_tensor" || short_name == "sparse_csr_tensor") {
            require(given == 2, function, given);
            return sparse(arguments, self);
        }
        if (short_name == "nested_tensor") {
            require(given == 4, function, given);
            Opaque out{
                .type = "torch.Tensor", .why = "a nested tensor; its parts are kept", .form = Opaque::Form::nested};
            add_named(out, {"buffer", "sizes", "strides", "offsets"}, arguments, self);
            return out;
        }
        if (short_name == "wrapper_subclass") {
            require(given >= 1, function, given);
            Opaque out{.type = type_name(arguments[0]),
                       .why = "a tensor subclass without data of its own; its parts are kept"};
            add_named(out, {"dtype", "size", "stride", "storage_offset", "layout", "device", "requires_grad"},
                      arguments.subspan(1), self);
            return out;
        }
        Opaque out{.type = "torch.Tensor",
                   .why = "a tensor made by " + std::string(function) + ", which safemap does not know"};
        add_arguments(out, arguments, self);
        return out;
    }

    static Opaque meta_tensor() {
        return Opaque{.type = "torch.Tensor", .why = "a tensor on the meta device, which has no data"};
    }

    bool truth(Id id) const { return pickle_.kind(id) == Kind::boolean && pickle_.boolean(id); }

    Node strided(std::span<const Id> arguments, std::optional<Dtype> dtype, Id metadata, bool requires_grad,
                 NodeId self) {
        const TensorReader::Parts parts{.storage = arguments[0],
                                        .offset = arguments[1],
                                        .size = arguments[2],
                                        .stride = arguments[3],
                                        .dtype = dtype,
                                        .metadata = metadata};
        if (auto tensor = tensors_.describe(parts))
            return StateTree::Tensor{.tensor = std::move(*tensor), .requires_grad = requires_grad};
        Opaque out = meta_tensor();
        const std::string stored_dtype(torch_name(tensors_.dtype(parts)));
        out.children.emplace_back(unique("dtype"), add(Constant{.kind = Constant::Kind::dtype, .text = stored_dtype},
                                                       PickleGraph::nothing, {.parent = self}));
        add_named(out, {"size", "stride"}, arguments.subspan(2), self);
        return out;
    }

    /// In the oldest files persistent ids are the keys of tensors.
    bool is_stored_tensor(Id id) const {
        if (!storages_.tensor || pickle_.kind(id) != Kind::persistent) return false;
        return pickle_.kind(pickle_.persistent(id)) == Kind::integer;
    }
    Node stored_tensor(Id id) const {
        auto tensor = storages_.tensor(pickle_.integer(pickle_.persistent(id)));
        if (!tensor) return storage_object("torch.Storage");
        return StateTree::Tensor{.tensor = std::move(*tensor)};
    }

    /// The tensor that a node of the pickle is.
    Node tensor_at(Id id, NodeId self, int wrappers) {
        if (wrappers > max_wrappers) throw Error(Errc::bad_tensor, "wrappers around wrappers around a tensor");
        if (is_stored_tensor(id)) return stored_tensor(id);
        if (pickle_.kind(id) == Kind::call) {
            const auto inner = pickle_.call(id);
            if (pickle_.kind(inner.callee) == Kind::global) {
                const std::string function = dotted(pickle_.global(inner.callee));
                if (is_tensor_function(function)) {
                    return with_states(tensor_call(function, pickle_.items(inner.arguments), self, wrappers + 1), inner,
                                       self);
                }
                if (auto node = old_tensor(pickle_.global(inner.callee), inner, self, wrappers))
                    return std::move(*node);
                if (const auto array = numpy_array(pickle_, inner)) return numpy_array_node(*array, self);
            }
        }
        throw Error(Errc::bad_tensor, "no tensor where a tensor should be");
    }

    Node parameter(Id tensor, bool requires_grad, NodeId self, int wrappers) {
        Node node = tensor_at(tensor, self, wrappers);
        if (auto* made = std::get_if<StateTree::Tensor>(&node)) {
            made->parameter = true;
            made->requires_grad = requires_grad;
        } else if (auto* opaque = std::get_if<Opaque>(&node)) {
            std::erase_if(opaque->children, [](const auto& part) { return part.first == "requires_grad"; });
            names_.erase("requires_grad");
            for (const auto& [name, value] :
                 {std::pair{"parameter", true}, std::pair{"requires_grad", requires_grad}}) {
                allowance_.spend(child_cost + sizeof(Node));
                opaque->children.emplace_back(unique(name), add(value, PickleGraph::nothing, {.parent = self}));
            }
        }
        return node;
    }

    /// A tensor of a device that torch saves by way of the CPU; the device may hold another dtype.
    Node device_tensor(std::span<const Id> arguments, NodeId self, int wrappers) {
        Node node = tensor_at(arguments[0], self, wrappers);
        auto* const made = std::get_if<StateTree::Tensor>(&node);
        if (made != nullptr) {
            made->numpy = false;
            made->requires_grad = made->requires_grad || truth(arguments[3]);
        }
        if (made == nullptr || tensors_.dtype(arguments[1]) == made->tensor.dtype()) return node;
        Opaque out{.type = "torch.Tensor", .why = "a tensor of another device in the dtype that it has on the CPU"};
        add_itself(out, std::move(node), self);
        return out;
    }

    /// (function, class, arguments, state): a tensor with attributes, or of a class of its own.
    Node subclass(std::span<const Id> arguments, NodeId self, int wrappers) {
        const bool formed = pickle_.kind(arguments[0]) == Kind::global && pickle_.kind(arguments[2]) == Kind::tuple;
        require(formed, "_rebuild_from_type_v2", arguments.size());
        const std::string function = dotted(pickle_.global(arguments[0]));
        const auto parts = pickle_.items(arguments[2]);
        const std::string type = type_name(arguments[1]);
        if (is_tensor_function(function))
            return with_state(tensor_call(function, parts, self, wrappers + 1), type, arguments[3], self);
        if (function == "torch.nested._internal.nested_tensor._rebuild_njt" && parts.size() == 1)
            return jagged(type, parts[0], arguments[3], self);
        Opaque out{.type = type, .why = "a tensor made by " + function + ", which safemap does not know"};
        add_arguments(out, parts, self);
        add_state(out, arguments[3], self);
        return out;
    }

    /// A nested tensor in the jagged layout: a dictionary of its parts. Its attributes are mostly the same ones, behind
    /// an underscore.
    Opaque jagged(std::string type, Id parts, Id state, NodeId self) {
        Opaque out{.type = std::move(type), .why = "a nested tensor (jagged); its parts are kept"};
        add_state(out, parts, self);
        if (pickle_.kind(state) != Kind::dict) return out;
        const auto attributes = pickle_.items(state);
        allowance_.spend(link_cost * attributes.size());
        for (std::size_t i = 0; i + 1 < attributes.size(); i += 2) {
            const std::string name = attribute_name(attributes[i], i / 2);
            const bool again = names_.contains(name) || (name.starts_with('_') && names_.contains(name.substr(1)));
            if (!again) add_child(out, name, attributes[i + 1], self);
        }
        return out;
    }

    /// Of a class that has its attributes set after it is made.
    Node with_states(Node node, const PickleGraph::Call& said, NodeId self) {
        for (const Id state : said.states) node = with_state(std::move(node), "torch.Tensor", state, self);
        return node;
    }

    /// A tensor and what was set on it; of a plain class, with plain values only, it stays a tensor.
    Node with_state(Node node, const std::string& type, Id state, NodeId self) {
        if (auto* opaque = std::get_if<Opaque>(&node)) {
            if (!is_plain_tensor_class(type)) {
                opaque->type = type;
                opaque->form = Opaque::Form::object;
            }
            add_state(*opaque, state, self);
            return node;
        }
        if (is_plain_tensor_class(type) && only_plain_values(state)) {
            if (!is_plain(state)) std::get<StateTree::Tensor>(node).attributes = refer(state, {.parent = self});
            return node;
        }
        Opaque out{.type = type,
                   .why = "a tensor with attributes or of a class of its own; it is kept as a plain tensor"};
        add_itself(out, std::move(node), self);
        add_state(out, state, self);
        return out;
    }

    /// (storage, offset, size, stride, quantizer, requires_grad, hooks)
    Node quantized(std::span<const Id> arguments, NodeId self) {
        const auto quantizer = pickle_.items_or_nothing(arguments[4]);
        const bool formed = pickle_.kind(arguments[4]) == Kind::tuple && !quantizer.empty() &&
                            pickle_.kind(quantizer[0]) == Kind::global;
        require(formed, "_rebuild_qtensor", arguments.size());
        const std::string scheme(pickle_.global(quantizer[0]).name);
        Opaque out{.type = "torch.Tensor",
                   .why = "a quantized tensor (" + scheme +
                          "): safetensors has no dtype for its numbers; its other parts are kept",
                   .form = Opaque::Form::quantized};
        const Dtype dtype = tensors_.storage_dtype(arguments[0]);
        if (dtype == Dtype::quint4x2 || dtype == Dtype::quint2x4) {
            out.why = "a quantized tensor (" + scheme + ") of several elements in a byte";
        } else {
            add_itself(out, strided(arguments, {}, PickleGraph::nothing, truth(arguments[5]), self), self);
        }
        if (scheme.starts_with("per_tensor")) add_named(out, {"scheme", "scale", "zero_point"}, quantizer, self);
        else add_named(out, {"scheme", "scales", "zero_points", "axis"}, quantizer, self);
        return out;
    }

    /// (layout, data)
    Node sparse(std::span<const Id> arguments, NodeId self) {
        const auto data = pickle_.items_or_nothing(arguments[1]);
        require(pickle_.kind(arguments[1]) == Kind::tuple && data.size() >= 3, "_rebuild_sparse_tensor",
                arguments.size());
        std::string layout = "sparse";
        if (pickle_.kind(arguments[0]) == Kind::call) {
            const auto made = python_value(pickle_, "torch.serialization._get_layout",
                                           pickle_.items(pickle_.call(arguments[0]).arguments), allowance_);
            if (made) layout = std::get<Constant>(*made).text;
        }
        Opaque out{.type = "torch.Tensor",
                   .why = "a sparse tensor (" + layout + "); its parts are kept",
                   .form = Opaque::Form::sparse};
        add_child(out, "layout", arguments[0], self);
        if (layout == "sparse_coo") add_named(out, {"indices", "values", "size", "is_coalesced"}, data, self);
        else add_named(out, {"compressed_indices", "plain_indices", "values", "size"}, data, self);
        return out;
    }

    /// Before torch 0.4: torch.FloatTensor and its kind, made of nothing, whose state is (storage, offset, size,
    /// stride); and Variables and Parameters, which are made of (tensor, requires_grad, …), or of nothing and have the
    /// state (tensor, gradient, hooks, requires_grad, volatile).
    std::optional<Node> old_tensor(const PickleGraph::Global& global, const PickleGraph::Call& said, NodeId self,
                                   int wrappers) {
        const std::string type = dotted(global);
        const bool variable = type == "torch.autograd.variable.Variable" || is_plain_tensor_class(type);
        const bool typed =
            (global.module == "torch" || global.module == "torch.cuda") && tensor_class_dtype(global.name).has_value();
        const auto arguments = pickle_.items(said.arguments);
        if (variable && arguments.size() == 4 && said.states.empty())
            return guarded(self, [&] { return old_variable(arguments[0], arguments[1], self, wrappers); });
        if ((!variable && !typed) || said.states.size() != 1 || pickle_.kind(said.states[0]) != Kind::tuple)
            return std::nullopt;
        const auto state = pickle_.items(said.states[0]);
        if (state.size() == 4)
            return guarded(self, [&] { return strided(state, {}, PickleGraph::nothing, false, self); });
        if (!variable || state.size() != 5) return std::nullopt;
        if (type == "torch.nn.parameter.Parameter")
            return guarded(self, [&] { return parameter(state[0], truth(state[3]), self, wrappers + 1); });
        return guarded(self, [&] { return old_variable(state[0], state[3], self, wrappers); });
    }
    Node old_variable(Id tensor, Id requires_grad, NodeId self, int wrappers) {
        Node node = tensor_at(tensor, self, wrappers + 1);
        if (auto* const made = std::get_if<StateTree::Tensor>(&node)) made->requires_grad = truth(requires_grad);
        return node;
    }

    // Opaque objects, and what is in them.

    std::string type_name(Id id) const {
        id = class_of(pickle_, id);
        return pickle_.kind(id) == Kind::global ? dotted(pickle_.global(id)) : "a class without a name";
    }

    Opaque opaque_call(std::string type, std::string why, const PickleGraph::Call& said, NodeId self) {
        Opaque out{.type = std::move(type), .why = std::move(why)};
        auto arguments = pickle_.items(said.arguments);
        if (out.type == "copyreg._reconstructor" && !arguments.empty()) {
            out.type = type_name(arguments[0]);
            arguments = arguments.subspan(1);
        }
        add_arguments(out, arguments, self);
        if (said.keywords != PickleGraph::nothing) add_state(out, said.keywords, self);
        for (const Id state : said.states) add_state(out, state, self);
        for (std::size_t i = 0; i + 1 < said.items.size(); i += 2)
            add_entry(out, said.items[i], said.items[i + 1], i / 2, self);
        for (std::size_t i = 0; i < said.appends.size(); ++i) add_child(out, std::to_string(i), said.appends[i], self);
        return out;
    }

    bool is_plain(Id id) const {
        switch (pickle_.kind(id)) {
            case Kind::call:
            case Kind::persistent: return false;
            case Kind::list:
            case Kind::tuple:
            case Kind::dict:
            case Kind::set:
            case Kind::frozenset: return pickle_.items(id).empty();
            default: return true;
        }
    }

    void add_arguments(Opaque& out, std::span<const Id> arguments, NodeId self) {
        allowance_.spend(argument_cost * arguments.size());
        out.arguments = static_cast<std::uint32_t>(arguments.size());
        for (std::size_t i = 0; i < arguments.size(); ++i)
            out.children.emplace_back(unique(std::to_string(i)), refer(arguments[i], {.parent = self, .child = i}));
    }
    /// As many as there are.
    void add_named(Opaque& out, std::initializer_list<std::string_view> names, std::span<const Id> parts, NodeId self) {
        for (std::size_t i = 0; i < std::min(names.size(), parts.size()); ++i)
            add_child(out, std::string(names.begin()[i]), parts[i], self);
    }

    /// A dictionary of attributes, (dictionary or None, dictionary of slots), or whatever the class understands.
    void add_state(Opaque& out, Id state, NodeId self) {
        const Kind kind = pickle_.kind(state);
        const auto items = pickle_.items_or_nothing(state);
        if (kind == Kind::dict) {
            for (std::size_t i = 0; i + 1 < items.size(); i += 2) add_entry(out, items[i], items[i + 1], i / 2, self);
            return;
        }
        const auto attributes = [this](Id id) {
            return pickle_.kind(id) == Kind::dict || pickle_.kind(id) == Kind::none;
        };
        if (kind == Kind::tuple && items.size() == 2 && attributes(items[0]) && pickle_.kind(items[1]) == Kind::dict) {
            for (const Id part : items) {
                if (pickle_.kind(part) == Kind::dict) add_state(out, part, self);
            }
            return;
        }
        if ((kind == Kind::tuple || kind == Kind::list) && out.arguments == 0) {
            for (std::size_t i = 0; i < items.size(); ++i) add_child(out, std::to_string(i), items[i], self);
            return;
        }
        if (kind != Kind::none) add_child(out, "state", state, self);
    }

    void add_entry(Opaque& out, Id key, Id value, std::size_t place, NodeId self) {
        add_child(out, attribute_name(key, place), value, self);
    }
    /// The key where it is an integer or a text of some length, else its place.
    std::string attribute_name(Id key, std::size_t place) const {
        if (pickle_.kind(key) == Kind::integer) return std::to_string(pickle_.integer(key));
        if (pickle_.kind(key) == Kind::text) {
            const std::string_view text = pickle_.text(key);
            if (text.size() <= max_key_bytes && (state::verbatim_name(text) || text == "__metadata__"))
                return std::string(text);
        }
        return "key" + std::to_string(place);
    }

    /// The tensor that an object is around: a child without a name.
    void add_itself(Opaque& out, Node tensor, NodeId self) {
        if (std::holds_alternative<StateTree::Tensor>(tensor)) {
            allowance_.spend(tensor_cost + child_cost + sizeof(Node));
            out.children.emplace_back(std::string(), add(std::move(tensor), PickleGraph::nothing,
                                                         {.parent = self, .child = out.children.size()}));
        }
    }

    void add_child(Opaque& out, std::string name, Id id, NodeId self) {
        allowance_.spend(child_cost + 2 * name.size());
        out.children.emplace_back(unique(std::move(name)), refer(id, {.parent = self, .child = out.children.size()}));
    }

    /// Arguments, states and items of one object may have the same names.
    std::string unique(std::string name) {
        std::string free = name;
        while (!names_.insert(free).second) free = name + "~" + std::to_string(++repeated_names_);
        return free;
    }

    bool only_plain_values(Id state) {
        if (pickle_.kind(state) == Kind::none) return true;
        if (pickle_.kind(state) != Kind::dict) return false;
        const auto items = pickle_.items(state);
        allowance_.spend(link_cost * items.size());
        return std::all_of(items.begin(), items.end(), [this](Id id) { return is_plain(id); });
    }

    // Names and notes.

    /// The name that flatten would give, or the end of it.
    std::string path_of(NodeId id) const {
        std::vector<std::string> segments;
        std::vector<bool> of_module;  // by segment: a key of a dictionary of a module, which is not in names itself
        std::size_t bytes = 0;
        while (places_[id].parent != StateTree::no_node && segments.size() < max_path_levels) {
            const Place place = places_[id];
            const bool in_module = is_module_part(place.parent);
            std::string each = segment(place, in_module);
            bytes += each.size() + 1;
            if (bytes > max_path_bytes && !segments.empty()) break;
            segments.push_back(std::move(each));
            of_module.push_back(in_module);
            id = in_module ? places_[place.parent].parent : place.parent;
        }
        if (segments.empty()) return std::string(state::root_name);
        std::string path = places_[id].parent == StateTree::no_node ? "" : "...";
        for (std::size_t i = segments.size(); i-- > 0;) {
            const bool dotted = of_module[i] && i + 1 < segments.size() && of_module[i + 1];
            if (!path.empty()) path += dotted ? '.' : '/';
            path += segments[i];
        }
        return path;
    }
    /// Of an error's path only, so its owner is not asked whether it has all the parts of a module.
    bool is_module_part(NodeId id) const {
        const Place place = places_[id];
        if (place.parent == StateTree::no_node || !std::holds_alternative<StateTree::Dict>(out_.tree[id])) return false;
        const auto* const owner = std::get_if<Opaque>(&out_.tree[place.parent]);
        return owner != nullptr && place.child < owner->children.size() &&
               state::is_module_part(owner->children[place.child].first);
    }
    std::string segment(const Place& place, bool in_module) const {
        const Node& parent = out_.tree[place.parent];
        if (const auto* dict = std::get_if<StateTree::Dict>(&parent);
            dict != nullptr && place.child < dict->items.size()) {
            const Node& key = out_.tree[dict->items[place.child].first];
            if (std::visit(NodeCost(), key) > max_key_bytes) return state::ordinal_segment(place.child);
            return in_module ? state::module_segment(key, place.child) : state::key_segment(key, place.child);
        }
        if (const auto* opaque = std::get_if<Opaque>(&parent);
            opaque != nullptr && place.child < opaque->children.size()) {
            return state::child_segment(opaque->children[place.child].first);
        }
        return std::to_string(place.child);
    }

    /// Every call of the pickle, also of values that were dropped on the way; and what was named for others to call.
    void note_calls() {
        std::map<std::string, std::size_t> calls;
        for (Id id = 0; id < pickle_.size(); ++id) {
            const bool called = pickle_.kind(id) == Kind::call;
            const Id named = called ? class_of(pickle_, pickle_.call(id).callee) : id;
            if (pickle_.kind(named) != Kind::global || !runs_code(pickle_.global(named))) continue;
            std::string name = dotted(pickle_.global(named));
            // Uncalled, it has spelled the name of a nested class.
            if (!called && name == "builtins.getattr") continue;
            const auto [known, fresh] = calls.try_emplace(std::move(name), 0);
            if (fresh) allowance_.spend(fault_cost + 2 * known->first.size());
            known->second += called ? 1 : 0;
        }
        if (hands_on_loader(pickle_)) calls.try_emplace(std::string(load_from_bytes), 0);
        std::size_t noted = 0;
        for (const auto& [name, count] : calls) {
            if (noted++ == most_calls_noted) {
                out_.notes.push_back("the pickle names " + std::to_string(calls.size() - most_calls_noted) +
                                     " more functions that run code, none of which was called; inspect --globals "
                                     "lists what a file names");
                break;
            }
            const std::string asks = count == 0 ? "names " : "asks for a call of ";
            out_.notes.push_back("the pickle " + asks + excerpt(name) +
                                 (count < 2 ? "" : " (" + std::to_string(count) + " times)") + ", which was not " +
                                 (count == 0 ? "called" : "made") +
                                 ": files that do so are made to run code on the machine that loads them");
        }
    }

    const PickleGraph& pickle_;
    const Storages& storages_;
    FaultSink& faults_;
    Allowance allowance_;
    TensorReader tensors_;
    Rebuilt out_;
    std::vector<NodeId> nodes_;  ///< of the tree, by node of the pickle
    std::vector<Id> sources_;    ///< node of the pickle, by node of the tree; nothing where it is filled already
    std::vector<Place> places_;
    std::unordered_set<std::string, NameHash> names_;                    ///< of the children of the object at hand
    std::unordered_map<std::string, std::size_t, NameHash> attributes_;  ///< of the dictionary at hand
    std::size_t repeated_names_ = 0;  ///< among them; only rises, so that finding a free name stays cheap
};

/// Also of files that stand in the pickle: what is dropped there would be loaded as well.
void add_globals(const PickleGraph& pickle, const Storages& storages, NamedGlobals::Known* known) {
    if (storages.globals == nullptr) return;
    storages.globals->add(pickle, storages.record, known);
    Allowance allowance = pickle.allowance();
    for (Id id = 0; id < pickle.size(); ++id) {
        if (!is_embedded(pickle, id)) continue;
        try {
            embedded_storage(pickle, id, storages, allowance);
        } catch (const Error& error) {
            storages.globals->refuse();
            if (storages.globals->strict() || remedy(error.code()) != Remedy::reject_data) throw;
            storages.globals->add_unread();
            if (allowance.left() == 0) break;
        }
    }
    storages.globals->refuse();
}

}  // namespace

Rebuilt rebuild(const PickleGraph& pickle, const Storages& storages, FaultSink& faults) {
    add_globals(pickle, storages, is_known);
    return Rebuilder(pickle, storages, faults).run();
}

Rebuilt rebuild(const PickleGraph& pickle, std::span<const NamedValue> parts, const Storages& storages,
                FaultSink& faults) {
    add_globals(pickle, storages, is_known_in_script);
    return Rebuilder(pickle, storages, faults).run(parts);
}

}  // namespace safemap::SAFEMAP_ABI::torch
