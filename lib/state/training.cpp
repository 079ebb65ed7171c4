// Finds the state of a training in a tree. From top to bottom:
// - is_word_of_training(): keys below which there is no model
// - Training: the values of a tree that say how far the training had come
#include "state/training.hpp"

#include "state/modules.hpp"
#include "state/walk.hpp"

#include <safemap/error.hpp>

#include <algorithm>
#include <cmath>
#include <deque>
#include <iterator>
#include <optional>
#include <string>
#include <variant>

namespace safemap::SAFEMAP_ABI::state {

namespace {

using NodeId = StateTree::NodeId;

template <class List> bool is_listed(std::string_view text, const List& list) {
    return std::find(std::begin(list), std::end(list), text) != std::end(list);
}

/// Returns true for a key such as "optimizer_states", "d_optim", "lr_schedulers" or "cuda_rng_state".
bool is_word_of_training(std::string_view key) {
    static constexpr std::string_view words[] = {"amp",         "callbacks",     "grad_scaler",   "loops",
                                                 "loss_scaler", "opt",           "random_states", "random_state",
                                                 "rng",         "sched",         "scaler",        "schedulers",
                                                 "scheduler",   "lr_schedulers", "optims",        "lr_sched"};
    static constexpr std::string_view ends[] = {"_opt", "_optim", "_scheduler", "_schedulers"};
    static constexpr std::string_view begins[] = {"optim_", "opt_state", "scheduler_state"};
    std::string lower(key);
    std::transform(lower.begin(), lower.end(), lower.begin(),
                   [](char c) { return c >= 'A' && c <= 'Z' ? static_cast<char>(c | 0x20) : c; });
    const auto ends_so = [&](std::string_view end) { return lower.ends_with(end); };
    const auto begins_so = [&](std::string_view begin) { return lower.starts_with(begin); };
    return is_listed(lower, words) || lower == "optim" || lower.find("optimizer") != std::string::npos ||
           lower.find("rng_state") != std::string::npos || lower == "native_amp_scaling_state" ||
           std::any_of(std::begin(ends), std::end(ends), ends_so) ||
           std::any_of(std::begin(begins), std::end(begins), begins_so);
}

bool is_container(const StateTree::Node& node) {
    return std::holds_alternative<StateTree::Dict>(node) || std::holds_alternative<StateTree::Sequence>(node) ||
           std::holds_alternative<StateTree::Opaque>(node);
}

/// Returns the value of a text key of a dictionary, or of an attribute of an object; else no_node.
NodeId value_of(const StateTree& tree, NodeId at, std::string_view wanted) {
    if (const auto* const dict = std::get_if<StateTree::Dict>(&tree[at]))
        for (const auto& [key, value] : dict->items)
            if (const auto* const text = std::get_if<std::string>(&tree[key]); text != nullptr && *text == wanted)
                return value;
    if (const auto* const opaque = std::get_if<StateTree::Opaque>(&tree[at]))
        for (const auto& [name, value] : opaque->children)
            if (name == wanted) return value;
    return StateTree::no_node;
}

/// Returns the value of the first text key of a dictionary that begins and ends so; else no_node.
/// torch.distributed.checkpoint may flatten the dictionary of an optimizer: "param_groups.embed.weight.lr".
NodeId value_of_flat(const StateTree& tree, NodeId at, std::string_view begin, std::string_view end) {
    if (const auto* const dict = std::get_if<StateTree::Dict>(&tree[at]))
        for (const auto& [key, value] : dict->items)
            if (const auto* const text = std::get_if<std::string>(&tree[key]);
                text != nullptr && text->starts_with(begin) && text->ends_with(end))
                return value;
    return StateTree::no_node;
}

/// Returns true if reading a tensor reads little else. A deflated stream is inflated up to the place of a value.
bool is_near(const LazyTensor& tensor) {
    constexpr std::uint64_t most_inflated = 1 << 20;
    const auto placement = tensor.placement();
    return placement && (placement->source->is_file() || placement->extent.offset <= most_inflated);
}

/// Returns the number that a node is, also that of a tensor without dimensions.
std::optional<double> number_in(const StateTree& tree, NodeId at) {
    if (at == StateTree::no_node) return std::nullopt;
    const StateTree::Node& node = tree[at];
    if (const auto* const integer = std::get_if<std::int64_t>(&node)) return static_cast<double>(*integer);
    if (const auto* const real = std::get_if<double>(&node)) return *real;
    if (const auto* const scalar = std::get_if<StateTree::NumpyScalar>(&node))
        return std::holds_alternative<StateTree::NumpyScalar>(tree[scalar->value]) ? std::nullopt
                                                                                   : number_in(tree, scalar->value);
    const auto* const leaf = std::get_if<StateTree::Tensor>(&node);
    if (leaf == nullptr || !leaf->tensor.shape().empty() || !is_near(leaf->tensor)) return std::nullopt;
    const auto only = [](const LazyTensor& tensor, auto zero) {
        const TensorView value = tensor.load();
        return static_cast<double>(value.as<decltype(zero)>().front());
    };
    try {
        switch (leaf->tensor.dtype()) {
            case Dtype::i64: return only(leaf->tensor, std::int64_t{});
            case Dtype::i32: return only(leaf->tensor, std::int32_t{});
            case Dtype::f64: return only(leaf->tensor, 0.0);
            case Dtype::f32:
            case Dtype::f16:
            case Dtype::bf16: return only(leaf->tensor.cast(Dtype::f32), 0.0F);
            default: return std::nullopt;
        }
    } catch (const Error&) {
        return std::nullopt;
    }
}

/// Returns a number that counts: an integer from 0 to 2^53.
std::optional<std::uint64_t> count_in(const StateTree& tree, NodeId at) {
    const auto number = number_in(tree, at);
    constexpr double most_exact = 9007199254740992;
    if (!number || !(*number >= 0 && *number <= most_exact) || std::floor(*number) != *number) return std::nullopt;
    return static_cast<std::uint64_t>(*number);
}

/// Returns the first node below `from`, level by level, that fits; no_node if none does. Looks at `most` nodes.
template <class Fits> NodeId first_below(const StateTree& tree, NodeId from, std::size_t most, Fits&& fits) {
    std::vector<bool> seen(tree.size());
    std::deque<NodeId> open{from};
    for (std::size_t looked = 0; !open.empty() && looked < most; ++looked) {
        const NodeId at = open.front();
        open.pop_front();
        if (seen[at]) continue;
        seen[at] = true;
        if (fits(at)) return at;
        for_each_child(tree[at], [&](NodeId child) {
            if (is_container(tree[child])) open.push_back(child);
        });
    }
    return StateTree::no_node;
}

/// Returns the first item of a list; no_node for an empty one. Returns any other node itself.
NodeId first_entry(const StateTree& tree, NodeId at) {
    if (at == StateTree::no_node) return at;
    if (const auto* const list = std::get_if<StateTree::Sequence>(&tree[at]))
        return list->items.empty() ? StateTree::no_node : list->items.front();
    return at;
}

constexpr std::size_t most_containers = 1 << 20;
constexpr std::size_t most_of_state = 4096;

/// The values of a tree that say how far the training had come.
class Training {
public:
    Training(const StateTree& tree, TrainingState& known) : tree_(tree), known_(known) {}

    void add() {
        constexpr std::string_view inner[] = {"train_state",  "trainer_state", "training",     "trainer",
                                              "extra_state",  "client_state",  "lr_scheduler", "optimizer",
                                              "train_states", "progress"};
        add_entries(tree_.root());
        for (const std::string_view key : inner)
            if (const NodeId value = value_of(tree_, tree_.root(), key); value != StateTree::no_node)
                if (key != "lr_scheduler") add_entries(value);
        if (!known_.learning_rate) known_.learning_rate = rate_of_optimizer();
        for (const std::string_view key : {"lr_scheduler", "lr_schedulers", "scheduler", "schedulers"})
            add_rate_of_schedule(value_of(tree_, tree_.root(), key));
        add_rate_of_schedule(tree_.root());
    }

    void add_step() {
        const NodeId optimizer = first_optimizer();
        if (known_.step || optimizer == StateTree::no_node) return;
        known_.step = count_in(tree_, value_of_flat(tree_, optimizer, "state.", ".step"));
        if (known_.step || value_of(tree_, optimizer, "state") == StateTree::no_node) return;
        const auto has_step = [&](NodeId at) { return count_in(tree_, value_of(tree_, at, "step")).has_value(); };
        const NodeId state = first_below(tree_, value_of(tree_, optimizer, "state"), most_of_state, has_step);
        if (state != StateTree::no_node) known_.step = count_in(tree_, value_of(tree_, state, "step"));
    }

private:
    /// Sets what the entries of a dictionary or object state.
    void add_entries(NodeId at) {
        for (const std::string_view key : {"global_step", "global_steps", "step", "iteration", "num_updates", "iter"})
            if (!known_.step) known_.step = count_in(tree_, value_of(tree_, at, key));
        for (const std::string_view key : {"epoch", "current_epoch"})
            if (!known_.epoch) known_.epoch = number_in(tree_, value_of(tree_, at, key));
        if (!known_.world_size) known_.world_size = count_in(tree_, value_of(tree_, at, "world_size"));
        add_ranks(at);
        add_loss_scale(at);
    }

    /// DeepSpeed states the ranks of data parallelism, and those of tensor and pipeline parallelism together.
    void add_ranks(NodeId at) {
        const auto data = count_in(tree_, value_of(tree_, at, "dp_world_size"));
        const auto model = count_in(tree_, value_of(tree_, at, "mp_world_size")).value_or(1);
        constexpr std::uint64_t most = 1 << 24;
        if (!known_.world_size && data && *data <= most && model <= most) known_.world_size = *data * model;
    }

    void add_loss_scale(NodeId at) {
        for (const std::string_view key : {"loss_scaler", "grad_scaler", "scaler", "native_amp_scaling_state",
                                           "MixedPrecision", "MixedPrecisionPlugin", "amp", "amp_scaler"})
            if (const NodeId scaler = value_of(tree_, at, key); scaler != StateTree::no_node) add_scale_of(scaler);
        if (!known_.loss_scale) known_.loss_scale = number_in(tree_, value_of(tree_, at, "loss_scale"));
        // The state dict of torch.amp.GradScaler by itself.
        if (value_of(tree_, at, "growth_factor") != StateTree::no_node) add_scale_of(at);
    }

    void add_scale_of(NodeId scaler) {
        for (const std::string_view key : {"cur_scale", "scale", "loss_scale"})
            if (!known_.loss_scale) known_.loss_scale = number_in(tree_, value_of(tree_, scaler, key));
        const NodeId inner = value_of(tree_, scaler, "loss_scaler0");  // apex
        if (inner != StateTree::no_node && !known_.loss_scale)
            known_.loss_scale = number_in(tree_, value_of(tree_, inner, "loss_scale"));
    }

    NodeId first_optimizer() const {
        return first_below(tree_, tree_.root(), most_containers, [&](NodeId at) { return is_optimizer(tree_, at); });
    }

    /// Returns the learning rate of the first group of parameters.
    std::optional<double> rate_of_optimizer() const {
        const NodeId optimizer = first_optimizer();
        if (optimizer == StateTree::no_node) return std::nullopt;
        if (const auto rate = number_in(tree_, value_of_flat(tree_, optimizer, "param_groups.", ".lr"))) return rate;
        const auto has_rate = [&](NodeId at) { return number_in(tree_, value_of(tree_, at, "lr")).has_value(); };
        const NodeId groups = value_of(tree_, optimizer, "param_groups");
        if (groups == StateTree::no_node) return std::nullopt;
        const NodeId group = first_below(tree_, groups, most_of_state, has_rate);
        if (group == StateTree::no_node) return std::nullopt;
        return number_in(tree_, value_of(tree_, group, "lr"));
    }

    /// Takes the last rate of a scheduler of torch, or of the first of a list.
    void add_rate_of_schedule(NodeId schedule) {
        schedule = first_entry(tree_, schedule);
        if (schedule == StateTree::no_node || known_.learning_rate) return;
        const NodeId last = value_of(tree_, schedule, "_last_lr");
        if (last != StateTree::no_node) known_.learning_rate = number_in(tree_, first_entry(tree_, last));
    }

    const StateTree& tree_;
    TrainingState& known_;
};

}  // namespace

bool is_optimizer(const StateTree& tree, NodeId at) {
    if (value_of_flat(tree, at, "param_groups.", {}) != StateTree::no_node)
        return value_of_flat(tree, at, "state.", {}) != StateTree::no_node;
    const NodeId state = value_of(tree, at, "state");
    const NodeId groups = state == StateTree::no_node ? state : value_of(tree, at, "param_groups");
    return groups != StateTree::no_node && is_container(tree[state]) && is_container(tree[groups]);
}

std::vector<bool> nodes_of_model(const StateTree& tree) {
    std::vector<bool> of_model(tree.size());
    std::vector<NodeId> open;
    if (tree.size() > 0) open.push_back(tree.root());
    while (!open.empty()) {
        const NodeId at = open.back();
        open.pop_back();
        if (of_model[at] || is_optimizer(tree, at)) continue;
        of_model[at] = true;
        const auto* const dict = std::get_if<StateTree::Dict>(&tree[at]);
        if (dict == nullptr) {
            for_each_child(tree[at], [&](NodeId child) { open.push_back(child); });
            continue;
        }
        for (const auto& [key, value] : dict->items) {
            const auto* const text = std::get_if<std::string>(&tree[key]);
            const bool of_training = text != nullptr && is_container(tree[value]) && is_word_of_training(*text) &&
                                     !is_module(tree, tree[value]);
            open.push_back(key);
            if (!of_training) open.push_back(value);
        }
        for (const auto& [name, value] : dict->attributes) open.push_back(value);
    }
    return of_model;
}

bool is_named_in_training(std::string_view name) {
    const std::size_t dot = name.find('.');
    if (dot != name.npos && name.substr(dot).starts_with(".state.") && is_word_of_training(name.substr(0, dot)))
        return true;
    for (std::size_t slash = name.find('/'); slash != name.npos; slash = name.find('/')) {
        if (is_word_of_training(name.substr(0, slash))) return true;
        name.remove_prefix(slash + 1);
    }
    return false;
}

void add_training(const StateTree& tree, TrainingState& known) {
    if (tree.size() > 0) Training(tree, known).add();
}

void add_step_of_optimizer(const StateTree& tree, TrainingState& known) {
    if (tree.size() > 0) Training(tree, known).add_step();
}

}  // namespace safemap::SAFEMAP_ABI::state
