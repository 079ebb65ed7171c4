// StateTree: the nested state dict that torch.save() wrote, as data; its tensors are lazy. Also the other contents of a
// torch file: the globals that it names, and the objects that are not tensors.
#pragma once

#include <safemap/lazy_tensor.hpp>
#include <safemap/source.hpp>
#include <safemap/verdict.hpp>

#include <cstddef>
#include <cstdint>
#include <iosfwd>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

namespace safemap::SAFEMAP_ABI {

/// A tree of Python values. Several containers may share a node, and cycles are possible. The tree owns its nodes in
/// one array; nodes refer to each other by number. Const members may be called from several threads at once; a tree
/// that is being changed must not be used from another thread.
///
/// Example:
///     if (const auto node = tree.find("optimizer/state/0/exp_avg"))
///         if (const auto* leaf = std::get_if<safemap::StateTree::Tensor>(&tree[*node]))
///             std::cout << leaf->tensor.shape() << '\n';
class [[nodiscard]] SAFEMAP_API StateTree {
public:
    using NodeId = std::uint32_t;
    static constexpr NodeId no_node = 0xFFFF'FFFF;

    struct None {};
    /// An integer beyond 64 bits.
    struct BigInt {
        std::string decimal;
    };
    /// A bytes object, or a bytearray if `mutable_array` is set.
    struct Bytes {
        std::string bytes;
        bool mutable_array = false;
    };
    struct Complex {
        double real;
        double imag;
    };
    struct Sequence {
        enum class Kind : std::uint8_t { list, tuple, set, frozenset, size } kind;  ///< size: torch.Size
        std::vector<NodeId> items = {};
    };
    struct Dict {
        bool ordered = false;                               ///< collections.OrderedDict
        std::vector<std::pair<NodeId, NodeId>> items = {};  ///< in insertion order; keys are nodes
        /// Attributes of the object: `_metadata` of a module's state dict; `__class__`, a Constant, of a Counter or
        /// defaultdict.
        std::vector<std::pair<std::string, NodeId>> attributes = {};
    };
    struct Constant {
        enum class Kind : std::uint8_t { dtype, device, layout, numpy_dtype, other } kind;
        std::string text;  ///< "float32", "cuda:0"; for a NumPy dtype its array protocol's name: "<f4", "<M8[ns]"
    };
    struct Tensor {
        LazyTensor tensor;
        bool parameter = false;
        bool requires_grad = false;
        bool numpy = false;  ///< a NumPy array
        /// A dictionary of the attributes that were set on the object, or no_node. Tensors in it have no names.
        NodeId attributes = no_node;
    };
    /// A NumPy scalar: its class, as numpy.dtype() takes it ("float32", "<M8[ns]"), and the equal Python value
    /// (integer, float, bool, complex, string or bytes). If no Python value is equal, the value is its bytes.
    struct NumpyScalar {
        std::string dtype;
        NodeId value;
    };
    /// An object of a class that safemap does not know, or a tensor that consists of more than its elements. safemap
    /// never constructs such objects and never calls their classes.
    struct Opaque {
        /// The kind of object, which decides the names of its children.
        ///
        /// | form | children |
        /// | --- | --- |
        /// | object | one for each argument, attribute or item; "" for a tensor that the object wraps |
        /// | quantized | "", scheme, and scale and zero_point, or scales, zero_points and axis |
        /// | sparse | layout, indices or compressed_indices and plain_indices, values, size |
        /// | nested | buffer, sizes, strides, offsets |
        ///
        /// A tensor on the meta device is an object of class torch.Tensor whose child `device` is the Constant "meta".
        /// Its other children are dtype, size, stride, requires_grad, parameter if it is a Parameter, and
        /// storage_offset if the file says it. It has no data.
        ///
        /// The child "" of a quantized tensor holds the numbers as stored. Of quint4x2 and quint2x4 it holds all bytes
        /// of the storage, and there are offset, size and stride in elements.
        enum class Form : std::uint8_t { object, quantized, sparse, nested };

        std::string type;                                           ///< class, "argparse.Namespace"
        std::string why;                                            ///< a sentence for reports
        std::vector<std::pair<std::string, NodeId>> children = {};  ///< contents, by attribute name or position
        std::uint32_t arguments = 0;  ///< number of children, from the first, that are arguments of the class
        Form form = Form::object;
    };
    using Node = std::variant<None, bool, std::int64_t, BigInt, double, Complex, std::string, Bytes, Sequence, Dict,
                              Constant, NumpyScalar, Tensor, Opaque>;

    /// Appends a node and returns its number. Throws pickle_too_large for more than 2^32 - 1 nodes.
    NodeId add(Node node);
    /// Reserves memory for this many nodes.
    void reserve(std::size_t nodes) { nodes_.reserve(nodes); }
    /// Return the node with this number. Throw invalid_argument for a number beyond size(), for no_node, and for any
    /// number in a tree without nodes, such as one that was moved from.
    const Node& operator[](NodeId id) const { return nodes_[id < nodes_.size() ? id : refuse(id)]; }
    Node& operator[](NodeId id) { return nodes_[id < nodes_.size() ? id : refuse(id)]; }
    /// Returns the number of nodes.
    std::size_t size() const noexcept { return nodes_.size(); }

    /// Returns the node at a path, or nothing if the path does not exist. Paths are spelled as flatten() spells names:
    /// "optimizer/state/0/exp_avg", and in a module "model/0.conv.weight"; "" is the root. Takes time linear in the
    /// sizes of the containers on the path.
    [[nodiscard]] std::optional<NodeId> find(std::string_view path) const;
    /// Sets the node at a path. Replaces an existing node there; other containers that share the old node keep it. If
    /// the path does not exist, appends the node to the container above: as the last entry of a dictionary, as the next
    /// item of a list, tuple or torch.Size, or as a child of an object that is not a module. Throws invalid_argument if
    /// that container does not exist, or cannot have the last segment as a key or item.
    void put(std::string_view path, NodeId node);
    /// Removes the node at a path from its container, and returns true if it existed. Later items move up. The root
    /// cannot be removed.
    bool erase(std::string_view path);
    /// Returns a new tree of the nodes that can be reached from `root`. Throws as operator[] does.
    StateTree subtree(NodeId root) const;

    NodeId root() const noexcept { return root_; }
    void set_root(NodeId id) noexcept { root_ = id; }

private:
    [[noreturn]] NodeId refuse(NodeId id) const;
    std::vector<Node> nodes_;
    NodeId root_ = 0;
};

/// Prints a tree for people, without reading any tensor. There is one line for each value, indented by its depth; names
/// are folded (`layers.{0..79}`), tensors are printed as dtype and shape, and lists of plain values in one line. A
/// container that was printed before is referred to by its path. Names are cut at 200 bytes and values at 80 bytes;
/// levels below 64 are left out.
SAFEMAP_API std::ostream& operator<<(std::ostream& out, const StateTree& tree);

/// The names of one tied tensor: the stored name first, then its aliases.
using AliasGroup = std::vector<std::string>;

/// A part of a nested state dict: an entry of its root that holds tensors.
struct StatePart {
    std::string name;
    std::size_t tensors = 0;  ///< stored tensors; a tied tensor counts in its first part
    std::uint64_t bytes = 0;
};

/// An object of a checkpoint that is not listed as a tensor.
struct SkippedObject {
    std::string name;        ///< path
    std::string type;        ///< class
    std::string why;         ///< the reason, as a sentence
    bool quantized = false;  ///< a quantised tensor whose numbers are listed; a structure document keeps all of it
};

/// A class or function that a pickle names. safemap never imports or calls it.
struct NamedGlobal {
    std::string module;              ///< the module's name in Python 3
    std::string name;                ///< with dots for a nested class
    std::string record;              ///< the pickle: "archive/data.pkl" of a zip, or a description
    bool known = false;              ///< true if safemap reads the values made with it; other values are opaque
    bool called = false;             ///< true if unpickling would call it
    Verdict severity = Verdict::ok;  ///< how dangerous the name and its use are
    std::string why = {};            ///< the reason for the severity; empty for `ok`
};

}  // namespace safemap::SAFEMAP_ABI
