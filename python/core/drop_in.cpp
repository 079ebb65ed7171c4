// The part that the package safetensors has in Rust: safe_open, its slices, serialize() and deserialize(). The rest of
// the drop-in is python/safemap/safetensors/.
#include "core.hpp"

#include <safemap/advanced/file.hpp>
#include <safemap/advanced/stored_tensor.hpp>

#include <algorithm>
#include <array>
#include <cstring>
#include <iterator>

namespace safemap::python {
namespace {

constexpr const char* opening = "Error while deserializing header";
constexpr const char* parsing = "Error while deserializing";
constexpr const char* serializing = "Error while serializing";
constexpr const char* reading = "Could not read from file";

nb::object drop_in_errors(const char* attribute) {
    return nb::module_::import_("safemap.safetensors._errors").attr(attribute);
}

/// Raises `exception`, which is an object of Python.
[[noreturn]] void raise_object(const nb::object& exception) {
    PyErr_SetObject(reinterpret_cast<PyObject*>(Py_TYPE(exception.ptr())), exception.ptr());
    throw nb::python_error();
}

[[noreturn]] void raise_safetensor_error(const std::string& text) {
    raise_object(drop_in_errors("SafetensorError")(to_python(text)));
}

/// Calls `function`. An error of the library becomes the exception that safetensors has for it.
template <class Function> auto as_safetensors(const char* operation, Function&& function) {
    try {
        return function();
    } catch (const Error& error) {
        raise_object(drop_in_errors("exception_for")(operation, to_python(name(error.code())), to_python(error.what()),
                                                     to_python(error.path()), to_python(error.tensor())));
    }
}

/// Raises TypeError with the text of safetensors: "argument 'name': 'int' object is not an instance of 'str'".
[[noreturn]] void wrong_argument(const char* argument, nb::handle found, const char* wanted) {
    const std::string type = nb::cast<std::string>(found.type().attr("__name__"));
    const std::string is = found.is_none() ? "'None'" : "'" + type + "' object";
    throw nb::type_error(
        ("argument '" + std::string(argument) + "': " + is + " is not an instance of '" + wanted + "'").c_str());
}

/// Returns the text of a str, which lives as long as that. Raises TypeError, and UnicodeEncodeError for surrogates.
std::string_view unicode_from(nb::handle value, const char* argument) {
    if (!PyUnicode_Check(value.ptr())) wrong_argument(argument, value, "str");
    Py_ssize_t size = 0;
    const char* const text = PyUnicode_AsUTF8AndSize(value.ptr(), &size);
    if (text == nullptr) throw nb::python_error();
    return {text, static_cast<std::size_t>(size)};
}

std::filesystem::path file_from(nb::handle value) {
    if (PyBytes_Check(value.ptr())) wrong_argument("filename", value, "str");
    return path_from(value);
}

/// Returns a number that is not negative. Raises TypeError and OverflowError.
std::uint64_t unsigned_from(nb::handle value) {
    const nb::object index = nb::steal(PyNumber_Index(value.ptr()));
    if (!index.is_valid()) throw nb::python_error();
    const unsigned long long number = PyLong_AsUnsignedLongLong(index.ptr());
    if (PyErr_Occurred()) throw nb::python_error();
    return number;
}

/// The framework of tensors, and how they are read.
struct Reading {
    bool torch = true;       ///< false: NumPy
    bool copies = false;     ///< the backend "pread": each tensor has memory of its own
    nb::object device = {};  ///< null: the memory of the host
};

/// An open file, which a safe_open and the slices of it share.
struct OpenFile {
    Checkpoint checkpoint;
    Reading as;
};

/// `safe_open`. Null once it was closed.
struct SafeOpen {
    std::shared_ptr<const OpenFile> file;

    /// Returns the file, which stays open while another thread closes this object.
    std::shared_ptr<const OpenFile> get() const {
        if (!file) raise_safetensor_error("File is closed");
        return file;
    }
};

struct SafeOpenHandle : SafeOpen {};

/// The result of get_slice(): a tensor of the open file.
struct SafeSlice {
    std::shared_ptr<const OpenFile> file;
    const LazyTensor* tensor;
};

bool is_torch_framework(nb::handle framework) {
    const std::string text(unicode_from(framework, "framework"));
    if (text == "pt" || text == "torch" || text == "pytorch") return true;
    if (text == "np" || text == "numpy") return false;
    constexpr std::array others = {"tf", "tensorflow", "jax", "flax", "mlx", "paddle"};
    if (std::find(others.begin(), others.end(), text) == others.end())
        raise_safetensor_error("framework " + text + " is invalid");
    raise_safetensor_error("framework " + text +
                           " is not supported by safemap, which has pt and np: convert tensors of np, or call the "
                           "package safetensors");
}

Reading reading_from(nb::handle framework, const nb::object& device, nb::handle backend) {
    Reading as;
    as.torch = is_torch_framework(framework);
    const bool is_host = device.is_none() || (PyUnicode_Check(device.ptr()) && device.equal(nb::str("cpu")));
    if (!is_host) as.device = drop_in_errors("device_from")(device);
    const std::string how(unicode_from(backend, "backend"));
    if (how != "mmap" && how != "pread")
        raise_safetensor_error("backend \"" + how + "\" is invalid (expected one of: \"mmap\", \"pread\")");
    as.copies = how == "pread";
    if (as.device.is_valid() && !as.torch)
        raise_safetensor_error("Device " + nb::cast<std::string>(nb::str(as.device)) +
                               " is not supported for framework numpy");
    return as;
}

/// Opens the bytes as the file of safetensors that they are, whatever else safemap makes of them: names as they are
/// stored, parts of tensors as they are.
Checkpoint open_as_stored(std::shared_ptr<const Source> source) {
    const OpenOptions options = {.as_parts = true, .stored_names = true};
    Checkpoint checkpoint = Checkpoint::open(std::move(source), options);
    if (checkpoint.format() == Format::safetensors) return checkpoint;
    throw Error(Errc::header_too_large, "this is a file of torch; expected safetensors")
        .with_hint("safemap.open() reads it");
}

std::shared_ptr<const OpenFile> open_for(const std::filesystem::path& path, Reading as) {
    if (path.native().find('\0') != std::string::npos)
        raise_object(nb::steal(PyObject_CallFunction(
            PyExc_FileNotFoundError, "N", to_python("No such file or directory: " + path.native()).release().ptr())));
    const Mapping mapping = as.copies ? Mapping::never : Mapping::private_copy;
    Checkpoint checkpoint =
        as_safetensors(opening, [&] { return without_gil([&] { return open_as_stored(open_file(path, mapping)); }); });
    nb::module_::import_(as.torch ? "torch" : "numpy");
    return std::make_shared<const OpenFile>(OpenFile{std::move(checkpoint), std::move(as)});
}

const LazyTensor& tensor_called(const OpenFile& file, nb::handle name) {
    const std::string_view text = unicode_from(name, "name");
    const LazyTensor* const found = file.checkpoint.find(text);
    // Other names of tied tensors are no names of the file: they have tensors elsewhere.
    if (found == nullptr || found < file.checkpoint.begin() || found >= file.checkpoint.end())
        raise_safetensor_error("File does not contain tensor " + std::string(text));
    return *found;
}

/// Raises SafetensorError for a dtype that the framework does not have.
void require_framework_dtype(bool torch, const LazyTensor& tensor) {
    const Dtype dtype = tensor.dtype();
    if (element_size(dtype) != 0) return;
    if (dtype != Dtype::f4 || !torch) raise_safetensor_error("Dtype not understood: " + std::string(name(dtype)));
    if (tensor.shape().back() % 2 != 0)
        raise_safetensor_error("f4_x2 dtype requires that the last dim be divisible by 2 in torch: got " +
                               to_string(tensor.shape()));
}

nb::object in_framework(const Reading& as, const TensorView& view) {
    if (!as.torch) return to_numpy(view);
    nb::object tensor = to_torch(view);
    return as.device.is_valid() ? tensor.attr("to")(as.device) : std::move(tensor);
}

/// Returns memory for the values of the tensors, and reads them into it in parallel.
std::vector<TensorView> copies_of(std::span<const LazyTensor> tensors) {
    const Work work = {.monitor = monitor_for(nb::none())};
    return without_gil([&] {
        std::vector<TensorView> values;
        std::vector<LoadTarget> targets;
        for (const LazyTensor& tensor : tensors) {
            values.push_back(TensorView::row_major(tensor.dtype(), memory_for(tensor.nbytes()), tensor.shape()));
            targets.push_back({tensor, values.back().mutable_bytes()});
        }
        load_into(targets, work);
        return values;
    });
}

TensorView copy_of(const LazyTensor& tensor) {
    return without_gil([&] {
        const SharedBytes memory = memory_for(tensor.nbytes());
        TensorView value = TensorView::row_major(tensor.dtype(), memory, tensor.shape());
        tensor.read(0, value.mutable_bytes());
        return value;
    });
}

/// Returns the value as safetensors gives it: writable and row-major. Only what is so in the file needs no copy. The
/// dtype must be one that the framework has.
nb::object value_in(const Reading& as, const LazyTensor& tensor) {
    return as_safetensors(reading, [&] {
        const std::optional<TensorView> view = as.copies ? std::nullopt : tensor.try_view();
        const bool is_right = view && view->writable() && view->contiguous();
        return is_right ? in_framework(as, *view) : in_framework(as, copy_of(tensor));
    });
}

nb::object whole(const Reading& as, const LazyTensor& tensor) {
    require_framework_dtype(as.torch, tensor);
    return value_in(as, tensor);
}

nb::object get_tensor(const SafeOpen& self, nb::handle name) {
    const std::shared_ptr<const OpenFile> file = self.get();
    return whole(file->as, tensor_called(*file, name));
}

/// Returns all tensors of a file by name.
nb::dict all_of(const OpenFile& file) {
    const Checkpoint& tensors = file.checkpoint;
    for (const LazyTensor& tensor : tensors) require_framework_dtype(file.as.torch, tensor);
    nb::dict by_name;
    as_safetensors(reading, [&] {
        const std::vector<TensorView> copies = file.as.copies ? copies_of(tensors) : std::vector<TensorView>();
        for (std::size_t i = 0; i < tensors.size(); ++i)
            by_name[to_python(tensors.tensor(i).name())] =
                file.as.copies ? in_framework(file.as, copies[i]) : value_in(file.as, tensors.tensor(i));
    });
    return by_name;
}

nb::dict get_tensors(const SafeOpen& self) { return all_of(*self.get()); }

SafeSlice get_slice(const SafeOpen& self, nb::handle name) {
    std::shared_ptr<const OpenFile> file = self.get();
    const LazyTensor* const tensor = &tensor_called(*file, name);
    return {std::move(file), tensor};
}

nb::list names_by_offset(const SafeOpen& self) {
    nb::list names;
    for (const LazyTensor& tensor : self.get()->checkpoint) names.append(to_python(tensor.name()));
    return names;
}

nb::list sorted_names(const SafeOpen& self) {
    nb::list names = names_by_offset(self);
    if (PyList_Sort(names.ptr()) != 0) throw nb::python_error();
    return names;
}

nb::object metadata_pairs(const SafeOpen& self) {
    const std::shared_ptr<const OpenFile> file = self.get();
    if (!file->checkpoint.has_metadata()) return nb::none();
    nb::dict pairs;
    for (const auto& [key, value] : as_safetensors(opening, [&] { return file->checkpoint.raw_metadata(); }))
        pairs[to_python(key)] = to_python(value);
    return pairs;
}

nb::list list_of(const Shape& shape) {
    nb::list sizes;
    for (const std::uint64_t size : shape) sizes.append(nb::int_(size));
    return sizes;
}

/// The selection of an index in one dimension, as safetensors takes it: no negative bounds and steps.
struct DimensionIndex {
    std::optional<std::uint64_t> start = std::nullopt;
    std::optional<std::uint64_t> stop = std::nullopt;
    std::uint64_t step = 1;
    bool is_number = false;  ///< `start` alone, and the dimension goes
};

std::optional<std::uint64_t> unsigned_bound(nb::handle value) {
    if (value.is_none()) return std::nullopt;
    return unsigned_from(value);
}

DimensionIndex range_from(nb::handle slice) {
    DimensionIndex index = {.start = unsigned_bound(slice.attr("start")), .stop = unsigned_bound(slice.attr("stop"))};
    const nb::object given = slice.attr("step");
    if (given.is_none()) return index;
    const nb::object number = nb::steal(PyNumber_Index(given.ptr()));
    if (!number.is_valid()) throw nb::python_error();
    const long step = PyLong_AsLong(number.ptr());
    if (PyErr_Occurred()) throw nb::python_error();
    if (step <= 0) raise_safetensor_error("Slice step must be a positive integer, got " + std::to_string(step));
    index.step = static_cast<std::uint64_t>(step);
    return index;
}

/// Returns the int of an index, or nothing for any other object and for numbers of more than 32 bits.
std::optional<std::int64_t> number_from(nb::handle key) {
    const nb::object number = nb::steal(PyNumber_Index(key.ptr()));
    if (!number.is_valid()) {
        PyErr_Clear();
        return std::nullopt;
    }
    int overflow = 0;
    const long long value = PyLong_AsLongLongAndOverflow(number.ptr(), &overflow);
    if (overflow != 0 || !std::in_range<std::int32_t>(value)) return std::nullopt;
    return value;
}

DimensionIndex number_in(nb::handle key, std::size_t dimension, std::uint64_t size) {
    const std::optional<std::int64_t> number = number_from(key);
    if (!number)
        raise_safetensor_error("Unsupported slice index at position " + std::to_string(dimension) +
                               ": expected slice, int, or ellipsis");
    const auto resolved = static_cast<std::uint64_t>(*number + (*number < 0 ? static_cast<std::int64_t>(size) : 0));
    if (*number < 0 && static_cast<std::uint64_t>(-*number) > size)
        raise_safetensor_error("Invalid index " + std::to_string(*number) + " for dimension " +
                               std::to_string(dimension) + " of size " + std::to_string(size));
    return {.start = resolved, .is_number = true};
}

std::vector<nb::object> keys_from(nb::handle key) {
    std::vector<nb::object> keys;
    if (PyTuple_Check(key.ptr()))
        for (const nb::handle one : nb::borrow<nb::tuple>(key)) keys.push_back(nb::borrow(one));
    else keys.push_back(nb::borrow(key));
    return keys;
}

std::vector<DimensionIndex> indices_from(nb::handle key, const Shape& shape) {
    if (PyList_Check(key.ptr())) {
        if (nb::len(key) != 0) raise_safetensor_error("Non empty lists are not implemented");
        return {{.start = 0, .stop = 0}};
    }
    const std::vector<nb::object> keys = keys_from(key);
    const auto is_ellipsis = [](const nb::object& one) { return one.is(nb::handle(Py_Ellipsis)); };
    const auto ellipses = static_cast<std::size_t>(std::count_if(keys.begin(), keys.end(), is_ellipsis));
    if (ellipses > 1) raise_safetensor_error("Only one ellipsis (...) is allowed in slice index");
    const std::size_t given = keys.size() - ellipses;
    std::vector<DimensionIndex> indices;
    for (const nb::object& one : keys) {
        const std::size_t dimension = indices.size();
        const std::uint64_t size = dimension < shape.size() ? shape[dimension] : 0;
        if (is_ellipsis(one)) indices.resize(dimension + (shape.size() > given ? shape.size() - given : 0));
        else if (PySlice_Check(one.ptr())) indices.push_back(range_from(one));
        else indices.push_back(number_in(one, dimension, size));
    }
    return indices;
}

/// Returns indices as messages of safetensors show them: "[0, 1:3, ::2]".
std::string shown(const std::vector<DimensionIndex>& indices) {
    std::string text;
    for (const DimensionIndex& index : indices) {
        const auto bound = [](std::optional<std::uint64_t> value) { return value ? std::to_string(*value) : ""; };
        text += (text.empty() ? "" : ", ") + bound(index.start);
        if (!index.is_number) text += ":" + bound(index.stop);
        if (index.step != 1) text += ":" + std::to_string(index.step);
    }
    return "[" + text + "]";
}

/// Returns what is wrong with the indices; empty if nothing is.
std::string fault_of(const std::vector<DimensionIndex>& indices, const Shape& shape) {
    if (indices.size() > shape.size()) return "more slicing indexes than dimensions in tensor";
    // The last dimension comes first, as in the reference.
    for (std::size_t i = indices.size(); i-- > 0;) {
        const std::uint64_t start = indices[i].start.value_or(0);
        const std::uint64_t stop = indices[i].is_number ? start + 1 : indices[i].stop.value_or(shape[i]);
        if (start < shape[i] && stop <= shape[i]) continue;
        return "index " + std::to_string(start >= shape[i] ? start : stop - 1) +
               " out of bounds for tensor dimension #" + std::to_string(i) + " of size " + std::to_string(shape[i]);
    }
    return {};
}

Slice slice_of(const DimensionIndex& index) {
    const auto bound = [](std::optional<std::uint64_t> value) {
        return value ? std::optional(static_cast<std::int64_t>(*value)) : std::nullopt;
    };
    if (index.is_number) return Slice::at(static_cast<std::int64_t>(*index.start));
    return {.start = bound(index.start), .stop = bound(index.stop), .step = static_cast<std::int64_t>(index.step)};
}

/// Returns the part that the indices select, or raises what safetensors raises.
LazyTensor part_of(const LazyTensor& tensor, nb::handle key) {
    const std::vector<DimensionIndex> indices = indices_from(key, tensor.shape());
    std::string fault = fault_of(indices, tensor.shape());
    if (fault.empty()) try {
            std::vector<Slice> slices;
            std::transform(indices.begin(), indices.end(), std::back_inserter(slices), slice_of);
            return tensor.slice(slices);
        } catch (const Error& error) {
            fault = error.code() == Errc::partial_byte_slice
                        ? "The slice is slicing for subbytes dtypes, and the slice does not end up at a byte boundary, "
                          "this is invalid."
                        : error.what();
        }
    raise_safetensor_error("Error during slicing " + shown(indices) + " with shape " + to_string(tensor.shape()) +
                           ": " + fault);
}

bool is_plain(nb::handle bound) { return bound.is_none() || PyLong_CheckExact(bound.ptr()); }

/// Returns true for an integer, a range with a positive step or an ellipsis: safemap and torch index alike by them.
bool is_plain_index(nb::handle key) {
    if (key.is(nb::handle(Py_Ellipsis)) || PyLong_CheckExact(key.ptr())) return true;
    if (!PySlice_Check(key.ptr()) || !is_plain(key.attr("start")) || !is_plain(key.attr("stop"))) return false;
    const nb::object step = key.attr("step");
    int overflow = 0;
    return step.is_none() || (PyLong_CheckExact(step.ptr()) && PyLong_AsLongLongAndOverflow(step.ptr(), &overflow) > 0);
}

/// Returns a view of the part, or null if torch has to index the tensor, or to say what is wrong with the index.
nb::object torch_view(const LazyTensor& tensor, nb::handle key) {
    const std::vector<nb::object> keys = keys_from(key);
    if (element_size(tensor.dtype()) == 0 || !std::all_of(keys.begin(), keys.end(), is_plain_index)) return {};
    try {
        const std::optional<TensorView> view = tensor.slice(slices_from(key)).try_view();
        return view && view->writable() ? to_torch(*view) : nb::object();
    } catch (const Error&) {
        return {};
    }
}

/// Returns the part as torch indexes the tensor.
nb::object indexed_by_torch(const LazyTensor& tensor, nb::handle key) {
    nb::object view = torch_view(tensor, key);
    if (view.is_valid()) return view;
    view = whole({.torch = true}, tensor);
    // torch has pairs of F4, which the indices do not count: it refuses this shape.
    if (tensor.dtype() == Dtype::f4) view = view.attr("reshape")(to_python(tensor.shape()));
    return view[key];
}

nb::object slice_item(const SafeSlice& self, nb::handle key) {
    const Reading& as = self.file->as;
    if (as.torch && !as.copies) {
        nb::object tensor = indexed_by_torch(*self.tensor, key);
        return as.device.is_valid() ? tensor.attr("to")(as.device) : std::move(tensor);
    }
    const LazyTensor part = part_of(*self.tensor, key);
    require_framework_dtype(as.torch, part);
    const nb::object tensor = value_in(as, part);
    return part.dtype() == Dtype::f4 ? tensor.attr("reshape")(to_python(part.shape())) : tensor;
}

/// `TensorSpec`: memory that is to be written as a tensor.
struct TensorSpec {
    Dtype dtype = {};
    Shape shape = {};
    std::uint64_t pointer = 0;
    std::uint64_t bytes = 0;
};

Dtype dtype_called(nb::handle value) {
    const std::string_view text = unicode_from(value, "dtype");
    const std::optional<Dtype> dtype = parse_dtype(text);
    const bool is_known = dtype && *dtype <= Dtype::u64 && torch_name(*dtype) == text;
    if (is_known && *dtype != Dtype::f6_e2m3 && *dtype != Dtype::f6_e3m2) return *dtype;
    raise_safetensor_error("Unknown dtype " + nb::cast<std::string>(drop_in_errors("quoted")(value)) +
                           ". Supported dtypes: bool, int8, uint8, int16, uint16, int32, uint32, int64, uint64, "
                           "float16, float32, float64, bfloat16, float8_e4m3fn, float8_e4m3fnuz, float8_e5m2, "
                           "float8_e5m2fnuz, float8_e8m0fnu, float4_e2m1fn_x2, complex64");
}

Shape shape_from(nb::handle value) {
    if (PyUnicode_Check(value.ptr())) throw nb::type_error("argument 'shape': Can't extract `str` to `Vec`");
    if (!PySequence_Check(value.ptr())) wrong_argument("shape", value, "Sequence");
    Shape shape;
    for (const nb::handle size : nb::iter(value)) shape.push_back(unsigned_from(size));
    return shape;
}

TensorSpec spec_from(nb::handle dtype, nb::handle shape, nb::handle pointer, nb::handle bytes) {
    TensorSpec spec = {dtype_called(dtype), shape_from(shape), unsigned_from(pointer), unsigned_from(bytes)};
    if (spec.dtype != Dtype::f4 || spec.shape.empty()) return spec;
    const std::uint64_t pairs = spec.shape.back();
    if (__builtin_mul_overflow(pairs, std::uint64_t{2}, &spec.shape.back()))
        raise_safetensor_error("F4 last-dim " + std::to_string(pairs) + " doubled to logical shape overflows usize");
    return spec;
}

std::string description(const TensorSpec& spec) {
    return "TensorSpec(dtype='" + std::string(name(spec.dtype)) + "', shape=" + to_string(spec.shape) +
           ", data_ptr=" + std::to_string(spec.pointer) + ", data_len=" + std::to_string(spec.bytes) + ")";
}

/// Returns a tensor over the memory, which the caller keeps alive.
LazyTensor tensor_of(std::string name, const TensorSpec& spec) {
    const auto elements = element_count(spec.shape);
    const auto bytes = elements ? byte_size(spec.dtype, *elements) : std::nullopt;
    if (bytes && *bytes != spec.bytes)
        throw Error(Errc::size_mismatch, std::to_string(spec.bytes) + " bytes for " +
                                             std::string(safemap::name(spec.dtype)) + ' ' + to_string(spec.shape) +
                                             "; expected " + std::to_string(*bytes))
            .with_tensor(name);
    if (spec.pointer == 0 && spec.bytes > 0)
        throw Error(Errc::invalid_argument, "the tensor has no memory: its data_ptr is 0").with_tensor(name);
    const SharedBytes memory = {
        .bytes = {reinterpret_cast<const std::byte*>(static_cast<std::uintptr_t>(spec.pointer)), spec.bytes}};
    return {std::move(name), stored_run(spec.dtype, spec.shape, memory_source("memory", memory), 0)};
}

std::vector<LazyTensor> tensors_from(nb::handle tensors) {
    if (!PyDict_Check(tensors.ptr())) wrong_argument("tensor_dict", tensors, "dict");
    std::vector<LazyTensor> list;
    list.reserve(nb::len(tensors));
    for (const auto& [name, spec] : nb::borrow<nb::dict>(tensors)) {
        std::string text(unicode_from(name, "tensor_dict"));
        if (!nb::isinstance<TensorSpec>(spec)) wrong_argument("tensor_dict", spec, "TensorSpec");
        const TensorSpec& given = nb::cast<const TensorSpec&>(spec);
        list.push_back(as_safetensors(serializing, [&] { return tensor_of(std::move(text), given); }));
    }
    return list;
}

/// Returns the options that give the bytes of safetensors.
SaveOptions options_with(nb::handle metadata) {
    SaveOptions options;
    options.one_file = true;
    options.exact_metadata = true;
    options.empty_metadata = !metadata.is_none();
    options.work.monitor = monitor_for(nb::none());
    if (metadata.is_none()) return options;
    if (!PyDict_Check(metadata.ptr())) wrong_argument("metadata", metadata, "dict");
    for (const auto& [key, value] : nb::borrow<nb::dict>(metadata))
        options.metadata.insert_or_assign(std::string(unicode_from(key, "metadata")),
                                          std::string(unicode_from(value, "metadata")));
    return options;
}

/// A sink that makes an object of type bytes.
class BytesSink final : public Sink {
public:
    const std::string& name() const noexcept override { return name_; }
    void allocate(std::uint64_t size) override {
        const GilAcquire acquired;
        file_ = nb::steal(PyBytes_FromStringAndSize(nullptr, static_cast<Py_ssize_t>(size)));
        if (!file_.is_valid()) throw nb::python_error();
        bytes_ = reinterpret_cast<std::byte*>(PyBytes_AsString(file_.ptr()));
    }
    void write_at(std::uint64_t offset, std::span<const std::byte> bytes) override {
        std::memcpy(bytes_ + offset, bytes.data(), bytes.size());
    }
    void commit() override {}
    nb::object take() { return std::move(file_); }

private:
    std::string name_ = "bytes";
    nb::object file_;
    std::byte* bytes_ = nullptr;
};

nb::object serialize(nb::handle tensors, nb::handle metadata) {
    const std::vector<LazyTensor> list = tensors_from(tensors);
    const SaveOptions options = options_with(metadata);
    BytesSink sink;
    as_safetensors(serializing, [&] { without_gil([&] { (void)save(sink, list, options); }); });
    return sink.take();
}

void serialize_file(nb::handle tensors, nb::handle filename, nb::handle metadata, bool durable) {
    const std::vector<LazyTensor> list = tensors_from(tensors);
    const std::filesystem::path path = file_from(filename);
    SaveOptions options = options_with(metadata);
    options.overwrite = true;
    options.durable = durable;
    // A file system copies into its cache for one thread at a time; a second one only takes processor time.
    if (!durable) options.work.threads = 1;
    as_safetensors(serializing, [&] { without_gil([&] { (void)save(path, list, options); }); });
}

/// Returns the checkpoint in an object of type bytes, which the caller keeps alive.
Checkpoint open_bytes(nb::handle data) {
    if (!PyBytes_Check(data.ptr())) wrong_argument("bytes", data, "bytes");
    const SharedBytes bytes = {.bytes = {reinterpret_cast<const std::byte*>(PyBytes_AsString(data.ptr())),
                                         static_cast<std::size_t>(PyBytes_Size(data.ptr()))}};
    return as_safetensors(parsing, [&] {
        return without_gil([&] { return open_as_stored(memory_source("bytes.safetensors", bytes)); });
    });
}

nb::object byte_array(const LazyTensor& tensor) {
    const TensorView view = tensor.view();
    const std::span<const std::byte> bytes = view.bytes();
    PyObject* const array = PyByteArray_FromStringAndSize(reinterpret_cast<const char*>(bytes.data()),
                                                          static_cast<Py_ssize_t>(bytes.size()));
    if (array == nullptr) throw nb::python_error();
    return nb::steal(array);
}

nb::list deserialize(nb::handle data) {
    const Checkpoint checkpoint = open_bytes(data);
    nb::list items;
    for (const LazyTensor& tensor : checkpoint) {
        nb::dict item;
        item["shape"] = list_of(tensor.shape());
        item["dtype"] = to_python(name(tensor.dtype()));
        item["data"] = as_safetensors(parsing, [&] { return byte_array(tensor); });
        items.append(nb::make_tuple(to_python(tensor.name()), item));
    }
    return items;
}

nb::dict load_bytes(nb::handle data, bool torch) {
    return all_of({open_bytes(data), {.torch = torch, .copies = true}});
}

template <class T> nb::class_<T> bind_open(nb::module_& module, const char* name, const char* text) {
    return nb::class_<T>(module, name, nb::is_final(), text)
        .def(
            "keys", [](const T& self) { return sorted_names(self); }, nb::sig("def keys(self) -> list[str]"),
            "Returns the names of the tensors, sorted.")
        .def(
            "offset_keys", [](const T& self) { return names_by_offset(self); },
            nb::sig("def offset_keys(self) -> list[str]"),
            "Returns the names of the tensors in the order of their bytes in the file.")
        .def(
            "metadata", [](const T& self) { return metadata_pairs(self); },
            nb::sig("def metadata(self) -> dict[str, str] | None"),
            "Returns the pairs of `__metadata__`, or None if the file has none.")
        .def(
            "get_tensor", [](const T& self, nb::handle key) { return get_tensor(self, key); }, nb::arg("name").none(),
            nb::sig("def get_tensor(self, name: str) -> typing.Any"),
            "Returns the tensor. With the backend \"mmap\" it is a view of a private copy of the file: it may be "
            "written to, the file never changes, and all tensors of this object share the copy. With \"pread\", and "
            "on another device than the cpu, it has memory of its own. It may outlive this object.\n\n"
            "Raises SafetensorError if the file has no tensor of this name; other names of tied tensors count as "
            "missing.")
        .def(
            "get_tensors", [](const T& self) { return get_tensors(self); },
            nb::sig("def get_tensors(self) -> dict[str, typing.Any]"),
            "Returns all tensors by name, in the order of their bytes in the file. Each is what get_tensor() gives.")
        .def(
            "get_slice", [](const T& self, nb::handle key) { return get_slice(self, key); }, nb::arg("name").none(),
            nb::sig("def get_slice(self, name: str) -> PySafeSlice"),
            "Returns an object that is indexed like the tensor, and reads only what the index selects: "
            "`f.get_slice(\"w\")[:, :4]`.")
        .def(
            "__enter__", [](nb::handle self) { return nb::borrow(self); },
            nb::sig("def __enter__(self) -> typing.Self"))
        .def(
            "__exit__", [](T& self, nb::handle, nb::handle, nb::handle) { self.file.reset(); },
            nb::arg("exc_type").none(), nb::arg("exc_value").none(), nb::arg("traceback").none(),
            nb::sig("def __exit__(self, exc_type: object, exc_value: object, traceback: object) -> None"),
            "Closes the file. Tensors and slices stay usable.");
}

void bind_slice(nb::module_& module) {
    nb::class_<SafeSlice>(module, "PySafeSlice", nb::is_final(), "A tensor of a file, of which only parts are read.")
        .def(
            "get_shape", [](const SafeSlice& self) { return list_of(self.tensor->shape()); },
            nb::sig("def get_shape(self) -> list[int]"), "Returns the shape of the whole tensor.")
        .def(
            "get_dtype", [](const SafeSlice& self) { return to_python(name(self.tensor->dtype())); },
            nb::sig("def get_dtype(self) -> str"), "Returns the dtype as the file names it, such as \"F32\".")
        .def("__getitem__", slice_item, nb::arg("key").none(),
             nb::sig("def __getitem__(self, key: typing.Any) -> typing.Any"),
             "Returns a part of the tensor. With \"pt\" and \"mmap\", torch takes the index. Otherwise integers, "
             "ranges with positive bounds and steps, an ellipsis, and tuples of them are taken.");
}

void bind_spec(nb::module_& module) {
    nb::class_<TensorSpec>(module, "TensorSpec", nb::is_final(),
                           "Memory that serialize() and serialize_file() write as a tensor. It is not kept alive.")
        .def(
            "__init__",
            [](TensorSpec* self, nb::handle dtype, nb::handle shape, nb::handle pointer, nb::handle bytes) {
                new (self) TensorSpec(spec_from(dtype, shape, pointer, bytes));
            },
            nb::kw_only(), nb::arg("dtype").none(), nb::arg("shape").none(), nb::arg("data_ptr").none(),
            nb::arg("data_len").none(),
            nb::sig("def __init__(self, *, dtype: str, shape: typing.Sequence[int], data_ptr: int, data_len: int) -> "
                    "None"),
            "Args:\n"
            "    dtype: torch's or NumPy's name, such as \"float32\".\n"
            "    shape: the dimensions; of \"float4_e2m1fn_x2\", the last one counts pairs.\n"
            "    data_ptr: the address of the row-major elements.\n"
            "    data_len: their size in bytes.")
        .def_prop_ro(
            "dtype", [](const TensorSpec& self) { return to_python(name(self.dtype)); },
            nb::sig("def dtype(self) -> str"), "The name of the dtype in the file, such as \"F32\".")
        .def_prop_ro(
            "shape", [](const TensorSpec& self) { return list_of(self.shape); },
            nb::sig("def shape(self) -> list[int]"), "The dimensions in the file.")
        .def_prop_ro(
            "data_ptr", [](const TensorSpec& self) { return self.pointer; }, nb::sig("def data_ptr(self) -> int"),
            "The address of the elements.")
        .def_prop_ro(
            "data_len", [](const TensorSpec& self) { return self.bytes; }, nb::sig("def data_len(self) -> int"),
            "The size of the elements in bytes.")
        .def("__repr__", [](const TensorSpec& self) { return description(self); });
}

void bind_serialize(nb::module_& module) {
    module.def("serialize", serialize, nb::arg("tensor_dict").none(), nb::arg("metadata") = nb::none(),
               nb::sig("def serialize(tensor_dict: dict[str, TensorSpec], metadata: dict[str, str] | None = None) -> "
                       "bytes"),
               "Returns the bytes of a safetensors file with these tensors. Raises SafetensorError.");
    module.def("serialize_file", serialize_file, nb::arg("tensor_dict").none(), nb::arg("filename").none(),
               nb::arg("metadata") = nb::none(), nb::kw_only(), nb::arg("durable") = true,
               nb::sig("def serialize_file(tensor_dict: dict[str, TensorSpec], filename: str | os.PathLike[str], "
                       "metadata: dict[str, str] | None = None, *, durable: bool = True) -> None"),
               "Writes a safetensors file with these tensors. It appears complete, or not at all, and replaces an "
               "older one. Raises SafetensorError.\n\n"
               "Args:\n"
               "    durable: returns when the file is on the disk. If False, the kernel writes it later.");
    module.def("deserialize", deserialize, nb::arg("bytes").none(),
               nb::sig("def deserialize(bytes: bytes) -> list[tuple[str, dict[str, typing.Any]]]"),
               "Returns the tensors in the bytes of a file: (name, {\"shape\", \"dtype\", \"data\"}), in the order of "
               "their bytes. `data` is a bytearray. Raises SafetensorError.");
    module.def("_load_bytes", load_bytes, nb::arg("data").none(), nb::arg("torch"),
               nb::sig("def _load_bytes(data: bytes, torch: bool) -> dict[str, typing.Any]"),
               "Returns the tensors in the bytes of a file, with memory of their own.");
}

}  // namespace

void bind_drop_in(nb::module_& module) {
    bind_slice(module);
    bind_open<SafeOpen>(module, "safe_open",
                        "An open safetensors file, whose tensors are read when they are requested.\n\n"
                        "    with safe_open(\"model.safetensors\", framework=\"pt\") as f:\n"
                        "        tensor = f.get_tensor(\"embedding\")")
        .def(
            "__init__",
            [](SafeOpen* self, nb::handle filename, nb::handle framework, const nb::object& device,
               nb::handle backend) {
                const std::filesystem::path path = file_from(filename);
                new (self) SafeOpen{open_for(path, reading_from(framework, device, backend))};
            },
            nb::arg("filename").none(), nb::arg("framework").none(), nb::arg("device").none() = "cpu", nb::kw_only(),
            nb::arg("backend").none() = "mmap",
            nb::sig("def __init__(self, filename: str | os.PathLike[str], framework: str, device: str | int | None = "
                    "\"cpu\", *, backend: str = \"mmap\") -> None"),
            "Args:\n"
            "    filename: path of the file.\n"
            "    framework: \"pt\" for tensors of torch, \"np\" for arrays of NumPy.\n"
            "    device: where tensors of torch go.\n"
            "    backend: \"mmap\" maps the file; \"pread\" reads tensors into memory.\n\n"
            "Raises FileNotFoundError, OSError, SafetensorError.");
    bind_open<SafeOpenHandle>(module, "_safe_open_handle", "A safe_open of the path of an open file.")
        .def(
            "__init__",
            [](SafeOpenHandle* self, nb::handle file, nb::handle framework, const nb::object& device,
               nb::handle backend) {
                Reading as = reading_from(framework, device, backend);
                (void)nb::object(file.attr("fileno"));
                const std::filesystem::path path = file_from(nb::object(file.attr("name")));
                new (self) SafeOpenHandle{{open_for(path, std::move(as))}};
            },
            nb::arg("f").none(), nb::arg("framework").none(), nb::arg("device").none() = "cpu", nb::kw_only(),
            nb::arg("backend").none() = "mmap",
            nb::sig("def __init__(self, f: typing.IO[typing.Any], framework: str, device: str | int | None = \"cpu\", "
                    "*, backend: str = \"mmap\") -> None"),
            "Opens the file `f.name`, as safe_open does. The position of `f` does not change.");
    bind_spec(module);
    bind_serialize(module);
}

}  // namespace safemap::python
