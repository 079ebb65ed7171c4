// Implements lazy tensors: names, views and casts over stored tensors.
#include <safemap/lazy_tensor.hpp>

#include "base/checked.hpp"
#include "base/faults.hpp"
#include "lazy/gatherer.hpp"
#include "lazy/page_cache.hpp"
#include "lazy/stored_tensor.hpp"
#include "tensor/convert.hpp"
#include "tensor/reach.hpp"

#include <safemap/advanced/dtypes.hpp>
#include <safemap/advanced/stored_tensor.hpp>
#include <safemap/advanced/strides.hpp>
#include <safemap/error.hpp>

#include <algorithm>
#include <new>
#include <utility>

namespace safemap::SAFEMAP_ABI {
namespace {

constexpr std::size_t load_alignment = 64;

// Throws if a view reaches outside its base. A view without elements may have any offset and strides.
void check_reach(const StoredTensor& stored, const StridedView& view) {
    if (view.shape.size() != view.strides.size())
        throw Error(Errc::bad_tensor, std::to_string(view.shape.size()) + " dimensions, but " +
                                          std::to_string(view.strides.size()) + " strides");
    const auto count = element_count(view.shape);
    if (!count || !checked_mul(*count, bits(stored.dtype())))
        throw Error(Errc::shape_overflow, "the size of shape " + to_string(view.shape) + " does not fit in 64 bits");
    if (!byte_size(stored.dtype(), *count))
        throw Error(Errc::partial_byte, "shape " + to_string(view.shape) + " of " + std::string(name(stored.dtype())) +
                                            " does not fill whole bytes");
    if (*count == 0) return;
    const auto reach = reach_of(view);
    if (!reach || reach->first < 0 || static_cast<std::uint64_t>(reach->last) >= stored.element_count())
        throw Error(Errc::bad_tensor, "a view of shape " + to_string(view.shape) + " reaches outside its " +
                                          std::to_string(stored.element_count()) + " elements");
}

const std::shared_ptr<const StoredTensor>& required(const std::shared_ptr<const StoredTensor>& stored) {
    if (!stored) throw Error(Errc::invalid_argument, "the stored tensor is null");
    return stored;
}

/// The elements in memory from the lowest to the highest of a value, and the view of them that the value is.
struct InMemory {
    std::shared_ptr<const StoredTensor> stored = {};
    StridedView view = {};
    bool whole = false;  ///< true if the view is all elements, row-major
};

InMemory in_memory(const TensorView& value) {
    InMemory memory{.view = {value.shape(), value.strides(), 0}};
    const auto reach = value.element_count() == 0 ? std::nullopt : reach_of(memory.view);
    const std::uint64_t elements = reach ? static_cast<std::uint64_t>(reach->last - reach->first) + 1 : 0;
    const std::uint64_t below = reach ? static_cast<std::uint64_t>(-reach->first) : 0;
    memory.view.offset = static_cast<std::int64_t>(below);
    memory.whole = memory.view.strides == row_major(memory.view.shape);

    const Dtype dtype = value.dtype();
    const SharedBytes bytes{{value.data() - below * bits(dtype) / 8, byte_size(dtype, elements).value_or(0)},
                            value.owner(),
                            value.writable()};
    memory.stored =
        stored_run(dtype, memory.whole ? memory.view.shape : Shape{elements}, memory_source("memory", bytes), 0);
    return memory;
}

}  // namespace

bool can_cast(Dtype from, Dtype to) noexcept { return from == to || (is_castable(from) && is_castable(to)); }

LazyTensor::LazyTensor(std::string name, std::shared_ptr<const StoredTensor> stored, Decoding decoding)
    : name_(std::move(name)), stored_(std::move(stored)), decoding_(decoding), dtype_(required(stored_)->dtype()) {}

LazyTensor::LazyTensor(std::string name, std::shared_ptr<const StoredTensor> stored, StridedView view,
                       Decoding decoding)
    : LazyTensor(std::move(name), std::move(stored), decoding) {
    check_reach(*stored_, view);
    if (!whole_bytes(dtype_) && !cuts_whole_bytes(dtype_, view))
        throw Error(Errc::partial_byte, "a view of " + std::string(safemap::name(dtype_)) + " cuts bytes");
    view_ = std::make_shared<const StridedView>(std::move(view));
}

LazyTensor::LazyTensor(std::string name, TensorView value) : name_(std::move(name)), dtype_(value.dtype()) {
    InMemory memory = in_memory(value);
    stored_ = std::move(memory.stored);
    if (memory.whole) return;
    check_reach(*stored_, memory.view);
    view_ = std::make_shared<const StridedView>(std::move(memory.view));
}

// Pieces are shared, not moved: a tensor without any would be an exception to each member.
LazyTensor::LazyTensor(LazyTensor&& other) noexcept
    : name_(std::move(other.name_)),
      stored_(other.stored_),
      view_(other.view_),
      decoding_(other.decoding_),
      dtype_(other.dtype_) {}

LazyTensor& LazyTensor::operator=(LazyTensor&& other) noexcept {
    name_ = std::move(other.name_);
    stored_ = other.stored_;
    view_ = other.view_;
    decoding_ = other.decoding_;
    dtype_ = other.dtype_;
    return *this;
}

const Shape& LazyTensor::shape() const& noexcept { return view_ ? view_->shape : stored_->shape(); }

StridedView LazyTensor::strided_view() const {
    return view_ ? *view_ : StridedView{stored_->shape(), row_major(stored_->shape()), 0};
}

std::uint64_t LazyTensor::element_count() const noexcept { return *safemap::element_count(shape()); }

std::uint64_t LazyTensor::nbytes() const noexcept { return byte_size(dtype_, element_count()).value_or(0); }

LazyTensor LazyTensor::renamed(std::string name) const {
    LazyTensor out(std::move(name), stored_, decoding_);
    out.view_ = view_;
    out.dtype_ = dtype_;
    return out;
}

LazyTensor LazyTensor::cast(Dtype dtype) const {
    if (!can_cast(dtype_, dtype))
        throw Error(Errc::unsupported_cast,
                    "no cast from " + std::string(safemap::name(dtype_)) + " to " + std::string(safemap::name(dtype)))
            .with_tensor(name_);
    // A second cast would round twice, which one conversion cannot reproduce.
    if (dtype_ != stored_->dtype() && dtype != dtype_)
        throw Error(Errc::unsupported_cast, "already cast from " + std::string(safemap::name(stored_->dtype())) +
                                                " to " + std::string(safemap::name(dtype_)))
            .with_tensor(name_);
    if (!byte_size(dtype, element_count()))
        throw Error(Errc::shape_overflow,
                    "as " + std::string(safemap::name(dtype)) + " its size does not fit in 64 bits")
            .with_tensor(name_);
    LazyTensor out = *this;
    out.dtype_ = dtype;
    return out;
}

LazyTensor LazyTensor::slice(std::span<const Slice> slices) const {
    return about_tensor(name_, [&] {
        StridedView part = safemap::slice(strided_view(), slices);
        if (!whole_bytes(stored_->dtype()) && !cuts_whole_bytes(stored_->dtype(), part))
            throw Error(Errc::partial_byte_slice, "a slice of " + std::string(safemap::name(stored_->dtype())) +
                                                      " does not start and end at whole bytes");
        LazyTensor out = *this;
        out.view_ = std::make_shared<const StridedView>(std::move(part));
        return out;
    });
}

/// The reason why a value has no view.
struct LazyTensor::NoView {
    const char* text = nullptr;
    const Source* unmapped = nullptr;  ///< the source that is not mapped, if that is the reason
};

TensorView LazyTensor::view() const {
    NoView reason;
    if (auto found = find_view(reason)) return *std::move(found);
    Error error = Error(Errc::no_view, reason.text).with_tensor(name_);
    if (reason.unmapped == nullptr) throw error;
    throw error.with_path(reason.unmapped->name())
        .with_hint("load() reads it; Access::mapped maps files wherever they are");
}

std::optional<TensorView> LazyTensor::try_view() const {
    NoView reason;
    return find_view(reason);
}

std::optional<TensorView> LazyTensor::find_view(NoView& reason) const {
    const auto none = [&](const char* why, const Source* unmapped = nullptr) {
        reason = {why, unmapped};
        return std::nullopt;
    };
    const auto mapped = [&](std::uint32_t source, Extent extent) {
        return about_tensor(name_, [&] { return stored_->source(source).map(extent); });
    };
    constexpr auto not_mapped = "its source is not mapped; the value must be loaded";
    if (dtype_ != stored_->dtype()) return none("the value is cast and must be loaded");
    if (decoding_ != Decoding{}) return none("the value is decoded from the stored bytes and must be loaded");
    if (!view_ && stored_->in_one_run()) {
        auto bytes = mapped(0, {stored_->locate(0).offset, *byte_size(dtype_, stored_->element_count())});
        if (!bytes) return none(not_mapped, &stored_->source(0));
        return TensorView::row_major(dtype_, *std::move(bytes), shape());
    }

    StridedView view = strided_view();
    if (element_count() == 0) return TensorView(dtype_, {}, std::move(view));
    const Reach reach = *reach_of(view);
    const auto first = static_cast<std::uint64_t>(reach.first) * bits(dtype_) / 8;
    const std::uint64_t last_bit = (static_cast<std::uint64_t>(reach.last) + 1) * bits(dtype_);
    const Extent touched{first, (last_bit + 7) / 8 - first};
    const StoredTensor::Place place = stored_->locate(touched.offset / stored_->unit_size());
    if (place.stride != 1 || place.count * stored_->unit_size() < touched.size)
        return none("the value is in several pieces and must be loaded");
    auto bytes = mapped(place.source, {place.offset, touched.size});
    if (!bytes) return none(not_mapped, &stored_->source(place.source));
    view.offset -= static_cast<std::int64_t>(touched.offset * 8 / bits(dtype_));
    return TensorView(dtype_, *std::move(bytes), std::move(view));
}

TensorView LazyTensor::load() const {
    const std::size_t size = nbytes();
    // Must be freed with the alignment of the allocation.
    const auto free_aligned = [](std::byte* p) { ::operator delete (p, std::align_val_t{load_alignment}); };
    const std::shared_ptr<std::byte> memory(
        static_cast<std::byte*>(::operator new (std::max<std::size_t>(size, 1), std::align_val_t{load_alignment})),
        free_aligned);
    read(0, {memory.get(), size});
    return TensorView::row_major(dtype_, {{memory.get(), size}, memory, true}, shape());
}

void LazyTensor::read(std::uint64_t offset, std::span<std::byte> into) const {
    Gatherer().fill(*this, offset, into);
    require_unchanged({this, 1});
}

void LazyTensor::read(const Box& box, std::span<std::byte> into) const {
    Gatherer().fill(*this, box, into);
    require_unchanged({this, 1});
}

Residency LazyTensor::residency() const { return safemap::residency({this, 1}); }
void LazyTensor::prefetch(const Work& work) const { safemap::prefetch({this, 1}, work); }
void LazyTensor::evict() const { safemap::evict({this, 1}); }

std::optional<LazyTensor::Placement> LazyTensor::placement() const {
    if (dtype_ != stored_->dtype() || decoding_ != Decoding{}) return std::nullopt;
    const StridedView view = strided_view();
    if (!is_contiguous(view.shape, view.strides)) return std::nullopt;
    const std::uint64_t size = nbytes();
    if (size == 0 || stored_->piece_count() == 0) return std::nullopt;
    const std::uint64_t first = static_cast<std::uint64_t>(view.offset) * bits(dtype_) / 8;
    const StoredTensor::Place place = stored_->locate(first / stored_->unit_size());
    if (place.count * stored_->unit_size() < size || (place.stride != 1 && size > stored_->unit_size()))
        return std::nullopt;
    return Placement{stored_->shared_source(place.source), {place.offset, size}};
}

std::size_t LazyTensor::piece_count() const noexcept { return stored_->piece_count(); }

}  // namespace safemap::SAFEMAP_ABI
