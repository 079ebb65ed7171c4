// The StateTree of nested objects of Python: the opposite of tree.cpp. Nothing recurses.
#include "core.hpp"

#include <safemap/advanced/dtypes.hpp>

#include <algorithm>
#include <array>
#include <map>
#include <tuple>
#include <unordered_map>

namespace safemap::python {
namespace {

using NodeId = StateTree::NodeId;
using Sequence = StateTree::Sequence;

std::string bytes_text(nb::handle bytes) {
    return {PyBytes_AsString(bytes.ptr()), static_cast<std::size_t>(PyBytes_Size(bytes.ptr()))};
}

/// Returns text as StateTree has it: with surrogates as they are, in three bytes each.
std::string tree_text(nb::handle text) {
    const nb::object bytes = nb::steal(PyUnicode_AsEncodedString(text.ptr(), "utf-8", "surrogatepass"));
    if (!bytes.is_valid()) throw nb::python_error();
    return bytes_text(bytes);
}

StateTree::Node integer_node(nb::handle value) {
    int overflow = 0;
    const long long number = PyLong_AsLongLongAndOverflow(value.ptr(), &overflow);
    if (overflow == 0) return static_cast<std::int64_t>(number);
    return StateTree::BigInt{nb::cast<std::string>(nb::module_::import_("safemap._describe").attr("decimal")(value))};
}

template <class Type> bool is_exactly(nb::handle value, Type& type) { return Py_TYPE(value.ptr()) == &type; }

/// A place, dtype, shape and strides: tensors that have the same are tied.
using Elements = std::tuple<std::uintptr_t, std::int64_t, std::array<bool, 3>, Dtype, std::vector<std::uint64_t>,
                            std::vector<std::int64_t>>;

Elements elements_of(const Found& found) {
    const StridedView view = found.tensor.strided_view();
    const Decoding decoding = found.place.decoding;
    return {found.place.address,
            found.place.offset,
            {decoding.byte_swap, decoding.conj, decoding.neg},
            found.tensor.dtype(),
            {view.shape.begin(), view.shape.end()},
            {view.strides.begin(), view.strides.end()}};
}

/// A builder of one tree. Each container gets its number when it is first met, and its items when its turn comes.
class Builder {
public:
    StateTree run(nb::handle root) {
        tree_.set_root(node(root, {StateTree::no_node, nb::none()}));
        while (!unfilled_.empty()) {
            const NodeId id = unfilled_.back();
            unfilled_.pop_back();
            fill(id);
        }
        return std::move(tree_);
    }

private:
    /// The container that an object was found in first, and its key there.
    struct Place {
        NodeId parent;
        nb::object key;
    };
    /// A container or tensor: its items are `items`, a list, tuple, set or dict.
    struct Container {
        nb::object object;
        nb::object items;
        nb::object attributes;  ///< a dict, or None
        Place place;
    };

    /// Returns the number of an object's node. Adds it if the object is new.
    NodeId node(nb::handle value, const Place& place) {
        if (const auto known = known_.find(value.ptr()); known != known_.end()) return known->second;
        if (++objects_ % 4096 == 0 && PyErr_CheckSignals() != 0) throw nb::python_error();
        if (auto plain = plain_node(value)) return tree_.add(std::move(*plain));
        if (nb::isinstance<Tensor>(value)) return keep(value, tensor_node(value, false, false, false, place));
        if (is_exactly(value, PyList_Type)) return container(value, Sequence{Sequence::Kind::list}, value, place);
        if (is_exactly(value, PyTuple_Type)) return container(value, Sequence{Sequence::Kind::tuple}, value, place);
        if (is_exactly(value, PyDict_Type)) return container(value, StateTree::Dict{}, value, place);
        if (is_exactly(value, PySet_Type)) return container(value, Sequence{Sequence::Kind::set}, value, place);
        if (is_exactly(value, PyFrozenSet_Type))
            return container(value, Sequence{Sequence::Kind::frozenset}, value, place);
        return other(value, place);
    }

    /// Returns the node of a value that has no parts; nothing for any other.
    static std::optional<StateTree::Node> plain_node(nb::handle value) {
        if (value.is_none()) return StateTree::None{};
        if (PyBool_Check(value.ptr())) return value.is(nb::handle(Py_True));
        if (is_exactly(value, PyLong_Type)) return integer_node(value);
        if (is_exactly(value, PyFloat_Type)) return PyFloat_AsDouble(value.ptr());
        if (is_exactly(value, PyUnicode_Type)) return tree_text(value);
        if (is_exactly(value, PyComplex_Type))
            return StateTree::Complex{PyComplex_RealAsDouble(value.ptr()), PyComplex_ImagAsDouble(value.ptr())};
        if (is_exactly(value, PyBytes_Type)) return StateTree::Bytes{bytes_text(value)};
        return std::nullopt;
    }

    NodeId keep(nb::handle value, StateTree::Node made) {
        const NodeId id = tree_.add(std::move(made));
        known_.emplace(value.ptr(), id);
        kept_.push_back(nb::borrow(value));
        return id;
    }

    NodeId container(nb::handle value, StateTree::Node made, nb::handle items, const Place& place,
                     nb::object attributes = nb::none()) {
        const NodeId id = keep(value, std::move(made));
        containers_.emplace(id, Container{nb::borrow(value), nb::borrow(items), std::move(attributes), place});
        unfilled_.push_back(id);
        return id;
    }

    /// Adds an object that safemap._describe.described() tells apart: it returns a kind and what is needed for it.
    NodeId other(nb::handle value, const Place& place) {
        const nb::object said = nb::module_::import_("safemap._describe").attr("described")(value);
        if (said.is_none()) refuse(value, place);
        const std::string kind = nb::cast<std::string>(said[0]);
        if (kind == "bytearray") return keep(value, StateTree::Bytes{bytes_text(said[1]), true});
        if (kind == "constant") return tree_.add(constant_node(said[1], said[2]));
        if (kind == "scalar") return tree_.add(StateTree::NumpyScalar{tree_text(said[1]), node(said[2], place)});
        if (kind == "size") return container(value, Sequence{Sequence::Kind::size}, said[1], place);
        if (kind == "dict")
            return container(value, StateTree::Dict{.ordered = nb::cast<bool>(said[1])}, value, place, said[2]);
        if (kind == "tensor") return tensor(value, said, place);
        if (kind == "numbers") return keep(value, numbers_node(said[1], dtype_from(said[2]), place));
        return opaque(value, said, place);
    }

    static StateTree::Constant constant_node(nb::handle kind, nb::handle text) {
        const auto* const found = std::find(constant_kinds.begin(), constant_kinds.end(), nb::cast<std::string>(kind));
        return {static_cast<StateTree::Constant::Kind>(found - constant_kinds.begin()), tree_text(text)};
    }

    NodeId tensor(nb::handle value, const nb::object& said, const Place& place) {
        const auto flag = [&](int i) { return nb::cast<bool>(said[i]); };
        StateTree::Tensor made = tensor_node(value, flag(1), flag(2), flag(3), place);
        const nb::object attributes = said[4];
        if (attributes.is_none()) return keep(value, std::move(made));
        return container(value, std::move(made), nb::none(), place, attributes);
    }
    StateTree::Tensor tensor_node(nb::handle value, bool parameter, bool requires_grad, bool numpy,
                                  const Place& place) {
        Found found = found_from(path_of(place), value);
        if (found.place.address == 0 || found.tensor.element_count() == 0)
            return {std::move(found.tensor), parameter, requires_grad, numpy};
        const auto known = tensors_.try_emplace(elements_of(found), std::move(found.tensor)).first;
        return {known->second, parameter, requires_grad, numpy};
    }
    /// Returns the numbers of a quantised tensor, which are in a plain one.
    StateTree::Tensor numbers_node(nb::handle plain, Dtype dtype, const Place& place) {
        const TensorView view = found_from(path_of(place), plain).tensor.view();
        kept_.push_back(nb::borrow(plain));
        return {
            LazyTensor({}, TensorView::row_major(dtype, {view.bytes(), view.owner(), view.writable()}, view.shape()))};
    }

    NodeId opaque(nb::handle value, const nb::object& said, const Place& place) {
        const auto* const form = std::find(opaque_forms.begin(), opaque_forms.end(), nb::cast<std::string>(said[3]));
        StateTree::Opaque made{.type = tree_text(said[1]), .why = tree_text(said[2])};
        made.arguments = nb::cast<std::uint32_t>(said[4]);
        made.form = static_cast<StateTree::Opaque::Form>(form - opaque_forms.begin());
        return container(value, std::move(made), said[5], place);
    }

    void fill(NodeId id) {
        const Container& self = containers_.at(id);  // stays where it is
        if (std::holds_alternative<Sequence>(tree_[id])) return fill_sequence(id, self);
        if (std::holds_alternative<StateTree::Opaque>(tree_[id])) return fill_children(id, self);
        if (std::holds_alternative<StateTree::Dict>(tree_[id])) fill_dict(id, self);
        if (!self.attributes.is_none()) fill_attributes(id, self);
    }
    // The node is looked up again after each item: a new node may move all of them.
    void fill_sequence(NodeId id, const Container& self) {
        std::vector<NodeId> items;
        std::size_t number = 0;
        for (const nb::handle item : nb::iter(self.items)) items.push_back(node(item, {id, nb::int_(number++)}));
        std::get<Sequence>(tree_[id]).items = std::move(items);
    }
    void fill_dict(NodeId id, const Container& self) {
        std::vector<std::pair<NodeId, NodeId>> items;
        for (const nb::handle pair : nb::iter(pairs_of(self.items, "a dict"))) {
            const nb::object key = pair[0];
            const NodeId name = node(key, {id, key});
            items.emplace_back(name, node(pair[1], {id, key}));
        }
        std::get<StateTree::Dict>(tree_[id]).items = std::move(items);
    }
    std::vector<std::pair<std::string, NodeId>> named(NodeId id, nb::handle dict) {
        std::vector<std::pair<std::string, NodeId>> children;
        for (const nb::handle pair : nb::iter(pairs_of(dict, "a dict")))
            children.emplace_back(tree_text(pair[0]), node(pair[1], {id, pair[0]}));
        return children;
    }
    void fill_children(NodeId id, const Container& self) {
        auto children = named(id, self.items);
        std::get<StateTree::Opaque>(tree_[id]).children = std::move(children);
    }
    void fill_attributes(NodeId id, const Container& self) {
        if (std::holds_alternative<StateTree::Dict>(tree_[id])) {
            auto attributes = named(id, self.attributes);
            std::get<StateTree::Dict>(tree_[id]).attributes = std::move(attributes);
            return;
        }
        const NodeId attributes = node(self.attributes, self.place);
        std::get<StateTree::Tensor>(tree_[id]).attributes = attributes;
    }

    /// Returns the keys from the root to an object, joined by "/"; of deep ones the last.
    std::string path_of(const Place& place) const {
        constexpr std::size_t most = 32;
        std::vector<std::string> keys;
        for (const Place* at = &place; at->parent != StateTree::no_node; at = &containers_.at(at->parent).place) {
            if (keys.size() == most) break;
            keys.push_back(text_from(nb::str(at->key), "a key"));
        }
        std::string path;
        for (auto key = keys.rbegin(); key != keys.rend(); ++key) path += (path.empty() ? "" : "/") + *key;
        return path;
    }

    [[noreturn]] void refuse(nb::handle value, const Place& place) const {
        const std::string type = nb::cast<std::string>(nb::inst_name(value));
        const std::string path = path_of(place);
        const std::string at = path.empty() ? "the root" : "'" + path + "'";
        throw nb::type_error(
            ("cannot save an object of the type " + type + ", at " + at + ": give plain values, containers and tensors")
                .c_str());
    }

    StateTree tree_;
    std::unordered_map<PyObject*, NodeId> known_;
    std::vector<nb::object> kept_;  ///< so that no other object gets the address of a known one
    std::unordered_map<NodeId, Container> containers_;
    std::vector<NodeId> unfilled_;
    std::map<Elements, LazyTensor> tensors_;
    std::size_t objects_ = 0;
};

}  // namespace

StateTree tree_from(nb::handle value) { return Builder().run(value); }

Checkpoint checkpoint_of_objects(nb::handle value) {
    if (nb::cast<bool>(nb::module_::import_("safemap._describe").attr("is_flat")(value))) return checkpoint_of(value);
    return Checkpoint::of(tree_from(value));
}

}  // namespace safemap::python
