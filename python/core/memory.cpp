// Lazy tensors over the memory of tensors of other libraries, and checkpoints of a dict of them.
#include "core.hpp"

#include <safemap/advanced/dlpack.hpp>
#include <safemap/advanced/dtypes.hpp>
#include <safemap/advanced/text.hpp>

#include <cstring>
#include <span>

namespace safemap::python {
namespace {

constexpr const char* versioned_capsule_name = "dltensor_versioned";
constexpr const char* unversioned_capsule_name = "dltensor";

/// Returns an attribute of a module, or null if nobody has imported the module: then no value is of its classes.
nb::object if_imported(const char* module, const char* attribute) {
    const nb::object loaded = nb::steal(PyImport_GetModule(to_python(module).ptr()));
    PyErr_Clear();
    return loaded.is_valid() ? nb::getattr(loaded, attribute, nb::object()) : nb::object();
}

bool is_instance(nb::handle value, const nb::object& type) {
    return type.is_valid() && PyObject_IsInstance(value.ptr(), type.ptr()) == 1;
}

[[noreturn]] void refuse(const std::string& name, const std::string& why, std::string_view hint) {
    raise(std::move(Error(Errc::invalid_argument, why).with_tensor(name).with_hint(hint)));
}

/// The strided memory of a tensor of another library, and the object that keeps it.
struct Strided {
    nb::object owner = {};
    std::uintptr_t address = 0;  ///< element (0, 0, …) is there
    bool writable = true;
    Dtype dtype = {};
    Shape shape = {};
    Strides strides = {};  ///< in elements
    Decoding decoding = {};
};

/// The lowest and the highest element that strides reach, relative to element (0, 0, …).
struct Span {
    std::int64_t first = 0;
    std::int64_t last = -1;

    std::uint64_t elements() const { return static_cast<std::uint64_t>(last - first + 1); }
};

Span reached(const Shape& shape, const Strides& strides) {
    Span span{0, 0};
    for (std::size_t i = 0; i < shape.size(); ++i) {
        if (shape[i] == 0) return {};
        const std::int64_t reach = static_cast<std::int64_t>(shape[i] - 1) * strides[i];
        (reach < 0 ? span.first : span.last) += reach;
    }
    return span;
}

/// Returns a Shape or Strides of integers of Python.
template <class T> Dims<T> dims_from(nb::handle integers) {
    Dims<T> dims;
    for (const nb::handle one : nb::iter(integers)) dims.push_back(nb::cast<T>(one));
    return dims;
}

TensorView view_of(const Strided& tensor) {
    const Span span = reached(tensor.shape, tensor.strides);
    const std::uint64_t size = byte_size(tensor.dtype, span.elements()).value_or(0);
    const std::int64_t below = span.first * static_cast<std::int64_t>(element_size(tensor.dtype));
    const std::uintptr_t lowest = tensor.address + static_cast<std::uintptr_t>(below);
    SharedBytes bytes{{reinterpret_cast<const std::byte*>(lowest), size},
                      std::make_shared<const Kept>(tensor.owner),
                      tensor.writable};
    return {tensor.dtype, std::move(bytes), StridedView{tensor.shape, tensor.strides, -span.first}};
}

LazyTensor decoded(LazyTensor tensor, Decoding decoding) {
    if (decoding == Decoding{}) return tensor;
    return {tensor.name(), tensor.stored(), tensor.strided_view(), decoding};
}

// PyTorch.

std::string torch_type(nb::handle tensor) { return nb::cast<std::string>(nb::inst_name(tensor)); }

/// Refuses tensors of torch whose values are not elements in strided memory.
void require_strided(const std::string& name, nb::handle tensor) {
    static const char* const own = "__torch_dispatch__";
    const nb::object base = if_imported("torch", "Tensor");
    const nb::handle type = tensor.type();
    if (!nb::getattr(type, own).equal(nb::getattr(base, own)))
        refuse(name, torch_type(tensor) + " is a tensor that has no memory of its own",
               nb::hasattr(tensor, "full_tensor") ? "full_tensor() or to_local() gives a plain tensor"
                                                  : "give a plain torch.Tensor");
    const std::string layout = nb::cast<std::string>(nb::str(nb::getattr(tensor, "layout")));
    if (layout != "torch.strided" || nb::cast<bool>(nb::getattr(tensor, "is_nested")))
        refuse(name, "a tensor of the layout " + layout + " is not strided",
               "to_dense() or values() gives one that is");
    if (nb::cast<bool>(nb::getattr(tensor, "is_quantized")))
        refuse(name, "a quantized tensor is more than its elements",
               "int_repr() gives the numbers, dequantize() values");
    if (nb::cast<bool>(nb::getattr(tensor, "is_meta")))
        refuse(name, "a tensor on the device meta has no values", "materialise it with to_empty(), or load its values");
}

Dtype torch_dtype_of(const std::string& name, nb::handle tensor) {
    const std::string text = nb::cast<std::string>(nb::str(nb::getattr(tensor, "dtype")));
    if (const auto dtype = dtype_from_torch(text)) return *dtype;
    refuse(name, "safemap has no dtype for " + text, "view(torch.uint8) gives the bytes");
}

/// Describes packed pairs of float4 as single elements, as safetensors does.
void unpack_pairs(const std::string& name, Strided& tensor) {
    if (tensor.shape.empty()) refuse(name, "a 0-d tensor of pairs of float4 has no shape in elements", "reshape(1)");
    tensor.shape.back() *= 2;
    tensor.strides = row_major(tensor.shape);
}

/// Refuses tensors whose storage was made smaller, as FSDP does to give memory back.
void require_memory(const std::string& name, nb::handle tensor, const Strided& strided) {
    const auto bytes = nb::cast<std::uint64_t>(nb::object(tensor.attr("untyped_storage")().attr("nbytes")()));
    const auto first = nb::cast<std::uint64_t>(nb::object(tensor.attr("storage_offset")()));
    const auto width = nb::cast<std::uint64_t>(nb::object(tensor.attr("element_size")()));
    const std::uint64_t elements = reached(strided.shape, strided.strides).elements();
    if (elements == 0 || (first + elements <= bytes / width && strided.address != 0)) return;
    refuse(name, "the storage of the tensor has " + std::to_string(bytes) + " bytes, which are too few for it",
           "it was freed or resized: gather the values first");
}

/// Returns a description of a tensor of torch. Its address is only an address of this process if the device is "cpu".
Strided strided_torch(const std::string& name, nb::object tensor) {
    require_strided(name, tensor);
    tensor = tensor.attr("detach")();
    Decoding decoding;
    // conj() and _neg_view() change the bit, and no memory.
    decoding.conj = nb::cast<bool>(tensor.attr("is_conj")());
    if (decoding.conj) tensor = tensor.attr("conj")();
    decoding.neg = nb::cast<bool>(tensor.attr("is_neg")());
    if (decoding.neg) tensor = tensor.attr("_neg_view")();
    Strided strided{.owner = tensor, .dtype = torch_dtype_of(name, tensor), .decoding = decoding};
    if (strided.dtype == Dtype::f4) strided.owner = tensor = tensor.attr("contiguous")();
    strided.address = nb::cast<std::uintptr_t>(tensor.attr("data_ptr")());
    strided.shape = dims_from<std::uint64_t>(tensor.attr("shape"));
    strided.strides = dims_from<std::int64_t>(tensor.attr("stride")());
    require_memory(name, tensor, strided);
    if (strided.dtype == Dtype::f4) unpack_pairs(name, strided);
    return strided;
}

/// Copies bytes of a tensor on another device to the host. `bytes` is a row of uint8.
void copy_from_device(nb::handle bytes, std::uint64_t offset, std::span<std::byte> into) {
    const GilAcquire acquired;
    const nb::object part = bytes.attr("narrow")(0, offset, into.size()).attr("cpu")();
    std::memcpy(into.data(), reinterpret_cast<const void*>(nb::cast<std::uintptr_t>(part.attr("data_ptr")())),
                into.size());
}

/// Returns a tensor whose bytes are copied from its device when they are read, block by block.
LazyTensor on_device(std::string name, const Strided& tensor, const std::string& device) {
    const Span span = reached(tensor.shape, tensor.strides);
    if (span.elements() == 0)
        return {std::move(name), stored_run(tensor.dtype, tensor.shape, memory_source(device, SharedBytes()), 0)};
    const std::uint64_t size = byte_size(tensor.dtype, span.elements()).value();
    const std::uint64_t width = tensor.dtype == Dtype::f4 ? 2 : 1;
    const nb::object row = tensor.owner.attr("as_strided")(nb::make_tuple(span.elements() / width), nb::make_tuple(1));
    const auto bytes = std::make_shared<const Kept>(row.attr("view")(if_imported("torch", "uint8")));
    auto source = callback_source(device, size, [bytes](std::uint64_t offset, std::span<std::byte> into) {
        copy_from_device(bytes->get(), offset, into);
    });
    const bool whole = is_contiguous(tensor.shape, tensor.strides);
    auto stored = stored_run(tensor.dtype, whole ? tensor.shape : Shape{span.elements()}, std::move(source), 0);
    if (whole) return decoded({std::move(name), std::move(stored)}, tensor.decoding);
    return {std::move(name), std::move(stored), StridedView{tensor.shape, tensor.strides, 0}, tensor.decoding};
}

Found found_torch(std::string name, nb::handle value) {
    const Strided tensor = strided_torch(name, nb::borrow(value));
    const std::string device = nb::cast<std::string>(nb::str(nb::getattr(value, "device")));
    const Place place{tensor.address, 0, tensor.decoding};
    if (device != "cpu") return {on_device(std::move(name), tensor, device), place};
    return {decoded({std::move(name), view_of(tensor)}, tensor.decoding), place};
}

// NumPy.

/// Returns the dtype of an array. Structured arrays, objects, texts and dates have none, and neither have the types of
/// ml_dtypes whose elements are padded to bytes.
Dtype numpy_dtype_of(const std::string& name, nb::handle dtype) {
    if (const auto found = dtype_from_torch(nb::cast<std::string>(dtype.attr("name")))) return *found;
    throw nb::type_error(("tensor " + printable(name, 200) + ": safemap has no dtype for an array of " +
                          nb::cast<std::string>(nb::str(dtype)))
                             .c_str());
}

/// Returns the strides in elements; nothing if they are no whole elements, as in a field of a structured array.
std::optional<Strides> element_strides(nb::handle array, std::int64_t width) {
    auto strides = dims_from<std::int64_t>(array.attr("strides"));
    for (std::int64_t& stride : strides) {
        if (stride % width != 0) return std::nullopt;
        stride /= width;
    }
    return strides;
}

Found found_numpy(std::string name, nb::object array) {
    if (is_instance(array, if_imported("numpy.ma", "MaskedArray")))
        throw nb::type_error(
            ("tensor " + printable(name, 200) + ": a masked array; filled() gives a plain one").c_str());
    const nb::object dtype = array.attr("dtype");
    Strided tensor{.dtype = numpy_dtype_of(name, dtype)};
    tensor.decoding.byte_swap = nb::cast<std::string>(dtype.attr("byteorder")) == ">";
    auto strides = element_strides(array, element_size(tensor.dtype));
    if (!strides) {
        array = if_imported("numpy", "ascontiguousarray")(array);
        strides = element_strides(array, element_size(tensor.dtype));
    }
    const nb::object data = array.attr("__array_interface__")["data"];
    tensor.owner = array;
    tensor.address = nb::cast<std::uintptr_t>(data[0]);
    tensor.writable = !nb::cast<bool>(data[1]);
    tensor.shape = dims_from<std::uint64_t>(array.attr("shape"));
    tensor.strides = *std::move(strides);
    return {decoded({std::move(name), view_of(tensor)}, tensor.decoding), {tensor.address, 0, tensor.decoding}};
}

// Others, by DLPack.

/// A view that C++ threads may let go of: the deleter of another library may need the GIL.
struct KeptView {
    explicit KeptView(TensorView tensor) : view(std::make_unique<TensorView>(std::move(tensor))) {}
    ~KeptView() {
        const GilAcquire acquired(std::nothrow);
        if (acquired) view.reset();
        else static_cast<void>(view.release());
    }
    KeptView(const KeptView&) = delete;
    KeptView& operator=(const KeptView&) = delete;

    std::unique_ptr<TensorView> view;
};

template <class Managed> TensorView take_capsule(const nb::object& capsule, const char* name, const char* used) {
    auto* const managed = static_cast<Managed*>(PyCapsule_GetPointer(capsule.ptr(), name));
    if (managed == nullptr) throw nb::python_error();
    TensorView view = dlpack::import_tensor(managed);
    PyCapsule_SetName(capsule.ptr(), used);
    return view;
}

nb::object capsule_from(nb::handle value) {
    try {
        return value.attr("__dlpack__")(nb::arg("max_version") = nb::make_tuple(1, 1));
    } catch (nb::python_error& error) {
        if (!error.matches(PyExc_TypeError)) throw;
    }
    return value.attr("__dlpack__")();
}

TensorView view_of_dlpack(nb::handle value) {
    const nb::object capsule = capsule_from(value);
    if (PyCapsule_IsValid(capsule.ptr(), versioned_capsule_name))
        return take_capsule<dlpack::ManagedTensorVersioned>(capsule, versioned_capsule_name, "used_dltensor_versioned");
    if (PyCapsule_IsValid(capsule.ptr(), unversioned_capsule_name))
        return take_capsule<dlpack::ManagedTensor>(capsule, unversioned_capsule_name, "used_dltensor");
    wrong_type("a capsule of DLPack from __dlpack__()", capsule);
}

/// Returns the memory from the lowest to the highest element of a view, kept by a KeptView.
TensorView kept_view(const TensorView& view) {
    if (bits(view.dtype()) % 8 != 0) {
        const auto kept = std::make_shared<const KeptView>(view);
        return TensorView::row_major(view.dtype(), {view.bytes(), kept, view.writable()}, view.shape());
    }
    const Span span = reached(view.shape(), view.strides());
    const std::byte* const lowest = view.data() + span.first * static_cast<std::int64_t>(element_size(view.dtype()));
    SharedBytes bytes{{lowest, byte_size(view.dtype(), span.elements()).value_or(0)},
                      std::make_shared<const KeptView>(view),
                      view.writable()};
    return {view.dtype(), std::move(bytes), StridedView{view.shape(), view.strides(), -span.first}};
}

Found found_dlpack(std::string name, nb::handle value) {
    const TensorView view = kept_view(view_of_dlpack(value));
    return {{std::move(name), view}, {reinterpret_cast<std::uintptr_t>(view.data()), 0, {}}};
}

Found found_lazy(std::string name, const LazyTensor& tensor) {
    const Place place{reinterpret_cast<std::uintptr_t>(tensor.stored().get()), tensor.strided_view().offset,
                      tensor.decoding()};
    return {tensor.renamed(std::move(name)), place};
}

}  // namespace

Found found_from(std::string name, nb::handle value) {
    if (nb::isinstance<Tensor>(value)) return found_lazy(std::move(name), nb::cast<const Tensor&>(value).lazy);
    if (is_instance(value, if_imported("torch", "Tensor"))) return found_torch(std::move(name), value);
    if (is_instance(value, if_imported("numpy", "ndarray"))) return found_numpy(std::move(name), nb::borrow(value));
    if (is_instance(value, if_imported("numpy", "generic")))
        return found_numpy(std::move(name), if_imported("numpy", "asarray")(value));
    if (nb::hasattr(value, "__dlpack__") && !PyType_Check(value.ptr())) return found_dlpack(std::move(name), value);
    wrong_type(("a tensor of torch or NumPy, or a LazyTensor, for " + printable(name, 200)).c_str(), value);
}

LazyTensor lazy_from(std::string name, nb::handle value) { return found_from(std::move(name), value).tensor; }

}  // namespace safemap::python
