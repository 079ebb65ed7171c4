// Writes checkpoints piece by piece: what will be in them is declared first, then filled in from anywhere, in any
// order, by any thread, and appears all at once.
#pragma once

#include <safemap/lazy_tensor.hpp>
#include <safemap/save.hpp>
#include <safemap/tensor_view.hpp>

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <string_view>

namespace safemap::SAFEMAP_ABI {

/// A tensor that will be written: of a dtype that safetensors has a name for.
struct Declaration {
    std::string name;
    Dtype dtype = {};
    Shape shape = {};
};

/// A checkpoint in the making. Every byte has its place from the start, so tensors may be written in any order, each
/// in one go, in ranges of bytes or in boxes of elements; commit() checks that nothing is missing and makes the
/// checkpoint appear. A writer that goes without a commit leaves nothing.
///
/// The same names, dtypes, shapes, values and options give the files that save() writes, to the byte; save() also
/// keeps views of one storage in one shard, of which a declaration says nothing.
///
/// **What is written** may be
/// - bytes in memory, in the order of a row-major tensor, written from where they lie;
/// - a TensorView, whatever its strides, and so what dlpack::import_tensor() takes over. Of a file's own bytes give the
///   LazyTensor instead: it is read, and a file that is truncated meanwhile is an error, not a signal;
/// - a LazyTensor of any format, which is read block by block, or tile by tile where it stands transposed;
/// - a Fill: a function that is asked for the bytes of one block after the other.
///
/// Elements are cast where their dtype is not the declared one, as LazyTensor::cast() does.
///
/// **Each byte once.** A write of bytes that are written already is refused before it begins, with the tensor and the
/// bytes in the message, and so are writes outside of a tensor. Tensors without elements need no write. What is refused
/// changes nothing, and the writer goes on. An error while bytes are moved (the source, the disk, what a Fill throws)
/// is the end of the writer: from then on it throws writer_closed, as it does after a commit.
///
/// **Threads.** The write functions may be called from several threads at once, also for the same tensor; commit() by
/// one of them. A lock is held for the bookkeeping and never while bytes are moved.
///
/// **Memory.** Eight callers at a time have buffers, 32 MiB all together, whatever the tensors; more callers wait for
/// them. Bytes in a row in memory need no buffer, except where a large checkpoint goes past the page cache. Of each
/// tensor the writer remembers which bytes are there: 16 bytes for each stretch with nothing written beside it. Ranges
/// in order are one stretch; a box that does not span its tensor's rows is as many as it has rows, until the boxes
/// beside it are there.
///
/// **Options.** SaveOptions that say how save() works have no meaning here: `work` and `on_plan` are ignored. `dtype`,
/// `keep_dtype` and `plan_only` are refused: the dtype that is declared is the one that is written. `resume` is refused
/// as well: what the bytes are of is not known. With `checksums`, commit() reads everything once more, by one thread:
/// digests want the bytes in order.
class SAFEMAP_API ShardWriter {
public:
    /// Fills `into` with the bytes from `offset` on of what is being written, counted from where this write begins. It
    /// is called on the thread that writes, for one block after the other, each byte once; blocks cut no element
    /// of whole bytes. It must not write to the same writer. What it throws passes through.
    using Fill = std::function<void(std::uint64_t offset, std::span<std::byte> into)>;

    /// Lays the checkpoint out, as save() does with `out` and `options`, allocates its files in a hidden folder beside
    /// `out` (or in it, see save()), and writes their headers. `options` are not needed afterwards. Throws what save()
    /// throws before it copies tensors; unnamed_dtype for what safetensors has no name for; shape_overflow and
    /// partial_byte for shapes that no tensor has; invalid_argument for options that have no meaning here.
    ShardWriter(const std::filesystem::path& out, std::span<const Declaration> tensors,
                const SaveOptions& options = {});
    /// Removes everything, unless it was committed. No other thread may be writing any more.
    ~ShardWriter();
    /// What was moved from can be destroyed or assigned to.
    ShardWriter(ShardWriter&&) noexcept;
    ShardWriter& operator=(ShardWriter&&) noexcept;

    // All of these throw tensor_not_found; written_twice where some of the bytes are written already; writer_closed;
    // unsupported_cast where the dtype is not the declared one and cannot be cast to it; what the sources throw, and
    // file_changed where a file is no longer what was opened; no_space and io_error.

    /// The whole tensor. Bytes of just its size, or a value of just its shape, otherwise invalid_argument.
    void write(std::string_view name, std::span<const std::byte> bytes);
    void write(std::string_view name, const TensorView& value);
    void write(std::string_view name, const LazyTensor& value);
    void write(std::string_view name, const Fill& fill);

    /// A range of the row-major tensor, from byte `offset` on: bytes, the elements of a value of any shape, or those
    /// that `fill` gives. Throws index_out_of_range where it ends beyond the tensor, and invalid_argument where a
    /// value's elements would not begin where the tensor's do.
    void write_range(std::string_view name, std::uint64_t offset, std::span<const std::byte> bytes);
    void write_range(std::string_view name, std::uint64_t offset, const TensorView& value);
    void write_range(std::string_view name, std::uint64_t offset, const LazyTensor& value);
    void write_range(std::string_view name, Extent range, const Fill& fill);

    /// A box of the tensor: bytes, or what `fill` gives, are the row-major elements of the box; a value has the extent
    /// of the box that begins at `start`. Throws index_out_of_range for a box outside of the tensor or of another
    /// number of dimensions, partial_byte_slice for one that cuts bytes of a sub-byte dtype, and invalid_argument where
    /// `bytes` are not of its size.
    void write_box(std::string_view name, const Box& box, std::span<const std::byte> bytes);
    void write_box(std::string_view name, const Shape& start, const TensorView& value);
    void write_box(std::string_view name, const Shape& start, const LazyTensor& value);
    void write_box(std::string_view name, const Box& box, const Fill& fill);

    /// Waits for writes that are under way, brings everything to the disk and makes it appear at `out`. The report is
    /// that of save(); its `bytes_read` and `casts` tell of what was written. Throws not_written, and changes nothing,
    /// where bytes are missing, with the first tensor that is not whole, the first range that it lacks, and how many
    /// tensors are not whole; writer_closed the second time, or where a write has failed; and what save() throws when
    /// all is copied. After these the writer is at its end, what was written goes with it, and at `out` is what was
    /// there before, as save() has it.
    SaveReport commit();

private:
    class Impl;
    std::unique_ptr<Impl> impl_;
};

}  // namespace safemap::SAFEMAP_ABI
