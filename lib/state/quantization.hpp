// Finds quantised tensors: which tensors hold numbers, and which tensors beside them hold their scales. Looks at names
// and dtypes only. The table of conventions is in quantization.cpp.
#pragma once

#include <safemap/dtype.hpp>
#include <safemap/lazy_tensor.hpp>
#include <safemap/state_tree.hpp>

#include <cstdint>
#include <functional>
#include <set>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace safemap::SAFEMAP_ABI::state {

/// The kinds of quantised tensors. A value is its number times its scale only for scaled_fp8.
enum class Quantization : std::uint8_t {
    scaled_fp8,  ///< F8 numbers, with scales in a tensor beside them
    packed,      ///< integers or packed bits, with scales, zero points or code books beside them
};

/// A convention, as messages need it.
struct QuantizationName {
    Quantization kind;
    std::string_view text;  ///< for example "GPTQ or AWQ"
};

/// A tensor that holds quantised numbers, and the tensors that say what they mean. Tensors are given by their indices
/// in the list that find_quantized() took.
struct Quantized {
    QuantizationName name;
    std::uint32_t numbers;
    /// The tensors of scales. Several if the names of two conventions are beside one tensor: then it is not known which
    /// of them counts.
    std::vector<std::uint32_t> scales;
    std::vector<std::uint32_t> besides = {};  ///< `input_scale`, zero points, code books and so on
    /// Tensors among `besides` without which numbers times scales are not the values: second factors, offsets, zero
    /// points, orders of columns.
    std::vector<std::uint32_t> more_factors = {};
};

/// A tensor that has the name of a scale, and whose numbers are not there.
struct LoneScale {
    std::string_view convention;
    std::uint32_t scale;
    std::string numbers;  ///< the name that the numbers would have
    /// True if only scales have such a name, or if the tensor is from a numbered shard, and other shards are not there.
    /// Else it may be a parameter of an ordinary model.
    bool is_sure;
};

/// The quantised tensors of a checkpoint.
struct QuantizedTensors {
    std::vector<Quantized> all = {};          ///< sorted by `numbers`
    std::vector<LoneScale> lone = {};         ///< sorted by `scale`
    std::vector<std::uint32_t> markers = {};  ///< tensors such as `scaled_fp8`, which say that a model has scales
    /// Names of scales, or of tensors beside numbers, that mean something else: a parameter may share its storage with
    /// a scale. Without the names that make these tensors scales.
    std::set<std::string, std::less<>> other_names = {};
};

/// Returns the quantised tensors among `tensors`. `ties` has other names of tensors, which count too. A float tensor
/// that has the name of a scale counts in `all` only beside a tensor of a quantised dtype. Linear in the number of
/// names.
QuantizedTensors find_quantized(std::span<const LazyTensor> tensors, std::span<const AliasGroup> ties);

/// Returns true for ComfyUI's mark of a model with scales: an F8 tensor `scaled_fp8` of at most two elements, whose
/// dtype says something, and whose values say nothing.
bool is_marker(const LazyTensor& tensor);

/// Returns true for the F8 dtypes whose elements are numbers: all but F8_E8M0.
bool is_fp8(Dtype dtype) noexcept;

}  // namespace safemap::SAFEMAP_ABI::state
