// The parts of the extension `safemap._core`, and the conversions of arguments that they share.
#pragma once

#include <safemap/advanced/dlpack.hpp>
#include <safemap/safemap.hpp>

#include <nanobind/nanobind.h>
#include <nanobind/stl/string.h>

#include <array>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <new>
#include <optional>
#include <span>
#include <stop_token>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace safemap::python {

namespace nb = nanobind;

// One function for each source; module.cpp calls them in this order.
void bind_errors(nb::module_& module);
void bind_ending(nb::module_& module);
void bind_tensor(nb::module_& module);
void bind_checkpoint(nb::module_& module);
void bind_saving(nb::module_& module);
void bind_shard_writer(nb::module_& module);
void bind_checking(nb::module_& module);
void bind_plan(nb::module_& module);
void bind_device(nb::module_& module);
void bind_sha256(nb::module_& module);
void bind_command_line(nb::module_& module);
void bind_drop_in(nb::module_& module);
void bind_tree(nb::module_& module);

/// Returns true once the interpreter ends: then nothing may wait for other threads.
[[nodiscard]] bool is_ending() noexcept;

/// Releases the GIL for the life of the object. As that of nanobind, but a thread may be here when the interpreter
/// ends.
class GilRelease {
public:
    GilRelease() noexcept;
    ~GilRelease();
    GilRelease(const GilRelease&) = delete;
    GilRelease& operator=(const GilRelease&) = delete;

private:
    PyThreadState* state_;
};

/// Holds the GIL for the life of the object, in any thread. As that of nanobind, but once the interpreter ends, other
/// threads than the one that ends it do not get it.
class GilAcquire {
public:
    /// Throws cancelled if the interpreter ends.
    GilAcquire();
    /// Does not hold the GIL if the interpreter ends or has ended: for destructors, which then leave to Python what is
    /// Python's.
    explicit GilAcquire(const std::nothrow_t&) noexcept;
    ~GilAcquire();
    GilAcquire(const GilAcquire&) = delete;
    GilAcquire& operator=(const GilAcquire&) = delete;
    explicit operator bool() const noexcept { return holds_; }

private:
    bool had_released_;
    bool holds_ = false;
    PyGILState_STATE state_ = {};
};
/// Returns true if this thread has the GIL, as far as safemap knows.
[[nodiscard]] bool has_gil() noexcept;

/// Destroys an object without the GIL; keeps it for the rest of the process if the interpreter ends.
template <class T> void let_go(T&& object) {
    if (is_ending()) {
        static_cast<void>(new std::remove_cvref_t<T>(std::forward<T>(object)));
        return;
    }
    const auto destroy = [](std::remove_cvref_t<T>) {};
    const GilRelease released;
    destroy(std::forward<T>(object));
}
/// Closes the uploaders of the process.
void close_uploaders();

/// Returns the exception of Python that stands for an error: of a type of `safemap._errors`.
[[nodiscard]] nb::object exception_of(const Error& error);
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
/// Returns a list of texts; one text stands for a list of it. Raises TypeError for anything else.
[[nodiscard]] std::vector<std::string> texts_of(nb::handle value, const char* what);
/// Returns the pairs of a dict or another mapping. Raises TypeError for anything else; `wanted` says what was expected.
[[nodiscard]] nb::object pairs_of(nb::handle mapping, const char* wanted);
/// Returns the path of a str, a bytes or an os.PathLike. Raises TypeError for anything else.
[[nodiscard]] std::filesystem::path path_from(nb::handle value);
/// Returns true if path_from() takes the value.
[[nodiscard]] bool is_path(nb::handle value);

/// Returns a sentence of the library without what C++ and the command line have in the place of Checkpoint.optimizer().
[[nodiscard]] std::string without_other_doors(std::string sentence);

/// Return the value of an option: a bool, a count (threads, bytes), a real number. Raise TypeError for other
/// types, and invalid_argument for numbers out of range. `what` names the option.
[[nodiscard]] bool flag_from(nb::handle value, const char* what);
[[nodiscard]] unsigned count_from(nb::handle value, const char* what);
[[nodiscard]] double real_from(nb::handle value, const char* what);
/// Raises TypeError: "FUNCTION() has no option 'key'", and the option that it may be.
[[noreturn]] void unknown_option(const char* function, const std::string& key);
/// Sets one option of OpenOptions, or of SaveOptions. Return false for a name that they do not have.
[[nodiscard]] bool set_open_option(OpenOptions& options, const std::string& key, nb::handle value);
[[nodiscard]] bool set_save_option(SaveOptions& options, const std::string& key, nb::handle value);

/// Returns the dtype of a name ("bf16", "BF16", "bfloat16"), a torch.dtype, or anything that numpy.dtype() takes.
[[nodiscard]] Dtype dtype_from(nb::handle value);
/// Returns a number of bytes: an int, or a text such as "5GB", as the command line takes it.
[[nodiscard]] std::uint64_t size_from(nb::handle value);
/// Returns a list of numbers from 0 on, one for each dimension. Raises TypeError for anything else; `what` names it.
[[nodiscard]] Shape shape_from(nb::handle value, const char* what = "a shape");
/// Returns the selection of None (everything), a glob, or a list of globs.
[[nodiscard]] Selection selection_from(nb::handle value);
/// Returns the indices of `tensor[key]`: integers, ranges and an ellipsis.
[[nodiscard]] std::vector<Slice> slices_from(nb::handle key);

/// Returns the source of a bytes-like object, or of a file object, which is read in any thread; null for other values.
[[nodiscard]] std::shared_ptr<const Source> source_from(nb::handle value);

/// Returns the name of a file object, for messages.
[[nodiscard]] std::string name_of_file(nb::handle file);
/// Returns the position that tell() of a file object gives. Raises TypeError or invalid_argument for anything else.
[[nodiscard]] std::uint64_t position_of(nb::handle file);
/// Fills `into` from the position of a file object, which is `offset`.
void read_from(nb::handle file, std::uint64_t offset, std::span<std::byte> into);
/// Saves to the position of a file object, and moves it to the end of what was written. An object that cannot seek gets
/// the bytes of a temporary file.
[[nodiscard]] SaveReport save_to_file(nb::handle file, const Checkpoint& checkpoint, const SaveOptions& options);

/// The right to use something, which one thread at a time has. A thread that has it may take it again: code of Python
/// that it calls, and finalizers of objects that happen to run, may come back.
struct Turns {
    std::recursive_mutex mutex = {};
    int depth = 0;
};
/// The turn of a thread, which waits without the GIL: the thread whose turn it is may need it. Take the turn first,
/// then the GIL.
class Turn {
public:
    explicit Turn(Turns& turns);
    ~Turn();
    Turn(const Turn&) = delete;
    Turn& operator=(const Turn&) = delete;
    /// Raises invalid_argument if the thread has had the turn before; `what` says what it must not do.
    void require_first(const char* what) const;

private:
    Turns& turns_;
};

/// Calls `function` in a thread of its own, and meanwhile runs Python's handlers of signals. If one raises, requests a
/// stop, waits for the function, and raises that. For operations without a monitor.
void interruptible(const std::function<void(const std::stop_token&)>& function);
/// Returns a monitor for `progress`: None, or a callable (stage, done, total) that cancels by returning False. It runs
/// Python's handlers of signals, too, and takes the GIL, which the caller must have released.
[[nodiscard]] Monitor monitor_for(nb::object progress);

/// Returns an object whose attributes have names: a class of safemap._records.
template <class... Values> nb::object record(const char* type, Values&&... values) {
    return nb::module_::import_("safemap._records").attr(type)(std::forward<Values>(values)...);
}
/// Returns a record of a report of the library.
[[nodiscard]] nb::object to_python(const SaveReport& report);
[[nodiscard]] nb::object to_python(const SkippedObject& skipped);
[[nodiscard]] nb::object to_python(const Finding& finding);
template <class T> nb::object to_python(const std::optional<T>& value) { return value ? nb::cast(*value) : nb::none(); }
/// Returns a list of what to_python() makes of each element.
template <class T> nb::list list_of(const std::vector<T>& values) {
    nb::list list;
    for (const T& value : values) list.append(to_python(value));
    return list;
}

/// Returns a function that calls a callable of Python with a text and returns its text, from any thread; an empty one
/// for None. A dict stands for a function that gives other names as they are.
[[nodiscard]] std::function<std::string(std::string_view)> renaming_from(nb::handle value);

/// Calls `function` without the GIL, and returns what it returns.
template <class Function> auto without_gil(Function&& function) {
    const GilRelease released;
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
    nb::object origin;  ///< its checkpoint's; None: the tensor cannot be pickled
    std::string name;   ///< in its checkpoint
    std::vector<Step> steps = {};
    bool copies_read_only = true;  ///< torch() copies what may not be written to
};

/// Adds the methods that read bytes to the type LazyTensor.
void bind_tensor_bytes(nb::class_<Tensor>& type);

/// `safemap.Checkpoint`: null once it was closed.
struct Handle {
    std::optional<Checkpoint> checkpoint;
    nb::object origin;             ///< a tuple that says how to open it again; None: it cannot be pickled
    bool copies_read_only = true;  ///< as in Tensor

    /// Returns the checkpoint. Raises invalid_argument if it was closed, so the caller has the GIL. A function that
    /// calls Python, or lets go of the GIL, works with a copy: other code may close this object.
    const Checkpoint& get() const;
    Tensor tensor(const LazyTensor& lazy) const;
};

// The words of the Python modules for what a StateTree has, in the order of StateTree::Constant::Kind and
// StateTree::Opaque::Form.
inline constexpr std::array<const char*, 5> constant_kinds{"dtype", "device", "layout", "numpy_dtype", "other"};
inline constexpr std::array<const char*, 4> opaque_forms{"object", "quantized", "sparse", "nested"};

/// Returns the nested objects of a checkpoint with LazyTensors in them; without a tree, its dict of names.
[[nodiscard]] nb::object lazy_tree(const Handle& handle);
/// Returns memory for a value, aligned to 64 bytes. The pages of large memory come at once, which takes less than one
/// by one as they are written to. Call it without the GIL.
[[nodiscard]] SharedBytes memory_for(std::uint64_t size);
/// Returns a copy of the value, which is read without the GIL. Ctrl-C ends it.
[[nodiscard]] TensorView load_value(const LazyTensor& tensor);
/// Returns the tree of nested objects, of which it keeps the tensors alive: what Checkpoint.tree() and load() give, and
/// what weights_only of torch.load would. Objects in several places, and tensors of one place in memory, are tied.
/// Raises TypeError for other objects, with their path.
[[nodiscard]] StateTree tree_from(nb::handle value);
/// Returns the checkpoint of a dict of tensors, or of nested objects (see tree_from()).
[[nodiscard]] Checkpoint checkpoint_of_objects(nb::handle value);
/// Returns the value: the view if there is one, else a copy, which is read without the GIL.
[[nodiscard]] TensorView value_of(const LazyTensor& tensor);
/// Returns a table of the tensors as HTML.
[[nodiscard]] std::string html_of(const Checkpoint& checkpoint);
/// Returns a capsule of Python that owns a tensor of DLPack.
[[nodiscard]] nb::object capsule_of(dlpack::ManagedTensorVersioned* tensor);
[[nodiscard]] nb::object capsule_of(dlpack::ManagedTensor* tensor);
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
/// The result of lazy_from(): a tensor and its place.
struct Found {
    LazyTensor tensor;
    Place place;
};
[[nodiscard]] Found found_from(std::string name, nb::handle value);

/// Opens what safemap.open() takes. Raises TypeError for other values. Ends with Ctrl-C.
[[nodiscard]] Checkpoint open_any(nb::handle path, const OpenOptions& options = {});
/// Returns the checkpoint of a Checkpoint, of what safemap.open() takes, of a dict of tensors or a module (see
/// checkpoint_of()), or of a list of LazyTensors.
[[nodiscard]] Checkpoint checkpoint_from(nb::handle value);
/// Returns a checkpoint of a dict of names and tensors, which keeps them alive. Tensors of one place, dtype, shape and
/// strides are tied. Raises TypeError for names other than str, and values other than tensors.
[[nodiscard]] Checkpoint checkpoint_of(nb::handle mapping, std::map<std::string, std::string> metadata = {});

}  // namespace safemap::python
