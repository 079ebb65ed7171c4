// diff(): compares two checkpoints, whatever their formats.
#pragma once

#include <safemap/checkpoint.hpp>
#include <safemap/progress.hpp>

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

namespace safemap::SAFEMAP_ABI {

/// A tensor that is in both checkpoints and differs.
struct TensorDifference {
    /// The first property that differs, in this order.
    enum class What : std::uint8_t { dtype, shape, value };
    /// The tensor in one of the checkpoints.
    struct Side {
        Dtype dtype = {};
        Shape shape = {};
        /// If values differ: the first differing value as text, "1.5", "-7", "true" or "nan". If both sides have the
        /// same text, the bits are added: "nan (0x7fc00001)". Elements without a numeric or boolean value are bits.
        std::string value = {};
    };

    std::string name;
    What what = What::dtype;
    Side a = {};
    Side b = {};
    Shape index = {};  ///< index of the first differing value; only for What::value
    /// The largest |a - b| of the tensor, as in CloseTensor. Only for What::value, and only if values were compared as
    /// numbers. Not finite if one tensor has an infinity or NaN where the other has another value.
    std::optional<double> max_abs = std::nullopt;
};
/// Returns "dtype", "shape" or "value".
[[nodiscard]] SAFEMAP_API std::string_view name(TensorDifference::What what) noexcept;

/// A tensor that is in both checkpoints and counts as equal, although its dtype or its values differ.
struct CloseTensor {
    std::string name;
    double max_abs = 0;  ///< the largest |a - b|; for integers beyond 2^53, the nearest double
};

/// The result of diff().
///
/// Example:
///     safemap::DiffReport report = safemap::diff(checkpoint, other, {.tolerance = safemap::Tolerance{.atol = 1e-6}});
///     for (const auto& one : report.different) std::cout << one.name << ": " << name(one.what) << '\n';
///     std::cout << (report.equal() ? "equal\n" : "different\n");
struct [[nodiscard]] DiffReport {
    std::vector<std::string> only_in_a = {};       ///< in the order of a
    std::vector<std::string> only_in_b = {};       ///< in the order of b
    std::vector<TensorDifference> different = {};  ///< in the order of a
    std::vector<CloseTensor> close = {};           ///< in the order of a
    /// Human sentences: a prefix that explains all names that only one side has, ties that one side lacks.
    std::vector<std::string> notes = {};
    std::uint64_t tensors = 0;  ///< names that are in both
    std::uint64_t bytes = 0;    ///< bytes of the tensors whose values were compared; tied tensors count once

    /// Returns true if the checkpoints are equal. Close tensors count as equal.
    bool equal() const noexcept { return only_in_a.empty() && only_in_b.empty() && different.empty(); }
};

/// The tolerance for values: they are close if |a - b| <= atol + rtol * |b|, as in numpy.allclose.
struct Tolerance {
    double atol = 0;
    double rtol = 0;
};

/// Options of diff().
struct DiffOptions {
    /// Names to compare: names of `a` after `rename`, and names of `b`.
    Selection selection = {};
    /// Tolerance for comparing values as numbers. Unset: values are equal if their bytes are.
    std::optional<Tolerance> tolerance = std::nullopt;
    /// If true, compares values of tensors whose dtypes differ, if both dtypes are F64, F32, F16, BF16 or F8 (not
    /// F8_E8M0).
    bool cast = false;
    /// Function that returns the name under which a tensor of `a` is compared. Unset: its own name.
    std::function<std::string(std::string_view name)> rename = {};
    Work work = {};  ///< at most 8 threads
};

/// Compares two checkpoints, tensor by tensor: tensors match by name, including the aliases of tied tensors. Values are
/// equal if their bytes are: a NaN equals the same NaN, and -0 differs from 0. The way tensors are stored (format,
/// shards, strides, ties) is ignored, and so is metadata, except that it names tied tensors.
///
/// With `tolerance`, values are compared as numbers:
/// - Floating-point values of any dtype are converted to F64, which is exact; their difference is rounded to F64.
/// - Differences of integers are exact.
/// - Complex numbers are compared by their parts.
/// - A NaN equals every NaN, an infinity equals the same infinity and nothing else, and -0 equals 0.
/// - Booleans, and values of dtypes without numbers (quantised dtypes, bits), are equal if their bytes are.
///
/// With `cast`, a pair of different floating-point dtypes is compared as numbers too, with a tolerance of 0 if
/// `tolerance` is unset. Pairs of equal dtypes are compared as without `cast`.
///
/// Throws invalid_argument for a tolerance that is negative or not finite, name_collision if `rename` returns the same
/// name for two tensors of `a`, cancelled, and whatever `rename` or reading throws.
///
/// Cost: no block of a tensor is begun after the first difference in it. Tensors whose values are compared as numbers
/// are always read to the end, for the largest difference. Memory does not grow with the size of a tensor.
SAFEMAP_API DiffReport diff(const Checkpoint& a, const Checkpoint& b, const DiffOptions& options = {});

}  // namespace safemap::SAFEMAP_ABI
