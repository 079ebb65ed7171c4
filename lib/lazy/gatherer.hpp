// Reads values into buffers: a part of one tensor, or parts of many tensors together. All other reading of tensors is
// built on this.
#pragma once

#include "lazy/cast_counts.hpp"

#include <safemap/lazy_tensor.hpp>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>

namespace safemap::SAFEMAP_ABI {

class Watch;

/// Reads in place of a Gatherer.
class SourceReader {
public:
    virtual ~SourceReader() = default;
    /// Does the same as source.read_scattered().
    virtual void read(const Source& source, std::uint64_t offset, std::span<const std::span<std::byte>> into) = 0;
};

/// The means of a gather.
struct GatherRoom {
    /// Memory for the stored elements of values that are cast. The more there is, the more of them are read together.
    /// If it is smaller than the Gatherer's own, the Gatherer uses its own.
    std::span<std::byte> scratch = {};
    /// Asked before each tensor and before each read whether to stop.
    const Watch* watch = nullptr;
    /// Makes the reads. Without it, the Gatherer calls the sources.
    SourceReader* reader = nullptr;
};

/// Reads values of any LazyTensor through buffers of a fixed size, allocated on first use. Each worker thread has its
/// own. It can be used for one gather after another.
///
/// A gather of several tensors is begin(), any number of add(), and flush(). Parts of different tensors that are near
/// each other in a source are read together:
///     gatherer.begin();
///     gatherer.add(first, first.dtype(), 0, out.first(first.nbytes()));
///     gatherer.add(second, second.dtype(), 0, out.subspan(first.nbytes(), second.nbytes()));
///     gatherer.flush();
class Gatherer {
public:
    /// Maximum of the memory that it uses, in bytes, whatever it reads. The scratch of a caller is not included.
    static constexpr std::uint64_t most_memory = 2304U << 10;
    /// A contiguous part of this size is read straight into the output.
    static constexpr std::uint64_t long_part = 16U << 10;

    Gatherer();
    ~Gatherer();
    Gatherer(Gatherer&&) noexcept;
    Gatherer& operator=(Gatherer&&) noexcept;

    /// Begins a gather, and drops an unfinished one.
    void begin(const GatherRoom& room = {});
    /// Wants `out` to have the bytes [offset, offset + out.size()) of the row-major value of `tensor` as `dtype`: its
    /// own dtype, or one that it can be cast to. `out` is filled by the end of flush(). `tensor` and `out` must live
    /// until then. Reads what was added before if it is much. Adds the statistics of the cast to `counts`, or to those
    /// of take_counts(), by the end of flush(). Throws what reading throws: errors have the tensor and the file.
    void add(const LazyTensor& tensor, Dtype dtype, std::uint64_t offset, std::span<std::byte> out,
             CastCounts* counts = nullptr);
    /// Reads all that was added and is not read yet. Throws as add() does, and cancelled.
    void flush();

    // A gather of one part.
    /// Fills `out` with the box, row-major. `out` has exactly the size of the box.
    void fill(const LazyTensor& tensor, const Box& box, std::span<std::byte> out, const GatherRoom& room = {});
    /// Fills `out` with the bytes [offset, offset + out.size()) of the row-major value.
    void fill(const LazyTensor& tensor, std::uint64_t offset, std::span<std::byte> out);

    /// Returns the statistics of casts since the last call, without those that were added to a caller's.
    CastCounts take_counts() noexcept;

private:
    class Impl;
    void add_elements(const LazyTensor& view, unsigned width, std::uint64_t first, std::span<std::byte> out);
    std::unique_ptr<Impl> impl_;
};

}  // namespace safemap::SAFEMAP_ABI
