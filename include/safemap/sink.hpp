// Sink: the destination of one saved file: memory, a callback, or a class of the caller. The counterpart of Source.
// advanced/file.hpp has file_sink(), for files.
#pragma once

#include <safemap/api.hpp>

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

namespace safemap::SAFEMAP_ABI {

/// A safetensors file that is being written. Derive from Sink to save to storage of your own, or use memory_sink() and
/// callback_sink(). A save calls the members in this order:
///
/// 1. allocate(), once
/// 2. write_at(), in calls that together write every byte exactly once: in any order, except that the header, which
///    begins at offset 0, comes last; from several threads at once
/// 3. commit(), once, if everything was written
///
/// A save with `checksums` also calls read_back(): first with an empty span, to find out if the sink can read back, and
/// later while other parts of the file are written.
///
/// If allocate() or anything after it fails, commit() included, the save calls abandon() once. It does not call
/// abandon() if it fails before allocate(), or after a commit() that succeeded. With `plan_only` it calls neither
/// allocate() nor abandon(). write_at() and read_back() are called on any thread; name() may be called at any time; all
/// other members are called on the thread that saves, while no write_at() runs. Exceptions of the members pass through
/// the save. A sink serves one save at a time.
///
/// Example:
///     std::vector<std::byte> file;
///     safemap::save(*safemap::memory_sink("in memory", file), checkpoint);
///     std::cout << file.size() << " bytes\n";
class SAFEMAP_API Sink {
public:
    virtual ~Sink() = default;
    Sink() = default;
    Sink(const Sink&) = delete;
    Sink& operator=(const Sink&) = delete;

    /// Returns the name for error messages, such as the path of a file.
    virtual const std::string& name() const noexcept = 0;
    /// Reserves space for a file of `size` bytes. Throws if there is too little, so that the save stops before it
    /// copies anything.
    virtual void allocate(std::uint64_t size) = 0;
    /// Writes `bytes` at `offset` of the file. `bytes` are valid during the call only.
    virtual void write_at(std::uint64_t offset, std::span<const std::byte> bytes) = 0;
    /// Fills `into` with the bytes that were written at `offset`, and returns true; returns false if the sink cannot
    /// read back. Must return the same for every call of one save. If reading fails, it must throw. Without it, a save
    /// with `checksums` writes transposed tensors in the order of the file, and so reads their source many times over;
    /// other tensors cost nothing more. The default returns false.
    [[nodiscard]] virtual bool read_back(std::uint64_t offset, std::span<std::byte> into) const;
    /// Makes the file visible. Called after all of it was written.
    virtual void commit() = 0;
    /// Discards the bytes that were written, because the file will not be completed. The default does nothing.
    virtual void abandon() noexcept {}
};

/// Returns a sink whose commit() replaces the contents of `into` by the file. Until then, and after a failure, `into`
/// does not change. The sink can read back. It is slower than the sink for a span: allocate() fills the new memory with
/// zeros, and old and new contents are both in memory until commit(). allocate() throws out_of_memory. `into` must
/// outlive the sink, which may serve another save after this one.
[[nodiscard]] SAFEMAP_API std::shared_ptr<Sink> memory_sink(std::string name, std::vector<std::byte>& into);
/// Returns a sink that writes to the front of `into`, the caller's memory: shared memory, a page-locked buffer.
/// The sink can read back. Its allocate() throws no_space if the file is larger than `into`. After a failure the
/// contents of `into` are undefined. The memory must outlive the sink.
[[nodiscard]] SAFEMAP_API std::shared_ptr<Sink> memory_sink(std::string name, std::span<std::byte> into);
/// Returns a sink that calls `write(offset, bytes)` for the bytes of the file. The function may be called from several
/// threads at once, and may throw. It is not called for the end or for a failure: if the save returns, everything was
/// written; if the save throws, the file is incomplete. The sink cannot read back. Throws invalid_argument for an empty
/// function.
[[nodiscard]] SAFEMAP_API std::shared_ptr<Sink> callback_sink(
    std::string name, std::function<void(std::uint64_t offset, std::span<const std::byte> bytes)> write);

}  // namespace safemap::SAFEMAP_ABI
