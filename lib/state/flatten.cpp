// Turns a tree into names and tensors: one walk, in order, without recursion. tests/reference/slow_flatten.hpp is the
// slow version that tests compare with. The parts of Flattener, from the top:
//
//   the walk        a frame for each open container; the path grows and shrinks with it (state/walk.hpp)
//   containers      next_child() and below: how each kind spells the names of its children; modules use torch's names
//   tensors         visit_tensor(): each gets a name, or becomes an alias of the tensor that it is tied to
//   skipped         skip() and below: everything that is not a tensor is listed
//   names           free_name(), take_name(): unique beside modules and given names, and limited in their total length
//   finish          the notes
//
// A flat state dict skips the walk (take_verbatim).
#include <safemap/advanced/flatten.hpp>

#include "base/name_index.hpp"
#include "base/text.hpp"
#include "lazy/same_tensor.hpp"
#include "state/modules.hpp"
#include "state/names.hpp"
#include "state/structure.hpp"
#include "state/walk.hpp"

#include <algorithm>
#include <limits>
#include <map>
#include <memory>
#include <optional>
#include <string_view>
#include <unordered_map>
#include <unordered_set>

namespace safemap::SAFEMAP_ABI {

namespace {

using NodeId = StateTree::NodeId;
constexpr std::uint32_t none = std::numeric_limits<std::uint32_t>::max();

/// Limit of all names together. Without it, lists nested n deep with a tensor on each level would take n² bytes of
/// names.
using state::max_name_bytes;
/// Limit of all segments that the walk spells: one long key object may be in millions of dictionaries.
constexpr std::size_t max_segment_bytes = 4 * max_name_bytes;
/// Longest path, in bytes, that is only an example.
constexpr std::size_t example_bytes = 200;

/// Limit of all repeated walks of modules together: n modules that hold each other twice have 2^n names.
constexpr std::size_t most_walks_again = 10'000;

constexpr const char* kept_by_structure = "; only a structure document keeps this (convert --structure keep)";
constexpr std::string_view whole_module = "a whole module: its parameters and persistent buffers are kept";
constexpr std::string_view not_persistent =
    "a buffer that is not persistent: it is not in the state dict of its module";
constexpr std::string_view only_attribute = "an attribute of a module: it is not in its state dict";

/// A count of paths, and the first of them as an example.
struct Tally {
    std::size_t count = 0;
    std::string example = {};

    void add(const std::string& path) {
        if (count++ == 0) example = path.empty() ? std::string(state::root_name) : path.substr(0, example_bytes);
    }
};

/// The walk over one tree.
class Flattener {
public:
    /// If `given` is not null, the walk takes its names in place of the paths of these nodes.
    explicit Flattener(const StateTree& tree, const state::NodeNames* given = nullptr)
        : tree_(tree), given_(given), seen_(tree.size()) {
        for (NodeId id = 0; id < tree.size(); ++id) {
            seen_[id].module = state::is_module(tree, tree[id]);
            has_modules_ = has_modules_ || seen_[id].module;
        }
    }

    bool has_modules() const noexcept { return has_modules_; }

    /// Returns the stored name of each tensor that has one, by node.
    std::unordered_map<NodeId, std::string> names_by_node() {
        give_names();
        std::unordered_map<NodeId, std::string> names;
        for (NodeId id = 0; id < tree_.size(); ++id)
            if (seen_[id].tensor != none) names.emplace(id, out_.tensors[seen_[id].tensor].name());
        return names;
    }

    /// Returns the name of each tensor that has one, by node: of a tied tensor its own, not the stored one.
    state::NodeNames own_names() { return std::move(own_names_); }

    FlatState run() {
        give_names();
        if (tree_.size() > 0) finish();
        return std::move(out_);
    }

private:
    /// The part of a container to walk: everything or, for a module, either its state dict or the rest.
    enum class Part : std::uint8_t { all, state, rest };
    /// A container that is being walked.
    struct Frame {
        NodeId node;
        std::size_t next = 0;        ///< next child to visit
        std::size_t tensors_before;  ///< number of tensors met before the walk entered
        Part part = Part::all;
        char separator = '/';                              ///< between a module's path and a dotted name
        std::unique_ptr<const state::Module> module = {};  ///< null for Part::all
        std::unique_ptr<const std::string> around = {};    ///< path of the container around a node with a given name
    };
    /// A module whose attributes are still to be walked.
    struct Rest {
        NodeId node;
        std::string path;
        char separator;
    };
    /// The state of the walk for a node, which may occur again.
    struct Seen {
        std::uint32_t tensor = none;  ///< number of the tensor
        bool entered = false;         ///< for a container: the walk has entered it
        bool holds_tensors = false;
        bool repeated = false;
        bool module = false;
        bool open = false;    ///< for a module: the walk is in its state
        bool listed = false;  ///< for a tensor without a name: it is listed as skipped
    };

    void give_names() {
        if (tree_.size() == 0) return;
        if (given_ != nullptr)
            for (const auto& [id, name] : *given_) taken_.insert(name);
        if (state::is_flat(tree_)) take_verbatim();
        else walk();
    }

    void take_verbatim() {
        out_.verbatim = given_ == nullptr;
        const auto& dict = std::get<StateTree::Dict>(tree_[tree_.root()]);
        note_attributes(dict);
        out_.tensors.reserve(dict.items.size());
        for (const auto& [key, value] : dict.items) {
            path_ = std::get<std::string>(tree_[key]);
            visit(value);
        }
    }

    /// Walks the tree. Attributes of modules come last, after all names are given: a tensor among them may already have
    /// a name.
    void walk() {
        visit(tree_.root());
        walk_frames();
        for (std::size_t i = 0; i < rest_.size(); ++i) {
            path_ = rest_[i].path;
            push(rest_[i].node, Part::rest, rest_[i].separator);
            walk_frames();
        }
    }

    void walk_frames() {
        walk_.run([this](Frame& frame) { return next_child(frame); }, [this](NodeId child) { visit(child); },
                  [this](const Frame& frame) { leave(frame); });
    }

    void visit(NodeId id) {
        const auto given = given_ == nullptr ? state::NodeNames::const_iterator() : given_->find(id);
        if (given_ == nullptr || given == given_->end() || !named_.insert(id).second) return visit_at_path(id);
        auto around = std::make_unique<const std::string>(std::exchange(path_, given->second));
        has_given_name_ = true;
        const std::size_t depth = walk_.depth();
        visit_at_path(id);
        has_given_name_ = false;
        if (walk_.depth() > depth) walk_.inner().around = std::move(around);
        else path_ = *around;
    }

    void visit_at_path(NodeId id) {
        const StateTree::Node& node = tree_[id];
        if (const auto* tensor = std::get_if<StateTree::Tensor>(&node)) return visit_tensor(id, *tensor);
        if (seen_[id].module && unsaved_.empty()) return enter_module(id, std::get<StateTree::Opaque>(node));
        if (is_container(node)) return enter(id, node);
        plain_.add(path_);
    }

    static bool is_container(const StateTree::Node& node) {
        return std::holds_alternative<StateTree::Sequence>(node) || std::holds_alternative<StateTree::Dict>(node) ||
               std::holds_alternative<StateTree::Opaque>(node);
    }

    static bool is_tensor(const StateTree::Opaque& opaque) {
        return opaque.form != StateTree::Opaque::Form::object || opaque.type == "torch.Tensor";
    }

    void enter(NodeId id, const StateTree::Node& node) {
        Seen& seen = seen_[id];
        if (seen.entered) {
            if (!unsaved_.empty()) return;
            if (!seen.repeated) repeats_.emplace_back(id, path_.substr(0, example_bytes));
            seen.repeated = true;
            // Each name of a tensor that is not stored is reported: a user may look for any of them.
            if (const auto* opaque = std::get_if<StateTree::Opaque>(&node); opaque != nullptr && is_tensor(*opaque))
                skip(*opaque);
            return;
        }
        seen.entered = true;
        if (!within_budget()) return leave_out("a container");
        if (const auto* dict = std::get_if<StateTree::Dict>(&node)) note_attributes(*dict);
        if (const auto* opaque = std::get_if<StateTree::Opaque>(&node)) skip(*opaque);
        walk_.enter({.node = id, .tensors_before = tensors_met_});
    }

    /// Enters a module. A module that occurs again is walked again, as state_dict() does: its tensors get several
    /// names.
    void enter_module(NodeId id, const StateTree::Opaque& opaque) {
        Seen& seen = seen_[id];
        if (seen.open || (seen.entered && !seen.holds_tensors)) return;
        if (seen.entered && ++walked_again_ > most_walks_again) {
            repeats_.emplace_back(id, path_.substr(0, example_bytes));
            return;
        }
        if (!take_name()) return leave_out(opaque.type);
        const bool nested = walk_.depth() > 0 && walk_.inner().part == Part::state;
        const char separator = nested ? '.' : '/';
        if (!seen.entered) {
            if (!nested) list(opaque.type, whole_module);
            rest_.push_back({.node = id, .path = path_, .separator = separator});
        }
        seen.entered = seen.open = true;
        push(id, Part::state, separator);
        segment_bytes_ += walk_.inner().module->state.size() * sizeof(state::Module::Entry);
    }

    void push(NodeId id, Part part, char separator) {
        walk_.enter({.node = id,
                     .tensors_before = tensors_met_,
                     .part = part,
                     .separator = separator,
                     .module = std::make_unique<const state::Module>(
                         state::module_of(tree_, std::get<StateTree::Opaque>(tree_[id])))});
    }

    void leave(const Frame& frame) {
        if (frame.part != Part::rest) seen_[frame.node].holds_tensors = tensors_met_ > frame.tensors_before;
        seen_[frame.node].open = false;
        if (frame.around) path_ = *frame.around;
    }

    /// Returns the next child of a container, and appends its segment to the path.
    std::optional<NodeId> next_child(Frame& frame) {
        const StateTree::Node& node = tree_[frame.node];
        const std::size_t i = frame.next++;
        if (frame.part == Part::state) return state_entry(frame, frame.module->state, i);
        if (frame.part == Part::rest) return rest(frame, std::get<StateTree::Opaque>(node), i);
        if (const auto* sequence = std::get_if<StateTree::Sequence>(&node)) return item(*sequence, i);
        if (const auto* dict = std::get_if<StateTree::Dict>(&node)) return entry(frame, *dict, i);
        return part(std::get<StateTree::Opaque>(node), i);
    }

    std::optional<NodeId> item(const StateTree::Sequence& sequence, std::size_t i) {
        if (i >= sequence.items.size()) return std::nullopt;
        descend(state::item_segment(sequence.kind, i));
        return sequence.items[i];
    }

    /// Returns a key or a value. Each entry is visited twice: its key, if it may hold tensors, and its value.
    std::optional<NodeId> entry(Frame& frame, const StateTree::Dict& dict, std::size_t i) {
        const std::size_t place = i / 2;
        if (place >= dict.items.size()) return std::nullopt;
        const auto& [key, value] = dict.items[place];
        const bool value_turn = i % 2 == 1;
        if (value_turn) {
            descend(state::key_segment(tree_[key], place));
            return value;
        }
        const bool walkable = is_container(tree_[key]) || std::holds_alternative<StateTree::Tensor>(tree_[key]);
        if (!walkable) return entry(frame, dict, frame.next++);
        descend(state::ordinal_segment(place));
        descend(state::key_segment_below);
        return key;
    }

    /// Returns a part of an object. A tensor without a name is the one that the object wraps: it gets the object's own
    /// path.
    std::optional<NodeId> part(const StateTree::Opaque& opaque, std::size_t i) {
        if (i >= opaque.children.size()) return std::nullopt;
        const auto& [name, child] = opaque.children[i];
        const bool itself = name.empty() && std::holds_alternative<StateTree::Tensor>(tree_[child]);
        if (!itself) descend(state::child_segment(name));
        return child;
    }

    std::optional<NodeId> state_entry(const Frame& module, const std::vector<state::Module::Entry>& entries,
                                      std::size_t i) {
        if (i >= entries.size()) return std::nullopt;
        descend(module, state::module_segment(tree_[entries[i].key], entries[i].place));
        return entries[i].value;
    }

    /// Returns a child that is not in the module's state: first buffers that are not persistent, then attributes.
    std::optional<NodeId> rest(Frame& module, const StateTree::Opaque& opaque, std::size_t i) {
        const auto& buffers = module.module->not_persistent;
        unsaved_ = i < buffers.size() ? not_persistent : only_attribute;
        if (i < buffers.size()) return state_entry(module, buffers, i);
        std::size_t place = i - buffers.size();
        while (place < opaque.children.size() && state::is_module_part(opaque.children[place].first)) ++place;
        module.next = place + buffers.size() + 1;
        if (place >= opaque.children.size()) {
            unsaved_ = {};
            return std::nullopt;
        }
        descend(module, state::child_segment(opaque.children[place].first));
        return opaque.children[place].second;
    }

    void descend(std::string_view segment) {
        segment_bytes_ += segment.size();
        state::append_segment(path_, segment);
    }
    void descend(const Frame& module, std::string_view segment) {
        segment_bytes_ += segment.size();
        if (!path_.empty()) path_ += module.separator;
        path_ += segment;
    }

    void visit_tensor(NodeId id, const StateTree::Tensor& node) {
        const LazyTensor& tensor = node.tensor;
        if (!unsaved_.empty()) return visit_unsaved(seen_[id], node);
        ++tensors_met_;
        if (node.attributes != StateTree::no_node) own_attributes_.add(path_);
        if (node.parameter || node.requires_grad) parameters_.add(path_);
        if (!take_name()) return leave_out("torch.Tensor");
        std::uint32_t& number = seen_[id].tensor;
        const bool shared = number == none && may_be_tied(tensor);
        if (shared) number = tied_to(tensor);
        if (number != none) return add_alias(id, number);
        number = static_cast<std::uint32_t>(out_.tensors.size());
        out_.tensors.push_back(tensor.renamed(free_name()));
        note_name(id, out_.tensors.back().name());
        if (shared) ties_.emplace(&tensor, number);
    }

    /// Visits a tensor among the attributes of a module. If it has no name elsewhere, it is listed as skipped.
    void visit_unsaved(Seen& seen, const StateTree::Tensor& node) {
        if (seen.tensor == none && may_be_tied(node.tensor)) seen.tensor = tied_to(node.tensor);
        if (seen.tensor != none || std::exchange(seen.listed, true)) return;
        const std::string_view type = node.numpy ? "numpy.ndarray" : "torch.Tensor";
        if (take_name()) list(type, unsaved_);
        else leave_out(type);
    }

    void add_alias(NodeId id, std::uint32_t number) {
        AliasGroup& group = aliases_[number];
        if (group.empty()) group.push_back(out_.tensors[number].name());
        group.push_back(free_name());
        note_name(id, group.back());
    }

    void note_name(NodeId id, const std::string& name) {
        if (given_ != nullptr) own_names_.try_emplace(id, name);
    }

    /// Returns the number of the tensor that a new tensor object is tied to, or `none`.
    std::uint32_t tied_to(const LazyTensor& tensor) const {
        const auto found = ties_.find(&tensor);
        return found == ties_.end() ? none : found->second;
    }

    void skip(const StateTree::Opaque& opaque) {
        if (!take_name()) return leave_out(opaque.type);
        list(opaque.type, unsaved_.empty() ? opaque.why : unsaved_);
        const bool has_numbers = !opaque.children.empty() && opaque.children.front().first.empty();
        out_.skipped.back().quantized = opaque.form == StateTree::Opaque::Form::quantized && has_numbers;
    }
    void list(std::string_view type, std::string_view why) {
        out_.skipped.push_back({.name = name(), .type = std::string(type), .why = std::string(why)});
    }

    /// Counts an object that gets no name. The first ones are listed, with the beginning of the names that they would
    /// have.
    void leave_out(std::string_view type) {
        constexpr std::size_t most_listed = 1000;
        unnamed_.add({});
        if (unnamed_.count > most_listed) return;
        out_.skipped.push_back({.name = excerpt(path_.substr(0, example_bytes)) + "...",
                                .type = std::string(type),
                                .why = "all names together are too long for a safetensors header"});
    }

    void note_attributes(const StateTree::Dict& dict) {
        if (!dict.attributes.empty()) attributes_.add(path_);
    }

    std::string name() const {
        return path_.empty() && !out_.verbatim && !has_given_name_ ? std::string(state::root_name) : path_;
    }

    /// Returns a name that is not taken. Keys of modules may have dots and slashes, so two dotted names can be the
    /// same, and so can a given name and a path.
    std::string free_name() {
        std::string own = name();
        if ((!has_modules_ && given_ == nullptr) || has_given_name_) return own;
        std::string free = own;
        while (!taken_.insert(free).second) free = own + "~" + std::to_string(++repeated_names_);
        return free;
    }

    bool within_budget() const {
        return path_.size() <= max_name_bytes - name_bytes_ && segment_bytes_ <= max_segment_bytes;
    }
    bool take_name() {
        if (!within_budget()) return false;
        name_bytes_ += path_.size();
        return true;
    }

    void finish() {
        for (auto& [number, group] : aliases_) out_.aliases.push_back(std::move(group));
        note_repeats();
        note_opaque();
        note_lost(plain_, "value is not a tensor", "values are not tensors");
        note_lost(attributes_, "dictionary has attributes (such as _metadata)",
                  "dictionaries have attributes (such as _metadata)");
        note_lost(own_attributes_, "tensor has attributes of their own", "tensors have attributes of their own");
        note_lost(parameters_, "tensor is a Parameter or requires a gradient",
                  "tensors are Parameters or require gradients");
        if (unnamed_.count > 0) {
            note(counted(unnamed_.count, "object has", "objects have") + " no name and " +
                 (unnamed_.count == 1 ? "is" : "are") + " left out: all names together are longer than " +
                 std::to_string(max_name_bytes) + " bytes, which no safetensors header can hold");
        }
    }

    void note_lost(const Tally& tally, std::string_view one, std::string_view many) {
        if (tally.count > 0)
            lost_without_structure(counted(tally.count, one, many) + ", for example " + tally.example +
                                   kept_by_structure);
    }

    void note_repeats() {
        Tally tally;
        for (const auto& [id, path] : repeats_) {
            if (seen_[id].holds_tensors) tally.add(path);
        }
        if (tally.count == 0) return;
        lost_without_structure(counted(tally.count, "container with tensors occurs", "containers with tensors occur") +
                               " more than once, for example again at " + tally.example +
                               "; the tensors are named after the first place only");
    }

    /// Notes the objects and tensors that the walk did not reach: it visits no attributes, and no values that were
    /// replaced by another value of the same key.
    void note_opaque() {
        if (unnamed_.count > 0) return;
        Tally tally;
        std::size_t tensors = 0;
        for (NodeId id = 0; id < tree_.size(); ++id) {
            const auto* opaque = std::get_if<StateTree::Opaque>(&tree_[id]);
            if (opaque != nullptr && !seen_[id].entered) tally.add(opaque->type);
            if (std::holds_alternative<StateTree::Tensor>(tree_[id]) && seen_[id].tensor == none && !seen_[id].listed)
                ++tensors;
        }
        if (tensors > 0)
            note(counted(tensors, "tensor") +
                 " in attributes, or replaced by another value, without a name: not stored");
        if (tally.count == 0) return;
        note(counted(tally.count, "object") + " of unknown classes, for example " + excerpt(tally.example) +
             ", in attributes of dictionaries or replaced there: not listed one by one");
    }

    void lost_without_structure(std::string text) { out_.lost_without_structure.push_back(std::move(text)); }
    void note(std::string text) { out_.notes.push_back(std::move(text)); }

    const StateTree& tree_;
    const state::NodeNames* given_;
    FlatState out_;
    std::string path_;
    state::Walk<Frame> walk_{path_};
    std::vector<Seen> seen_;
    bool has_modules_ = false;
    std::vector<Rest> rest_;
    std::string_view unsaved_ = {};                    ///< in attributes of modules: the reason why nothing is kept
    std::unordered_set<std::string, NameHash> taken_;  ///< names in use; only if there are modules or given names
    std::unordered_set<NodeId> named_;                 ///< nodes that have got their given name
    bool has_given_name_ = false;                      ///< true while such a node is visited, not those below it
    state::NodeNames own_names_;                       ///< only if names are given
    std::size_t repeated_names_ = 0;
    std::size_t walked_again_ = 0;  ///< number of modules that were walked again
    TensorTable<std::uint32_t> ties_;
    std::map<std::uint32_t, AliasGroup> aliases_;  ///< by tensor; only for tensors with several names
    std::vector<std::pair<NodeId, std::string>> repeats_;
    std::size_t tensors_met_ = 0;
    std::size_t name_bytes_ = 0;
    std::size_t segment_bytes_ = 0;
    Tally plain_;
    Tally attributes_;
    Tally own_attributes_;  ///< attributes of tensors
    Tally parameters_;
    Tally unnamed_;
};

}  // namespace

bool state::is_flat(const StateTree& tree) { return tree.size() > 0 && is_flat(tree, tree.root()); }

bool state::is_flat(const StateTree& tree, NodeId part) {
    const auto* dict = std::get_if<StateTree::Dict>(&tree[part]);
    return dict != nullptr && std::all_of(dict->items.begin(), dict->items.end(), [&](const auto& item) {
               const auto* text = std::get_if<std::string>(&tree[item.first]);
               const auto* tensor = std::get_if<StateTree::Tensor>(&tree[item.second]);
               return text != nullptr && state::verbatim_name(*text) && tensor != nullptr && !tensor->numpy;
           });
}

FlatState flatten(const StateTree& tree) { return Flattener(tree).run(); }

FlatState state::flatten_named(StateTree& tree, const NodeNames& given) {
    Flattener flattener(tree, &given);
    FlatState flat = flattener.run();
    for (auto& [id, name] : flattener.own_names())
        if (auto* const tensor = std::get_if<StateTree::Tensor>(&tree[id]))
            tensor->tensor = tensor->tensor.renamed(std::move(name));
    return flat;
}

bool state::has_keys_as_names(const StateTree& tree) {
    if (!is_flat(tree)) return false;
    const auto& items = std::get<StateTree::Dict>(tree[tree.root()]).items;
    return std::all_of(items.begin(), items.end(), [&](const auto& item) {
        const std::string& own = std::get<StateTree::Tensor>(tree[item.second]).tensor.name();
        return own.empty() || own == std::get<std::string>(tree[item.first]);
    });
}

std::unordered_map<StateTree::NodeId, std::string> state::names_beside_modules(const StateTree& tree) {
    Flattener flattener(tree);
    if (!flattener.has_modules()) return {};
    return flattener.names_by_node();
}

std::unordered_map<StateTree::NodeId, std::string> state::paths_of_tensors(const StateTree& tree) {
    return Flattener(tree).names_by_node();
}

std::unordered_map<StateTree::NodeId, std::string> state::names_of_tensors(const StateTree& tree) {
    auto names = paths_of_tensors(tree);
    for (NodeId id = 0; id < tree.size(); ++id)
        if (const auto* tensor = std::get_if<StateTree::Tensor>(&tree[id]); tensor && !tensor->tensor.name().empty())
            names[id] = tensor->tensor.name();
    return names;
}

}  // namespace safemap::SAFEMAP_ABI
