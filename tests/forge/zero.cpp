// Writes DeepSpeed checkpoints, and says what every tensor of them must be.
#include "forge/zero.hpp"

#include "forge/files.hpp"
#include "forge/pickle.hpp"

#include <safemap/float_types.hpp>

#include <algorithm>
#include <bit>
#include <cstddef>
#include <cstring>

namespace zero_forge {
namespace {

using detail::values;

std::uint64_t mixed(std::uint64_t x) {
    x ^= x >> 33;
    x *= 0xff51afd7ed558ccdULL;
    x ^= x >> 33;
    x *= 0xc4ceb9fe1a85ec53ULL;
    return x ^ (x >> 33);
}

std::uint64_t hash(std::string_view text) {
    std::uint64_t value = 0xcbf29ce484222325ULL;
    for (const char c : text) value = (value ^ static_cast<unsigned char>(c)) * 0x100000001b3ULL;
    return value;
}

/// Returns the bits of an element that is not NaN, infinite or, in F64, beyond F32.
std::uint64_t element(Dtype dtype, std::uint64_t bits) {
    const auto finite = [bits](std::uint64_t exponents, unsigned at) {
        return (bits >> at & exponents) == exponents ? bits ^ std::uint64_t{1} << at : bits;
    };
    switch (dtype) {
        case Dtype::boolean: return bits & 1;
        case Dtype::f16: return finite(0x1f, 10);
        case Dtype::bf16: return finite(0xff, 7);
        case Dtype::f32: return finite(0xff, 23);
        case Dtype::f64: return std::bit_cast<std::uint64_t>(static_cast<double>(bits >> 11) * 0x1p-53 - 0.5);
        default: return bits;
    }
}

/// Returns NaNs.
std::string padding(Dtype dtype, std::uint64_t count) {
    std::string bytes;
    for (std::uint64_t i = 0; i < count; ++i) {
        if (pt::element_bytes(dtype) == 2) bytes += forge::little(dtype == Dtype::f16 ? 0x7e01 : 0x7fc1, 2);
        else bytes += forge::little(0x7fc0'0bad, 4);
    }
    return bytes;
}

/// Returns the bytes of floating values as F32, as `tensor.float()` makes them.
std::string as_f32(Dtype dtype, const std::string& bytes) {
    const std::size_t size = pt::element_bytes(dtype);
    std::string out;
    for (std::size_t at = 0; at < bytes.size(); at += size) {
        std::uint64_t bits = 0;
        std::memcpy(&bits, bytes.data() + at, size);
        float value = 0;
        if (dtype == Dtype::f64) value = static_cast<float>(std::bit_cast<double>(bits));
        if (dtype == Dtype::f32) value = std::bit_cast<float>(static_cast<std::uint32_t>(bits));
        if (dtype == Dtype::bf16) value = safemap::bf16{static_cast<std::uint16_t>(bits)};
        if (dtype == Dtype::f16) value = safemap::f16{static_cast<std::uint16_t>(bits)};
        out += forge::little(std::bit_cast<std::uint32_t>(value), 4);
    }
    return out;
}

std::uint64_t round_up(std::uint64_t value, std::uint64_t multiple) {
    return (value + multiple - 1) / multiple * multiple;
}

bool floating(Dtype dtype) {
    return dtype == Dtype::f16 || dtype == Dtype::bf16 || dtype == Dtype::f32 || dtype == Dtype::f64;
}

/// Makes the files and the tensors of one checkpoint.
class Maker {
public:
    explicit Maker(Spec spec) : spec_(std::move(spec)) {}

    std::uint64_t world() const { return spec_.world; }

    Expected master(const Param& param) const {
        return {Dtype::f32, param.shape, values(Dtype::f32, "master", param.name, pt::elements(param.shape))};
    }
    Expected stored(const Param& param) const {
        return {spec_.dtype, param.shape, values(spec_.dtype, "module", param.name, pt::elements(param.shape))};
    }
    /// Returns true if a file has the weight that has no master. Stage 3 loses even the shape of an empty one.
    bool kept(const Param& param) const {
        return spec_.keep_frozen || (spec_.stage != 3 && pt::elements(param.shape) == 0);
    }
    void add_buffers(Tensors& out) const {
        for (const Buffer& buffer : spec_.buffers)
            out[buffer.name] = {buffer.dtype, buffer.shape,
                                values(buffer.dtype, "buffer", buffer.name, pt::elements(buffer.shape))};
    }
    void add_ties(Tensors& out) const {
        for (const auto& [second, first] : spec_.ties)
            if (const auto found = out.find(first); found != out.end()) out[second] = Expected(found->second);
    }

    /// Returns the parameters of a group in the order of the flat buffer.
    std::vector<Param> flat_order(const std::vector<Param>& group) const {
        if (!spec_.round_robin) return group;
        std::vector<Param> order;
        for (std::uint64_t r = 0; r < world(); ++r)
            for (std::size_t i = r; i < group.size(); i += world()) order.push_back(group[i]);
        return order;
    }

    /// Returns the gap after each parameter of a group; after the last there is no gap.
    std::vector<std::uint64_t> gaps(const std::vector<Param>& order) const {
        std::vector<std::uint64_t> out;
        std::uint64_t offset = 0;
        for (std::size_t i = 0; i < order.size(); ++i) {
            offset += pt::elements(order[i].shape);
            out.push_back(i + 1 == order.size() ? 0 : round_up(offset, spec_.alignment) - offset);
            offset += out.back();
        }
        return out;
    }

    /// The flat buffer of a group, of any value that a parameter has, and where each rank's part of it ends.
    struct Flat {
        std::string bytes = {};
        std::uint64_t used = 0;       ///< elements before the padding at the end
        std::uint64_t partition = 0;  ///< elements of a rank
    };
    const Flat& flat(const std::vector<Param>& group, std::string_view what) const {
        Flat& kept = flats_[{&group, std::string(what)}];
        if (kept.bytes.empty()) kept = made_flat(group, what);
        return kept;
    }
    Flat made_flat(const std::vector<Param>& group, std::string_view what) const {
        const auto order = flat_order(group);
        const auto holes = gaps(order);
        Flat out;
        for (std::size_t i = 0; i < order.size(); ++i)
            out.bytes +=
                values(Dtype::f32, what, order[i].name, pt::elements(order[i].shape)) + padding(Dtype::f32, holes[i]);
        out.used = out.bytes.size() / 4;
        // DeepSpeed leaves room for the largest gaps there could be, so that more padding than needed is possible.
        std::uint64_t room = 0;
        for (const Param& param : group) room += round_up(pt::elements(param.shape), spec_.alignment);
        const std::uint64_t total = round_up(std::max(out.used, room), 2 * world());
        out.bytes += padding(Dtype::f32, total - out.used);
        out.partition = total / world();
        return out;
    }
    std::uint64_t group_padding(const Flat& flat, std::uint64_t rank) const {
        const std::uint64_t first = rank * flat.partition;
        // BF16_Optimizer counts all of it at the last rank, where it can be more than the rank has.
        if (spec_.bf16_optimizer) return rank + 1 == world() ? flat.bytes.size() / 4 - flat.used : 0;
        if (flat.used <= first) return flat.partition;
        return first + flat.partition - std::min(first + flat.partition, flat.used);
    }
    /// Returns a rank's part, without its padding at the end if `lean`. The storage of a lean part has the padding.
    pt::Value part(const Flat& flat, std::uint64_t rank, bool lean) const {
        const std::uint64_t count = flat.partition - (lean ? group_padding(flat, rank) : 0);
        return pt::tensor(pt::store(Dtype::f32, flat.bytes.substr(rank * flat.partition * 4, flat.partition * 4)),
                          {count});
    }

    /// Returns the sub-groups of stage 3, over all groups.
    std::vector<std::vector<Param>> sub_groups() const {
        std::vector<std::vector<Param>> out;
        for (const auto& group : spec_.groups) {
            std::vector<Param> current;
            std::uint64_t held = 0;
            for (const Param& param : group) {
                current.push_back(param);
                held += share(param);
                if (spec_.sub_group_size == 0 || held < spec_.sub_group_size) continue;
                out.push_back(std::exchange(current, {}));
                held = 0;
            }
            if (!current.empty() || group.empty()) out.push_back(current);
        }
        return out;
    }
    std::uint64_t share(const Param& param) const { return (pt::elements(param.shape) + world() - 1) / world(); }
    /// Returns a rank's slice of a tensor of stage 3, with padding at the end of the last ranks' slices.
    std::string slice(Dtype dtype, const std::string& bytes, std::uint64_t rank) const {
        const std::size_t size = pt::element_bytes(dtype);
        const std::uint64_t count = (bytes.size() / size + world() - 1) / world();
        const std::uint64_t first = std::min<std::uint64_t>(bytes.size(), rank * count * size);
        const std::string own = bytes.substr(first, count * size);
        return own + padding(dtype, count - own.size() / size);
    }
    const std::string& whole(const Param& param, std::string_view what) const {
        const auto [found, added] = values_.try_emplace({param.name, std::string(what)});
        if (added) found->second = values(Dtype::f32, what, param.name, pt::elements(param.shape));
        return found->second;
    }
    pt::Value split(const std::vector<Param>& group, std::string_view what, std::uint64_t rank) const {
        std::string bytes;
        for (const Param& param : group) bytes += slice(Dtype::f32, whole(param, what), rank);
        const std::uint64_t count = bytes.size() / 4;
        return pt::tensor(Dtype::f32, {count}, std::move(bytes));
    }

    // The files.

    Run made() const {
        Run run{.spec = spec_, .latest = spec_.tag};
        const std::uint64_t model_files = spec_.stage == 3 ? world() : 1;
        for (std::uint64_t r = 0; r < model_files; ++r) run.files[run.model_name(r)] = model_file(r);
        if (spec_.stage == 0) return run;
        for (std::uint64_t r = 0; r < world(); ++r) run.files[run.optimizer_name(r)] = optimizer_file(r);
        return run;
    }

    /// Returns `module`. The weights of a group are views of one storage, with gaps between them; tied names share it.
    pt::Value module_tensors() const {
        pt::Value out = pt::ordered();
        for (const Buffer& buffer : spec_.buffers)
            out.set(buffer.name, pt::tensor(buffer.dtype, buffer.shape,
                                            values(buffer.dtype, "buffer", buffer.name, pt::elements(buffer.shape))));
        for (const auto& group : spec_.groups) {
            std::string bytes = padding(spec_.dtype, 3);
            std::vector<std::uint64_t> offsets;
            for (const Param& param : group) {
                offsets.push_back(bytes.size() / pt::element_bytes(spec_.dtype));
                bytes += stored(param).bytes + padding(spec_.dtype, 1);
            }
            const auto storage = pt::store(spec_.dtype, std::move(bytes));
            for (std::size_t i = 0; i < group.size(); ++i)
                out.set(group[i].name,
                        spec_.stage == 3 ? placeholder() : pt::tensor(storage, group[i].shape, offsets[i]));
        }
        for (const Param& param : spec_.frozen)
            if (spec_.keep_frozen || pt::elements(param.shape) == 0)
                out.set(param.name,
                        spec_.stage == 3 ? placeholder() : pt::tensor(spec_.dtype, param.shape, stored(param).bytes));
        for (const auto& [second, first] : spec_.ties)
            if (out.has(first)) out.set(second, pt::Value(out[first]));
        add_paths(out);
        return out;
    }
    pt::Value placeholder() const { return pt::tensor(spec_.dtype, {0}, {}); }
    /// Adds the names of modules, those of frozen parameters too, as a state dict has them in `_metadata`.
    void add_paths(pt::Value& module) const {
        module.paths.emplace_back();
        const auto add = [&module](const std::string& name) {
            const auto dot = name.rfind('.');
            if (dot != std::string::npos) module.paths.push_back(name.substr(0, dot));
        };
        for (const std::string& name : std::vector<std::string>(module.keys)) add(name);
        for (const Param& param : spec_.frozen) add(param.name);
    }

    static pt::Value shapes_of(const std::vector<Param>& params) {
        pt::Value out = pt::ordered();
        for (const Param& param : params) out.set(param.name, pt::size(param.shape));
        return out;
    }
    pt::Value param_shapes() const {
        if (spec_.stage == 0) return pt::none();
        if (spec_.old_names && spec_.groups.size() == 1) return shapes_of(flat_order(spec_.groups[0]));
        pt::Value out = pt::list();
        if (spec_.stage == 3)
            for (const auto& group : sub_groups()) out.push(shapes_of(group));
        else
            for (const auto& group : spec_.groups) out.push(shapes_of(flat_order(group)));
        return out;
    }
    pt::Value frozen_fragments(std::uint64_t rank) const {
        pt::Value out = pt::ordered();
        for (const Param& param : spec_.frozen) {
            const std::string bytes = stored(param).bytes;
            out.set(param.name, spec_.stage == 3
                                    ? pt::tensor(spec_.dtype, {share(param)}, slice(spec_.dtype, bytes, rank))
                                    : pt::tensor(spec_.dtype, param.shape, bytes));
        }
        return out;
    }
    pt::Value shared_params(std::uint64_t rank) const {
        pt::Value out = pt::dict();
        if (rank == 0)
            for (const auto& [second, first] : spec_.ties) out.set(second, pt::text(first));
        return out;
    }
    pt::Value config() const {
        const auto enabled = [](bool on) { return pt::dict({{"enabled", pt::boolean(on)}}); };
        pt::Value out =
            pt::dict({{"train_micro_batch_size_per_gpu", pt::integer(2)},
                      {"zero_optimization", pt::dict({{"stage", pt::integer(stage_number())},
                                                      {"round_robin_gradients", pt::boolean(spec_.round_robin)}})}});
        if (spec_.dtype == Dtype::bf16) out.set("bf16", enabled(true));
        if (spec_.dtype == Dtype::f16) out.set("fp16", enabled(true));
        return out;
    }
    std::uint64_t stage_number() const { return static_cast<std::uint64_t>(spec_.stage); }

    pt::Value model_file(std::uint64_t rank) const {
        pt::Value out = pt::dict();
        out.set("module", module_tensors());
        pt::Value names = pt::list();
        for (const Buffer& buffer : spec_.buffers) names.push(pt::text(buffer.name));
        out.set("buffer_names", names);
        out.set("optimizer", spec_.stage == 0 ? whole_optimizer() : pt::none());
        out.set("param_shapes", param_shapes());
        if (!spec_.old_names) {
            const bool frozen = spec_.keep_frozen && spec_.stage >= 2;
            out.set("frozen_param_shapes", frozen ? shapes_of(spec_.frozen) : pt::none());
            out.set("shared_params", spec_.stage == 0 ? pt::none() : shared_params(rank));
            out.set("frozen_param_fragments", frozen ? frozen_fragments(rank) : pt::none());
        }
        out.set("lr_scheduler", pt::none());
        for (const auto& [key, value] : {std::pair{"skipped_steps", 0}, {"global_steps", 7}, {"global_samples", 56}})
            out.set(key, pt::integer(static_cast<std::uint64_t>(value)));
        out.set("dp_world_size", pt::integer(world()));
        out.set("mp_world_size", pt::integer(1));
        out.set("ds_config", config());
        if (!spec_.old_names) out.set("ds_version", pt::text(spec_.version));
        out.set("note", pt::text("of the client"));
        return out;
    }

    pt::Value step() const {
        if (spec_.integer_steps) return pt::integer(7);
        return pt::tensor(Dtype::f32, {}, forge::little(std::bit_cast<std::uint32_t>(7.0F), 4));
    }
    static pt::Value hyper_parameters(pt::Value numbers) {
        return pt::dict({{"lr", pt::real(0.01)},
                         {"betas", pt::tuple({pt::real(0.9), pt::real(0.95)})},
                         {"weight_decay", pt::real(0.1)},
                         {"params", std::move(numbers)}});
    }
    /// Returns what torch's optimizer says of itself: one flat parameter in each group.
    static pt::Value torch_optimizer(std::vector<pt::Value> groups) {
        pt::Value state = pt::dict();
        state.number_keys = true;
        pt::Value param_groups = pt::list();
        for (std::size_t g = 0; g < groups.size(); ++g) {
            state.set(std::to_string(g), std::move(groups[g]));
            param_groups.push(hyper_parameters(pt::integers({g})));
        }
        return pt::dict({{"state", std::move(state)}, {"param_groups", std::move(param_groups)}});
    }

    pt::Value optimizer_file(std::uint64_t rank) const {
        pt::Value state = spec_.stage == 3 ? split_state(rank) : flat_state(rank);
        pt::Value out = pt::dict({{"optimizer_state_dict", std::move(state)}, {"ds_config", config()}});
        if (!spec_.old_names) out.set("ds_version", pt::text(spec_.version));
        return out;
    }

    /// Returns the fields that every stage has.
    pt::Value common_state() const {
        pt::Value out = pt::dict();
        if (!spec_.bf16_optimizer) {
            const std::string scaler =
                forge::global("deepspeed.runtime.fp16.loss_scaler", "LossScaler") + ")\x81" +
                forge::dict({forge::text("cur_scale"), forge::integer(1), forge::text("dynamic"), "\x89"}) + "b";
            out.set("loss_scaler", pt::raw(scaler));
            out.set("dynamic_loss_scale", pt::boolean(false));
            out.set("overflow", pt::boolean(false));
        }
        return out;
    }
    pt::Value zero_stage() const {
        if (spec_.old_names) return pt::integer(stage_number());
        constexpr std::string_view members[] = {"disabled", "optimizer_states", "gradients", "weights"};
        if (spec_.stage_by_name)
            return pt::raw(forge::call("__builtin__", "getattr",
                                       {forge::global("deepspeed.runtime.zero.config", "ZeroStageEnum"),
                                        forge::text(members[stage_number()])}));
        return pt::raw(forge::call("deepspeed.runtime.zero.config", "ZeroStageEnum", {forge::integer(spec_.stage)}));
    }

    pt::Value flat_state(std::uint64_t rank) const {
        std::vector<pt::Value> masters;
        std::vector<pt::Value> states;
        std::vector<std::uint64_t> paddings;
        pt::Value holes = pt::list();
        for (const auto& group : spec_.groups) {
            const Flat& master = flat(group, "master");
            masters.push_back(part(master, rank, !spec_.bf16_optimizer));
            paddings.push_back(group_padding(master, rank));
            holes.push(pt::integers(gaps(flat_order(group))));
            pt::Value state = pt::dict({{"step", step()}});
            for (const std::string& moment : spec_.moments)
                state.set(moment, part(flat(group, moment), rank, spec_.elastic));
            states.push_back(std::move(state));
        }
        pt::Value out = common_state();
        out.set("clip_grad", pt::real(1.0));
        out.set("base_optimizer_state", spec_.elastic ? pt::list(states) : torch_optimizer(states));
        out.set("single_partition_of_fp32_groups", pt::list(masters));
        if (!spec_.bf16_optimizer) out.set("zero_stage", zero_stage());
        const std::vector<std::uint64_t> counts(spec_.groups.size(), world());
        out.set("partition_count", spec_.old_names ? pt::integer(world()) : pt::integers(counts));
        if (spec_.old_names) return out;
        out.set("group_paddings", pt::integers(paddings));
        if (!spec_.bf16_optimizer && has_gap_lists()) out.set("param_alignment_paddings", holes);
        out.set("ds_version", pt::text(spec_.version));
        out.set("param_slice_mappings", mappings(rank));
        return out;
    }
    /// Returns true if the version writes `param_alignment_paddings`.
    bool has_gap_lists() const { return spec_.version != "0.10.0"; }

    /// Returns `param_slice_mappings`. With round_robin_gradients they are of the model's order, which is wrong.
    pt::Value mappings(std::uint64_t rank) const {
        pt::Value out = pt::list();
        for (const auto& group : spec_.groups) {
            const std::vector<Param>& order = spec_.alignment > 1 ? flat_order(group) : group;
            const auto holes = gaps(order);
            const Flat& buffer = flat(group, "master");
            const std::uint64_t first = rank * buffer.partition;
            const std::uint64_t end = first + buffer.partition;
            std::uint64_t offset = 0;
            pt::Value held = pt::ordered();
            for (std::size_t i = 0; i < order.size(); ++i) {
                const std::uint64_t from = std::max(first, offset);
                const std::uint64_t to = std::min(end, offset + pt::elements(order[i].shape));
                if (from < to) held.set(order[i].name, fragment(from - first, to - from));
                offset += pt::elements(order[i].shape) + holes[i];
            }
            out.push(std::move(held));
        }
        return out;
    }
    static pt::Value fragment(std::uint64_t start, std::uint64_t count) {
        return pt::raw(forge::global("deepspeed.utils.tensor_fragment", "fragment_address") + ")\x81" +
                       forge::dict({forge::text("numel"), forge::integer(static_cast<std::int64_t>(count)),
                                    forge::text("start"), forge::integer(static_cast<std::int64_t>(start))}) +
                       "b");
    }

    pt::Value split_state(std::uint64_t rank) const {
        std::vector<pt::Value> masters;
        std::vector<pt::Value> states;
        for (const auto& group : sub_groups()) {
            masters.push_back(split(group, "master", rank));
            masters.back().derived = !spec_.old_names;
            pt::Value state = pt::dict({{"step", step()}});
            for (const std::string& moment : spec_.moments) state.set(moment, split(group, moment, rank));
            states.push_back(std::move(state));
        }
        pt::Value out = common_state();
        out.set("zero_stage", zero_stage());
        out.set("partition_count", pt::integer(world()));
        out.set("optimizer_state_dict", torch_optimizer(states));
        out.set("fp32_flat_groups", pt::list(masters));
        return out;
    }

    /// Returns the `optimizer` of stage 0: masters and moments without names, in the order of the groups.
    pt::Value whole_optimizer() const {
        pt::Value masters = pt::list();
        pt::Value state = pt::dict();
        state.number_keys = true;
        pt::Value param_groups = pt::list();
        std::uint64_t number = 0;
        for (const auto& group : spec_.groups) {
            pt::Value own = pt::list();
            pt::Value numbers = pt::list();
            for (const Param& param : group) {
                own.push(pt::tensor(Dtype::f32, param.shape, master(param).bytes));
                pt::Value moments = pt::dict({{"step", step()}});
                for (const std::string& moment : spec_.moments)
                    moments.set(moment, pt::tensor(Dtype::f32, param.shape,
                                                   values(Dtype::f32, moment, param.name, pt::elements(param.shape))));
                state.set(std::to_string(number), std::move(moments));
                numbers.push(pt::integer(number++));
            }
            masters.push(std::move(own));
            param_groups.push(hyper_parameters(std::move(numbers)));
        }
        pt::Value adam = pt::dict({{"state", std::move(state)}, {"param_groups", std::move(param_groups)}});
        if (spec_.dtype == Dtype::f32) return adam;
        return pt::dict({{"dynamic_loss_scale", pt::boolean(false)},
                         {"cur_scale", pt::real(1)},
                         {"cur_iter", pt::integer(7)},
                         {"optimizer_state_dict", std::move(adam)},
                         {"fp32_groups", std::move(masters)}});
    }

private:
    Spec spec_;
    // Made once for all ranks.
    mutable std::map<std::pair<const std::vector<Param>*, std::string>, Flat> flats_ = {};
    mutable std::map<std::pair<std::string, std::string>, std::string> values_ = {};
};

}  // namespace

std::string detail::values(Dtype dtype, std::string_view what, std::string_view name, std::uint64_t count) {
    const std::uint64_t seed = hash(what) * 31 + hash(name);
    const std::size_t size = pt::element_bytes(dtype);
    std::string bytes(count * size, '\0');
    for (std::uint64_t i = 0; i < count; ++i) {
        const std::uint64_t bits = element(dtype, mixed(seed + i));
        std::memcpy(bytes.data() + i * size, &bits, size);
    }
    return bytes;
}

std::map<std::string, std::string> Run::packed() const {
    std::map<std::string, std::string> out = others;
    if (latest) out["latest"] = *latest;
    for (const auto& [name, value] : files)
        out[spec.tag + "/" + name] =
            pt::Writer::file(value, spec.container, std::filesystem::path(name).stem().string());
    return out;
}

void Run::double_model_ranks() {
    each_model([](pt::Value& file) { file["mp_world_size"] = pt::integer(2); });
    for (const auto& [name, value] : std::map(files)) {
        std::string other = name;
        other.replace(other.find("mp_rank_00"), 10, "mp_rank_01");
        files[other] = value;
    }
}

void Run::write(const std::filesystem::path& root) const { forge::write_files(root, packed()); }

Run Forge::run(const Spec& spec) { return Maker(spec).made(); }

Tensors Forge::weights(const Spec& spec) {
    const Maker maker(spec);
    if (spec.stage == 0) return module(spec);
    Tensors out;
    for (const auto& group : spec.groups)
        for (const Param& param : group) out[param.name] = maker.master(param);
    for (const Param& param : spec.frozen)
        if (maker.kept(param)) out[param.name] = maker.stored(param);
    maker.add_buffers(out);
    maker.add_ties(out);
    return out;
}

Tensors Forge::module(const Spec& spec) {
    const Maker maker(spec);
    Tensors out;
    for (const auto& group : spec.groups)
        for (const Param& param : group) out[param.name] = maker.stored(param);
    for (const Param& param : spec.frozen)
        if (spec.keep_frozen || pt::elements(param.shape) == 0) out[param.name] = maker.stored(param);
    maker.add_buffers(out);
    maker.add_ties(out);
    return out;
}

std::optional<Tensors> Forge::compat(const Spec& spec) {
    // torch does not map files in the legacy container, as the script asks it to.
    const bool is_legacy = spec.container == pt::Container::legacy;
    if (spec.stage == 0 || spec.bf16_optimizer || spec.old_names || is_legacy) return std::nullopt;
    Tensors out = weights(spec);
    for (const Param& param : spec.frozen)
        if (spec.stage == 1 || !spec.keep_frozen) out.erase(param.name);
    for (auto& tensor : out) {
        const auto is_it = [&tensor](const Buffer& buffer) { return buffer.name == tensor.first; };
        Expected& value = tensor.second;
        if (!floating(value.dtype) || std::none_of(spec.buffers.begin(), spec.buffers.end(), is_it)) continue;
        value = {Dtype::f32, value.shape, as_f32(value.dtype, value.bytes)};
    }
    return out;
}

Tensors Forge::moments(const Spec& spec) {
    Tensors out;
    for (const auto& group : spec.groups)
        for (const Param& param : group)
            for (const std::string& moment : pt::elements(param.shape) > 0 ? spec.moments : std::vector<std::string>())
                out["optimizer/state/" + param.name + "/" + moment] = {
                    Dtype::f32, param.shape, values(Dtype::f32, moment, param.name, pt::elements(param.shape))};
    return out;
}

Expected Forge::master_of(const Param& param) { return Maker({}).master(param); }

std::vector<std::string> Forge::not_saved(const Spec& spec) {
    const Maker maker(spec);
    std::vector<std::string> names;
    for (const Param& param : spec.frozen)
        if (!maker.kept(param)) names.push_back(param.name);
    return names;
}

Spec small(int stage, std::uint64_t world) {
    Spec spec{.stage = stage, .world = world};
    spec.groups = {{{"embed.weight", {5, 3}}, {"up.weight", {4, 3}}, {"down.weight", {3, 4}}},
                   {{"up.bias", {4}}, {"gain", {1}}}};
    spec.frozen = {{"adapter.weight", {3, 3}}, {"void.weight", {0, 3}}};
    spec.buffers = {{"keep", Dtype::boolean, {5}}, {"exact", Dtype::f64, {3}}, {"seen", Dtype::i64, {}}};
    spec.ties = {{"head.weight", "embed.weight"}};
    return spec;
}

Spec random_spec(std::mt19937& random, int stage, std::uint64_t world) {
    const auto one_in = [&random](unsigned n) { return random() % n == 0; };
    const auto shape = [&] {
        Shape out;
        for (std::size_t d = random() % 4; d > 0; --d) out.push_back(one_in(20) ? 0 : random() % 7 + 1);
        return out;
    };
    Spec spec{.stage = stage, .world = world};
    spec.dtype = std::vector{Dtype::bf16, Dtype::f16, Dtype::f32}[random() % 3];
    std::size_t number = 0;
    const auto param = [&] { return Param{"layers." + std::to_string(number++) + ".weight", shape()}; };
    spec.groups.resize(random() % 3 + 1);
    for (auto& group : spec.groups)
        for (std::size_t n = random() % 6 + 1; n > 0; --n) group.push_back(param());
    for (std::size_t n = random() % 3; n > 0; --n) spec.frozen.push_back(param());
    const std::vector kinds{Dtype::boolean, Dtype::i64, Dtype::i32, Dtype::f64, Dtype::f32, Dtype::f16, Dtype::bf16};
    for (std::size_t n = random() % 4; n > 0; --n)
        spec.buffers.push_back({"buffer" + std::to_string(number++), kinds[random() % kinds.size()], shape()});
    if (one_in(2)) spec.ties.emplace_back("head.weight", spec.groups[0][0].name);
    spec.integer_steps = one_in(3);
    spec.keep_frozen = !one_in(4);
    if (one_in(5)) spec.container = pt::Container::legacy;
    if (one_in(5)) spec.moments = {"exp_avg"};
    if (one_in(5)) spec.moments = {"sum", "exp_avg", "max_exp_avg_sq"};
    spec.stage_by_name = one_in(3);
    if (stage == 3 && one_in(2)) spec.sub_group_size = random() % 20 + 1;
    if (stage == 0 || stage == 3) return spec;
    spec.round_robin = one_in(3);
    spec.elastic = one_in(4);
    if (one_in(3)) spec.alignment = std::uint64_t{1} << (random() % 5);
    if (stage == 1 && one_in(3)) {
        spec.bf16_optimizer = true;
        spec.round_robin = spec.elastic = false;
        spec.alignment = 1;
    }
    if (spec.groups.size() == 1 && one_in(3) && spec.alignment == 1 && !spec.bf16_optimizer) {
        spec.old_names = true;
        spec.ties.clear();
        spec.frozen.clear();
    }
    return spec;
}

}  // namespace zero_forge
