// Writes a checkpoint piece by piece: the caller declares the tensors first, writes their bytes in any order and from
// any thread, and commits all of them at once.
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

/// A tensor to be written. safetensors must have a name for the dtype.
struct Declaration {
    std::string name;
    Dtype dtype = {};
    Shape shape = {};
};

/// A checkpoint that is written piece by piece, in any order and by any thread. Owns the files in a hidden folder until
/// commit(), which checks that no byte is missing and makes the checkpoint appear at its path. Without a commit,
/// nothing is left.
///
/// Example:
///     std::vector<safemap::Declaration> tensors = {{.name = "w", .dtype = safemap::Dtype::f32, .shape = {2, 3}}};
///     safemap::ShardWriter writer("model.safetensors", tensors);
///     writer.write("w", std::vector<std::byte>(24));
///     safemap::SaveReport report = writer.commit();
///
/// The offset of every byte is known from the start, so tensors can be written whole, in ranges of bytes, or in boxes
/// of elements. The same names, dtypes, shapes, values and options give the same bytes as save(), with one exception:
/// save() also keeps views of one storage in one shard, and declarations do not say which tensors share a storage.
///
/// **Values** can be
/// - bytes in memory, in row-major order;
/// - a TensorView with any strides, and therefore the result of dlpack::import_tensor(). For the bytes of a mapped file
///   give the LazyTensor instead: it is read, so that a file which is truncated meanwhile is an error, not a signal;
/// - a LazyTensor of any format, which is read block by block, or tile by tile if it is transposed;
/// - a Fill: a callback that produces one block after the other.
///
/// Elements whose dtype differs from the declared one are cast as LazyTensor::cast() does.
///
/// **Each byte once.** A write to bytes that are already written, or outside the tensor, is refused before it begins;
/// the message names the tensor and the bytes. Tensors without elements need no write. A refused write changes nothing,
/// and the writer stays usable. An error while bytes are moved (from the source, the disk or a Fill) closes the writer:
/// all later calls throw writer_closed, as they do after a commit.
///
/// **Threads.** The write functions may be called from several threads at once, also for the same tensor. commit() is
/// called by one thread. A lock protects the bookkeeping and is never held while bytes are moved.
///
/// **Memory.** At most eight callers at a time have buffers, 32 MiB in total, whatever the sizes of the tensors;
/// further callers wait. Contiguous bytes in memory need no buffer, except where a large checkpoint bypasses the page
/// cache. For each tensor the writer records which bytes are written: 16 bytes per contiguous run. Ranges written in
/// order are one run. A box that does not span the tensor's rows has as many runs as rows, until the neighbouring boxes
/// are written.
///
/// **Options.** `work` and `on_plan` are ignored. `dtype`, `keep_dtype` and `plan_only` are refused: each tensor is
/// written in its declared dtype. `resume` is refused because the origin of the bytes is unknown. With `checksums`,
/// commit() reads everything once more, in one thread, because digests need the bytes in order.
class SAFEMAP_API ShardWriter {
public:
    /// A callback that fills `into` with the bytes from `offset` on; offset 0 is the first byte of this write. It is
    /// called on the thread that writes, for one block after the other, each byte once. Blocks do not cut elements that
    /// fill whole bytes. It must not write to the same writer. Its exceptions pass through the write.
    using Fill = std::function<void(std::uint64_t offset, std::span<std::byte> into)>;

    /// Lays out the checkpoint as save() does with `out` and `options`, allocates its files in a hidden folder beside
    /// `out` (or inside it, see save()), and writes their headers. Keeps no reference to `tensors` or `options`. Throws
    /// what save() throws before it copies tensors; unnamed_dtype for a dtype without a name in safetensors;
    /// shape_overflow and partial_byte for invalid shapes; invalid_argument for options that a ShardWriter refuses.
    ShardWriter(const std::filesystem::path& out, std::span<const Declaration> tensors,
                const SaveOptions& options = {});
    /// Removes all files, unless they were committed. No other thread may be writing.
    ~ShardWriter();
    /// Moves the writer. All functions of the moved-from writer throw invalid_argument, until it is assigned to.
    ShardWriter(ShardWriter&&) noexcept;
    ShardWriter& operator=(ShardWriter&&) noexcept;

    // All write functions throw tensor_not_found; invalid_argument for an empty Fill; written_twice if some of the
    // bytes are already written; writer_closed; unsupported_cast if the value's dtype cannot be cast to the declared
    // one; whatever the sources throw; file_changed if a file changed after it was opened; no_space and io_error. Each
    // copies its bytes before it returns.

    /// Writes the whole tensor. Throws invalid_argument if `bytes` has another size, or `value` another shape, than the
    /// tensor. `fill` is called for as many bytes as the tensor has.
    void write(std::string_view name, std::span<const std::byte> bytes);
    void write(std::string_view name, const TensorView& value);
    void write(std::string_view name, const LazyTensor& value);
    void write(std::string_view name, const Fill& fill);

    /// Writes a range of the row-major tensor that begins at byte `offset`: the bytes given, the elements of a value of
    /// any shape, or the bytes that `fill` produces for `range`. Throws index_out_of_range if the range ends outside
    /// the tensor, and invalid_argument if the elements of a value would not begin at an element of the tensor.
    void write_range(std::string_view name, std::uint64_t offset, std::span<const std::byte> bytes);
    void write_range(std::string_view name, std::uint64_t offset, const TensorView& value);
    void write_range(std::string_view name, std::uint64_t offset, const LazyTensor& value);
    void write_range(std::string_view name, Extent range, const Fill& fill);

    /// Writes a box of the tensor. `bytes`, and the bytes that `fill` produces, are the elements of the box in
    /// row-major order; a value is written as the box that begins at `start` and has the value's shape. Throws
    /// index_out_of_range for a box outside the tensor or with another number of dimensions, partial_byte_slice if the
    /// box cuts a byte of a sub-byte dtype, and invalid_argument if `bytes` has another size than the box.
    void write_box(std::string_view name, const Box& box, std::span<const std::byte> bytes);
    void write_box(std::string_view name, const Shape& start, const TensorView& value);
    void write_box(std::string_view name, const Shape& start, const LazyTensor& value);
    void write_box(std::string_view name, const Box& box, const Fill& fill);

    /// Waits for running writes, flushes everything to disk (unless `durable` is false), and makes the checkpoint
    /// appear at `out`. Returns the report of a save; its `bytes_read` and `casts` describe what was written.
    ///
    /// Throws not_written, and changes nothing, if bytes are missing; the message has the first incomplete tensor, its
    /// first missing range, and the number of incomplete tensors. Throws writer_closed on a second call or after a
    /// failed write, and the codes that save() throws after it has copied the tensors. After these errors the writer is
    /// closed, what was written is removed, and `out` holds what it held before, with the exception that save()
    /// documents.
    SaveReport commit();

private:
    class Impl;
    Impl& impl() const;
    std::unique_ptr<Impl> impl_;
};

}  // namespace safemap::SAFEMAP_ABI
