// Where two checkpoints differ.
#pragma once

#include <safemap/checkpoint.hpp>
#include <safemap/progress.hpp>

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

namespace safemap::SAFEMAP_ABI {

/// A tensor that both have and that is not the same: its dtype differs, or else its shape, or else its bytes.
struct TensorDifference {
    enum class What : std::uint8_t { dtype, shape, value };
    struct Side {
        Dtype dtype = {};
        Shape shape = {};
        /// Where values differ, the first that does, as a person reads it: "1.5", "-7", "true", "nan". Sides that
        /// would read the same have their bits too: "nan (0x7fc00001)". Elements of no common kind are bits.
        std::string value = {};
    };

    std::string name;
    What what = What::dtype;
    Side a = {};
    Side b = {};
    Shape index = {};  ///< of the first value that differs; only for What::value
    /// The largest |a - b| of the tensor, as in CloseTensor. Only for What::value, and only if values were compared as
    /// numbers. Not finite: an infinity or NaN stands in one tensor, and another value in the other.
    std::optional<double> max_abs = std::nullopt;
};
/// "dtype", "shape" or "value".
SAFEMAP_API std::string_view name(TensorDifference::What what) noexcept;

/// A tensor that both have, and that counts as equal although its dtype or its values differ.
struct CloseTensor {
    std::string name;
    double max_abs = 0;  ///< the largest |a - b|; of integers beyond 2^53, the nearest double
};

struct DiffReport {
    std::vector<std::string> only_in_a = {};       ///< in the order of a
    std::vector<std::string> only_in_b = {};       ///< in the order of b
    std::vector<TensorDifference> different = {};  ///< in the order of a
    std::vector<CloseTensor> close = {};           ///< in the order of a
    /// Human sentences: a prefix that explains all names that only one side has, ties that one side lacks.
    std::vector<std::string> notes = {};
    std::uint64_t tensors = 0;  ///< names that both have
    std::uint64_t bytes = 0;    ///< of tensors whose values were compared, tied ones once

    /// Tensors that are close are equal.
    bool equal() const noexcept { return only_in_a.empty() && only_in_b.empty() && different.empty(); }
};

/// Values are close if |a - b| <= atol + rtol * |b|, as numpy.allclose has it.
struct Tolerance {
    double atol = 0;
    double rtol = 0;
};

struct DiffOptions {
    /// Selects names as they are compared: names of `a` after `rename`.
    Selection selection = {};
    /// Compares values as numbers. Unset: values are equal if their bytes are.
    std::optional<Tolerance> tolerance = std::nullopt;
    /// Compares values of tensors whose dtypes differ, if both dtypes are F64, F32, F16, BF16 or F8 (not F8_E8M0).
    bool cast = false;
    /// Returns the name under which a tensor of `a` is compared. Unset: its own name.
    std::function<std::string(std::string_view name)> rename = {};
    Work work = {};  ///< at most 8 threads
};

/// Compares by name, the other names of tied tensors too. Values are equal when their bytes are: a NaN equals the same
/// NaN, and -0 is not 0. How tensors are stored (format, shards, strides, ties) does not count, nor does metadata,
/// except that it names tied tensors. Behind a difference nothing more of a tensor is begun; memory does not grow with
/// a tensor's size.
///
/// With `tolerance`, values are compared as numbers, and tensors are read to the end for the largest difference:
/// - Floating-point values of any dtype are converted to F64, which is exact; their difference is rounded to F64.
/// - Differences of integers are exact.
/// - Complex numbers are compared by their parts.
/// - A NaN equals every NaN, an infinity equals the same infinity and nothing else, and -0 equals 0.
/// - Booleans, and dtypes without numbers (those of quantised tensors, bits), are equal if their bytes are.
///
/// With `cast`, a pair of different floating-point dtypes is compared so too, with a tolerance of 0 if none is given;
/// pairs of one dtype are compared as without it.
///
/// Throws invalid_argument for a tolerance that is negative or not finite, name_collision if `rename` gives two tensors
/// of `a` the same name; what `rename` and reading throw, and cancelled.
SAFEMAP_API DiffReport diff(const Checkpoint& a, const Checkpoint& b, const DiffOptions& options = {});

}  // namespace safemap::SAFEMAP_ABI
