// Parses the pickles of single tensors, and remembers them. Tested by tests/torch/one_tensor_test.cpp.
#include "torch/one_tensor.hpp"

#include "base/text.hpp"
#include "lazy/stored_tensor.hpp"
#include "torch/rebuild.hpp"

#include <safemap/advanced/stored_tensor.hpp>

#include <algorithm>
#include <span>
#include <utility>
#include <variant>

namespace safemap::SAFEMAP_ABI::torch {

namespace {

/// Longest pickle that is remembered, and most bytes of them all: real ones have 200 bytes.
constexpr std::size_t longest_remembered = 16U << 10;
constexpr std::size_t most_remembered = 16U << 20;

/// Returns what a value is, for messages.
std::string described(const StateTree::Node& node) {
    if (const auto* const opaque = std::get_if<StateTree::Opaque>(&node))
        return opaque->why.empty() ? opaque->type : excerpt(opaque->type) + " (" + excerpt(opaque->why) + ')';
    if (const auto* const sequence = std::get_if<StateTree::Sequence>(&node)) {
        using SequenceKind = StateTree::Sequence::Kind;
        return sequence->kind == SequenceKind::list    ? "a list"
               : sequence->kind == SequenceKind::tuple ? "a tuple"
                                                       : "a set";
    }
    if (std::holds_alternative<StateTree::Dict>(node)) return "a dictionary";
    if (std::holds_alternative<std::string>(node)) return "a text";
    if (std::holds_alternative<StateTree::None>(node)) return "None";
    if (std::holds_alternative<StateTree::Constant>(node)) return "a class or constant";
    return "a number or bytes";
}

/// Returns the tensor that is the value of an archive. A tensor of a subclass, or with attributes, is the plain tensor
/// in it.
const LazyTensor& tensor_of(const StateTree& tree) {
    const StateTree::Node& root = tree[tree.root()];
    if (const auto* const tensor = std::get_if<StateTree::Tensor>(&root)) return tensor->tensor;
    if (const auto* const opaque = std::get_if<StateTree::Opaque>(&root);
        opaque != nullptr && opaque->form == StateTree::Opaque::Form::object && !opaque->children.empty() &&
        opaque->children.front().first.empty())
        if (const auto* const tensor = std::get_if<StateTree::Tensor>(&tree[opaque->children.front().second]))
            return tensor->tensor;
    throw Error(Errc::piece_mismatch, "expected a tensor; the file has " + described(root));
}

}  // namespace

/// The contents of the pickle of an archive.
struct TensorForms::Parsed {
    TensorForm form = {};
    RecordData data = {};     ///< the storage
    std::string key = {};     ///< key of the storage
    std::uint64_t bytes = 0;  ///< size of the storage
    bool reusable = false;    ///< false if the tensor is not in a storage of its own
    NamedGlobals globals;
};

LazyTensor TensorForm::at(std::shared_ptr<const Source> source, std::uint64_t offset) const {
    auto stored = source ? stored_run(dtype, stored_shape, std::move(source), offset)
                         : stored_runs(dtype, stored_shape, std::span<const RunPiece>());
    if (view) return {{}, std::move(stored), *view, decoding};
    return {{}, std::move(stored), decoding};
}

TensorForms::Parsed TensorForms::parse(ArchiveRecords& records, const ZipRecord& record, std::string_view pickle,
                                       bool big_endian) const {
    const PickleGraph graph = read_pickle(pickle, PickleLimits::of_packed(record.packed.size));
    Parsed out{.globals = NamedGlobals(strict_)};
    std::size_t storages = 0;
    const Storages found{.find =
                             [&](std::string_view key) {
                                 ++storages;
                                 out.key = key;
                                 return out.data = records.storage("data/", key);
                             },
                         .big_endian = big_endian,
                         .globals = &out.globals,
                         .record = record.name,
                         .refuses_code = true};
    ThrowFirst faults;
    const Rebuilt rebuilt = rebuild(graph, found, faults);
    const LazyTensor& tensor = tensor_of(rebuilt.tree);
    const StoredTensor& stored = *tensor.stored();
    out.form = {.dtype = tensor.dtype(),
                .shape = tensor.shape(),
                .stored_shape = stored.shape(),
                .decoding = tensor.decoding()};
    StridedView view = tensor.strided_view();
    const bool whole = view.offset == 0 && view.shape == stored.shape() && view.strides == row_major(view.shape);
    if (!whole) out.form.view = std::move(view);
    if (stored.element_count() > 0) {
        const StoredTensor::Place place = stored.locate(0);
        const std::shared_ptr<const Source>& source = stored.shared_source(place.source);
        out.reusable = storages == 1 && out.data.source == source && out.data.extent.offset == place.offset;
        out.data = {source, {place.offset, 0}};
    } else {
        out.reusable = storages == 1;
    }
    out.bytes = byte_size(stored.dtype(), stored.element_count()).value_or(0);
    return out;
}

std::optional<std::uint32_t> TensorForms::known(const std::string& pickle, std::uint64_t order) {
    const std::lock_guard lock(mutex_);
    const auto found = by_pickle_.find(pickle);
    if (found == by_pickle_.end()) return std::nullopt;
    Globals& globals = globals_[forms_[found->second].globals];
    globals.first = std::min(globals.first, order);
    return found->second;
}

std::uint32_t TensorForms::number_of(NamedGlobals globals, std::uint64_t order) {
    std::string names;
    for (const NamedGlobal& named : globals.all())
        names.append(named.module).append(1, '\0').append(named.name).append(named.called ? "()" : "\n");
    const auto [set, unmet] = sets_.try_emplace(std::move(names), static_cast<std::uint32_t>(globals_.size()));
    if (unmet) globals_.push_back({std::move(globals), order});
    Globals& held = globals_[set->second];
    held.first = std::min(held.first, order);
    return set->second;
}

PlacedTensor TensorForms::read(ArchiveRecords& records, std::uint64_t order) {
    ThrowFirst faults;
    const ZipRecord& record = *records.pickle(faults);
    ArchiveRecords::require_pickle(record);
    const std::vector<char> bytes = records.bytes(record);
    const bool big_endian = records.big_endian();
    std::string pickle(bytes.data(), bytes.size());
    pickle += big_endian ? 'B' : 'L';
    const bool short_enough = pickle.size() <= longest_remembered;
    if (const auto number = short_enough ? known(pickle, order) : std::nullopt) {
        const Form* form = nullptr;
        {
            const std::lock_guard lock(mutex_);
            form = &forms_[*number];  // does not move, and does not change
        }
        RecordData data = records.storage("data/", form->key);
        if (data.extent.size >= form->bytes) return {*number, std::move(data.source), data.extent.offset};
        // parse() finds the fault again, and says what it is.
    }
    Parsed parsed = parse(records, record, std::string_view(bytes.data(), bytes.size()), big_endian);
    const std::lock_guard lock(mutex_);
    const auto number = static_cast<std::uint32_t>(forms_.size());
    forms_.push_back(
        {std::move(parsed.form), parsed.bytes, std::move(parsed.key), number_of(std::move(parsed.globals), order)});
    if (parsed.reusable && short_enough && remembered_ + pickle.size() <= most_remembered) {
        remembered_ += pickle.size();
        by_pickle_.try_emplace(std::move(pickle), number);
    }
    return {number, std::move(parsed.data.source), parsed.data.extent.offset};
}

void TensorForms::each_globals(const std::function<void(std::uint64_t, const NamedGlobals&)>& visit) const {
    for (const Globals& globals : globals_) visit(globals.first, globals.all);
}

}  // namespace safemap::SAFEMAP_ABI::torch
