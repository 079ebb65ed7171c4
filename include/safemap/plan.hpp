// plan_load(): compares a checkpoint with the tensors that a model expects, before anything is loaded.
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

/// A tensor that a model expects a value for.
struct ExpectedTensor {
    std::string name = {};
    Dtype dtype = {};
    Shape shape = {};
    /// For a tied tensor: the name of the expected tensor that it shares storage with, which must not be an alias
    /// itself.
    std::string alias_of = {};
};

/// Returns the expectations of a model that has the tensors of `checkpoint`: one entry for each selected name, in the
/// order of all_names(). Tied tensors have `alias_of`.
[[nodiscard]] SAFEMAP_API std::vector<ExpectedTensor> expected_tensors(const Checkpoint& checkpoint,
                                                                       const Selection& selection = {});
/// Reads expectations from JSON, `{"w": {"dtype": "BF16", "shape": [2, 3]}, ...}`, and returns them in its order.
/// Dtypes are as in parse_dtype(); a tied tensor also has "alias_of". Other members and `__metadata__` are ignored, so
/// the header of a safetensors file is valid input. Throws expectation_not_json, expectation_bad_field, unknown_dtype,
/// shape_overflow and partial_byte. Takes about ten times the memory of `json`.
[[nodiscard]] SAFEMAP_API std::vector<ExpectedTensor> parse_expected(std::string_view json);
/// Reads expectations from a file of such JSON, up to 32 MiB, or from anything that Checkpoint::open() takes. The
/// content decides which of the two it is. Throws as parse_expected() and Checkpoint::open() do.
[[nodiscard]] SAFEMAP_API std::vector<ExpectedTensor> read_expected(const std::filesystem::path& path,
                                                                    const OpenOptions& options = {});

/// The values that a model gets for a tensor that the checkpoint lacks.
enum class Fill : std::uint8_t {
    error,  ///< no value: the plan is not ok()
    none,   ///< no value: the tensor is left out, and the model keeps its own
    zeros,  ///< zeros of the tensor's dtype and shape
    nan,    ///< quiet NaN, in both parts of complex numbers; an error for dtypes without NaN (integers, BOOL, F4, F6)
};

/// Options of plan_load(). The default is as strict as PyTorch's load_state_dict(). `strict=False` of PyTorch is
/// `{.fill = Fill::none, .ignore_unexpected = true}`.
struct LoadOptions {
    /// Values for missing tensors.
    Fill fill = Fill::error;
    /// If true, unexpected tensors are reported and do not fail the plan.
    bool ignore_unexpected = false;
    /// Names to plan, of the checkpoint and of the model.
    Selection selection = {};
};

/// A tensor of the checkpoint whose shape or dtype differs from the expected one.
struct TensorMismatch {
    ExpectedTensor expected;
    LazyTensor found;  ///< under the name that the model expects
};

/// The result of plan_load(): the differences between a checkpoint and a model, and the tensors to load. The lists are
/// in the order of the model; `unexpected` and `tied` are in the order of the checkpoint.
///
/// A plan keeps what its tensors need and may outlive the checkpoint. Const members may be called from several threads
/// at once.
///
/// Example:
///     safemap::LoadPlan plan = safemap::plan_load(checkpoint, "model.json", {.ignore_unexpected = true});
///     std::cerr << plan.text();
///     for (const safemap::LazyTensor& one : plan.tensors()) use(one.name(), one.load());
struct [[nodiscard]] SAFEMAP_API LoadPlan {
    /// Expected tensors that the checkpoint lacks.
    std::vector<ExpectedTensor> missing = {};
    /// Tensors of the checkpoint that the model does not expect under any of their names: one entry for each name.
    std::vector<LazyTensor> unexpected = {};
    /// Tensors of the wrong shape. A tensor whose dtype is wrong too is in both lists.
    std::vector<TensorMismatch> shape = {};
    /// Tensors of the wrong dtype. LoadOptions allows none. To load them, expect the dtype of the checkpoint, and call
    /// LazyTensor::cast() on the tensors of the plan.
    std::vector<TensorMismatch> dtype = {};
    /// All names of each used tensor that has several, in the checkpoint or in the model: the stored name first.
    std::vector<AliasGroup> tied = {};
    /// The prefix, such as "module.", that names of the checkpoint have and names of the model lack. Set only if it is
    /// certain: with this prefix and no other, every missing tensor would be found, or every unexpected one be used,
    /// each in the right shape.
    std::string checkpoint_prefix = {};
    /// The prefix that names of the model have and names of the checkpoint lack; set under the same conditions.
    std::string model_prefix = {};
    /// Human sentences about such prefixes and other findings.
    std::vector<std::string> notes = {};

    /// Returns true if the plan has no fault, except for faults that LoadOptions allows.
    bool ok() const noexcept {
        return unfilled_.empty() && (ignore_unexpected_ || unexpected.empty()) && shape.empty() && dtype.empty();
    }
    /// Throws model_mismatch with the reasons unless ok().
    void require() const;
    /// Returns the tensors to load or upload, in the order of the model and under its names. They are the tensors of
    /// the checkpoint: nothing is read or copied before view(), load() or an Uploader requests them. Tied tensors share
    /// one stored tensor, which an Uploader uploads once. Filled tensors take no memory: load() and read() make their
    /// values, and view() throws no_view. Tensors that are left out (Fill::none) are not returned. Throws as require()
    /// does.
    [[nodiscard]] std::vector<LazyTensor> tensors() const;
    /// Returns the lists as lines of text, in which names that differ only in numbers share a line; empty if all lists
    /// are empty.
    [[nodiscard]] std::string text() const;

private:
    friend class LoadPlanner;
    std::vector<LazyTensor> tensors_ = {};
    std::vector<ExpectedTensor> unfilled_ = {};  // missing tensors without a value
    Fill fill_ = Fill::error;
    bool ignore_unexpected_ = false;
};

/// Finds each expected tensor in the checkpoint and returns the plan. Loads nothing: LoadPlan::tensors() gives the
/// tensors, and load() or an Uploader loads them. The order of preference is:
///
/// 1. by its name
/// 2. by the aliases of a tied tensor in the checkpoint
/// 3. by the names of the tensors that the model ties it to
///
/// Throws expectation_bad_field, shape_overflow and partial_byte for an invalid expected tensor. Reads no tensor. Takes
/// time and memory in proportion to the number of names on both sides.
SAFEMAP_API LoadPlan plan_load(const Checkpoint& checkpoint, std::span<const ExpectedTensor> expected,
                               const LoadOptions& options = {});
/// Plans a load of the tensors that read_expected() returns for the path `expected`. Also throws as read_expected()
/// does.
SAFEMAP_API LoadPlan plan_load(const Checkpoint& checkpoint, const std::filesystem::path& expected,
                               const LoadOptions& options = {});

}  // namespace safemap::SAFEMAP_ABI
