// Turns a tree into its structure document. A value with several places is written where flatten() meets it first; the
// other places refer to that path. The recursion is limited by the depth of a document. From the top:
//
//   Repeated    counts the values with several places, so that only their paths are remembered
//   Writer      writes the document, in these parts:
//     values      None, numbers, texts, bytes and constants
//     tensors     names, dtypes and flags; ties; tensors that are not stored
//     containers  sequences, dictionaries and objects, with attributes
//     JSON        tags, separators, and the limit of the depth
#include "state/structure.hpp"

#include "base/encodings.hpp"
#include "base/json.hpp"
#include "base/text.hpp"
#include "lazy/same_tensor.hpp"
#include "state/modules.hpp"
#include "state/names.hpp"
#include "state/walk.hpp"

#include <safemap/advanced/dtypes.hpp>
#include <safemap/advanced/text.hpp>
#include <safemap/error.hpp>

#include <algorithm>
#include <array>
#include <bit>
#include <charconv>
#include <cmath>
#include <span>
#include <type_traits>
#include <unordered_map>
#include <utility>
#include <variant>
#include <vector>

namespace safemap::SAFEMAP_ABI::state {

namespace {

using NodeId = StateTree::NodeId;
using Parts = std::span<const std::pair<std::string, NodeId>>;

/// Longest document: no safetensors header is longer. Without a limit, references to long paths would take the square
/// of a tree.
constexpr std::size_t longest_document = 100'000'000;
/// Limit of all names that are asked for, also for tensors that are not stored: one key of 50 MB may have millions
/// below.
constexpr std::size_t most_written = 20 * longest_document;
constexpr std::int64_t largest_exact = (std::int64_t{1} << 53) - 1;  // exact in every reader of JSON
/// Place of the version in `{"v":1`.
constexpr std::size_t version_place = 5;
/// Begins metadata that names the tensor of the document.
constexpr std::string_view apart_head = R"({"v":1,"tensor":)";
constexpr std::uint64_t plain_nan = 0x7ff8'0000'0000'0000;

bool is_tensor(const StateTree::Node& node) { return std::holds_alternative<StateTree::Tensor>(node); }

/// Returns true for values with an identity, except tensors. Python compares other values by their contents only.
bool has_identity(const StateTree::Node& node) {
    if (const auto* bytes = std::get_if<StateTree::Bytes>(&node)) return bytes->mutable_array;
    if (const auto* sequence = std::get_if<StateTree::Sequence>(&node)) {
        using Kind = StateTree::Sequence::Kind;
        return sequence->kind != Kind::size && (sequence->kind != Kind::tuple || !sequence->items.empty());
    }
    return std::holds_alternative<StateTree::Dict>(node) || std::holds_alternative<StateTree::Opaque>(node);
}

/// The nodes and stores that occur more than once. Only their paths are remembered.
class Repeated {
public:
    explicit Repeated(const StateTree& tree) : places_(tree.size()) {
        for (NodeId id = 0; id < tree.size(); ++id)
            state::for_each_child(tree[id], [this](NodeId child) { ++places_[child]; });
        for (NodeId id = 0; id < tree.size(); ++id)
            if (const auto* tensor = std::get_if<StateTree::Tensor>(&tree[id])) ++tensors_[&tensor->tensor];
        if (tree.size() > 0) ++places_[tree.root()];
    }

    bool node(NodeId id) const { return places_[id] > 1; }
    bool tensor(const LazyTensor& tensor) const {
        const auto found = tensors_.find(&tensor);
        return found != tensors_.end() && found->second > 1;
    }

private:
    std::vector<std::uint32_t> places_;
    TensorTable<std::uint32_t> tensors_;
};

/// A writer of one document.
class Writer {
public:
    Writer(const StateTree& tree, const StoredName& stored_name)
        : tree_(tree),
          stored_name_(stored_name),
          repeated_(tree),
          flat_(is_flat(tree)),
          beside_modules_(state::names_beside_modules(tree)) {}

    std::string run() {
        out_ = R"({"v":1,"root":)";
        depth_ = 1;
        if (tree_.size() == 0) out_ += "null";
        else node(tree_.root());
        out_ += '}';
        if (names_dtypes_) out_[version_place] = '2';
        return std::move(out_);
    }

private:
    void node(NodeId id) {
        if (out_.size() + path_.size() > longest_document) too_large("be longer than " + bytes_text(longest_document));
        if (repeated_.node(id)) {
            if (const auto first = paths_.find(id); first != paths_.end()) return tagged("@", first->second);
            if (has_identity(tree_[id])) remember(paths_, id, path_);
        }
        if (const auto* each = std::get_if<StateTree::Tensor>(&tree_[id])) tensor(id, *each);
        else std::visit([this](const auto& value) { write(value); }, tree_[id]);
    }

    /// Remembers a path for references that come later.
    template <class Paths, class Key> void remember(Paths& paths, Key key, const std::string& path) {
        remembered_ += path.size();
        if (remembered_ > longest_document) too_large("be longer than " + bytes_text(longest_document));
        paths.emplace(key, path);
        if constexpr (std::is_same_v<Key, NodeId>)
            if (in_attributes_ > 0) met_in_attributes_.push_back(key);
    }

    // ---- values

    void write(StateTree::None) { out_ += "null"; }
    void write(bool value) { out_ += value ? "true" : "false"; }
    void write(std::int64_t value) {
        std::array<char, 24> digits;
        const std::string_view decimal(digits.data(),
                                       std::to_chars(digits.data(), digits.data() + digits.size(), value).ptr);
        if (value >= -largest_exact && value <= largest_exact) out_ += decimal;
        else tagged("i", decimal);
    }
    void write(const StateTree::BigInt& value) { tagged("i", value.decimal); }
    void write(double value) {
        if (std::isfinite(value)) return json::append_real(out_, value);
        if (std::isinf(value)) return tagged("f", value > 0 ? "inf" : "-inf");
        const auto bits = std::bit_cast<std::uint64_t>(value);
        if (bits == plain_nan) return tagged("f", "nan");
        std::array<char, 16> digits;
        const auto end = std::to_chars(digits.data(), digits.data() + digits.size(), bits, 16).ptr;
        tagged("f", "0x" + std::string(digits.data(), end));
    }
    void write(const StateTree::Complex& value) {
        open("c");
        next();
        write(value.real);
        next();
        write(value.imag);
        close();
    }
    void write(const std::string& value) {
        if (is_utf8(value)) json::append_string(out_, value, json::Charset::utf8);
        else tagged("s", to_base64(value));
    }
    void write(const StateTree::Bytes& value) { tagged(value.mutable_array ? "ba" : "b", to_base64(value.bytes)); }
    void write(const StateTree::Constant& value) {
        tagged(constant_tags[static_cast<std::size_t>(value.kind)], value.text);
    }

    void write(const StateTree::NumpyScalar& scalar) {
        open("nps");
        text(scalar.dtype);
        next();
        node(scalar.value);
        close();
    }

    void write(const StateTree::Tensor&) {}  // tensor() writes it

    // ---- tensors

    /// Returns the path for references to a tensor. The tensor that an object wraps has the object's path as its name.
    std::string tensor_path() const { return in_object_ ? path_ + "/~itself" : path_; }

    void tensor(NodeId id, const StateTree::Tensor& tensor) {
        const bool ties = repeated_.tensor(tensor.tensor) && tensor.tensor.element_count() > 0;
        const auto first = ties ? ties_.find(&tensor.tensor) : ties_.end();
        spelled_ += path_.size();
        if (spelled_ > most_written) too_large("have names that are too long together");
        const std::string& implied = path_.empty() ? root_name_ : path_;
        const std::string& name = flatten_name(id, tensor, implied);
        const bool asks = first == ties_.end() && in_attributes_ == 0 && !name.empty();
        const auto stored = asks ? stored_name_(name) : std::nullopt;
        if (first == ties_.end() && !stored) return not_stored();

        const std::string path = ties || repeated_.node(id) ? tensor_path() : std::string();
        if (repeated_.node(id)) remember(paths_, id, path);
        if (first != ties_.end()) return tied(tensor, first->second);
        if (ties) remember(ties_, &tensor.tensor, path);
        open(tensor.numpy ? "np" : "T");
        const Dtype dtype = tensor.tensor.dtype();
        const bool unnamed = !in_safetensors(dtype);
        names_dtypes_ = names_dtypes_ || unnamed;
        attributes(tensor, *stored == implied ? nullptr : &*stored, unnamed ? torch_name(dtype) : std::string_view());
        close();
    }

    /// Returns the tensor's own name, or the one that flatten() gives it, or an empty name if it gives none.
    const std::string& flatten_name(NodeId id, const StateTree::Tensor& tensor, const std::string& implied) const {
        if (!tensor.tensor.name().empty()) return tensor.tensor.name();
        if (flat_) return key_;
        if (beside_modules_.empty()) return implied;
        const auto found = beside_modules_.find(id);
        return found == beside_modules_.end() ? no_name_ : found->second;
    }

    void tied(const StateTree::Tensor& tensor, const std::string& path) {
        open("@T");
        text(path);
        attributes(tensor, nullptr, {});
        close();
    }

    void attributes(const StateTree::Tensor& tensor, const std::string* name, std::string_view dtype) {
        const bool has_own = tensor.attributes != StateTree::no_node;
        if (!tensor.parameter && !tensor.requires_grad && !has_own && dtype.empty() && name == nullptr) return;
        next();
        deepen();
        char separator = '{';
        const auto member = [&](std::string_view key) {
            out_ += std::exchange(separator, ',');
            json::append_string(out_, key, json::Charset::utf8);
            out_ += ':';
        };
        if (name != nullptr) {
            member("n");
            json::append_string(out_, *name, json::Charset::utf8);
        }
        if (!dtype.empty()) {
            member("dtype");
            json::append_string(out_, dtype, json::Charset::utf8);
        }
        for (const auto& [key, is_set] : {std::pair("p", tensor.parameter), std::pair("rg", tensor.requires_grad)}) {
            if (!is_set) continue;
            member(key);
            out_ += '1';
        }
        if (has_own) {
            member("attrs");
            within_attributes([&] { below("~attrs", tensor.attributes); });
        }
        out_ += '}';
        --depth_;
    }

    /// Writes attributes. flatten() gives no names below them, so tensors that are only there are not stored. A
    /// container with such a tensor is forgotten afterwards, and is written again at a place that has a name.
    template <class Write> void within_attributes(Write&& write) {
        ++in_attributes_;
        write();
        if (--in_attributes_ > 0) return;
        if (std::exchange(lost_in_attributes_, false))
            for (const NodeId id : met_in_attributes_) paths_.erase(id);
        met_in_attributes_.clear();
    }

    void not_stored() {
        lost_in_attributes_ = lost_in_attributes_ || in_attributes_ > 0;
        write(unstored_tensor());
    }

    // ---- containers

    void write(const StateTree::Sequence& sequence) {
        open(sequence_tags[static_cast<std::size_t>(sequence.kind)]);
        for (std::size_t i = 0; i < sequence.items.size(); ++i) {
            next();
            below(state::item_segment(sequence.kind, i), sequence.items[i]);
        }
        close();
    }

    void write(const StateTree::Dict& dict) {
        const bool tagged_one = dict.ordered || !dict.attributes.empty();
        const bool texts = has_text_keys(dict);
        if (tagged_one || !texts) open(dict.ordered ? "od" : "d");
        if (tagged_one && texts) next();
        if (texts) members(dict);
        else pairs(dict);
        if (!dict.attributes.empty()) attributes(dict);
        if (tagged_one || !texts) close();
    }

    bool has_text_keys(const StateTree::Dict& dict) const {
        for (const auto& [key, value] : dict.items) {
            const auto* text = std::get_if<std::string>(&tree_[key]);
            if (text == nullptr || !is_utf8(*text)) return false;
        }
        return true;
    }

    void members(const StateTree::Dict& dict) {
        deepen();
        char separator = '{';
        if (dict.items.empty()) out_ += separator;
        for (std::size_t i = 0; i < dict.items.size(); ++i) {
            const auto& [key, value] = dict.items[i];
            const auto& text = std::get<std::string>(tree_[key]);
            out_ += std::exchange(separator, ',');
            json::append_string(out_, text, json::Charset::utf8);
            if (flat_) key_ = text;
            out_ += ':';
            below(state::key_segment(tree_[key], i), value);
        }
        out_ += '}';
        --depth_;
    }

    void pairs(const StateTree::Dict& dict) {
        for (std::size_t i = 0; i < dict.items.size(); ++i) {
            const auto& [key, value] = dict.items[i];
            next();
            deepen();
            out_ += '[';
            const std::size_t before = path_.size();
            state::append_segment(path_, state::ordinal_segment(i));
            below(state::key_segment_below, key);
            path_.resize(before);
            next();
            below(state::key_segment(tree_[key], i), value);
            out_ += ']';
            --depth_;
        }
    }

    void attributes(const StateTree::Dict& dict) {
        deepen();
        deepen();
        out_ += ",{\"@attrs\":";
        const std::size_t before = path_.size();
        state::append_segment(path_, "~attrs");
        within_attributes([&] { parts(dict.attributes); });
        path_.resize(before);
        out_ += '}';
        depth_ -= 2;
    }

    void write(const StateTree::Opaque& opaque) {
        const Parts all(opaque.children);
        const std::size_t positional = std::min<std::size_t>(opaque.arguments, all.size());
        open(opaque_tags[static_cast<std::size_t>(opaque.form)]);
        if (opaque.form == StateTree::Opaque::Form::object) {
            text(opaque.type);
            next();
            arguments(all.first(positional));
        }
        next();
        deepen();
        parts(all.subspan(positional));
        --depth_;
        if (!opaque.why.empty()) text(opaque.why);
        close();
    }

    void arguments(Parts arguments) {
        open("t");
        for (const auto& [name, argument] : arguments) {
            next();
            below(state::child_segment(name), argument);
        }
        close();
    }

    void parts(Parts parts) {
        char separator = '{';
        if (parts.empty()) out_ += separator;
        for (const auto& [name, part] : parts) {
            out_ += std::exchange(separator, ',');
            json::append_string(out_, name, json::Charset::utf8);
            out_ += ':';
            if (name.empty() && is_tensor(tree_[part])) {
                in_object_ = true;
                node(part);
                in_object_ = false;
            } else {
                below(state::child_segment(name), part);
            }
        }
        out_ += '}';
    }

    void below(std::string_view segment, NodeId child) {
        const std::size_t before = path_.size();
        const bool in_object = std::exchange(in_object_, false);
        state::append_segment(path_, segment);
        node(child);
        path_.resize(before);
        in_object_ = in_object;
    }

    // ---- JSON

    void open(std::string_view tag) {
        deepen();
        ((out_ += "[\"") += tag) += '"';
    }
    void close() {
        out_ += ']';
        --depth_;
    }
    void next() { out_ += ','; }
    /// Writes a text such as the name of a class. Bytes that are not UTF-8 are escaped.
    void text(std::string_view value) {
        next();
        json::append_string(out_, is_utf8(value) ? value : printable(value, value.size()), json::Charset::utf8);
    }
    void tagged(std::string_view tag, std::string_view value) {
        open(tag);
        text(value);
        close();
    }

    void deepen() {
        if (++depth_ > deepest_structure)
            too_large("nest more than " + std::to_string(deepest_structure) + " arrays and objects");
    }

    [[noreturn]] static void too_large(const std::string& what) {
        throw Error(Errc::structure_too_large, "its structure document would " + what);
    }

    const StateTree& tree_;
    const StoredName& stored_name_;
    Repeated repeated_;
    const bool flat_;  ///< true if names are keys
    const std::unordered_map<NodeId, std::string> beside_modules_;
    const std::string no_name_ = {};
    std::string key_ = {};
    std::string out_;
    std::string path_;
    bool in_object_ = false;     ///< true for a tensor that has the path of the object around it
    bool names_dtypes_ = false;  ///< version 2: a reader of version 1 would take the stored dtype
    unsigned in_attributes_ = 0;
    std::vector<NodeId> met_in_attributes_;  ///< keys of paths_ that were added in attributes
    bool lost_in_attributes_ = false;        ///< true if a tensor in attributes was not stored
    unsigned depth_ = 0;
    std::size_t remembered_ = 0;
    std::size_t spelled_ = 0;
    const std::string root_name_{state::root_name};
    std::unordered_map<NodeId, std::string> paths_;  ///< paths of nodes in several places
    TensorTable<std::string> ties_;
};

}  // namespace

const StateTree::Opaque& unstored_tensor() {
    static const StateTree::Opaque object{.type = "torch.Tensor", .why = "a tensor that was not stored"};
    return object;
}

std::string structure_of(const StateTree& tree, const StoredName& stored_name) {
    return Writer(tree, stored_name).run();
}

// ---- the place of the document: the metadata of safetensors, or a tensor that the metadata names

std::string structure_apart(const Digest& document) {
    return std::string(apart_head) + '"' + std::string(state::structure_tensor) + R"(","xxh3_128":")" + hex(document) +
           "\"}";
}

bool is_structure_apart(std::string_view metadata) noexcept { return metadata.starts_with(apart_head); }

std::optional<std::string> structure_digest(std::string_view metadata) {
    if (!is_structure_apart(metadata)) return digest_of_structure(metadata);
    constexpr std::size_t digits = 32;
    constexpr std::size_t after = 2;  // the length of "}
    if (metadata.size() < digits + after) return std::nullopt;
    const auto digest = digest_of_hex(metadata.substr(metadata.size() - digits - after, digits));
    return digest && structure_apart(*digest) == metadata ? std::optional(hex(*digest)) : std::nullopt;
}

std::string digest_of_structure(std::string_view document) { return hex(xxh3(std::as_bytes(std::span(document)))); }

}  // namespace safemap::SAFEMAP_ABI::state
