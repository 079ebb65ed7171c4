// A tensor is a list of pieces of sources, looked at through one strided view. Nothing is read until a value is
// asked for, and then only the bytes of that value.
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

/// A named tensor of which nothing has been read. Cheap to copy; copies share the pieces and keep the sources
/// open. Const members may be called from several threads at once.
class SAFEMAP_API LazyTensor {
public:
    /// The whole of `stored`, row-major. `stored` must not be null, here and below.
    LazyTensor(std::string name, std::shared_ptr<const StoredTensor> stored, Decoding decoding = {});
    /// `stored` through `view`, whose offset and strides count elements of the flattened base. Throws bad_tensor where
    /// the view reaches outside the base or has not as many strides as dimensions, shape_overflow, and partial_byte for
    /// a sub-byte dtype whose bytes the view cuts.
    LazyTensor(std::string name, std::shared_ptr<const StoredTensor> stored, StridedView view, Decoding decoding = {});

    const std::string& name() const& noexcept { return name_; }
    std::string name() && noexcept { return std::move(name_); }
    /// Of the value: after a cast, the dtype cast to.
    Dtype dtype() const noexcept { return dtype_; }
    const Shape& shape() const& noexcept;
    Shape shape() const&& noexcept { return shape(); }
    std::uint64_t element_count() const noexcept;
    /// Bytes of the value.
    std::uint64_t nbytes() const noexcept;

    /// The same tensor under another name.
    LazyTensor renamed(std::string name) const;
    /// The value cast to `dtype` when it is read: between F64, F32, F16, BF16 and the F8 dtypes (not F8_E8M0, which
    /// holds scales), to the nearest, ties to even, as torch casts them; NaN stays NaN. "Casts" in docs/format.md says
    /// what becomes of values beyond the range of each. Throws unsupported_cast for anything else but the dtype it has,
    /// also for a second cast, and shape_overflow where the new size does not fit in 64 bits.
    LazyTensor cast(Dtype dtype) const;
    /// A part of it, with Python's meaning of every index. Reads nothing and copies nothing; reading the part
    /// reads only its bytes. Throws as safemap::slice does, and partial_byte_slice.
    LazyTensor slice(std::span<const Slice> slices) const;
    LazyTensor slice(std::initializer_list<Slice> slices) const {
        return slice(std::span<const Slice>(slices.begin(), slices.size()));
    }

    /// The value without a copy. The view shares the mapping and may outlive this tensor and its checkpoint.
    /// A program that truncates the file under a view turns the next touch into SIGBUS, and what it writes shows:
    /// use load() where files are not your own. Files are read-only but with Access::private_copy. Throws no_view where
    /// the value is cast, swapped, in several pieces, or in a source without addresses, as files on network file
    /// systems are unless Access::mapped or private_copy is asked for; file_changed where the file has changed by the
    /// time it is mapped, which is once, or read for a private copy; and what the system says where opening it again,
    /// mapping it or reading it fails.
    TensorView view() const;
    /// The value, contiguous, in memory of its own that is aligned to 64 bytes and may be written to. Throws as read()
    /// does.
    TensorView load() const;

    /// Fills `into` with the bytes [offset, offset + into.size()) of the row-major value. Throws
    /// index_out_of_range for a range outside the value, file_changed where a file is no longer what was opened, and
    /// what the sources throw. May throw invalid_argument for a range that cuts an element.
    void read(std::uint64_t offset, std::span<std::byte> into) const;
    /// Fills `into` with the region `box` of the value, row-major; `into` has just its size. Throws index_out_of_range
    /// for a box outside the value or of another number of dimensions, partial_byte_slice for one that cuts bytes of a
    /// sub-byte dtype, invalid_argument for another size of `into`, and what the sources throw.
    void read(const Box& box, std::span<std::byte> into) const;

    /// How much of the bytes that the value is read from is in memory already. Throws file_changed where the file has
    /// changed by the time it is mapped, and as opening does where it has to be opened again.
    Residency residency() const;
    /// Reads those bytes into the kernel's page cache, by at most 256 threads in steps, and returns when they are
    /// there: views are then touched, and values loaded, at the speed of memory, as long as the kernel keeps them. What
    /// lies in no file, or is deflated, is left alone. Throws as residency() does, file_changed where the file has
    /// become shorter, io_error, and cancelled.
    void prefetch(const Work& work = {}) const;
    /// Lets the kernel forget those bytes, but for pages that others, or a private copy of our own, have mapped, and
    /// edges that are not whole pages. Views stay as they are: touched again, they are read again. Throws as opening
    /// does where a file has to be opened again, and file_changed where another stands there then.
    void evict() const;

    /// Where the value stands as it is: row-major, one run, no cast, no decoding. Nothing for one without elements.
    struct Placement {
        std::shared_ptr<const Source> source;
        Extent extent;
    };
    std::optional<Placement> placement() const;
    /// How many pieces the stored tensor under it is in; 0 without elements.
    std::size_t piece_count() const noexcept;

    /// For those who build on it: what is stored, and how it is looked at.
    const std::shared_ptr<const StoredTensor>& stored() const& noexcept { return stored_; }
    std::shared_ptr<const StoredTensor> stored() const&& noexcept { return stored_; }
    StridedView strided_view() const;
    Decoding decoding() const noexcept { return decoding_; }

private:
    SharedBytes mapped(const Source& source, Extent extent) const;

    std::string name_;
    std::shared_ptr<const StoredTensor> stored_;
    std::shared_ptr<const StridedView> view_;  // null: all of stored_, row-major
    Decoding decoding_;
    Dtype dtype_;
};

}  // namespace safemap::SAFEMAP_ABI
