// The parts of the extension `safemap._core`, and the conversions of arguments that they share.
#pragma once

#include <safemap/safemap.hpp>

#include <nanobind/nanobind.h>
#include <nanobind/stl/string.h>

#include <cstdint>
#include <filesystem>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <stop_token>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace safemap::python {

namespace nb = nanobind;

// One function for each source; module.cpp calls them in this order.
void bind_errors(nb::module_& module);
void bind_tensor(nb::module_& module);
void bind_checkpoint(nb::module_& module);
void bind_sha256(nb::module_& module);
void bind_command_line(nb::module_& module);
void bind_drop_in(nb::module_& module);
void bind_tree(nb::module_& module);

/// Raises a Python exception of a type of `safemap._errors`.
[[noreturn]] void raise(const Error& error);
/// Raises TypeError: "expected WANTED, not the type of `found`".
[[noreturn]] void wrong_type(const char* wanted, nb::handle found);

// Text. Names of tensors and files may be no UTF-8: as in os.fsdecode(), such bytes are surrogates in Python.
[[nodiscard]] nb::object to_python(std::string_view text);
[[nodiscard]] nb::object to_python(const std::vector<std::string>& texts);
[[nodiscard]] nb::object to_python(const Shape& shape);
/// Returns the text of a str. Raises TypeError for anything else; `what` names the argument.
[[nodiscard]] std::string text_from(nb::handle value, const char* what);
/// Returns a dict of texts, such as metadata. Raises TypeError for anything else.
[[nodiscard]] std::map<std::string, std::string> texts_from(nb::handle mapping);
/// Returns the pairs of a dict or another mapping. Raises TypeError for anything else; `wanted` says what was expected.
[[nodiscard]] nb::object pairs_of(nb::handle mapping, const char* wanted);
/// Returns the path of a str, a bytes or an os.PathLike. Raises TypeError for anything else.
[[nodiscard]] std::filesystem::path path_from(nb::handle value);
/// Returns true if path_from() takes the value.
[[nodiscard]] bool is_path(nb::handle value);

/// Returns the dtype of a name ("bf16", "BF16", "bfloat16"), a torch.dtype, or anything that numpy.dtype() takes.
[[nodiscard]] Dtype dtype_from(nb::handle value);
/// Returns a number of bytes: an int, or a text such as "5GB", as the command line takes it.
[[nodiscard]] std::uint64_t size_from(nb::handle value);
/// Returns a count such as a number of threads. Raises TypeError for anything but an int; `what` names the argument.
[[nodiscard]] unsigned count_from(nb::handle value, const char* what);
/// Returns the selection of None (everything), a glob, or a list of globs.
[[nodiscard]] Selection selection_from(nb::handle value);
/// Returns the indices of `tensor[key]`: integers, ranges and an ellipsis.
[[nodiscard]] std::vector<Slice> slices_from(nb::handle key);

/// Returns the source of a bytes-like object, or of a file object, which is read in any thread; null for other values.
[[nodiscard]] std::shared_ptr<const Source> source_from(nb::handle value);

/// Calls `function` in a thread of its own, and meanwhile runs Python's handlers of signals. If one raises, requests a
/// stop, waits for the function, and raises that. For operations without a monitor.
void interruptible(const std::function<void(const std::stop_token&)>& function);
/// Returns a monitor for `progress`: None, or a callable (stage, done, total) that cancels by returning False. It runs
/// Python's handlers of signals, too, and takes the GIL, which the caller must have released.
[[nodiscard]] Monitor monitor_for(nb::object progress);

/// Calls `function` without the GIL, and returns what it returns.
template <class Function> auto without_gil(Function&& function) {
    const nb::gil_scoped_release released;
    return function();
}

/// An object of Python that C++ threads may let go of.
class Kept {
public:
    explicit Kept(nb::object object) : object_(std::move(object)) {}
    ~Kept();
    Kept(const Kept&) = delete;
    Kept& operator=(const Kept&) = delete;
    nb::handle get() const noexcept { return object_; }

private:
    nb::object object_;
};

/// How a tensor was made of one of a checkpoint: by a slice, or by a cast.
struct Step {
    std::vector<Slice> slices = {};
    std::optional<Dtype> dtype = std::nullopt;
};

/// `safemap.LazyTensor`: the tensor, and what pickle needs to find it again.
struct Tensor {
    LazyTensor lazy;
    nb::object origin;  ///< of its checkpoint; None: the tensor cannot be pickled
    std::string name;   ///< in its checkpoint
    std::vector<Step> steps = {};
    bool copies_read_only = true;  ///< torch() copies what may not be written to
};

/// `safemap.Checkpoint`: null once it was closed.
struct Handle {
    std::optional<Checkpoint> checkpoint;
    nb::object origin;             ///< a tuple that says how to open it again; None: it cannot be pickled
    bool copies_read_only = true;  ///< as in Tensor

    /// Returns the checkpoint. Raises invalid_argument if it was closed.
    const Checkpoint& get() const;
    Tensor tensor(const LazyTensor& lazy) const;
};

/// Returns the nested objects of a checkpoint with LazyTensors in them; without a tree, its dict of names.
[[nodiscard]] nb::object lazy_tree(const Handle& handle);
/// Returns the tree of nested objects, of which it keeps the tensors alive: what Checkpoint.tree() and load() give, and
/// what weights_only of torch.load would. Objects in several places, and tensors of one place in memory, are tied.
/// Raises TypeError for other objects, with their path.
[[nodiscard]] StateTree tree_from(nb::handle value);
/// Returns the checkpoint of a dict of tensors, or of nested objects (see tree_from()).
[[nodiscard]] Checkpoint checkpoint_of_objects(nb::handle value);
/// Returns the value: the view if there is one, else a copy, which is read without the GIL.
[[nodiscard]] TensorView value_of(const LazyTensor& tensor);
/// Returns the tensor as torch.Tensor.
[[nodiscard]] nb::object to_torch(const TensorView& view);
/// Returns the tensor as numpy.ndarray. Raises ImportError without NumPy, or without ml_dtypes where that is needed.
[[nodiscard]] nb::object to_numpy(const TensorView& view);
/// Returns a lazy tensor over the memory of a torch.Tensor, numpy.ndarray, LazyTensor, or object with __dlpack__, and
/// keeps that alive. Copies nothing, except pairs of float4 that are not contiguous. A tensor of torch on another
/// device is copied to the host when it is read, block by block. Raises TypeError for other values, and for arrays of
/// objects, texts and structures; invalid_argument for tensors of torch that are sparse, quantized, nested, without
/// values (device meta) or without memory of their own (DTensor), and for dtypes that safemap lacks.
[[nodiscard]] LazyTensor lazy_from(std::string name, nb::handle value);

/// Where the elements of a tensor begin: tensors of one place, dtype, shape and strides have the same elements.
struct Place {
    std::uintptr_t address = 0;  ///< 0: unknown
    std::int64_t offset = 0;
    Decoding decoding = {};

    friend bool operator==(const Place&, const Place&) = default;
};
/// What lazy_from() gives, and its place.
struct Found {
    LazyTensor tensor;
    Place place;
};
[[nodiscard]] Found found_from(std::string name, nb::handle value);

/// Opens what safemap.open() takes. Raises TypeError for other values. Ends with Ctrl-C.
[[nodiscard]] Checkpoint open_any(nb::handle path, const OpenOptions& options = {});
/// Returns the checkpoint of a Checkpoint, of what safemap.open() takes, or of a dict of tensors or module (see
/// checkpoint_of()).
[[nodiscard]] Checkpoint checkpoint_from(nb::handle value);
/// Returns a checkpoint of a dict of names and tensors, which keeps them alive. Tensors of one place, dtype, shape and
/// strides are tied. Raises TypeError for names that are no str and values that are no tensors.
[[nodiscard]] Checkpoint checkpoint_of(nb::handle mapping, std::map<std::string, std::string> metadata = {});

}  // namespace safemap::python
