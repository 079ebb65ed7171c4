// The table of conventions, and the search for their names. Sources of the conventions: ComfyUI (QUANTIZATION.md),
// compressed-tensors, DeepSeek-V3 (inference/fp8_cast_bf16.py), ModelOpt, Mistral's own files, bitsandbytes, GPTQ, AWQ,
// HQQ, AQLM, quanto, gpt-oss, torchao (flatten_tensor_state_dict), MLX (nn.QuantizedLinear), nunchaku, llm-awq, EETQ
// and Marlin (IST-DASLab, AutoGPTQ).
#include "state/quantization.hpp"

#include "base/name_index.hpp"
#include "names/model_names.hpp"

#include <algorithm>
#include <array>
#include <cstddef>
#include <map>
#include <optional>
#include <string>
#include <unordered_set>

namespace safemap::SAFEMAP_ABI::state {

namespace {

enum class Numbers : std::uint8_t { fp8, bits, torch, any };

/// A convention. Patterns are names inside one module; the `*` of `scale` is replaced in the other patterns by what it
/// matches there, which has no dot and no slash. Empty patterns do not count.
struct Convention {
    QuantizationName name;
    Numbers dtype;                            // dtype of the numbers
    std::string_view numbers;                 // the tensor of numbers
    std::string_view scale;                   // the tensor that makes it a quantised one
    std::array<std::string_view, 7> besides;  // other tensors, which may be missing
};

constexpr auto scaled = Quantization::scaled_fp8;
constexpr auto packed = Quantization::packed;

constexpr std::array<std::string_view, 7> torchao_besides = {
    "_*_zero_point", "_*_per_tensor_scale", "_*_act_per_tensor_scale", "_*_act_pre_scale", "_*_act_quant_scale"};

// For names that several conventions share, such as `weight_scale`, the dtype of the numbers decides.
constexpr Convention conventions[] = {
    {{scaled, "FP8 of ComfyUI"}, Numbers::fp8, "*", "scale_*", {"scale_input", "input_scale", "comfy_quant"}},
    {{scaled, "FP8 in blocks, as DeepSeek writes it"},
     Numbers::fp8,
     "*",
     "*_scale_inv",
     {"input_scale", "*_input_scale", "activation_scale", "*_activation_scale"}},
    {{scaled, "FP8 of compressed-tensors, ModelOpt or ComfyUI"},
     Numbers::fp8,
     "*",
     "*_scale",
     {"input_scale", "*_input_scale", "output_scale", "comfy_quant", "input_zero_point"}},
    {{scaled, "MX FP8"}, Numbers::fp8, "*", "*_scales", {"input_scale"}},
    {{scaled, "FP8 of Mistral"}, Numbers::fp8, "*", "qscale_*", {"qscale_act"}},
    {{scaled, "FP8, as DeepSeek reads it"}, Numbers::fp8, "weight", "scale", {}},

    {{packed, "compressed-tensors"},
     Numbers::bits,
     "*_packed",
     "*_scale",
     {"*_global_scale", "input_global_scale", "*_zero_point", "*_shape", "*_g_idx", "input_scale"}},
    {{packed, "integers or packed FP4 with scales"},
     Numbers::bits,
     "*",
     "*_scale",
     {"*_scale_2", "input_scale", "*_zero_point", "input_zero_point", "*_global_scale", "comfy_quant", "*_g_idx"}},
    {{packed, "integers of ComfyUI"}, Numbers::bits, "*", "scale_*", {"scale_input", "comfy_quant"}},
    {{packed, "packed MX"}, Numbers::bits, "*_blocks", "*_scales", {}},
    {{packed, "integers with scales"}, Numbers::bits, "*", "*_scales", {"*_zeros"}},
    {{packed, "GPTQ or AWQ"}, Numbers::bits, "qweight", "scales", {"qzeros", "g_idx", "scaled_zeros"}},
    {{packed, "EETQ"}, Numbers::bits, "qweight", "weight_scales", {}},
    {{packed, "Marlin"}, Numbers::bits, "B", "s", {"workspace", "g_idx"}},
    {{packed, "MLX"}, Numbers::bits, "weight", "scales", {"biases"}},
    {{packed, "nunchaku"},
     Numbers::bits,
     "qweight",
     "wscales",
     {"wzeros", "wcscales", "wtscale", "smooth", "smooth_orig", "smooth_factor", "smooth_factor_orig"}},
    // F8 numbers, too, count as packed: their values belong under another name.
    {{packed, "torchao"}, Numbers::bits, "_*_qdata", "_*_scale", torchao_besides},
    {{packed, "torchao"}, Numbers::fp8, "_*_qdata", "_*_scale", torchao_besides},
    {{packed, "torchao"}, Numbers::bits, "*:qdata", "*:scale", {"*:zero_point"}},
    {{packed, "torchao"}, Numbers::fp8, "*:qdata", "*:scale", {"*:zero_point"}},
    // The numbers may have any dtype: bnb_4bit_quant_storage chooses it.
    {{packed, "bitsandbytes in 4 bits"},
     Numbers::any,
     "*",
     "*.quant_map",
     {"*.absmax", "*.nested_absmax", "*.nested_quant_map", "*.quant_state.bitsandbytes__nf4",
      "*.quant_state.bitsandbytes__fp4"}},
    {{packed, "bitsandbytes in 8 bits"}, Numbers::bits, "weight", "SCB", {"weight_format"}},
    {{packed, "HQQ"}, Numbers::bits, "W_q", "scale", {"zero"}},
    {{packed, "AQLM"}, Numbers::bits, "codes", "codebooks", {"scales"}},
    {{packed, "a quantised tensor of torch"}, Numbers::torch, "*", "*/scales", {"*/zero_points"}},
    {{packed, "quanto"}, Numbers::bits, "_data", "_scale", {"_shift", "_zeropoint"}},
    {{packed, "quanto"}, Numbers::fp8, "_data", "_scale", {"_shift", "_zeropoint"}},
};

// Names beside numbers of any convention that make another value of them: the second factors of NVFP4 and of AWQ in
// ModelOpt, offsets, zero points, and an order of columns.
constexpr std::string_view factors[] = {"*_scale_2",    "*_global_scale", "*_offset",
                                        "*_zero_point", "*_g_idx",        "pre_quant_scale"};

/// A name that scales have also without their numbers beside them.
struct LoneName {
    std::string_view convention;
    std::string_view scale;
    std::array<std::string_view, 2> numbers;
    std::string_view beside = {};  // must be there too, if not empty: integers, or `scaled_zeros`
    bool is_sure = true;           // no ordinary model has this name
};

constexpr LoneName lone_names[] = {
    {"FP8 in blocks, as DeepSeek writes it", "*_scale_inv", {"*"}},
    {"FP8 of Mistral", "qscale_weight", {"weight"}},
    {"GPTQ or AWQ", "scales", {"qweight"}, "qzeros"},
    {"GPTQ", "scales", {"qweight"}, "g_idx"},
    {"AWQ", "scales", {"qweight"}, "scaled_zeros"},
    {"AWQ", "scaled_zeros", {"qweight"}},
    {"bitsandbytes in 4 bits", "*.quant_map", {"*"}},
    {"bitsandbytes in 4 bits", "weight.absmax", {"weight"}},
    {"bitsandbytes in 8 bits", "SCB", {"weight"}},
    {"compressed-tensors, ModelOpt or ComfyUI", "weight_scale", {"weight", "weight_packed"}, {}, false},
    {"scales of blocks", "weight_scales", {"weight", "qweight"}, {}, false},
    {"ComfyUI", "scale_weight", {"weight"}, {}, false},
};

// ComfyUI's mark of a model with scales. It is one for the whole model, or one for each part such as
// `model.diffusion_model`.
constexpr std::string_view marker_name = "scaled_fp8";

/// A name that matches a pattern: the module, which ends in a dot or a slash or is empty, and the text for `*`.
struct Match {
    std::string_view module;
    std::string_view star;
};

std::optional<Match> match(std::string_view pattern, std::string_view name) {
    const std::size_t at = pattern.find('*');
    const std::string_view behind = at == std::string_view::npos ? pattern : pattern.substr(at + 1);
    if (!name.ends_with(behind)) return std::nullopt;
    name.remove_suffix(behind.size());
    if (at == std::string_view::npos) {
        if (!name.empty() && name.back() != '.' && name.back() != '/') return std::nullopt;
        return Match{name, {}};
    }
    const std::size_t module = name.find_last_of("./") + 1;  // 0 without a dot or slash
    const std::string_view last = name.substr(module);
    if (!last.starts_with(pattern.substr(0, at)) || last.size() == at) return std::nullopt;
    return Match{name.substr(0, module), last.substr(at)};
}

/// Returns true for the part of a scale's name that stands for inputs or outputs: there are no numbers that it belongs
/// to.
bool is_of_activations(std::string_view star) {
    const std::string_view last = star.substr(star.rfind('_') + 1);  // all of it without a '_'
    constexpr std::string_view known[] = {"input", "output", "activation", "act", "q", "k", "v", "kv"};
    return std::find(std::begin(known), std::end(known), last) != std::end(known);
}

/// Puts the name that `pattern` has in a module into `name`.
void expand(std::string_view pattern, const Match& match, std::string& name) {
    name = match.module;
    const std::size_t at = pattern.find('*');
    name += pattern.substr(0, at);
    if (at == std::string_view::npos) return;
    name += match.star;
    name += pattern.substr(at + 1);
}

bool has_dtype(Dtype dtype, Numbers numbers) {
    if (numbers == Numbers::any) return true;
    switch (dtype) {
        case Dtype::u8:
        case Dtype::i8:
        case Dtype::i16:
        case Dtype::u16:
        case Dtype::i32:
        case Dtype::u32:
        case Dtype::f4:
        case Dtype::f6_e2m3:
        case Dtype::f6_e3m2: return numbers == Numbers::bits;
        case Dtype::qint8:
        case Dtype::quint8:
        case Dtype::qint32:
        case Dtype::quint4x2:
        case Dtype::quint2x4: return numbers == Numbers::torch;
        default: return numbers == Numbers::fp8 && is_fp8(dtype);
    }
}

/// Finds tensors by their names, which include those of ties.
class NamesAndTies {
public:
    NamesAndTies(std::span<const LazyTensor> tensors, std::span<const AliasGroup> ties) : tensors_(tensors) {
        index_.add_all(NamesOf(tensors_));
        for (const AliasGroup& group : ties)
            if (const auto first = index_.find(group.front(), NamesOf(tensors_)))
                for (std::size_t i = 1; i < group.size(); ++i) {
                    others_.emplace(group[i], *first);
                    tied_.insert(*first);
                }
    }

    bool has_several_names(std::uint32_t tensor) const { return tied_.contains(tensor); }

    std::optional<std::uint32_t> find(std::string_view name) const {
        if (const auto found = index_.find(name, NamesOf(tensors_))) return found;
        const auto other = others_.find(name);
        return other == others_.end() ? std::nullopt : std::optional(other->second);
    }

private:
    std::span<const LazyTensor> tensors_;
    NameIndex index_;
    std::map<std::string, std::uint32_t, std::less<>> others_;
    std::unordered_set<std::uint32_t> tied_;
};

void add_once(std::vector<std::uint32_t>& to, std::uint32_t tensor) {
    if (std::find(to.begin(), to.end(), tensor) == to.end()) to.push_back(tensor);
}

class Finder {
public:
    Finder(std::span<const LazyTensor> tensors, std::span<const AliasGroup> ties) : tensors_(tensors), ties_(ties) {}

    QuantizedTensors find() {
        for (const Convention& convention : conventions) {
            for (std::uint32_t i = 0; i < tensors_.size(); ++i) try_name(convention, tensors_[i].name(), i);
            for (const AliasGroup& group : ties_)
                for (std::size_t i = 1; i < group.size(); ++i) try_name(convention, group[i], std::nullopt);
        }
        std::sort(found_.all.begin(), found_.all.end(),
                  [](const Quantized& a, const Quantized& b) { return a.numbers < b.numbers; });
        find_lone();
        if (found_.all.empty()) return std::move(found_);
        for (std::uint32_t i = 0; i < tensors_.size(); ++i)
            if (match(marker_name, tensors_[i].name())) found_.markers.push_back(i);
        find_other_names();
        return std::move(found_);
    }

private:
    void try_name(const Convention& convention, std::string_view name, std::optional<std::uint32_t> scale) {
        const auto matched = match(convention.scale, name);
        if (!matched) return;
        if (!names_) names_.emplace(tensors_, ties_);
        expand(convention.numbers, *matched, text_);
        const auto numbers = names_->find(text_);
        if (!scale) scale = names_->find(name);
        if (!numbers || !scale || *numbers == *scale || !has_dtype(tensors_[*numbers].dtype(), convention.dtype))
            return;
        if (convention.numbers == "weight" && convention.scale == "scale" && !is_scale(*numbers, *scale)) return;
        if (convention.numbers == "B" && !is_marlin(*numbers, *scale)) return;
        note_name(name, *scale);
        add(convention, *matched, *numbers, *scale);
    }

    /// Notes that a name of a tied tensor is one that the table has.
    void note_name(std::string_view name, std::uint32_t tensor) {
        if (names_->has_several_names(tensor)) known_names_.emplace(name);
    }

    void find_other_names() {
        const auto is_known = [&](const std::string& name) {
            return known_names_.contains(name) || match(marker_name, name);
        };
        for (const AliasGroup& group : ties_) {
            if (std::none_of(group.begin(), group.end(), is_known)) continue;
            for (const std::string& name : group)
                if (!is_known(name)) found_.other_names.insert(name);
        }
    }

    /// Returns true if a tensor called `scale`, a usual name, has the scales of F8 numbers. In a float model that was
    /// cast to F8 as a whole, it is F8 itself.
    bool is_scale(std::uint32_t numbers, std::uint32_t scale) const {
        const std::size_t rank = tensors_[scale].shape().size();
        return !is_fp8(tensors_[scale].dtype()) || (rank >= 2 && rank == tensors_[numbers].shape().size());
    }

    /// Returns true if tensors called `B` and `s`, usual names, have the dtypes and ranks of Marlin.
    bool is_marlin(std::uint32_t numbers, std::uint32_t scale) const {
        const Dtype dtype = tensors_[scale].dtype();
        return tensors_[numbers].dtype() == Dtype::i32 && (dtype == Dtype::f16 || dtype == Dtype::bf16) &&
               tensors_[numbers].shape().size() == 2 && tensors_[scale].shape().size() == 2;
    }

    void find_lone() {
        std::unordered_set<std::uint32_t> known;
        for (const Quantized& quantized : found_.all) {
            known.insert(quantized.scales.begin(), quantized.scales.end());
            known.insert(quantized.besides.begin(), quantized.besides.end());
        }
        for (std::uint32_t i = 0; i < tensors_.size(); ++i)
            for (const LoneName& lone : lone_names)
                if (auto numbers = numbers_of_lone(lone, i); numbers && !known.contains(i)) {
                    const bool is_sure = lone.is_sure || other_shards_lack(i);
                    found_.lone.push_back({lone.convention, i, *std::move(numbers), is_sure});
                    break;
                }
    }

    /// Returns the name of the numbers if a tensor has this name of scales, and no tensor is called as its numbers.
    std::optional<std::string> numbers_of_lone(const LoneName& lone, std::uint32_t scale) {
        const auto matched = match(lone.scale, tensors_[scale].name());
        if (!matched || is_of_activations(matched->star)) return std::nullopt;
        if (!names_) names_.emplace(tensors_, ties_);
        for (const std::string_view pattern : lone.numbers) {
            if (pattern.empty()) continue;
            expand(pattern, *matched, text_);
            if (names_->find(text_)) return std::nullopt;
        }
        if (!lone.beside.empty()) {
            expand(lone.beside, *matched, text_);
            const auto beside = names_->find(text_);
            if (!beside) return std::nullopt;
            if (lone.beside != "scaled_zeros" && !has_dtype(tensors_[*beside].dtype(), Numbers::bits))
                return std::nullopt;
        }
        expand(lone.numbers.front(), *matched, text_);
        return text_;
    }

    /// Returns true if a tensor is in a numbered shard, and no tensor is from some other shard of the set.
    bool other_shards_lack(std::uint32_t tensor) {
        if (!incomplete_) incomplete_ = files_of_incomplete_sets();
        return incomplete_->contains(file_of(tensors_[tensor]));
    }

    std::set<std::string> files_of_incomplete_sets() const {
        std::set<std::string> names;
        for (const LazyTensor& each : tensors_) names.insert(file_of(each));
        std::set<std::string> files;
        for (const names::ShardSet& set : names::shard_sets(std::vector<std::string>(names.begin(), names.end())))
            if (!set.complete()) files.insert(set.files.begin(), set.files.end());
        return files;
    }

    /// Returns the name of the file that has a tensor, without its folder. It is empty if that is not one place.
    static std::string file_of(const LazyTensor& tensor) {
        const auto placement = tensor.placement();
        if (!placement) return {};
        const std::string& path = placement->source->name();
        return path.substr(path.rfind('/') + 1);
    }

    void add(const Convention& convention, const Match& matched, std::uint32_t numbers, std::uint32_t scale) {
        const auto [at, is_new] = by_numbers_.try_emplace(numbers, found_.all.size());
        if (is_new) found_.all.push_back({convention.name, numbers, {}});
        Quantized& quantized = found_.all[at->second];
        add_once(quantized.scales, scale);
        for (const std::string_view pattern : convention.besides) {
            if (pattern.empty()) break;
            if (const auto beside = find_beside(pattern, matched, quantized)) add_once(quantized.besides, *beside);
        }
        // Their `*` is the name of the numbers, also where the convention has no `*`.
        const bool has_star = convention.numbers.find('*') != std::string_view::npos;
        const Match by_numbers{matched.module, has_star ? matched.star : convention.numbers};
        for (const std::string_view pattern : factors)
            if (const auto beside = find_beside(pattern, by_numbers, quantized)) {
                add_once(quantized.besides, *beside);
                add_once(quantized.more_factors, *beside);
            }
    }

    std::optional<std::uint32_t> find_beside(std::string_view pattern, const Match& matched,
                                             const Quantized& quantized) {
        expand(pattern, matched, text_);
        const auto beside = names_->find(text_);
        if (!beside || *beside == quantized.numbers) return std::nullopt;
        note_name(text_, *beside);
        return beside;
    }

    std::span<const LazyTensor> tensors_;
    std::span<const AliasGroup> ties_;
    std::optional<NamesAndTies> names_;  // made when the first name looks like one of scales
    std::map<std::uint32_t, std::size_t> by_numbers_;
    std::set<std::string, std::less<>> known_names_;   // names of tied tensors that are scales, or beside numbers
    std::optional<std::set<std::string>> incomplete_;  // shards whose sets lack others; made for the first lone scale
    QuantizedTensors found_;
    std::string text_;
};

}  // namespace

bool is_fp8(Dtype dtype) noexcept {
    return dtype == Dtype::f8_e4m3 || dtype == Dtype::f8_e5m2 || dtype == Dtype::f8_e4m3fnuz ||
           dtype == Dtype::f8_e5m2fnuz;
}

bool is_marker(const LazyTensor& tensor) {
    return is_fp8(tensor.dtype()) && tensor.element_count() <= 2 && match(marker_name, tensor.name());
}

QuantizedTensors find_quantized(std::span<const LazyTensor> tensors, std::span<const AliasGroup> ties) {
    return Finder(tensors, ties).find();
}

}  // namespace safemap::SAFEMAP_ABI::state
