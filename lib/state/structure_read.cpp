// Turns a structure document into a tree. The JSON parser limits the depth of the recursion. The parts of Reader, from
// the top:
//
//   run         checks the version, collects the paths that the document refers to, and reads the root
//   node        one value: JSON's own kinds, or an array that begins with a tag
//   values      numbers and texts that JSON cannot spell
//   tensors     found by name with `find`, restored to their dtype, or tied to a tensor that was read before
//   containers  sequences, dictionaries and objects, with attributes
//   references  to a path that was read before, which may be a container that is not closed yet
#include "state/structure.hpp"

#include "base/encodings.hpp"
#include "base/json.hpp"
#include "base/name_index.hpp"
#include "base/text.hpp"
#include "state/names.hpp"
#include "tensor/raw_dtype.hpp"

#include <safemap/advanced/dtypes.hpp>
#include <safemap/advanced/stored_tensor.hpp>
#include <safemap/error.hpp>

#include <algorithm>
#include <bit>
#include <charconv>
#include <iterator>
#include <limits>
#include <span>
#include <unordered_map>
#include <unordered_set>
#include <utility>
#include <vector>

namespace safemap::SAFEMAP_ABI::state {

namespace {

using json::Value;
using NodeId = StateTree::NodeId;
using Items = std::span<const Value>;
using Names = std::unordered_set<std::string_view, NameHash>;

/// Limit of all paths and names that are copied or looked up: a document with one key of 50 MB could have millions of
/// tensors below it.
constexpr std::size_t most_spelled = 2'000'000'000;

[[noreturn]] void bad(const std::string& path, const std::string& what) {
    throw Error(Errc::bad_structure, "the structure document, at " +
                                         safemap::quoted(path.empty() ? std::string(state::root_name) : path) + ": " +
                                         what);
}

/// A reader of one document.
class Reader {
public:
    explicit Reader(const FindTensor& find) : find_(find) {}

    StateTree run(const Value& document) {
        const Value* const version = document.find("v");
        if (version == nullptr || (version->integer() != 1 && version->integer() != 2))
            throw Error(Errc::bad_structure, "the structure document has an unknown version; expected 1 or 2");
        version_ = *version->integer();
        const Value* const root = document.find("root");
        if (root == nullptr) throw Error(Errc::bad_structure, "the structure document has no root");
        collect_targets(*root);
        const NodeId id = node(*root);
        tree_.set_root(id);
        return std::move(tree_);
    }

private:
    /// Collects the paths that something refers to. Only nodes at these paths are remembered.
    void collect_targets(const Value& value) {
        if (const auto* object = value.object())
            for (const json::Member& member : *object) collect_targets(member.value);
        const auto* array = value.array();
        if (array == nullptr || array->empty()) return;
        const std::string* const tag = array->front().string();
        if (tag != nullptr && (*tag == "@" || *tag == "@T") && array->size() > 1 && (*array)[1].string() != nullptr)
            targets_.insert(*(*array)[1].string());
        for (const Value& item : *array) collect_targets(item);
    }

    NodeId node(const Value& value) {
        if (value.is_null()) return tree_.add(StateTree::None{});
        if (const auto boolean = value.boolean()) return tree_.add(*boolean);
        if (const auto integer = value.integer()) return tree_.add(*integer);
        if (value.unsigned_integer()) bad(path_, "an integer beyond 64 bits is not written as [\"i\", ...]");
        if (const auto number = value.number()) return tree_.add(*number);
        if (const auto* text = value.string()) return tree_.add(*text);
        if (const auto* object = value.object()) return members(*object, false);
        return tagged(*value.array());
    }

    NodeId tagged(const Value::Array& array) {
        const std::string* const tag = array.empty() ? nullptr : array.front().string();
        if (tag == nullptr) bad(path_, "a list does not begin with its kind");
        const Items items = Items(array).subspan(1);
        for (std::size_t kind = 0; kind < sequence_tags.size(); ++kind)
            if (*tag == sequence_tags[kind]) return sequence(static_cast<StateTree::Sequence::Kind>(kind), items);
        for (std::size_t kind = 0; kind < constant_tags.size(); ++kind)
            if (*tag == constant_tags[kind])
                return tree_.add(StateTree::Constant{.kind = static_cast<StateTree::Constant::Kind>(kind),
                                                     .text = only_text(items)});
        for (std::size_t form = 0; form < opaque_tags.size(); ++form)
            if (*tag == opaque_tags[form]) return opaque(static_cast<StateTree::Opaque::Form>(form), items);
        if (*tag == "T") return tensor(items, false);
        if (*tag == "np") return tensor(items, true);
        if (*tag == "nps") return numpy_scalar(items);
        if (*tag == "@T") return tied(items);
        if (*tag == "@") return target(only_text(items));
        if (*tag == "d" || *tag == "od") return dictionary(items, *tag == "od");
        if (*tag == "i") return integer(only_text(items));
        if (*tag == "f") return tree_.add(real(only_text(items)));
        if (*tag == "c") return complex(items);
        if (*tag == "s") return tree_.add(bytes(items));
        if (*tag == "b") return tree_.add(StateTree::Bytes{.bytes = bytes(items)});
        if (*tag == "ba") return remember(path_, tree_.add(StateTree::Bytes{bytes(items), true}));
        bad(path_, "unknown kind " + safemap::quoted(*tag));
    }

    // ---- values

    const std::string& only_text(Items items) const {
        if (items.size() != 1 || items.front().string() == nullptr) bad(path_, "expected one text");
        return *items.front().string();
    }

    NodeId integer(const std::string& decimal) {
        if (const auto value = safemap::decimal<std::int64_t>(decimal)) return tree_.add(*value);
        const std::string_view digits = std::string_view(decimal).substr(decimal.starts_with('-') ? 1 : 0);
        if (digits.empty() || digits.find_first_not_of("0123456789") != digits.npos)
            bad(path_, "invalid integer " + safemap::quoted(decimal));
        return tree_.add(StateTree::BigInt{decimal});
    }

    double real(const std::string& text) const {
        if (text == "inf") return std::numeric_limits<double>::infinity();
        if (text == "-inf") return -std::numeric_limits<double>::infinity();
        if (text == "nan") return std::numeric_limits<double>::quiet_NaN();
        std::uint64_t bits = 0;
        const char* const last = text.data() + text.size();
        if (!text.starts_with("0x") || text.size() != 18 ||
            std::from_chars(text.data() + 2, last, bits, 16).ptr != last)
            bad(path_, "invalid number " + safemap::quoted(text));
        return std::bit_cast<double>(bits);
    }

    NodeId complex(Items items) {
        if (items.size() != 2) bad(path_, "a complex number has " + std::to_string(items.size()) + " parts");
        return tree_.add(StateTree::Complex{part(items[0]), part(items[1])});
    }
    double part(const Value& value) const {
        if (const auto number = value.number()) return *number;
        const auto* array = value.array();
        const bool formed = array != nullptr && array->size() == 2 && array->front().string() != nullptr &&
                            *array->front().string() == "f";
        if (!formed) bad(path_, "the parts of a complex number are not numbers");
        return real(only_text(Items(*array).subspan(1)));
    }

    NodeId numpy_scalar(Items items) {
        if (items.size() != 2 || items[0].string() == nullptr) bad(path_, "a NumPy scalar is not a dtype and a value");
        const NodeId value = node(items[1]);
        if (!is_plain(tree_[value])) bad(path_, "the value of a NumPy scalar is not a number, text or bytes");
        return tree_.add(StateTree::NumpyScalar{.dtype = *items[0].string(), .value = value});
    }

    static bool is_plain(const StateTree::Node& node) {
        return std::holds_alternative<bool>(node) || std::holds_alternative<std::int64_t>(node) ||
               std::holds_alternative<StateTree::BigInt>(node) || std::holds_alternative<double>(node) ||
               std::holds_alternative<StateTree::Complex>(node) || std::holds_alternative<std::string>(node) ||
               std::holds_alternative<StateTree::Bytes>(node);
    }

    std::string bytes(Items items) const {
        auto bytes = from_base64(only_text(items));
        if (!bytes) bad(path_, "bytes are not in base64");
        return std::move(*bytes);
    }

    // ---- tensors

    /// The description of a tensor in the document.
    struct Kept {
        bool parameter = false;
        bool requires_grad = false;
        const Value* attributes = nullptr;
        const std::string* dtype = nullptr;
    };

    NodeId tensor(Items items, bool numpy) {
        const Kept kept = kept_of(items);
        const std::string* const other = items.empty() ? nullptr : text_member(items.front(), "n");
        const std::string& name = other != nullptr ? *other : path_.empty() ? root_name_ : path_;
        spend(name.size());
        const LazyTensor* const found = find_(name);
        if (found == nullptr) bad(path_, "the tensor " + safemap::quoted(name) + " is missing");
        spend(found->name().size());
        return add_tensor(kept.dtype == nullptr ? *found : restored(*found, *kept.dtype), kept, numpy);
    }

    /// Returns a tensor of a dtype that safetensors has no name for. It is stored as raw_dtype() and raw_shape() say.
    LazyTensor restored(const LazyTensor& found, const std::string& named) const {
        if (version_ < 2) bad(path_, "a document of version 1 cannot name a dtype");
        const auto dtype = dtype_from_torch(named);
        if (!dtype || torch_name(*dtype) != named || in_safetensors(*dtype))
            bad(path_, "the dtype " + safemap::quoted(named) + " cannot be named in a document");
        auto shape = shape_of_raw(*dtype, found.shape());
        const auto place = found.placement();
        if (found.dtype() != raw_dtype(*dtype) || !shape || (!place && found.element_count() > 0))
            bad(path_, "the tensor " + safemap::quoted(found.name()) + " is " +
                           std::string(safemap::name(found.dtype())) + ' ' + to_string(found.shape()) + ", but " +
                           named + " is stored as " + std::string(safemap::name(raw_dtype(*dtype))) +
                           (kind(*dtype) == DtypeKind::complex ? " [..., 2]" : ""));
        if (!place) return {found.name(), stored_runs(*dtype, std::move(*shape), {})};
        return {found.name(), stored_run(*dtype, std::move(*shape), place->source, place->extent.offset)};
    }

    NodeId tied(Items items) {
        if (items.empty() || items.front().string() == nullptr) bad(path_, "a tie does not name a tensor");
        const Kept kept = kept_of(items.subspan(1));
        const auto* const first = std::get_if<StateTree::Tensor>(&tree_[target(*items.front().string())]);
        if (first == nullptr) bad(path_, "a tie names a value that is not a tensor");
        spend(first->tensor.name().size());
        return add_tensor(first->tensor, kept, first->numpy);
    }

    NodeId add_tensor(LazyTensor value, const Kept& kept, bool numpy) {
        StateTree::Tensor tensor{std::move(value), kept.parameter, kept.requires_grad, numpy};
        const NodeId id = remember(tensor_path(), tree_.add(std::move(tensor)));
        if (kept.attributes == nullptr) return id;
        const NodeId made = below("~attrs", *kept.attributes);
        std::get<StateTree::Tensor>(tree_[id]).attributes = made;
        return id;
    }

    /// Reads the description of a tensor: no item, or one object.
    Kept kept_of(Items items) const {
        if (items.empty()) return {};
        if (items.size() > 1 || items.front().object() == nullptr) bad(path_, "a tensor is not described by an object");
        const Value& object = items.front();
        return {flag(object, "p"), flag(object, "rg"), object.find("attrs"), text_member(object, "dtype")};
    }
    bool flag(const Value& object, std::string_view key) const {
        const Value* const member = object.find(key);
        if (member != nullptr && member->integer() != 1) bad(path_, safemap::quoted(key) + " is not 1");
        return member != nullptr;
    }

    const std::string* text_member(const Value& object, std::string_view key) const {
        const Value* const member = object.find(key);
        if (member == nullptr) return nullptr;
        if (member->string() == nullptr) bad(path_, safemap::quoted(key) + " is not text");
        return member->string();
    }

    // ---- containers

    NodeId sequence(StateTree::Sequence::Kind kind, Items items) {
        const NodeId id = remember(path_, tree_.add(StateTree::Sequence{.kind = kind}));
        std::vector<NodeId> children;
        children.reserve(items.size());
        for (std::size_t i = 0; i < items.size(); ++i)
            children.push_back(below(state::item_segment(kind, i), items[i]));
        std::get<StateTree::Sequence>(tree_[id]).items = std::move(children);
        return id;
    }

    /// Reads a dictionary: {…}, or pairs; then its attributes, if it has any.
    NodeId dictionary(Items items, bool ordered) {
        const bool has_members = !items.empty() && items.front().object() != nullptr;
        const bool has_attributes = items.size() > (has_members ? 1U : 0U) && items.back().object() != nullptr;
        const Value* const last = has_attributes ? items.back().find("@attrs") : nullptr;
        if (has_attributes && (last == nullptr || last->object() == nullptr)) bad(path_, "invalid attributes");
        if (has_members && items.size() > (has_attributes ? 2U : 1U))
            bad(path_, "a dictionary is written in two forms");
        const NodeId id = has_members ? members(*items.front().object(), ordered)
                                      : pairs(has_attributes ? items.first(items.size() - 1) : items, ordered);
        if (has_attributes) {
            auto made = children("~attrs", *last->object());
            std::get<StateTree::Dict>(tree_[id]).attributes = std::move(made);
        }
        return id;
    }

    NodeId members(const Value::Object& object, bool ordered) {
        const NodeId id = remember(path_, tree_.add(StateTree::Dict{.ordered = ordered}));
        std::vector<std::pair<NodeId, NodeId>> items;
        items.reserve(object.size());
        Names keys;
        for (const json::Member& member : object) {
            if (!keys.insert(member.key).second) bad(path_, "duplicate key " + safemap::quoted(member.key));
            const NodeId key = tree_.add(member.key);
            const std::string segment = state::key_segment(tree_[key], items.size());
            items.emplace_back(key, below(segment, member.value));
        }
        std::get<StateTree::Dict>(tree_[id]).items = std::move(items);
        return id;
    }

    NodeId pairs(Items entries, bool ordered) {
        const NodeId id = remember(path_, tree_.add(StateTree::Dict{.ordered = ordered}));
        std::vector<std::pair<NodeId, NodeId>> items;
        items.reserve(entries.size());
        for (const Value& entry : entries) {
            const auto* pair = entry.array();
            if (pair == nullptr || pair->size() != 2) bad(path_, "an entry is not a pair of key and value");
            const std::size_t before = path_.size();
            state::append_segment(path_, state::ordinal_segment(items.size()));
            const NodeId key = below(state::key_segment_below, (*pair)[0]);
            path_.resize(before);
            const std::string segment = state::key_segment(tree_[key], items.size());
            items.emplace_back(key, below(segment, (*pair)[1]));
        }
        std::get<StateTree::Dict>(tree_[id]).items = std::move(items);
        return id;
    }

    /// Reads an object: a class, arguments, parts and the reason. Tensors in parts have only parts and the reason.
    NodeId opaque(StateTree::Opaque::Form form, Items items) {
        const bool object = form == StateTree::Opaque::Form::object;
        const Items arguments = object ? arguments_of(items) : Items();
        const Items parts = items.subspan(object ? 2 : 0);
        const bool formed = (parts.size() == 1 || parts.size() == 2) && parts[0].object() != nullptr &&
                            (parts.size() == 1 || parts[1].string() != nullptr);
        if (!formed) bad(path_, "an object is not written as its parts and a reason");
        const NodeId id =
            remember(path_, tree_.add(StateTree::Opaque{.type = object ? *items[0].string() : "torch.Tensor",
                                                        .why = parts.size() == 2 ? *parts[1].string() : std::string(),
                                                        .arguments = static_cast<std::uint32_t>(arguments.size()),
                                                        .form = form}));
        std::vector<std::pair<std::string, NodeId>> made;
        for (const Value& argument : arguments) {
            std::string place = std::to_string(made.size());
            const NodeId child = below(place, argument);
            made.emplace_back(std::move(place), child);
        }
        auto named = children({}, *parts[0].object());
        for (const auto& [name, part] : named)
            if (is_place(name, made.size())) bad(path_, "a part has the name of argument " + name);
        made.insert(made.end(), std::make_move_iterator(named.begin()), std::make_move_iterator(named.end()));
        std::get<StateTree::Opaque>(tree_[id]).children = std::move(made);
        return id;
    }
    /// Returns true if `name` is a place below `arguments`, the number of arguments.
    static bool is_place(const std::string& name, std::size_t arguments) {
        std::size_t place = 0;
        const auto [end, error] = std::from_chars(name.data(), name.data() + name.size(), place);
        return error == std::errc() && place < arguments && name == std::to_string(place);
    }
    /// Returns the arguments in ["o", class, ["t", …], …].
    Items arguments_of(Items items) const {
        const auto* tuple = items.size() < 2 ? nullptr : items[1].array();
        const bool formed = tuple != nullptr && !tuple->empty() && tuple->front().string() != nullptr &&
                            *tuple->front().string() == "t" && items[0].string() != nullptr;
        if (!formed) bad(path_, "an object does not begin with its class and arguments");
        return Items(*tuple).subspan(1);
    }

    std::vector<std::pair<std::string, NodeId>> children(std::string_view segment, const Value::Object& object) {
        std::vector<std::pair<std::string, NodeId>> made;
        made.reserve(object.size());
        Names names;
        const std::size_t before = path_.size();
        if (!segment.empty()) state::append_segment(path_, segment);
        for (const json::Member& member : object) {
            if (!names.insert(member.key).second) bad(path_, "duplicate part " + safemap::quoted(member.key));
            const NodeId child = member.key.empty() && is_tensor(member.value)
                                     ? itself(member.value)
                                     : below(state::child_segment(member.key), member.value);
            made.emplace_back(member.key, child);
        }
        path_.resize(before);
        return made;
    }

    bool is_tensor(const Value& value) const {
        const auto* array = value.array();
        const std::string* const tag = array == nullptr || array->empty() ? nullptr : array->front().string();
        if (tag == nullptr) return false;
        if (*tag == "@" && array->size() == 2 && (*array)[1].string() != nullptr) {
            const auto found = by_path_.find(*(*array)[1].string());
            return found != by_path_.end() && std::holds_alternative<StateTree::Tensor>(tree_[found->second]);
        }
        return *tag == "T" || *tag == "np" || *tag == "@T";
    }

    /// Reads the tensor that an object wraps. Its name is the path of the object.
    NodeId itself(const Value& value) {
        in_object_ = true;
        const NodeId id = node(value);
        in_object_ = false;
        return id;
    }
    std::string tensor_path() const { return in_object_ ? path_ + "/~itself" : path_; }

    NodeId below(std::string_view segment, const Value& value) {
        const std::size_t before = path_.size();
        const bool in_object = std::exchange(in_object_, false);
        state::append_segment(path_, segment);
        const NodeId id = node(value);
        path_.resize(before);
        in_object_ = in_object;
        return id;
    }

    // ---- references

    NodeId remember(const std::string& path, NodeId id) {
        if (targets_.empty()) return id;
        spend(path.size());
        if (targets_.count(path) != 0) by_path_.emplace(path, id);
        return id;
    }
    NodeId target(const std::string& path) const {
        const auto found = by_path_.find(path);
        if (found == by_path_.end())
            bad(path_, "it refers to " + safemap::quoted(path) + ", which does not come before it");
        return found->second;
    }

    void spend(std::size_t bytes) {
        spelled_ += bytes;
        if (spelled_ > most_spelled) bad(path_, "paths and names are too long together");
    }

    const FindTensor& find_;
    std::int64_t version_ = 1;
    StateTree tree_;
    std::string path_;
    bool in_object_ = false;
    std::unordered_set<std::string, NameHash> targets_;
    std::unordered_map<std::string, NodeId, NameHash> by_path_;
    std::size_t spelled_ = 0;
    const std::string root_name_{state::root_name};
};

}  // namespace

StateTree unflatten(std::string_view document, const FindTensor& find) {
    return Reader(find).run(json::parse(document, Errc::bad_structure, deepest_structure));
}

}  // namespace safemap::SAFEMAP_ABI::state
