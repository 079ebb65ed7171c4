// The nested objects of a StateTree: tensors are LazyTensors, or tensors of torch over the storages of the file.
#include "core.hpp"
#include "imported.hpp"
#include "storages.hpp"

#include <safemap/advanced/names.hpp>

#include <algorithm>
#include <array>
#include <span>
#include <unordered_map>
#include <unordered_set>

namespace safemap::python {
namespace {

using NodeId = StateTree::NodeId;
using Node = StateTree::Node;
using Sequence = StateTree::Sequence;
using Dict = StateTree::Dict;
using Opaque = StateTree::Opaque;
using Constant = StateTree::Constant;

/// The kinds of objects that torch and NumPy make again, and the children that they are made of. Other children are
/// attributes.
struct Rebuilt {
    const char* kind;
    std::array<std::string_view, 12> parts;
};
constexpr Rebuilt quantized_parts{"quantized",
                                  {"", "scheme", "scale", "zero_point", "scales", "zero_points", "axis", "offset",
                                   "size", "stride", "requires_grad", "parameter"}};
constexpr Rebuilt sparse_parts{"sparse",
                               {"layout", "indices", "compressed_indices", "plain_indices", "values", "size",
                                "is_coalesced", "requires_grad", "parameter"}};
constexpr Rebuilt nested_parts{"nested", {"buffer", "sizes", "strides", "offsets", "requires_grad", "parameter"}};
constexpr Rebuilt jagged_parts{"jagged",
                               {"values", "offsets", "lengths", "_ragged_idx", "_metadata_cache", "requires_grad"}};
constexpr Rebuilt meta_parts{"meta",
                             {"dtype", "size", "stride", "requires_grad", "parameter", "device", "storage_offset"}};
constexpr Rebuilt array_parts{"array", {"dtype", "shape", "fortran", "data"}};
constexpr Rebuilt tensor_parts{"tensor", {""}};

bool is_plain_tensor(std::string_view type) {
    constexpr std::array<std::string_view, 4> plain{"torch.Tensor", "torch._tensor.Tensor",
                                                    "torch.nn.parameter.Parameter", "torch.nn.parameter.Buffer"};
    return std::find(plain.begin(), plain.end(), type) != plain.end();
}

bool has(const Opaque& object, std::string_view name) {
    return std::any_of(object.children.begin(), object.children.end(),
                       [&](const auto& child) { return child.first == name; });
}

/// Returns how an object is made again; null: it stays opaque.
const Rebuilt* rebuilt_as(const Opaque& object) {
    if (object.form == Opaque::Form::quantized) return &quantized_parts;
    if (object.form == Opaque::Form::sparse) return &sparse_parts;
    if (object.form == Opaque::Form::nested) return &nested_parts;
    if (object.type == "torch.nested._internal.nested_tensor.NestedTensor") return &jagged_parts;
    if (object.type == "numpy.ndarray" && has(object, "data")) return &array_parts;
    if (!is_plain_tensor(object.type)) return nullptr;
    // Without attributes, it is a tensor of another device, whose dtype is not that of the elements.
    if (has(object, "")) return object.children.size() > 1 ? &tensor_parts : nullptr;
    return has(object, "device") && has(object, "size") ? &meta_parts : nullptr;
}

bool is_part(const Rebuilt& rebuilt, std::string_view name) {
    // The list ends with empty names.
    if (name.empty()) return rebuilt.parts[0].empty();
    return std::find(rebuilt.parts.begin(), rebuilt.parts.end(), name) != rebuilt.parts.end();
}

/// Returns the text of a string: those of pickles may have surrogates, and bytes that are no UTF-8.
nb::object text_of(std::string_view text) {
    if (PyObject* const object =
            PyUnicode_DecodeUTF8(text.data(), static_cast<Py_ssize_t>(text.size()), "surrogatepass"))
        return nb::steal(object);
    PyErr_Clear();
    return to_python(text);
}

/// Returns the integer of a decimal number. Python refuses to read more than 4300 digits at once.
nb::object integer_of(std::string_view decimal) {
    constexpr std::size_t at_once = 4000;
    const bool negative = decimal.starts_with('-');
    if (negative) decimal.remove_prefix(1);
    const auto part = [](std::string_view digits) {
        return nb::steal(PyLong_FromString(std::string(digits).c_str(), nullptr, 10));
    };
    nb::object value = nb::int_(0);
    const nb::object ten = nb::int_(10);
    while (!decimal.empty()) {
        const std::size_t count = std::min(at_once, decimal.size());
        const nb::object scale = nb::steal(PyNumber_Power(ten.ptr(), nb::int_(count).ptr(), Py_None));
        value = value * scale + part(decimal.substr(0, count));
        decimal.remove_prefix(count);
    }
    return negative ? nb::object(-value) : value;
}

nb::object bytes_object(const StateTree::Bytes& bytes) {
    const auto size = static_cast<Py_ssize_t>(bytes.bytes.size());
    return nb::steal(bytes.mutable_array ? PyByteArray_FromStringAndSize(bytes.bytes.data(), size)
                                         : PyBytes_FromStringAndSize(bytes.bytes.data(), size));
}

void check(int result) {
    if (result != 0) throw nb::python_error();
}

/// Checks that a key or a member was added.
void check_added(int result) {
    if (result == 0) return;
    if (!PyErr_ExceptionMatches(PyExc_TypeError)) throw nb::python_error();
    PyErr_Clear();
    raise(Error(Errc::pickle_bad_key, "a key of a dictionary or a member of a set that Python cannot hash"));
}

nb::object checked(PyObject* made) {
    if (made == nullptr) throw nb::python_error();
    return nb::steal(made);
}

/// Keeps Python from looking for cycles of garbage among new objects, which would take a quarter of the time.
class NoCollection {
public:
    NoCollection() : enabled_(PyGC_Disable() != 0) {}
    ~NoCollection() {
        if (enabled_) PyGC_Enable();
    }
    NoCollection(const NoCollection&) = delete;
    NoCollection& operator=(const NoCollection&) = delete;

private:
    bool enabled_;
};

/// A maker of the objects of one tree. Nothing recurses, so that trees may have any depth: make() gives lists, dicts
/// and objects empty, with what they cannot be made without, and fill() fills them later.
class Maker {
public:
    /// `hooks` is a module with the functions that make what is not a plain value: safemap._tree, or safemap._load for
    /// objects of torch. `storages` is null for LazyTensors.
    Maker(const Handle& handle, const StateTree& tree, nb::object hooks, Storages* storages)
        : handle_(handle), tree_(tree), hooks_(std::move(hooks)), storages_(storages), made_(tree.size()) {}

    nb::object run() {
        nb::object root = nb::borrow(make(tree_.root()));
        while (!unfilled_.empty()) {
            const NodeId id = unfilled_.back();
            unfilled_.pop_back();
            fill(id);
        }
        return root;
    }

private:
    /// Returns the object of a node: first makes those that it cannot be made without.
    nb::handle make(NodeId id) {
        if (made_[id].is_valid()) return made_[id];
        std::vector<std::pair<NodeId, bool>> stack{{id, false}};
        while (!stack.empty()) {
            const NodeId top = stack.back().first;
            if (made_[top].is_valid()) {
                stack.pop_back();
            } else if (std::exchange(stack.back().second, true)) {
                made_[top] = object(top);
                in_progress_.erase(top);
                stack.pop_back();
            } else {
                push_parts(top, stack);
            }
        }
        return made_[id];
    }

    void push_parts(NodeId id, std::vector<std::pair<NodeId, bool>>& stack) {
        const std::size_t before = stack.size();
        each_part(tree_[id], [&](NodeId part) {
            if (made_[part].is_valid()) return;
            if (part == id || in_progress_.contains(part))
                raise(Error(Errc::bad_structure, "a tuple that contains itself, which Python cannot make"));
            stack.emplace_back(part, false);
        });
        if (stack.size() > before) in_progress_.insert(id);
    }

    /// Calls visit(child) for the children without which the object cannot be made.
    template <class Visit> void each_part(const Node& node, Visit&& visit) const {
        if (const auto* sequence = std::get_if<Sequence>(&node)) {
            if (sequence->kind != Sequence::Kind::list && sequence->kind != Sequence::Kind::set)
                std::for_each(sequence->items.begin(), sequence->items.end(), visit);
        } else if (const auto* scalar = std::get_if<StateTree::NumpyScalar>(&node)) {
            visit(scalar->value);
        } else if (const auto* opaque = std::get_if<Opaque>(&node)) {
            const Rebuilt* const rebuilt = rebuilt_of(*opaque);
            if (rebuilt == nullptr) return;
            for (const auto& [name, child] : opaque->children)
                if (is_part(*rebuilt, name)) visit(child);
        }
    }
    const Rebuilt* rebuilt_of(const Opaque& object) const {
        return storages_ == nullptr ? nullptr : rebuilt_as(object);
    }

    nb::object object(NodeId id) {
        if (++objects_ % 4096 == 0 && PyErr_CheckSignals() != 0) throw nb::python_error();
        return std::visit([&](const auto& node) { return made(node, id); }, tree_[id]);
    }

    static nb::object made(const StateTree::None&, NodeId) { return nb::none(); }
    static nb::object made(bool value, NodeId) { return nb::bool_(value); }
    static nb::object made(std::int64_t value, NodeId) { return checked(PyLong_FromLongLong(value)); }
    static nb::object made(const StateTree::BigInt& value, NodeId) { return integer_of(value.decimal); }
    static nb::object made(double value, NodeId) { return checked(PyFloat_FromDouble(value)); }
    static nb::object made(const StateTree::Complex& value, NodeId) {
        return checked(PyComplex_FromDoubles(value.real, value.imag));
    }
    static nb::object made(const std::string& text, NodeId) { return text_of(text); }
    static nb::object made(const StateTree::Bytes& bytes, NodeId) { return bytes_object(bytes); }

    nb::object made(const Sequence& sequence, NodeId id) {
        switch (sequence.kind) {
            case Sequence::Kind::list: return to_fill(id, checked(PyList_New(0)));
            case Sequence::Kind::set: return to_fill(id, checked(PySet_New(nullptr)));
            case Sequence::Kind::tuple: return tuple(sequence);
            case Sequence::Kind::frozenset: return checked(PyFrozenSet_New(tuple(sequence).ptr()));
            case Sequence::Kind::size: return hooks_.attr("size")(tuple(sequence));
        }
        return nb::none();
    }
    nb::object tuple(const Sequence& sequence) const {
        const nb::object tuple = checked(PyTuple_New(static_cast<Py_ssize_t>(sequence.items.size())));
        for (std::size_t i = 0; i < sequence.items.size(); ++i)
            NB_TUPLE_SET_ITEM(tuple.ptr(), static_cast<Py_ssize_t>(i),
                              nb::object(made_[sequence.items[i]]).release().ptr());
        return tuple;
    }

    nb::object made(const Dict& dict, NodeId id) {
        static Imported ordered{"collections", "OrderedDict"};
        if (dict.ordered) return to_fill(id, ordered.get()());
        for (const auto& [name, value] : dict.attributes)
            if (name == "__class__") return to_fill(id, hooks_.attr("mapping")(constant_text(value), factory_of(dict)));
        return to_fill(id, checked(PyDict_New()));
    }
    nb::object factory_of(const Dict& dict) const {
        for (const auto& [name, value] : dict.attributes)
            if (name == "default_factory") return constant_text(value);
        return nb::none();
    }
    nb::object constant_text(NodeId id) const {
        const auto* const constant = std::get_if<Constant>(&tree_[id]);
        return constant == nullptr ? nb::none() : to_python(constant->text);
    }

    nb::object made(const Constant& constant, NodeId) {
        nb::object& kept = constants_[{constant.kind, constant.text}];
        if (!kept.is_valid())
            kept = hooks_.attr("constant")(constant_kinds[static_cast<std::size_t>(constant.kind)],
                                           text_of(constant.text));
        return kept;
    }
    nb::object made(const StateTree::NumpyScalar& scalar, NodeId) {
        return hooks_.attr("scalar")(text_of(scalar.dtype), made_[scalar.value]);
    }

    nb::object made(const StateTree::Tensor& tensor, NodeId id) {
        if (storages_ == nullptr) return lazy(tensor.tensor);
        if (tensor.numpy) return array(tensor.tensor);
        nb::object made = storages_->torch(tensor.tensor);
        if (tensor.parameter) made = hooks_.attr("parameter")(made, tensor.requires_grad);
        else if (tensor.requires_grad) made = hooks_.attr("with_grad")(made);
        return tensor.attributes == StateTree::no_node ? made : to_fill(id, std::move(made));
    }
    /// Returns the tensor as the checkpoint lists it. One that it does not list cannot be found again by pickle.
    nb::object lazy(const LazyTensor& tensor) {
        if (listed_.empty())
            for (const LazyTensor& one : handle_.get()) listed_.emplace(hash_of(one), &one);
        const auto [first, last] = listed_.equal_range(hash_of(tensor));
        for (auto one = first; one != last; ++one)
            if (is_same_value(*one->second, tensor)) return nb::cast(handle_.tensor(*one->second));
        Tensor made = handle_.tensor(tensor);
        made.origin = nb::none();
        return nb::cast(std::move(made));
    }
    static std::size_t hash_of(const LazyTensor& tensor) {
        const StridedView view = tensor.strided_view();
        std::size_t hash = std::hash<const void*>()(tensor.stored().get());
        const auto add = [&hash](auto number) { hash = hash * 31 + static_cast<std::size_t>(number); };
        add(view.offset);
        std::for_each(view.shape.begin(), view.shape.end(), add);
        std::for_each(view.strides.begin(), view.strides.end(), add);
        return hash;
    }
    static bool is_same_value(const LazyTensor& a, const LazyTensor& b) {
        const StridedView one = a.strided_view();
        const StridedView other = b.strided_view();
        return a.stored() == b.stored() && one.offset == other.offset && one.shape == other.shape &&
               one.strides == other.strides && a.decoding() == b.decoding();
    }
    static nb::object array(const LazyTensor& tensor) {
        const TensorView view = value_of(tensor);
        const unsigned size = element_size(view.dtype());
        const bool usable = view.writable() && reinterpret_cast<std::uintptr_t>(view.data()) % size == 0;
        return to_numpy(usable ? view : load_value(tensor));
    }

    nb::object made(const Opaque& opaque, NodeId id) {
        if (const Rebuilt* const rebuilt = rebuilt_of(opaque)) {
            nb::object made = object_of(*rebuilt, opaque);
            const bool whole = std::all_of(opaque.children.begin(), opaque.children.end(),
                                           [&](const auto& child) { return is_part(*rebuilt, child.first); });
            if (!made.is_none()) return whole ? made : to_fill(id, std::move(made));
        }
        opaque_.insert(id);
        return to_fill(id,
                       hooks_.attr("opaque")(text_of(opaque.type), text_of(opaque.why),
                                             opaque_forms[static_cast<std::size_t>(opaque.form)], opaque.arguments));
    }
    /// Returns None if torch or NumPy refuses the parts.
    nb::object object_of(const Rebuilt& rebuilt, const Opaque& opaque) {
        nb::dict parts;
        for (const auto& [name, child] : opaque.children) {
            if (!is_part(rebuilt, name)) continue;
            const auto* const tensor = std::get_if<StateTree::Tensor>(&tree_[child]);
            const bool numbers = &rebuilt == &quantized_parts && name.empty() && tensor != nullptr;
            parts[text_of(name)] = numbers ? storages_->quantized(tensor->tensor) : nb::object(made_[child]);
        }
        if (&rebuilt == &tensor_parts) return parts[""];
        return hooks_.attr("rebuilt")(rebuilt.kind, parts);
    }

    nb::object to_fill(NodeId id, nb::object made) {
        unfilled_.push_back(id);
        return made;
    }

    void fill(NodeId id) {
        const nb::object self = made_[id];
        const Node& node = tree_[id];
        if (const auto* sequence = std::get_if<Sequence>(&node)) return fill_sequence(self, *sequence);
        if (const auto* dict = std::get_if<Dict>(&node)) return fill_dict(self, *dict);
        if (const auto* tensor = std::get_if<StateTree::Tensor>(&node))
            return fill_attributes(self, tensor->attributes);
        fill_object(self, std::get<Opaque>(node), id);
    }
    void fill_sequence(const nb::object& self, const Sequence& sequence) {
        const auto add = sequence.kind == Sequence::Kind::list ? PyList_Append : PySet_Add;
        for (const NodeId item : sequence.items) check_added(add(self.ptr(), make(item).ptr()));
    }
    void fill_dict(const nb::object& self, const Dict& dict) {
        const auto add = PyDict_CheckExact(self.ptr()) ? PyDict_SetItem : PyObject_SetItem;
        for (const auto& [key, value] : dict.items) {
            const nb::handle made_key = make(key);
            check_added(add(self.ptr(), made_key.ptr(), make(value).ptr()));
        }
        for (const auto& [name, value] : dict.attributes)
            if (name != "__class__" && name != "default_factory") set_attribute(self, text_of(name), make(value));
    }
    void fill_attributes(const nb::object& self, NodeId attributes) {
        const auto* const dict = std::get_if<Dict>(&tree_[attributes]);
        if (dict == nullptr) return;
        for (const auto& [name, value] : dict->items) set_attribute(self, make(name), make(value));
    }
    void fill_object(const nb::object& self, const Opaque& opaque, NodeId id) {
        const bool stays = opaque_.contains(id);
        const Rebuilt* const rebuilt = stays ? nullptr : rebuilt_of(opaque);
        const nb::object children = stays ? nb::object(self.attr("children")) : nb::none();
        for (const auto& [name, child] : opaque.children) {
            if (stays) check(PyObject_SetItem(children.ptr(), text_of(name).ptr(), make(child).ptr()));
            else if (!is_part(*rebuilt, name)) set_attribute(self, text_of(name), make(child));
        }
    }
    /// Sets an attribute that a pickle names, without running the code of a property.
    static void set_attribute(const nb::object& self, nb::handle name, nb::handle value) {
        const nb::object attributes = nb::getattr(self, "__dict__", nb::none());
        if (!attributes.is_none()) check(PyObject_SetItem(attributes.ptr(), name.ptr(), value.ptr()));
    }

    const Handle& handle_;
    const StateTree& tree_;
    nb::object hooks_;
    Storages* storages_;
    std::vector<nb::object> made_;
    std::vector<NodeId> unfilled_;
    std::unordered_set<NodeId> in_progress_;  ///< nodes that wait for their parts
    std::unordered_set<NodeId> opaque_;       ///< objects that stay opaque
    std::map<std::pair<Constant::Kind, std::string>, nb::object> constants_;
    std::unordered_multimap<std::size_t, const LazyTensor*> listed_;  ///< tensors of the checkpoint, by hash_of()
    std::size_t objects_ = 0;
};

void add_storages(Storages& storages, const StateTree& tree) {
    for (NodeId id = 0; id < tree.size(); ++id) {
        const auto* const tensor = std::get_if<StateTree::Tensor>(&tree[id]);
        if (tensor != nullptr && !tensor->numpy) storages.add(tensor->tensor);
    }
}

nb::dict flat_dict(const Handle& self, Storages* storages) {
    nb::dict dict;
    std::vector<nb::object> made(self.get().size());
    for (const NamedTensor& one : all_names(self.get())) {
        const LazyTensor& tensor = self.get().tensor(one.tensor);
        nb::object& kept = made[one.tensor];
        if (!kept.is_valid()) kept = storages == nullptr ? nb::cast(self.tensor(tensor)) : storages->torch(tensor);
        dict[to_python(one.name)] = kept;
    }
    return dict;
}

nb::dict state_dict(const Handle& handle, const nb::object& progress) {
    const Handle self = handle;  // close() in another thread leaves this one
    Storages storages(self.copies_read_only);
    for (const LazyTensor& tensor : self.get()) storages.add(tensor);
    storages.open(progress);
    const NoCollection none;
    return flat_dict(self, &storages);
}

nb::list torch_tensors(const nb::list& lazies, const nb::object& progress) {
    std::vector<const Tensor*> tensors;
    for (const nb::handle one : lazies) tensors.push_back(&nb::cast<const Tensor&>(one));
    Storages storages(tensors.empty() || tensors[0]->copies_read_only);
    for (const Tensor* const one : tensors) storages.add(one->lazy);
    storages.open(progress);
    nb::list made;
    for (const Tensor* const one : tensors) made.append(storages.torch(one->lazy));
    return made;
}

nb::object load_tree(const Handle& handle, const nb::object& progress) {
    const Handle self = handle;
    const StateTree* const tree = self.get().tree();
    if (tree == nullptr) return state_dict(self, progress);
    Storages storages(self.copies_read_only);
    add_storages(storages, *tree);
    storages.open(progress);
    const NoCollection none;
    return Maker(self, *tree, nb::module_::import_("safemap._load"), &storages).run();
}

}  // namespace

nb::object lazy_tree(const Handle& handle) {
    const NoCollection none;
    const Handle self = handle;
    const StateTree* const tree = self.get().tree();
    if (tree == nullptr) return flat_dict(self, nullptr);
    return Maker(self, *tree, nb::module_::import_("safemap._tree"), nullptr).run();
}

void bind_tree(nb::module_& module) {
    module.def("_load_tree", load_tree, nb::arg("checkpoint"), nb::arg("progress") = nb::none(),
               nb::sig("def _load_tree(checkpoint: Checkpoint, progress: typing.Any = None) -> typing.Any"));
    module.def("_tensors", torch_tensors, nb::arg("tensors"), nb::arg("progress") = nb::none(),
               nb::sig("def _tensors(tensors: list[LazyTensor], progress: typing.Any = None) -> list[typing.Any]"));
    module.def(
        "_state_dict", state_dict, nb::arg("checkpoint"), nb::arg("progress") = nb::none(),
        nb::sig("def _state_dict(checkpoint: Checkpoint, progress: typing.Any = None) -> dict[str, typing.Any]"));
}

}  // namespace safemap::python
