// The nested state dict: what torch.save saved, as data. Leaves are tensors of which nothing has been read. Also
// what a file of torch holds beside the tree: the globals that it names, and what is no tensor.
#pragma once

#include <safemap/lazy_tensor.hpp>
#include <safemap/source.hpp>

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

/// A tree (with sharing: two places may hold the same node, and cycles are possible) of Python's values.
/// Nodes live in one array and refer to each other by number. Building is for one thread; reading for many.
class SAFEMAP_API StateTree {
public:
    using NodeId = std::uint32_t;
    static constexpr NodeId no_node = 0xFFFF'FFFF;

    struct None {};
    struct BigInt {
        std::string decimal;
    };  ///< an integer beyond 64 bits
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
        /// `_metadata` of a module's state dict; `__class__` of a Counter or defaultdict, a Constant.
        std::vector<std::pair<std::string, NodeId>> attributes = {};
    };
    struct Constant {
        enum class Kind : std::uint8_t { dtype, device, layout, numpy_dtype, other } kind;
        std::string text;  ///< "float32", "cuda:0"; NumPy's as in its array protocol: "<f4", "<M8[ns]"
    };
    struct Tensor {
        LazyTensor tensor;
        bool parameter = false;
        bool requires_grad = false;
        bool numpy = false;  ///< a NumPy array
        /// A dictionary of what was set on the object, or the last of all numbers: nothing. Tensors in there have no
        /// names.
        NodeId attributes = no_node;
    };
    /// A number or text of NumPy's: its class, as numpy.dtype() takes it ("float32", "<M8[ns]"), and the Python value
    /// (integer, float, bool, complex, string or bytes) that is equal to it; bytes where there is none.
    struct NumpyScalar {
        std::string dtype;
        NodeId value;
    };
    /// An object of a class that safemap does not know, or a tensor that is more than its elements. Never built,
    /// never called.
    struct Opaque {
        /// Of tensors: what their children are. quantized: "" (the numbers as they are stored; of quint4x2 and quint2x4
        /// all bytes of the storage, and offset, size and stride in elements), scheme, and scale and zero_point or
        /// scales, zero_points and axis. sparse: layout, indices or compressed_indices and
        /// plain_indices, values, size. nested: buffer, sizes, strides, offsets.
        enum class Form : std::uint8_t { object, quantized, sparse, nested };

        std::string type;                                           ///< "argparse.Namespace"
        std::string why;                                            ///< a sentence for the report
        std::vector<std::pair<std::string, NodeId>> children = {};  ///< what was found inside, by attribute or place
        std::uint32_t arguments = 0;  ///< so many of the children, the first, are what the class would be called with
        Form form = Form::object;
    };
    using Node = std::variant<None, bool, std::int64_t, BigInt, double, Complex, std::string, Bytes, Sequence, Dict,
                              Constant, NumpyScalar, Tensor, Opaque>;

    NodeId add(Node node);
    /// Makes room for so many nodes.
    void reserve(std::size_t nodes) { nodes_.reserve(nodes); }
    const Node& operator[](NodeId id) const { return nodes_[id]; }
    Node& operator[](NodeId id) { return nodes_[id]; }
    std::size_t size() const noexcept { return nodes_.size(); }

    /// The node at a path, spelled as flatten() spells names: "optimizer/state/0/exp_avg", and in a module
    /// "model/0.conv.weight"; "" is the root. Nothing where there is none. Linear in what the containers on the way
    /// hold.
    std::optional<NodeId> find(std::string_view path) const;
    /// Puts a node where a path leads, in place of what is there, or as the last entry of a dictionary, the next item
    /// of a list, tuple or torch.Size, or a part of an object that is no module. Other places that hold what was there
    /// keep it. Throws invalid_argument where there is no such container, or where the last segment is no key or item
    /// it can have.
    void put(std::string_view path, NodeId node);
    /// Takes out what a path leads to, and says whether there was anything. Items behind it move up. The root stays.
    bool erase(std::string_view path);
    /// The nodes that `root` leads to, as a tree of their own.
    StateTree subtree(NodeId root) const;

    NodeId root() const noexcept { return root_; }
    void set_root(NodeId id) noexcept { root_ = id; }

private:
    std::vector<Node> nodes_;
    NodeId root_ = 0;
};

/// For people: one line for each value, names folded (`layers.{0..79}`), below each other as they are in each other;
/// tensors by dtype and shape, lists of plain values in one line. A container that was met before is told of by its
/// path. No tensor is read. Names are cut at 200 bytes, values at 80, and levels below 64 are left out.
SAFEMAP_API std::ostream& operator<<(std::ostream& out, const StateTree& tree);

/// A tensor's other names: the stored name first.
using AliasGroup = std::vector<std::string>;

/// What is not kept as a tensor.
struct SkippedObject {
    std::string name;  ///< its path
    std::string type;  ///< its class
    std::string why;
    bool quantized = false;  ///< a quantised tensor whose numbers are a tensor: a structure document keeps all of it
};

/// A class or function that a pickle names. Nothing of it is imported or called.
struct NamedGlobal {
    std::string module;   ///< as Python 3 calls it
    std::string name;     ///< with dots for a nested class
    std::string record;   ///< which pickle: "archive/data.pkl" of a zip, else a description
    bool known = false;   ///< values made with it are read; what others make is opaque
    bool called = false;  ///< unpickling would call it
};

}  // namespace safemap::SAFEMAP_ABI
