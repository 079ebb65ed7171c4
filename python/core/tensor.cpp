// safemap.LazyTensor, and tensors of torch and NumPy over the memory of one.
#include "core.hpp"
#include "imported.hpp"

#include <safemap/advanced/dlpack.hpp>
#include <safemap/advanced/text.hpp>

#include <algorithm>
#include <array>
#include <type_traits>

namespace safemap::python {
namespace {

/// Returns torch.from_dlpack, or the function that it calls for a capsule, which takes half the time.
nb::handle torch_from_dlpack() {
    static PyObject* kept =
        nullptr;  // no guard of C++: a thread that waits for it would keep the GIL, which imports need
    if (kept != nullptr) return kept;
    const nb::object torch = nb::module_::import_("torch");
    kept = nb::getattr(torch.attr("_C"), "_from_dlpack", nb::object(torch.attr("from_dlpack"))).release().ptr();
    return kept;
}

template <class Managed>
constexpr const char* capsule_name =
    std::is_same_v<Managed, dlpack::ManagedTensorVersioned> ? "dltensor_versioned" : "dltensor";

template <class Managed> nb::object owning_capsule(Managed* tensor) {
    PyObject* const capsule = PyCapsule_New(tensor, capsule_name<Managed>, [](PyObject* self) {
        if (!PyCapsule_IsValid(self, capsule_name<Managed>)) return;  // a consumer renames what it has taken
        auto* const owned = static_cast<Managed*>(PyCapsule_GetPointer(self, capsule_name<Managed>));
        if (owned->deleter != nullptr) owned->deleter(owned);
    });
    if (capsule != nullptr) return nb::steal(capsule);
    tensor->deleter(tensor);
    throw nb::python_error();
}

nb::object versioned_capsule(const TensorView& view, dlpack::Float4 float4 = dlpack::Float4::elements) {
    return capsule_of(dlpack::export_versioned(view, float4));
}

nb::object unversioned_capsule(const TensorView& view) { return capsule_of(dlpack::export_unversioned(view)); }

bool has_negative_stride(const TensorView& view) {
    return std::any_of(view.strides().begin(), view.strides().end(), [](std::int64_t stride) { return stride < 0; });
}

/// Returns true if torch copies an element by an instruction that needs its address to be a multiple of its size.
bool torch_needs_alignment(const TensorView& view) {
    return view.dtype() == Dtype::c128 && reinterpret_cast<std::uintptr_t>(view.data()) % 16 != 0;
}

/// Returns the dtypes of torch that DLPack lacks: their bytes are handed over, and seen as this dtype.
bool is_torch_only(Dtype dtype) {
    constexpr std::array bits = {Dtype::bits8, Dtype::bits16, Dtype::bits1x8, Dtype::bits2x4, Dtype::bits4x2};
    return std::find(bits.begin(), bits.end(), dtype) != bits.end();
}

[[noreturn]] void no_dtype(const char* package, Dtype dtype) {
    raise(std::move(Error(Errc::no_dlpack, std::string(package) + " has no dtype for " + std::string(name(dtype)))
                        .with_hint("as_bytes() gives the bytes of the value")));
}

nb::object bits_in_torch(const TensorView& view) {
    const nb::object dtype = nb::module_::import_("torch").attr(std::string(torch_name(view.dtype())).c_str());
    return to_torch(view.as_bytes()).attr("view")(dtype).attr("view")(to_python(view.shape()));
}

/// Returns the name of a dtype in NumPy, or in ml_dtypes if `extra`.
std::string numpy_dtype(Dtype dtype, bool& extra) {
    extra = true;
    switch (dtype) {
        case Dtype::bf16: return "bfloat16";
        case Dtype::f8_e5m2: return "float8_e5m2";
        case Dtype::f8_e4m3: return "float8_e4m3fn";
        case Dtype::f8_e8m0: return "float8_e8m0fnu";
        case Dtype::f8_e4m3fnuz: return "float8_e4m3fnuz";
        case Dtype::f8_e5m2fnuz: return "float8_e5m2fnuz";
        default: break;
    }
    extra = false;
    if (dtype > Dtype::u64 && dtype != Dtype::c128) no_dtype("NumPy", dtype);
    if (element_size(dtype) == 0) no_dtype("NumPy", dtype);
    return std::string(torch_name(dtype));
}

/// Returns the dtype of NumPy, which is kept once it has been found.
nb::handle numpy_dtype_object(Dtype dtype) {
    static std::array<PyObject*, static_cast<std::size_t>(Dtype::bits4x2) + 1> known{};
    PyObject*& kept = known[static_cast<std::size_t>(dtype)];
    if (kept != nullptr) return kept;
    bool extra = false;
    const std::string found = numpy_dtype(dtype, extra);
    nb::object type;
    if (!extra) type = to_python(found);
    else try {
            type = nb::module_::import_("ml_dtypes").attr(found.c_str());
        } catch (nb::python_error& error) {
            if (!error.matches(PyExc_ImportError)) throw;
            throw nb::import_error(
                ("NumPy has no " + std::string(name(dtype)) + ": pip install ml_dtypes, or use .torch()").c_str());
        }
    kept = nb::module_::import_("numpy").attr("dtype")(type).release().ptr();
    return kept;
}

/// The memory of a view as a buffer of Python, for numpy.ndarray(): from its lowest to its highest byte.
struct Memory {
    TensorView view;
    std::int64_t first = 0;  ///< the offset of element (0, 0, …) in the buffer, in bytes
    std::uint64_t size = 0;  ///< in bytes
};

Memory memory_of(const TensorView& view) {
    Memory memory{view};
    if (view.element_count() == 0) return memory;
    const std::int64_t width = element_size(view.dtype());
    std::int64_t last = 0;
    for (std::size_t i = 0; i < view.shape().size(); ++i) {
        const std::int64_t reach = (static_cast<std::int64_t>(view.shape()[i]) - 1) * view.strides()[i] * width;
        (reach < 0 ? memory.first : last) += reach < 0 ? -reach : reach;
    }
    memory.size = static_cast<std::uint64_t>(memory.first + last + width);
    return memory;
}

int get_buffer(PyObject* self, Py_buffer* into, int flags) {
    if (!nb::inst_ready(self)) {
        PyErr_SetString(PyExc_BufferError, "the object was not initialised");
        return -1;
    }
    const Memory& memory = *nb::inst_ptr<Memory>(self);
    static std::byte nothing{};
    const std::byte* const data = memory.size == 0 ? &nothing : memory.view.data() - memory.first;
    return PyBuffer_FillInfo(into, self, const_cast<std::byte*>(data), static_cast<Py_ssize_t>(memory.size),
                             memory.view.writable() ? 0 : 1, flags);
}

PyType_Slot memory_slots[] = {{Py_bf_getbuffer, reinterpret_cast<void*>(get_buffer)}, {0, nullptr}};

nb::object tuple_of_strides(const TensorView& view) {
    const std::int64_t width = element_size(view.dtype());
    const nb::object tuple = nb::steal(PyTuple_New(static_cast<Py_ssize_t>(view.strides().size())));
    for (std::size_t i = 0; i < view.strides().size(); ++i)
        NB_TUPLE_SET_ITEM(tuple.ptr(), static_cast<Py_ssize_t>(i), PyLong_FromLongLong(view.strides()[i] * width));
    return tuple;
}

/// Returns the tensor without the copy that is not wanted; raises if there has to be one.
TensorView exported_view(const Tensor& tensor, const nb::object& copy) {
    if (copy.is(nb::handle(Py_True))) return load_value(tensor.lazy);
    if (copy.is(nb::handle(Py_False))) return tensor.lazy.view();
    return value_of(tensor.lazy);
}

nb::object dlpack_of(const Tensor& tensor, const nb::object& stream, const nb::object& max_version,
                     const nb::object& device, const nb::object& copy) {
    if (!stream.is_none()) raise(Error(Errc::invalid_argument, "a tensor in the memory of the host has no stream"));
    if (!device.is_none() && !device.equal(nb::make_tuple(1, 0)))
        raise(Error(Errc::no_dlpack, "the tensor is in the memory of the host, device (1, 0)"));
    const TensorView view = exported_view(tensor, copy);
    const bool versioned = !max_version.is_none() && nb::cast<int>(max_version[0]) >= 1;
    if (versioned) return versioned_capsule(view);
    if (view.writable()) return unversioned_capsule(view);
    // This form of a capsule cannot say that the memory must not be written to.
    if (copy.is(nb::handle(Py_False)))
        raise(Error(Errc::no_dlpack, "an old capsule cannot say that the tensor is read-only"));
    return unversioned_capsule(load_value(tensor.lazy));
}

nb::object tensor_to_torch(const Tensor& tensor, bool copy) {
    TensorView view = copy ? load_value(tensor.lazy) : value_of(tensor.lazy);
    const bool copied =
        has_negative_stride(view) || torch_needs_alignment(view) || (tensor.copies_read_only && !view.writable());
    if (copied) view = load_value(tensor.lazy);
    return to_torch(view);
}

nb::object tensor_to_numpy(const Tensor& tensor, bool copy) {
    return to_numpy(copy ? load_value(tensor.lazy) : value_of(tensor.lazy));
}

nb::object array_of(const Tensor& tensor, const nb::object& dtype, const nb::object& copy) {
    if (copy.is(nb::handle(Py_False)) && !dtype.is_none()) {
        const nb::object array = to_numpy(tensor.lazy.view());
        if (!array.attr("dtype").equal(dtype)) throw nb::value_error("another dtype needs a copy");
        return array;
    }
    const nb::object array = copy.is(nb::handle(Py_False)) ? to_numpy(tensor.lazy.view())
                                                           : tensor_to_numpy(tensor, copy.is(nb::handle(Py_True)));
    return dtype.is_none() ? array : array.attr("astype")(dtype, nb::arg("copy") = false);
}

Tensor with_step(const Tensor& tensor, LazyTensor lazy, Step step) {
    Tensor next{std::move(lazy), tensor.origin, tensor.name, tensor.steps, tensor.copies_read_only};
    next.steps.push_back(std::move(step));
    return next;
}

Tensor sliced(const Tensor& tensor, nb::handle key) {
    std::vector<Slice> slices = slices_from(key);
    LazyTensor lazy = tensor.lazy.slice(slices);
    return with_step(tensor, std::move(lazy), {.slices = std::move(slices)});
}

Tensor cast_to(const Tensor& tensor, nb::handle dtype) {
    const Dtype wanted = dtype_from(dtype);
    try {
        return with_step(tensor, tensor.lazy.cast(wanted), {.dtype = wanted});
    } catch (Error& error) {
        throw std::move(
            error.with_hint("only floating-point dtypes are cast to each other; for other casts use "
                            ".torch().to(dtype) or .numpy().astype(dtype)"));
    }
}

std::uint64_t length(const Tensor& tensor) {
    if (tensor.lazy.shape().empty()) throw nb::type_error("len() of a 0-d tensor");
    return tensor.lazy.shape()[0];
}

std::string description(const Tensor& tensor) {
    return "<safemap.LazyTensor " + printable(tensor.lazy.name(), 200) + ' ' + std::string(name(tensor.lazy.dtype())) +
           ' ' + to_string(tensor.lazy.shape()) + '>';
}

nb::object key_of(const Slice& slice) {
    if (slice.kind == Slice::Kind::ellipsis) return nb::borrow(Py_Ellipsis);
    if (slice.kind == Slice::Kind::index) return nb::cast(*slice.start);
    const auto bound = [](std::optional<std::int64_t> value) { return value ? nb::cast(*value) : nb::none(); };
    const nb::object key =
        nb::steal(PySlice_New(bound(slice.start).ptr(), bound(slice.stop).ptr(), nb::cast(slice.step).ptr()));
    if (!key.is_valid()) throw nb::python_error();
    return key;
}

/// Returns what pickle calls to make the tensor again: safemap._origin.tensor(origin, name, steps).
nb::object reduced(const Tensor& tensor) {
    if (tensor.origin.is_none())
        raise(std::move(Error(Errc::invalid_argument, "a tensor of memory cannot be pickled")
                            .with_tensor(tensor.lazy.name())
                            .with_hint("save it to a file, or pickle .torch() or .numpy() of it")));
    nb::list steps;
    for (const Step& step : tensor.steps) {
        if (step.dtype) {
            steps.append(to_python(name(*step.dtype)));
            continue;
        }
        nb::list keys;
        for (const Slice& slice : step.slices) keys.append(key_of(slice));
        steps.append(nb::tuple(keys));
    }
    return nb::make_tuple(nb::module_::import_("safemap._origin").attr("tensor"),
                          nb::make_tuple(tensor.origin, to_python(tensor.name), steps));
}

}  // namespace

nb::object capsule_of(dlpack::ManagedTensorVersioned* tensor) { return owning_capsule(tensor); }

nb::object capsule_of(dlpack::ManagedTensor* tensor) { return owning_capsule(tensor); }

TensorView value_of(const LazyTensor& tensor) {
    if (const auto view = tensor.try_view()) return *view;
    return load_value(tensor);
}

nb::object to_torch(const TensorView& view) {
    if (view.dtype() == Dtype::f4) return torch_from_dlpack()(versioned_capsule(view, dlpack::Float4::pairs));
    if (is_torch_only(view.dtype())) return bits_in_torch(view);
    if (element_size(view.dtype()) == 0) no_dtype("torch", view.dtype());
    return torch_from_dlpack()(versioned_capsule(view));
}

nb::object to_numpy(const TensorView& view) {
    static Imported ndarray{"numpy", "ndarray"};
    const nb::handle dtype = numpy_dtype_object(view.dtype());
    Memory memory = memory_of(view);
    const std::int64_t first = memory.first;
    const nb::object buffer = nb::cast(std::move(memory));
    return ndarray.get()(to_python(view.shape()), dtype, buffer, first, tuple_of_strides(view));
}

void bind_tensor(nb::module_& module) {
    nb::class_<Memory>(module, "_Memory", nb::is_final(), nb::type_slots(memory_slots));
    nb::class_<Tensor> type(module, "LazyTensor", nb::is_final(), R"doc(A tensor of a checkpoint that has not been read.

It has a name, a dtype and a shape. Slices and casts of it are lazy, too. Only torch(), numpy() and the protocols of
arrays read its bytes, or map them without reading. It may outlive its checkpoint. All threads may use it.

Example:
    rows = checkpoint["wte.weight"][0:4096, ::2].to("f32").torch())doc");
    type.def_prop_ro(
            "name", [](const Tensor& self) { return to_python(self.lazy.name()); }, nb::sig("def name(self, /) -> str"))
        .def_prop_ro(
            "dtype", [](const Tensor& self) { return to_python(name(self.lazy.dtype())); },
            nb::sig("def dtype(self, /) -> str"),
            R"doc(The name in safetensors, "BF16", or torch's for other dtypes, "complex128".)doc")
        .def_prop_ro(
            "shape", [](const Tensor& self) { return to_python(self.lazy.shape()); },
            nb::sig("def shape(self, /) -> tuple[int, ...]"))
        .def_prop_ro(
            "ndim", [](const Tensor& self) { return self.lazy.shape().size(); }, nb::sig("def ndim(self, /) -> int"))
        .def_prop_ro(
            "size", [](const Tensor& self) { return self.lazy.element_count(); }, nb::sig("def size(self, /) -> int"),
            "The number of elements.")
        .def_prop_ro(
            "nbytes", [](const Tensor& self) { return self.lazy.nbytes(); }, nb::sig("def nbytes(self, /) -> int"),
            "The size of the value in bytes.")
        .def("torch", tensor_to_torch, nb::kw_only(), nb::arg("copy") = false,
             nb::sig("def torch(self, *, copy: bool = False) -> torch.Tensor"),
             R"doc(Returns the value as a torch.Tensor on the CPU.

Without `copy`, the tensor is the mapped file: nothing is read before its elements are touched. Writing to it changes
no file. Memory is copied where torch needs that: casts, values in several pieces, negative strides, compressed
records, and sources that may not be written to.)doc")
        .def("numpy", tensor_to_numpy, nb::kw_only(), nb::arg("copy") = false,
             nb::sig("def numpy(self, *, copy: bool = False) -> numpy.ndarray"),
             R"doc(Returns the value as a numpy.ndarray. Without `copy`, it is a view of the mapped file where possible.

NumPy has no BF16 and F8: their dtypes are those of the package ml_dtypes. Raises ImportError without it.)doc")
        .def("to", cast_to, nb::arg("dtype").none(), nb::sig("def to(self, dtype: object) -> LazyTensor"),
             R"doc(Returns a lazy tensor that is cast when it is read: "bf16", torch.bfloat16, numpy.float16.

Floating-point dtypes can be cast to each other, rounding to nearest even. Raises SafemapError (unsupported_cast).)doc")
        .def("__getitem__", sliced, nb::arg("index").none(),
             nb::sig("def __getitem__(self, index: object, /) -> LazyTensor"),
             "Returns a lazy part: integers, slices (also with negative steps) and `...`. Reads nothing.")
        .def("__len__", length)
        .def(
            "__iter__",
            [](nb::handle self) {
                (void)length(nb::cast<const Tensor&>(self));
                return nb::steal(PySeqIter_New(self.ptr()));
            },
            nb::sig("def __iter__(self) -> collections.abc.Iterator[LazyTensor]"))
        .def("__repr__", description)
        .def("__array__", array_of, nb::arg("dtype") = nb::none(), nb::arg("copy") = nb::none(),
             nb::sig("def __array__(self, dtype: object = None, copy: bool | None = None) -> typing.Any"))
        .def("__dlpack__", dlpack_of, nb::kw_only(), nb::arg("stream") = nb::none(),
             nb::arg("max_version") = nb::none(), nb::arg("dl_device") = nb::none(), nb::arg("copy") = nb::none(),
             nb::sig("def __dlpack__(self, *, stream: object = None, max_version: tuple[int, int] | None = None, "
                     "dl_device: tuple[int, int] | None = None, copy: bool | None = None) -> object"))
        .def(
            "__dlpack_device__", [](const Tensor&) { return nb::make_tuple(1, 0); },
            nb::sig("def __dlpack_device__(self) -> tuple[int, int]"))
        .def("__reduce__", reduced);
    bind_tensor_bytes(type);
}

}  // namespace safemap::python
