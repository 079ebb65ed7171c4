// Where two checkpoints differ.
#pragma once

#include <safemap/checkpoint.hpp>
#include <safemap/progress.hpp>

#include <cstdint>
#include <string>
#include <vector>

namespace safemap {

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
};
/// "dtype", "shape" or "value".
SAFEMAP_API std::string_view name(TensorDifference::What what) noexcept;

struct DiffReport {
    std::vector<std::string> only_in_a = {};       ///< in the order of a
    std::vector<std::string> only_in_b = {};       ///< in the order of b
    std::vector<TensorDifference> different = {};  ///< in the order of a
    std::uint64_t tensors = 0;                     ///< names that both have
    std::uint64_t bytes = 0;                       ///< of tensors whose values were compared, tied ones once

    bool equal() const noexcept { return only_in_a.empty() && only_in_b.empty() && different.empty(); }
};

struct DiffOptions {
    Selection selection = {};
    Monitor monitor = {};
    unsigned threads = 0;  ///< 0: one per core; no more than eight work
};

/// Compares by name, the other names of tied tensors too. Values are equal when their bytes are: a NaN equals the same
/// NaN, and -0 is not 0. How tensors are stored (format, shards, strides, ties) does not count, nor does metadata,
/// except that it names tied tensors. Behind a difference nothing more of a tensor is begun; memory does not grow with
/// a tensor's size. Throws what reading throws, and cancelled.
SAFEMAP_API DiffReport diff(const Checkpoint& a, const Checkpoint& b, const DiffOptions& options = {});

}  // namespace safemap
