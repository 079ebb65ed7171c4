// The keys of a rank's files, from DeepSpeed 0.3 to 0.19. A key that a version does not write is empty; a key that
// every version needs is a fault.
#include "distributed/zero/keys.hpp"

#include "base/faults.hpp"
#include "base/text.hpp"
#include "distributed/values.hpp"
#include "torch/parts.hpp"

#include <safemap/error.hpp>

#include <algorithm>
#include <array>
#include <iterator>
#include <span>
#include <string_view>

namespace safemap::SAFEMAP_ABI::distributed {

namespace {

Parameter parameter(std::string name, const Value& shape) {
    Parameter made{.name = std::move(name), .shape = shape.shape()};
    const auto count = element_count(made.shape);
    if (!count)
        throw Error(Errc::shape_overflow, "the size of shape " + to_string(made.shape) + " does not fit in 64 bits")
            .with_tensor(made.name);
    made.count = *count;
    return made;
}

Group group_of(const Value& shapes) {
    Group group;
    for (const auto& [name, shape] : shapes.entries()) group.push_back(parameter(name, shape));
    return group;
}

/// Reads `param_shapes`: a list of dictionaries, or in old versions one dictionary.
std::vector<Group> groups_of(const Value& shapes) {
    if (shapes.is_dict()) return {group_of(shapes)};
    std::vector<Group> groups;
    for (const Value& each : shapes.items()) groups.push_back(group_of(each));
    return groups;
}

/// Adds the names of values other than tensors and None.
void add_objects(const Value& dict, std::vector<std::string>& out) {
    for (const auto& [name, value] : dict.entries())
        if (value.tensor() == nullptr && !value.is_none()) out.push_back(name);
}

std::vector<LazyTensor> tensor_list(const Value& list) {
    std::vector<LazyTensor> tensors;
    for (const Value& each : list.items()) {
        const LazyTensor* const tensor = each.tensor();
        if (tensor == nullptr)
            throw Error(Errc::piece_mismatch, "the field " + excerpt(each.where()) + " is not a tensor");
        if (tensor->shape().size() != 1)
            throw Error(Errc::piece_mismatch, "the field " + excerpt(each.where()) + " has the shape " +
                                                  to_string(tensor->shape()) + "; expected one dimension");
        tensors.push_back(*tensor);
    }
    return tensors;
}

/// Reads a list of numbers, or one number.
std::vector<std::uint64_t> numbers_of(const Value& value) {
    if (!value.is_list()) return {value.count()};
    std::vector<std::uint64_t> numbers;
    for (const Value& each : value.items()) numbers.push_back(each.count());
    return numbers;
}

/// Returns true if a configuration enables the section, such as "bf16".
bool enables(const Value& config, std::string_view section) {
    const auto found = config.find(section);
    if (!found) return false;
    const auto enabled = found->find("enabled");
    return enabled && enabled->boolean().value_or(false);
}

std::string trained_in(const Value& file) {
    const auto config = file.find("ds_config");
    if (!config || !config->is_dict()) return {};
    return enables(*config, "bf16") || enables(*config, "bfloat16") ? "bf16"
           : enables(*config, "fp16")                               ? "fp16"
                                                                    : "fp32";
}

/// Returns true if the configuration says that the order of parameters in the flat buffers is that of the groups.
bool keeps_order(const Value& file) {
    const auto config = file.find("ds_config");
    if (!config || !config->is_dict()) return false;
    const auto zero = config->find("zero_optimization");
    if (!zero || !zero->is_dict()) return false;
    const auto round_robin = zero->find("round_robin_gradients");
    return !round_robin || !round_robin->boolean().value_or(true);
}

void read_shapes(const Value& root, ModelFile& out) {
    out.without_frozen = root.has("frozen_param_shapes") && !root.find("frozen_param_shapes");
    if (const auto shapes = root.find("param_shapes")) {
        out.groups = groups_of(*shapes);
        out.one_group = shapes->is_dict();
    }
    if (const auto shapes = root.find("frozen_param_shapes")) out.frozen_shapes = group_of(*shapes);
    if (const auto fragments = root.find("frozen_param_fragments")) {
        out.frozen = fragments->tensors();
        add_objects(*fragments, out.objects);
    }
}

/// Reads the fields that are the same in the files of all ranks, or of one rank only.
void read_run(const Value& root, ModelFile& out) {
    if (const auto ranks = root.find("dp_world_size")) out.data_ranks = ranks->count();
    if (const auto steps = root.find("global_steps"); steps && steps->integer()) out.steps = steps->count();
    if (const auto steps = root.find("skipped_steps"); steps && steps->integer()) out.skipped = steps->count();
    if (const auto version = root.find("ds_version")) out.version = version->text().value_or("");
    const auto shared = root.find("shared_params");
    out.lists_shared = shared && shared->is_dict();
    if (out.lists_shared)
        for (const auto& [alias, source] : shared->entries())
            if (const auto text = source.text()) out.shared.emplace_back(alias, *text);
}

/// Returns true for anything but an empty list or dictionary.
bool has_entries(const Value& value) {
    return !(value.is_dict() && value.entries().empty()) && !(value.is_list() && value.items().empty());
}

void read_module(const Value& root, ModelFile& out) {
    if (const auto module = root.find("module"); module && module->is_dict()) {
        out.has_module = true;
        out.module = module->tensors();
        add_objects(*module, out.objects);
        if (const auto metadata = module->attribute("_metadata"); metadata && metadata->is_dict())
            for (const auto& each : metadata->entries()) out.modules.push_back(each.first);
    }
    const auto names = root.find("buffer_names");
    out.lists_buffers = names && names->is_list();
    if (out.lists_buffers)
        for (const Value& name : names->items())
            if (const auto text = name.text()) out.buffers.emplace_back(*text);
    if (const auto experts = root.find("num_experts"); experts && experts->is_list())
        for (const Value& layer : experts->items()) out.experts.push_back(layer.count());
    for (const char* const key : {"ds_autoep_layers", "autoep_layers"})
        if (const auto layers = root.find(key)) out.autoep = out.autoep || has_entries(*layers);
    if (const auto ranks = root.find("mp_world_size")) out.model_ranks = ranks->count();
    out.dtype = trained_in(root);
    out.flat_order_is_listed = keeps_order(root);
    const auto config = root.find("ds_config");
    if (!config || !config->is_dict()) return;
    if (const auto order = config->find("use_data_before_expert_parallelism"))
        out.data_first = order->boolean().value_or(false);
    if (const auto zero = config->find("zero_optimization"); zero && zero->is_dict())
        if (const auto stage = zero->find("stage"); stage && stage->integer()) out.config_stage = stage->count();
}

/// Keys of a file of model states that its tensors, shapes and configuration are read from: the rest is state of the
/// training.
constexpr std::array<std::string_view, 12> model_keys{"module",
                                                      "buffer_names",
                                                      "param_shapes",
                                                      "frozen_param_shapes",
                                                      "frozen_param_fragments",
                                                      "shared_params",
                                                      "sparse_tensor_module_names",
                                                      "ds_config",
                                                      "num_experts",
                                                      "ds_autoep_layers",
                                                      "mp_world_size",
                                                      "dp_world_size"};

constexpr std::array<std::string_view, 8> share_keys{"param_shapes",  "frozen_param_shapes", "frozen_param_fragments",
                                                     "dp_world_size", "global_steps",        "skipped_steps",
                                                     "ds_version",    "shared_params"};

// Optimizer states.

int stage_of(const Value& inner, OptimizerFile& out) {
    if (const auto stage = inner.find("zero_stage")) return zero_stage(*stage);
    if (inner.find("fp32_flat_groups")) return 3;
    out.bf16_optimizer = true;
    return 1;
}

/// Throws if the file has the weights of another stage than its `zero_stage` says.
void check_stage(const Value& inner, int stage) {
    constexpr std::string_view split = "fp32_flat_groups";
    constexpr std::string_view flat = "single_partition_of_fp32_groups";
    const std::string_view own = stage == 3 ? split : flat;
    const std::string_view other = stage == 3 ? flat : split;
    if (!inner.find(own) && inner.find(other))
        throw Error(Errc::ranks_differ, "zero_stage says stage " + std::to_string(stage) + ", but the file has " +
                                            std::string(other) + ", as " +
                                            (stage == 3 ? "stages 1 and 2 have" : "stage 3 has"));
}

/// Reads which parameters the partition of each group holds.
void read_mappings(const Value& inner, OptimizerFile& out) {
    const auto mappings = inner.find("param_slice_mappings");
    if (!mappings || !mappings->is_list()) return;
    for (const Value& group : mappings->items()) {
        if (!group.is_dict() || out.listed.size() == out.masters.size()) break;
        NameDigest digest;
        for (const auto& entry : group.entries()) digest.add(entry.first);
        out.listed.push_back(digest.value());
    }
}

template <class Number> double element_of(const LazyTensor& tensor) {
    Number value = 0;
    tensor.read(0, std::as_writable_bytes(std::span(&value, 1)));
    return static_cast<double>(value);
}

/// Returns a field that is a number, or a tensor of one element, which is read.
std::optional<double> number_of(const Value& dict, std::string_view key) {
    const auto field = dict.find(key);
    if (!field) return std::nullopt;
    const LazyTensor* const tensor = field->tensor();
    if (tensor == nullptr) return field->real();
    if (tensor->element_count() != 1) return std::nullopt;
    switch (tensor->dtype()) {
        case Dtype::f32: return element_of<float>(*tensor);
        case Dtype::f64: return element_of<double>(*tensor);
        case Dtype::i32: return element_of<std::int32_t>(*tensor);
        case Dtype::i64: return element_of<std::int64_t>(*tensor);
        default: return std::nullopt;
    }
}

/// Reads the state of all groups, their steps and learning rates.
void read_state(const Value& inner, OptimizerFile& out) {
    for (const auto& state : states_of(inner, out.stage, out.masters.size())) {
        const bool is_dict = state && state->is_dict();
        out.state.push_back(is_dict ? state->tensors() : Named());
        out.steps.push_back(is_dict ? number_of(*state, "step") : std::nullopt);
    }
    const auto base = inner.find(out.stage == 3 ? "optimizer_state_dict" : "base_optimizer_state");
    const auto groups = base ? base->find("param_groups") : std::nullopt;
    if (!groups || !groups->is_list()) return;
    std::vector<std::optional<double>> steps;
    for (const Value& group : groups->items()) {
        out.rates.push_back(number_of(group, "lr"));
        steps.push_back(number_of(group, "step"));
    }
    const auto has = [](const std::optional<double>& step) { return step.has_value(); };
    if (std::none_of(out.steps.begin(), out.steps.end(), has)) out.steps = std::move(steps);
}

void read_fields(const Value& inner, OptimizerFile& out) {
    if (inner.find("ds_zero_partition_groups"))
        throw Error(Errc::unsupported_layout,
                    "the field ds_zero_partition_groups says that experts are placed by AutoEP, which safemap does not "
                    "read");
    out.stage = stage_of(inner, out);
    check_stage(inner, out.stage);
    const std::string_view field = out.stage == 3 ? "fp32_flat_groups" : "single_partition_of_fp32_groups";
    out.masters = tensor_list(inner.at(field));
    if (const auto counts = inner.find("partition_count")) out.partition_count = numbers_of(*counts);
    if (const auto paddings = inner.find("group_paddings")) out.group_paddings = numbers_of(*paddings);
    if (const auto gaps = inner.find("param_alignment_paddings"))
        for (const Value& group : gaps->items())
            if (out.gaps.size() < out.masters.size()) out.gaps.push_back(numbers_of(group));
    read_mappings(inner, out);
    read_state(inner, out);
}

/// Reads values of a file. DataStates gives its files the names of DeepSpeed's.
torch::Parts parts_of(const std::shared_ptr<const Source>& source, std::span<const std::string_view> wanted,
                      torch::NamedGlobals& globals) {
    try {
        return torch::read_parts(source, wanted, &globals);
    } catch (const Error& error) {
        if (error.code() != Errc::unknown_format) throw;
        throw Error(Errc::unsupported_layout, error.message() + "; the containers of DataStates are not read")
            .with_path(source->name());
    }
}

/// Returns the name that a file was saved under, if it is that of another model rank or, unless `equal` says that the
/// files of all ranks of data parallelism are equal, of another rank. A prefix that differs is no other rank, and
/// neither is a name that is not DeepSpeed's.
std::string name_of_another(const std::string& saved_as, const names::RankedName& now, bool equal = false) {
    const std::string file = saved_as + ".pt";
    const auto then = names::zero_name(file);
    if (!then || then->kind != now.kind) return {};
    const bool same = (equal || then->rank == now.rank) && then->model_rank == now.model_rank;
    return same ? std::string() : file;
}

}  // namespace

int zero_stage(const Value& field) {
    constexpr std::string_view members[] = {"ZeroStageEnum.optimizer_states", "ZeroStageEnum.gradients",
                                            "ZeroStageEnum.weights"};
    if (const auto global = field.global())
        for (std::size_t i = 0; i < std::size(members); ++i)
            if (global->ends_with(members[i])) return static_cast<int>(i) + 1;
    const std::uint64_t number = field.count();
    if (number < 1 || number > 3)
        throw Error(Errc::field_missing,
                    "the field " + excerpt(field.where()) + " is " + std::to_string(number) + "; expected 1 to 3");
    return static_cast<int>(number);
}

std::vector<std::optional<Value>> states_of(const Value& inner, int stage, std::size_t groups) {
    const auto base = inner.find(stage == 3 ? "optimizer_state_dict" : "base_optimizer_state");
    if (!base) return {};
    std::vector<std::optional<Value>> states;
    // Elastic checkpoints have a list of them.
    if (base->is_list()) {
        for (Value& each : base->items())
            if (states.size() < groups) states.emplace_back(std::move(each));
        return states;
    }
    const auto state = base->find("state");
    if (!state) return {};
    for (auto& [key, value] : state->entries()) {
        if (key.empty() || key.size() > 8 || key.find_first_not_of("0123456789") != key.npos) continue;
        const std::size_t number = std::stoul(key);
        if (number >= groups) continue;
        states.resize(std::max(states.size(), number + 1));
        states[number] = std::move(value);
    }
    return states;
}

ModelFile read_model_file(const std::shared_ptr<const Source>& source, const ZeroFile& file, Detail detail,
                          torch::NamedGlobals& globals) {
    ModelFile out{.file = source->name(), .rank = file.name.rank, .model_rank = file.name.model_rank};
    const std::span<const std::string_view> wanted =
        detail == Detail::all ? std::span<const std::string_view>() : std::span<const std::string_view>(share_keys);
    torch::Parts parts = parts_of(source, wanted, globals);
    const Value root(parts.tree);
    read_shapes(root, out);
    // In stage 3, these fragments are what differs between ranks. Without any, one file may be a copy of another.
    const bool equal = file.name.kind == names::NameKind::zero_ranked_model && out.frozen.empty();
    out.saved_as = name_of_another(parts.saved_as, file.name, equal);
    read_run(root, out);
    if (detail == Detail::share) return out;
    read_module(root, out);
    out.rest = std::move(parts.tree);
    for (const std::string_view key : model_keys) out.rest.erase(key);
    out.rest = out.rest.subtree(out.rest.root());
    return out;
}

OptimizerFile read_optimizer_file(const std::shared_ptr<const Source>& source, const ZeroFile& file, Detail detail,
                                  torch::NamedGlobals& globals) {
    OptimizerFile out{.file = source->name(), .rank = file.name.rank, .model_rank = file.name.model_rank};
    constexpr std::array<std::string_view, 2> wanted{"optimizer_state_dict", "ds_version"};
    torch::Parts parts = parts_of(source, wanted, globals);
    out.is_zip = !parts.saved_as.empty();
    out.saved_as = name_of_another(parts.saved_as, file.name);
    const Value root(parts.tree);
    const Value inner = root.at("optimizer_state_dict");
    if (const auto version = root.find("ds_version")) out.version = version->text().value_or("");
    read_fields(inner, out);
    if (detail == Detail::all) out.rest = parts.tree.subtree(inner.node());
    return out;
}

}  // namespace safemap::SAFEMAP_ABI::distributed
