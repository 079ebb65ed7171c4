// Matches the names that a model expects with the names of a checkpoint.
#include <safemap/plan.hpp>

#include "base/name_index.hpp"
#include "base/text.hpp"
#include "checkpoint/load_plan.hpp"
#include "checkpoint/prefixes.hpp"

#include <safemap/advanced/fold.hpp>
#include <safemap/advanced/names.hpp>

#include <algorithm>
#include <cstddef>
#include <set>
#include <unordered_map>
#include <utility>

namespace safemap::SAFEMAP_ABI {

namespace {

constexpr std::size_t none = SIZE_MAX;

// ---- names

LazyTensor named(const LazyTensor& tensor, std::string_view name) {
    return tensor.name() == name ? tensor : tensor.renamed(std::string(name));
}

// ---- prefixes

using Items = std::vector<checkpoint::NamedShape>;

/// Returns the results of `make` for all elements.
template <class List, class Make> auto map_each(const List& list, Make&& make) {
    std::vector<decltype(make(list.front()))> made;
    for (const auto& one : list) made.push_back(make(one));
    return made;
}

Items items_of(const std::vector<ExpectedTensor>& tensors) {
    return map_each(tensors, [](auto& tensor) { return checkpoint::NamedShape{tensor.name, &tensor.shape}; });
}

Items items_of(const std::vector<LazyTensor>& tensors) {
    return map_each(tensors, [](auto& tensor) { return checkpoint::NamedShape{tensor.name(), &tensor.shape()}; });
}

// ---- text

std::string kind_of(Dtype dtype, const Shape& shape) { return std::string(name(dtype)) + ' ' + to_string(shape); }

std::string sides(std::string_view expected, std::string_view found) {
    return std::string(expected).append(" expected, ").append(found).append(" found");
}

std::vector<Foldable> foldables(const std::vector<ExpectedTensor>& tensors) {
    return map_each(tensors, [](auto& each) { return Foldable{each.name, kind_of(each.dtype, each.shape)}; });
}

std::vector<Foldable> foldables(const std::vector<LazyTensor>& tensors) {
    return map_each(tensors, [](auto& each) { return Foldable{each.name(), kind_of(each.dtype(), each.shape())}; });
}

std::vector<Foldable> shapes_of(const std::vector<TensorMismatch>& mismatches) {
    return map_each(mismatches, [](auto& each) {
        return Foldable{each.expected.name, sides(to_string(each.expected.shape), to_string(each.found.shape()))};
    });
}

std::vector<Foldable> dtypes_of(const std::vector<TensorMismatch>& mismatches) {
    return map_each(mismatches, [](auto& each) {
        return Foldable{each.expected.name, sides(name(each.expected.dtype), name(each.found.dtype()))};
    });
}

std::string line_of(const Folded& folded) {
    std::string line = excerpt(folded.name()) + ": " + folded.kind;
    if (folded.count > 1) line += ' ' + folded.times();
    return line;
}

std::string lines(std::string_view what, const std::vector<Foldable>& names) {
    std::string text;
    for (const Folded& folded : fold(names)) text.append(what).append(" ").append(line_of(folded)).append("\n");
    return text;
}

/// Appends text such as "2 missing (h.{0..1}.bias: F32 [4] x 2)", with the first few names.
void add_fault(std::string& fault, std::string_view what, const std::vector<Foldable>& names) {
    constexpr std::size_t most = 3;
    if (names.empty()) return;
    const std::vector<Folded> folded = fold(names);
    if (!fault.empty()) fault += ", ";
    fault.append(std::to_string(names.size())).append(" ").append(what).append(" (");
    for (std::size_t i = 0; i < std::min(folded.size(), most); ++i) fault += (i > 0 ? "; " : "") + line_of(folded[i]);
    fault += folded.size() > most ? "; ...)" : ")";
}

}  // namespace

/// The names of a checkpoint, and the number of the tensor of each.
class CheckpointNames {
public:
    explicit CheckpointNames(const Checkpoint& checkpoint) : names_(all_names(checkpoint)) {
        index_.add_all(NamesOf(names_));
    }

    const std::vector<NamedTensor>& names() const noexcept { return names_; }
    /// Returns `none` if no tensor has that name.
    std::size_t tensor(std::string_view name) const {
        const auto found = index_.find(name, NamesOf(names_));
        return found ? names_[*found].tensor : none;
    }

private:
    std::vector<NamedTensor> names_;
    NameIndex index_;
};

class LoadPlanner {
public:
    LoadPlanner(const Checkpoint& checkpoint, std::span<const ExpectedTensor> expected, const LoadOptions& options)
        : checkpoint_(checkpoint),
          expected_(expected),
          options_(options),
          held_(checkpoint),
          roots_(checkpoint::checked_roots(expected)),
          used_(checkpoint.size(), false) {
        plan_.fill_ = options.fill;
        plan_.ignore_unexpected_ = options.ignore_unexpected;
        match();
    }

    LoadPlan plan() {
        for (std::uint32_t i = 0; i < expected_.size(); ++i)
            if (selected(expected_[i].name)) add(i);
        for (const NamedTensor& each : held_.names())
            if (!used_[each.tensor] && selected(each.name))
                plan_.unexpected.push_back(named(checkpoint_.tensor(each.tensor), each.name));
        add_ties();
        note_untied();
        note_skipped();
        note_prefixes();
        return std::move(plan_);
    }

private:
    bool selected(std::string_view name) const { return options_.selection.matches(name); }

    /// Chooses the tensor that each expected tensor gets. A root without a tensor of its own gets the tensor of its
    /// first alias, and an alias without one gets the tensor of its root.
    void match() {
        own_.reserve(expected_.size());
        for (const ExpectedTensor& tensor : expected_) own_.push_back(held_.tensor(tensor.name));
        given_ = own_;
        for (std::size_t i = 0; i < given_.size(); ++i)
            if (given_[roots_[i]] == none) given_[roots_[i]] = own_[i];
        for (std::size_t i = 0; i < given_.size(); ++i)
            if (given_[i] == none) given_[i] = given_[roots_[i]];
        for (const std::size_t tensor : given_)
            if (tensor != none) used_[tensor] = true;
    }

    void add(std::uint32_t i) {
        const ExpectedTensor& expected = expected_[i];
        if (given_[i] == none) return add_missing(i);
        const LazyTensor found = named(checkpoint_.tensor(given_[i]), expected.name);
        if (found.shape() != expected.shape) plan_.shape.push_back({expected, found});
        if (found.dtype() != expected.dtype) plan_.dtype.push_back({expected, found});
        plan_.tensors_.push_back(found);
    }

    void add_missing(std::uint32_t i) {
        const ExpectedTensor& expected = expected_[i];
        plan_.missing.push_back(expected);
        if (options_.fill == Fill::none) return;
        if (can_fill(expected)) return plan_.tensors_.push_back(filling(i));
        plan_.unfilled_.push_back(expected);
    }

    bool can_fill(const ExpectedTensor& tensor) const {
        if (options_.fill == Fill::nan) return checkpoint::nan_bits(tensor.dtype).has_value();
        return options_.fill == Fill::zeros;
    }

    /// Returns a filling for a missing tensor. Tied tensors share one.
    LazyTensor filling(std::uint32_t i) {
        const auto& [name, dtype, shape, alias_of] = expected_[i];
        const auto known = fillings_.find(roots_[i]);
        if (known != fillings_.end() && known->second.dtype() == dtype && known->second.shape() == shape)
            return known->second.renamed(name);
        const auto make = options_.fill == Fill::nan ? checkpoint::nans : checkpoint::zeros;
        LazyTensor made = make(name, dtype, shape);
        fillings_.emplace(roots_[i], made);
        return made;
    }

    void add_ties() {
        std::unordered_map<std::size_t, AliasGroup> of_the_model;
        for (std::size_t i = 0; i < expected_.size(); ++i)
            if (own_[i] == none && given_[i] != none) of_the_model[given_[i]].push_back(expected_[i].name);

        const std::vector<NamedTensor>& names = held_.names();
        for (std::size_t i = 0; i < names.size();) {
            const std::size_t tensor = names[i].tensor;
            AliasGroup group;
            for (; i < names.size() && names[i].tensor == tensor; ++i) group.emplace_back(names[i].name);
            if (const auto more = of_the_model.find(tensor); more != of_the_model.end())
                group.insert(group.end(), more->second.begin(), more->second.end());
            const bool asked_for = std::any_of(group.begin(), group.end(), [&](auto& name) { return selected(name); });
            if (group.size() > 1 && used_[tensor] && asked_for) plan_.tied.push_back(std::move(group));
        }
    }

    void note_untied() {
        for (std::size_t i = 0; i < expected_.size(); ++i) {
            const ExpectedTensor& alias = expected_[i];
            if (own_[i] == none || own_[i] == given_[roots_[i]] || !selected(alias.name)) continue;
            plan_.notes.push_back(safemap::quoted(alias.name) + " is tied to " + safemap::quoted(alias.alias_of) +
                                  " in the model but stored separately: each is loaded from its own data");
        }
    }

    /// Adds notes on objects of a `.pt` that have a missing name and could not be kept as a tensor.
    void note_skipped() {
        std::set<std::string_view> missing;
        for (const ExpectedTensor& tensor : plan_.missing) missing.insert(tensor.name);
        for (const SkippedObject& object : checkpoint_.skipped())
            if (missing.contains(object.name))
                plan_.notes.push_back(safemap::quoted(object.name) + " exists, but cannot be loaded: " + object.why);
    }

    void note_prefixes() {
        const Items missing = items_of(plan_.missing);
        const Items unexpected = items_of(plan_.unexpected);
        plan_.checkpoint_prefix = checkpoint::certain_prefix(missing, unexpected);
        plan_.model_prefix = checkpoint::certain_prefix(unexpected, missing);
        checkpoint::note_prefix(plan_.checkpoint_prefix, "the checkpoint", "the model", plan_.notes);
        checkpoint::note_prefix(plan_.model_prefix, "the model", "the checkpoint", plan_.notes);
    }

    const Checkpoint& checkpoint_;
    std::span<const ExpectedTensor> expected_;
    const LoadOptions& options_;
    CheckpointNames held_;
    std::vector<std::uint32_t> roots_;
    // By expected tensor: the number of the tensor with its name, and of the tensor that it gets.
    std::vector<std::size_t> own_;
    std::vector<std::size_t> given_;
    std::vector<bool> used_;                                  // by tensor number
    std::unordered_map<std::uint32_t, LazyTensor> fillings_;  // by number of the root
    LoadPlan plan_;
};

void LoadPlan::require() const {
    if (ok()) return;
    std::string fault;
    add_fault(fault, fill_ == Fill::nan ? "missing, of dtypes without NaN" : "missing", foldables(unfilled_));
    if (!ignore_unexpected_) add_fault(fault, "unexpected", foldables(unexpected));
    add_fault(fault, "with a different shape", shapes_of(shape));
    add_fault(fault, "with a different dtype", dtypes_of(dtype));
    Error error(Errc::model_mismatch, "the checkpoint is not what the model expects: " + fault);
    if (!checkpoint_prefix.empty() || !model_prefix.empty()) error.with_hint(notes.back());
    throw error;
}

std::vector<LazyTensor> LoadPlan::tensors() const {
    require();
    return tensors_;
}

std::string LoadPlan::text() const {
    std::string text = lines("missing", foldables(missing)) + lines("unexpected", foldables(unexpected)) +
                       lines("shape", shapes_of(shape)) + lines("dtype", dtypes_of(dtype));
    for (const AliasGroup& group : tied) {
        text += "tied";
        for (const std::string& name : group) text += (&name == &group.front() ? " " : " = ") + excerpt(name);
        text += '\n';
    }
    for (const std::string& note : notes) text += "note " + note + '\n';
    return text;
}

LoadPlan plan_load(const Checkpoint& checkpoint, std::span<const ExpectedTensor> expected, const LoadOptions& options) {
    return LoadPlanner(checkpoint, expected, options).plan();
}

LoadPlan plan_load(const Checkpoint& checkpoint, const std::filesystem::path& expected, const LoadOptions& options) {
    return plan_load(checkpoint, read_expected(expected), options);
}

}  // namespace safemap::SAFEMAP_ABI
