// What a model expects, held against what a checkpoint has, before anything is loaded.
#pragma once

#include <safemap/checkpoint.hpp>
#include <safemap/dtype.hpp>
#include <safemap/selection.hpp>
#include <safemap/shape.hpp>

#include <cstdint>
#include <filesystem>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace safemap::SAFEMAP_ABI {

/// A tensor that a model has, and wants values for.
struct ExpectedTensor {
    std::string name = {};
    Dtype dtype = {};
    Shape shape = {};
    /// Of tensors that the model ties, all but one name that one here. It has to be among those expected, and no alias
    /// itself.
    std::string alias_of = {};
};

/// What a model that has the tensors of `checkpoint` expects: every selected name in the order of all_names(), ties
/// with them.
SAFEMAP_API std::vector<ExpectedTensor> expected_tensors(const Checkpoint& checkpoint, const Selection& selection = {});
/// The same from JSON, `{"w": {"dtype": "BF16", "shape": [2, 3]}, ...}`, in its order. Dtypes are as parse_dtype()
/// takes them; a tied tensor has "alias_of" too. Other members are passed by, and so is `__metadata__`: the header of a
/// safetensors file will do. Throws expectation_not_json, expectation_bad_field, unknown_dtype, shape_overflow and
/// partial_byte. Memory is some ten times `json`.
SAFEMAP_API std::vector<ExpectedTensor> parse_expected(std::string_view json);
/// The same from a file of such JSON, up to 32 MiB, or from anything that Checkpoint::open takes; which of them is told
/// by content, as there. Throws what either throws.
SAFEMAP_API std::vector<ExpectedTensor> read_expected(const std::filesystem::path& path,
                                                      const OpenOptions& options = {});

/// What a model gets for a tensor that the checkpoint lacks.
enum class Fill : std::uint8_t {
    error,  ///< nothing: the plan is not ok()
    none,   ///< nothing: the tensor is left out, and the model keeps what it has
    zeros,  ///< zeros of its dtype and shape
    nan,    ///< quiet NaN, in both parts of complex numbers; a dtype that has none (integers, BOOL, F4, F6) is an error
};

/// By default as strict as PyTorch's load_state_dict. What that calls non-strict is
/// `{.fill = Fill::none, .ignore_unexpected = true}`.
struct LoadOptions {
    Fill fill = Fill::error;
    /// Whether tensors that the model does not expect are told, but no fault.
    bool ignore_unexpected = false;
    /// Only such names are planned, on either side.
    Selection selection = {};
};

/// A tensor that is there, and is not what the model expects.
struct TensorMismatch {
    ExpectedTensor expected;
    LazyTensor found;  ///< under the name that the model expects
};

/// What loading a checkpoint into a model comes to. It may outlive the checkpoint; const members may be called from
/// several threads at once. The lists have the order of the model, `unexpected` and `tied` that of the checkpoint.
struct SAFEMAP_API LoadPlan {
    std::vector<ExpectedTensor> missing = {};
    /// Every name of a tensor none of whose names is expected.
    std::vector<LazyTensor> unexpected = {};
    /// A tensor of another dtype and another shape is in both.
    std::vector<TensorMismatch> shape = {};
    std::vector<TensorMismatch> dtype = {};
    /// All names of each stored tensor that is used and has several, here or in the model: the stored name first.
    std::vector<AliasGroup> tied = {};
    /// What names of the checkpoint have before those of the model, "module.", where that is certain: with it, and with
    /// no other, all that is missing would be found, or all that is unexpected be of use, each in the right shape.
    std::string checkpoint_prefix = {};
    /// The same of what names of the model have before those of the checkpoint.
    std::string model_prefix = {};
    /// Human sentences: such prefixes, and what else one would want to know.
    std::vector<std::string> notes = {};

    /// Whether there is no fault that LoadOptions does not allow.
    bool ok() const noexcept {
        return unfilled_.empty() && (ignore_unexpected_ || unexpected.empty()) && shape.empty() && dtype.empty();
    }
    /// Throws model_mismatch, which says why, unless ok().
    void require() const;
    /// What to load or upload, in the order of the model and under its names: the checkpoint's own tensors, of which
    /// nothing is read or copied until view(), load() or an Uploader is asked for them. Of tied tensors all share one
    /// stored tensor, which an Uploader brings once. Fillings take no memory: load() and read() make their values, and
    /// view() of them throws no_view. Tensors that are left out are not among them. Throws as require() does.
    std::vector<LazyTensor> tensors() const;
    /// The lists as lines, in which names that differ in numbers only are one; empty where there is nothing to tell.
    std::string text() const;

private:
    friend class LoadPlanner;
    std::vector<LazyTensor> tensors_ = {};
    std::vector<ExpectedTensor> unfilled_ = {};  // of those missing
    Fill fill_ = Fill::error;
    bool ignore_unexpected_ = false;
};

/// Finds every expected tensor by its name, by the other names of a tied tensor in the checkpoint, or else by the names
/// of the tensors that the model ties it to. Reads nothing. Takes time and memory in proportion to the names on both
/// sides. Throws expectation_bad_field, shape_overflow and partial_byte for what no model can expect.
SAFEMAP_API LoadPlan plan_load(const Checkpoint& checkpoint, std::span<const ExpectedTensor> expected,
                               const LoadOptions& options = {});
/// The same for what read_expected() reads from a file or folder. Throws what that throws, too.
SAFEMAP_API LoadPlan plan_load(const Checkpoint& checkpoint, const std::filesystem::path& expected,
                               const LoadOptions& options = {});

}  // namespace safemap::SAFEMAP_ABI
