// LazyTensor: the description of a tensor, whose bytes are read only when its value is requested.
#pragma once

#include <safemap/advanced/stored_tensor.hpp>
#include <safemap/advanced/strides.hpp>
#include <safemap/dtype.hpp>
#include <safemap/progress.hpp>
#include <safemap/shape.hpp>
#include <safemap/source.hpp>
#include <safemap/tensor_view.hpp>

#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace safemap::SAFEMAP_ABI {

/// A named tensor that has not been read: a dtype, a shape, the pieces of sources that hold its elements, and a strided
/// view of them. Nothing is read until the value is requested, and then only the bytes of that value, besides gaps of
/// at most 8 KiB between them.
///
/// A LazyTensor shares its pieces and their sources, so it may outlive its checkpoint. Files may be closed and opened
/// again: docs/lifetimes.md, "Open files". It is cheap to copy. A tensor that was moved from has an empty name, and is
/// valid otherwise. Const members may be called from several threads at once.
///
/// Example:
///     safemap::LazyTensor rows = checkpoint["wte.weight"].slice({{.start = 0, .stop = 4096}});
///     safemap::TensorView values = rows.cast(safemap::Dtype::f32).load();
///     float first = values.at<float>(0, 0);
class [[nodiscard]] SAFEMAP_API LazyTensor {
public:
    /// Makes a tensor of all elements of `stored`, row-major. Throws invalid_argument if `stored` is null.
    LazyTensor(std::string name, std::shared_ptr<const StoredTensor> stored, Decoding decoding = {});
    /// Makes a tensor of the elements of `stored` that the parameter `view` selects; its offset and strides count
    /// elements of `stored` in row-major order. Throws invalid_argument if `stored` is null; bad_tensor if `view`
    /// reaches outside `stored`, or if the numbers of its strides and dimensions differ; shape_overflow; and
    /// partial_byte if it cuts bytes of a dtype whose elements are smaller than a byte.
    LazyTensor(std::string name, std::shared_ptr<const StoredTensor> stored, StridedView view, Decoding decoding = {});
    /// Makes a tensor over memory, with the strides of `value`. Copies nothing: shares the bytes, and keeps their owner
    /// alive. view() of it gives the same bytes and strides, and is writable if `value` is. The caller must not change
    /// the bytes while an operation reads them, such as a save or diff(); changes between operations show. Throws
    /// shape_overflow if the size of the value does not fit in 64 bits, because its elements are repeated.
    LazyTensor(std::string name, TensorView value);
    LazyTensor(const LazyTensor&) = default;
    LazyTensor& operator=(const LazyTensor&) = default;
    LazyTensor(LazyTensor&& other) noexcept;
    LazyTensor& operator=(LazyTensor&& other) noexcept;
    ~LazyTensor() = default;

    const std::string& name() const& noexcept { return name_; }
    std::string name() && noexcept { return std::move(name_); }
    /// Returns the dtype of the value: after a cast, the dtype cast to.
    Dtype dtype() const noexcept { return dtype_; }
    const Shape& shape() const& noexcept;
    Shape shape() const&& noexcept { return shape(); }
    std::uint64_t element_count() const noexcept;
    /// Returns the size of the value in bytes.
    std::uint64_t nbytes() const noexcept;

    /// Returns the same tensor under another name.
    LazyTensor renamed(std::string name) const;
    /// Returns a tensor whose value is cast to `dtype` when it is read. F64, F32, F16, BF16 and the F8 dtypes can be
    /// cast to each other, except F8_E8M0, which holds scales. Casts round to nearest, ties to even, as torch does; F64
    /// is cast to narrower dtypes through F32. NaN stays NaN. "Casts" in docs/format.md specifies values beyond the
    /// range of each dtype. A cast to dtype() changes nothing, whatever the dtype. A cast tensor can be sliced.
    ///
    /// Throws unsupported_cast for dtypes that cannot be cast to each other, and if the tensor is cast already, to
    /// another dtype than `dtype`; and shape_overflow if the new size does not fit in 64 bits.
    LazyTensor cast(Dtype dtype) const;
    /// Returns a part of the tensor; every index has its meaning in NumPy, negative steps included. Reads and copies
    /// nothing. Reading the part does not read the rest, except gaps of at most 8 KiB. Throws as safemap::slice does,
    /// and partial_byte_slice if the part cuts bytes of a dtype whose elements are smaller than a byte.
    LazyTensor slice(std::span<const Slice> slices) const;
    LazyTensor slice(std::initializer_list<Slice> slices) const {
        return slice(std::span<const Slice>(slices.begin(), slices.size()));
    }

    /// Returns the value without a copy. The view of a file is read-only, except with Access::private_copy. It shares
    /// the mapping and may outlive this tensor and its checkpoint. With Access::private_copy on a network file system,
    /// nothing is mapped: the first view of a tensor reads its bytes into memory.
    ///
    /// If another program writes to the file, the view shows it; if another program truncates the file, touching the
    /// view raises SIGBUS. Use load() for files that others may change.
    ///
    /// Throws:
    /// - no_view if the value is cast, decoded (byte-swapped, conjugated or negated) or in several pieces, or if its
    ///   source cannot be mapped: a compressed record, a callback, a file with Access::copied, and a file on a network
    ///   file system, unless Access::mapped or Access::private_copy is set
    /// - file_changed if the file has changed by the time it is mapped, which happens once, or read for a private copy
    /// - a "system failed" code if the file cannot be opened again, mapped or read
    TensorView view() const;
    /// Returns the same, or nothing where view() throws no_view: for callers that then load(). Throws whatever else
    /// view() throws.
    [[nodiscard]] std::optional<TensorView> try_view() const;
    /// Returns a copy of the value: contiguous and writable. The view owns its memory, which is aligned to 64 bytes,
    /// and does not depend on the file or the checkpoint any more. Throws file_changed if a file has changed since it
    /// was opened, whatever the sources throw, and std::bad_alloc.
    TensorView load() const;

    /// Fills `into` with the bytes [offset, offset + into.size()) of the row-major value. Throws index_out_of_range for
    /// a range outside the value, file_changed if a file has changed since it was opened, and whatever the sources
    /// throw. Throws invalid_argument for a range that cuts an element, except that any bytes of an F6 value can be
    /// read if it is stored row-major and not cast.
    void read(std::uint64_t offset, std::span<std::byte> into) const;
    /// Fills `into` with the region `box` of the value, row-major. Throws index_out_of_range if the box reaches outside
    /// the value or has another number of dimensions, partial_byte_slice if it cuts bytes of a sub-byte dtype,
    /// invalid_argument unless the size of `into` is that of the region, file_changed, and whatever the sources throw.
    void read(const Box& box, std::span<std::byte> into) const;

    /// Returns how many of the bytes that the value is read from are in memory. Maps the file if Access allows that and
    /// it is not mapped yet, and then throws file_changed if the file has changed. If the file has to be opened again,
    /// throws as opening does.
    [[nodiscard]] Residency residency() const;
    /// Reads the value's bytes into the kernel's page cache, and returns when they are there. Threads only wait for the
    /// disk, so up to 256 are allowed, more than for other work.
    /// Views are then touched, and values loaded, at the speed of memory, as long as the kernel keeps the bytes. Bytes
    /// that are in no file, or are deflated, are skipped. Throws as residency() does, file_changed if the file has
    /// become shorter, io_error, and cancelled.
    void prefetch(const Work& work = {}) const;
    /// Evicts the value's bytes from the kernel's page cache. Pages that another program, another open of the file or a
    /// private copy has mapped stay, and so do partial pages at the edges. Views stay valid: if they are touched again,
    /// the bytes are read again. If a file has to be opened again, throws as opening does, and file_changed if another
    /// file is there by then.
    void evict() const;

    /// The byte range of a source that is exactly the value.
    struct Placement {
        std::shared_ptr<const Source> source;
        Extent extent;
    };
    /// Returns the placement of the value if it is stored row-major without gaps in one source, without a cast or
    /// decoding. Returns nothing otherwise, and for a tensor without elements.
    [[nodiscard]] std::optional<Placement> placement() const;
    /// Returns the number of pieces of the stored tensor; 0 without elements.
    std::size_t piece_count() const noexcept;

    /// Return the stored tensor, and the view and decoding that make the value of it. For code that builds on
    /// LazyTensor.
    const std::shared_ptr<const StoredTensor>& stored() const& noexcept { return stored_; }
    std::shared_ptr<const StoredTensor> stored() const&& noexcept { return stored_; }
    StridedView strided_view() const;
    Decoding decoding() const noexcept { return decoding_; }

private:
    struct NoView;
    std::optional<TensorView> find_view(NoView& reason) const;

    std::string name_;
    std::shared_ptr<const StoredTensor> stored_;
    std::shared_ptr<const StridedView> view_;  // null: all of stored_, row-major
    Decoding decoding_;
    Dtype dtype_;
};

/// A tensor, and the memory that its value is loaded into: nbytes() of the tensor.
struct LoadTarget {
    LazyTensor tensor;
    std::span<std::byte> into;  ///< memory of the caller, which nothing else may use during the call
};

/// Loads many tensors into memory of the caller, each row-major: what LazyTensor::read(0, into) does for each of them,
/// but in parallel, and with few system calls for tensors that are neighbours in a file, in whatever order they are
/// given. A large tensor is read by several threads. Spans must not overlap. Besides the caller's memory, uses at most
/// 32 MiB, and about 50 bytes a tensor.
///
/// Uses at most 8 threads. Progress counts bytes of values, in the stage "loading". A stop request, a failure and an
/// exception of on_progress end the call within a block of at most 4 MiB for each thread; the contents of the spans are
/// undefined then.
///
/// Throws invalid_argument, before anything is read, unless each span has the size of its value; file_changed if a file
/// has changed since it was opened; cancelled; and whatever the sources throw. Errors have the name of the tensor.
///
/// Example:
///     safemap::LazyTensor query = checkpoint["query.weight"], key = checkpoint["key.weight"];
///     std::vector<std::byte> q(query.nbytes()), k(key.nbytes());
///     const safemap::LoadTarget targets[] = {{query, q}, {key, k}};
///     safemap::load_into(targets, {.threads = 4});
SAFEMAP_API void load_into(std::span<const LoadTarget> targets, const Work& work = {});

}  // namespace safemap::SAFEMAP_ABI
