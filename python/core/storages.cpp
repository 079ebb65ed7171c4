// Maps or loads storages, and makes tensors of torch over them.
#include "storages.hpp"

#include "imported.hpp"

#include <safemap/advanced/dtypes.hpp>

#include <algorithm>
#include <array>

namespace safemap::python {
namespace {

constexpr std::uint64_t plain_bytes = 0;
constexpr std::uint64_t swapped_bytes = 1;
constexpr std::uint64_t one_value = 2;

bool is_quantized(Dtype dtype) { return dtype >= Dtype::qint8 && dtype <= Dtype::quint2x4; }

/// Returns the dtype of the numbers of a quantised tensor, as int_repr() gives them.
Dtype without_scale(Dtype dtype) {
    if (dtype == Dtype::qint8) return Dtype::i8;
    if (dtype == Dtype::qint32) return Dtype::i32;
    return is_quantized(dtype) ? Dtype::u8 : dtype;
}

/// Returns the dtype of torch, which is kept once it has been found.
nb::handle torch_dtype(Dtype dtype) {
    static std::array<PyObject*, static_cast<std::size_t>(Dtype::bits4x2) + 1> known{};
    PyObject*& kept = known[static_cast<std::size_t>(dtype)];
    if (kept != nullptr) return kept;
    const std::string name = dtype == Dtype::f4 ? "float4_e2m1fn_x2" : std::string(torch_name(dtype));
    kept = nb::object(nb::module_::import_("torch").attr(name.c_str())).release().ptr();
    return kept;
}

nb::object tuple_of(const Strides& strides) {
    const nb::object tuple = nb::steal(PyTuple_New(static_cast<Py_ssize_t>(strides.size())));
    for (std::size_t i = 0; i < strides.size(); ++i)
        NB_TUPLE_SET_ITEM(tuple.ptr(), static_cast<Py_ssize_t>(i), PyLong_FromLongLong(strides[i]));
    return tuple;
}

/// Returns the view in pairs of elements, as torch counts those of F4.
StridedView in_pairs(StridedView view) {
    view.shape.back() /= 2;
    view.offset /= 2;
    for (std::size_t i = 0; i + 1 < view.strides.size(); ++i) view.strides[i] /= 2;
    return view;
}

StridedView torch_view(const LazyTensor& tensor) {
    return tensor.dtype() == Dtype::f4 ? in_pairs(tensor.strided_view()) : tensor.strided_view();
}

SharedBytes bytes_of(const TensorView& view) {
    return {.bytes = view.bytes(), .owner = view.owner(), .writable = view.writable()};
}

LazyTensor stored_whole(const LazyTensor& tensor) { return {tensor.name(), tensor.stored()}; }

/// Returns true if the value is all of its stored tensor, row-major and not cast. Strides that do not matter, which
/// torch keeps, have to be row-major, too.
bool is_whole(const LazyTensor& tensor) {
    const StridedView view = tensor.strided_view();
    const bool all = view.offset == 0 && tensor.nbytes() == stored_whole(tensor).nbytes();
    return all && view.strides == row_major(view.shape);
}

/// Returns true if to_torch() takes the dtype.
bool has_dlpack(Dtype dtype) { return dtype <= Dtype::c128 && dtype != Dtype::f6_e2m3 && dtype != Dtype::f6_e3m2; }

nb::object with_lazy_bits(const nb::object& tensor, Decoding decoding) {
    if (!decoding.conj && !decoding.neg) return tensor;
    nb::dict bits;
    if (decoding.conj) bits["conj"] = true;
    if (decoding.neg) bits["neg"] = true;
    nb::module_::import_("torch._utils").attr("set_tensor_metadata")(tensor, bits);
    return tensor;
}

}  // namespace

std::size_t Storages::add_storage(const LazyTensor& tensor) {
    const LazyTensor stored = stored_whole(tensor);
    const auto placement = stored.placement();
    const bool cast = tensor.dtype() != stored.dtype();
    const Strides strides = tensor.strided_view().strides;
    const bool backwards = std::any_of(strides.begin(), strides.end(), [](std::int64_t step) { return step < 0; });
    const bool value = cast || backwards || (!placement && stored.nbytes() > 0 && !is_whole(tensor));
    const bool swapped = tensor.decoding().byte_swap;
    const Key key = value ? Key{&tensor, one_value} : Key{tensor.stored().get(), swapped ? swapped_bytes : plain_bytes};
    const auto [known, fresh] = by_tensor_.try_emplace(key, storages_.size());
    if (!fresh) return known->second;
    LazyTensor whole = value ? tensor : LazyTensor(tensor.name(), tensor.stored(), {.byte_swap = swapped});
    if (!value && !swapped && placement) {
        const Key start{placement->source.get(), placement->extent.offset};
        const auto [place, alone] = by_place_.try_emplace(start, known->second);
        known->second = place->second;
        if (!alone) {
            Storage& storage = storages_[place->second];
            if (whole.nbytes() > storage.whole.nbytes()) storage.whole = std::move(whole);
            return place->second;
        }
    }
    storages_.push_back({.whole = std::move(whole), .value = value});
    return known->second;
}

void Storages::add(const LazyTensor& tensor) {
    const std::size_t number = add_storage(tensor);
    if (tensor.dtype() == Dtype::c128) storages_[number].aligned = true;
}

Storages::Storage& Storages::of(const LazyTensor& tensor) {
    const auto value = by_tensor_.find({&tensor, one_value});
    if (value != by_tensor_.end()) return storages_[value->second];
    const std::uint64_t kind = tensor.decoding().byte_swap ? swapped_bytes : plain_bytes;
    return storages_[by_tensor_.at({tensor.stored().get(), kind})];
}

/// Sets the bytes of a storage to a view of them. Returns false if torch needs a copy.
bool Storages::map(Storage& storage) const {
    if (storage.value) return false;
    const std::optional<TensorView> view = storage.whole.try_view();
    if (!view || (copies_read_only_ && !view->writable())) return false;
    if (storage.aligned && reinterpret_cast<std::uintptr_t>(view->data()) % 16 != 0) return false;
    storage.bytes = TensorView::row_major(Dtype::u8, bytes_of(*view), Shape{storage.whole.nbytes()});
    return true;
}

/// Gives a storage memory, and returns what to load into it.
LoadTarget Storages::target_for(Storage& storage) {
    const std::uint64_t size = storage.whole.nbytes();
    storage.bytes = TensorView::row_major(Dtype::u8, memory_for(size), Shape{size});
    return {storage.whole, storage.bytes->mutable_bytes()};
}

void Storages::open(const nb::object& progress) {
    const Work work{.monitor = monitor_for(progress)};
    without_gil([&] {
        std::vector<LoadTarget> targets;
        for (Storage& storage : storages_)
            if (storage.whole.nbytes() > 0 && !map(storage)) targets.push_back(target_for(storage));
        load_into(targets, work);
    });
}

nb::object Storages::untyped(Storage& storage) {
    static Imported empty{"torch", "empty"};
    if (!storage.first.is_valid())
        storage.first =
            storage.bytes ? to_torch(*storage.bytes) : empty.get()(0, nb::arg("dtype") = torch_dtype(Dtype::u8));
    return storage.first.attr("untyped_storage")();
}

nb::object Storages::torch(const LazyTensor& tensor) {
    static Imported empty{"torch", "empty"};
    Storage& storage = of(tensor);
    const Dtype dtype = without_scale(tensor.dtype());
    if (storage.value && storage.bytes)
        return to_torch(TensorView::row_major(dtype, bytes_of(*storage.bytes), tensor.shape()));
    const bool first = storage.bytes && !storage.first.is_valid() && has_dlpack(dtype) &&
                       tensor.nbytes() == storage.whole.nbytes() && is_whole(tensor);
    if (first) {
        storage.first = to_torch(TensorView::row_major(dtype, bytes_of(*storage.bytes), tensor.shape()));
        return with_lazy_bits(storage.first, tensor.decoding());
    }
    if (dtype == Dtype::f6_e2m3 || dtype == Dtype::f6_e3m2)
        raise(std::move(Error(Errc::no_dlpack, "torch has no dtype for " + std::string(name(dtype)))
                            .with_tensor(tensor.name())
                            .with_hint("select() leaves tensors out, and open() gives their bytes")));
    const StridedView view = torch_view(tensor);
    const nb::object made = empty.get()(0, nb::arg("dtype") = torch_dtype(dtype));
    made.attr("set_")(untyped(storage), view.offset, to_python(view.shape), tuple_of(view.strides));
    return with_lazy_bits(made, tensor.decoding());
}

nb::object Storages::quantized(const LazyTensor& tensor) {
    const StridedView view = tensor.strided_view();
    return nb::make_tuple(untyped(of(tensor)), torch_dtype(tensor.dtype()), view.offset, to_python(view.shape),
                          tuple_of(view.strides));
}

}  // namespace safemap::python
