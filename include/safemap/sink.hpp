// Where one file goes: the twin of Source. A Sink takes the bytes of a safetensors file, in memory, in a file, or
// wherever a callback of the caller puts them.
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

/// A file in the making. A save calls allocate() once, then write_at() for every byte of the file once, in any order,
/// the header last, and from several threads at once, then commit(); or abandon(), once, if anything has failed from
/// allocate() on, be it allocate() or commit() itself. All but write_at() and read_back() are called on the thread that
/// saves, and while no write_at() runs. What these throw passes through the save. A sink is for one save at a time.
class SAFEMAP_API Sink {
public:
    virtual ~Sink() = default;
    Sink() = default;
    Sink(const Sink&) = delete;
    Sink& operator=(const Sink&) = delete;

    /// Returns what an error message calls it, such as the path of a file.
    virtual const std::string& name() const noexcept = 0;
    /// Makes room for a file of `size` bytes. Throws where there is none, so that nothing is begun in vain.
    virtual void allocate(std::uint64_t size) = 0;
    /// Takes `bytes` for the place `offset` of the file. They are valid during the call.
    virtual void write_at(std::uint64_t offset, std::span<const std::byte> bytes) = 0;
    /// Fills `into` with what was written at `offset`, and returns true; false if that cannot be read. A save with
    /// digests asks with an empty `into` first. Where it cannot read back, tensors that stand transposed are gathered
    /// in the order of the file, which reads their source many times over. May be called while other places are
    /// written. Default: returns false.
    virtual bool read_back(std::uint64_t offset, std::span<std::byte> into) const;
    /// The file is whole: from now on it counts.
    virtual void commit() = 0;
    /// The file will never be whole: what was written can go. Default: does nothing.
    virtual void abandon() noexcept {}
};

/// Returns a sink whose commit() replaces what `into` holds by the file; until then, and after a failure, `into` stays
/// as it is. `into` must live as long as the sink. Old and new are both in memory until then, and the new is zeroed
/// first: a span is faster. Its allocate() throws out_of_memory.
SAFEMAP_API std::shared_ptr<Sink> memory_sink(std::string name, std::vector<std::byte>& into);
/// Returns a sink that writes to the front of `into`, memory that the caller has: shared memory, a page-locked buffer.
/// Its allocate() throws no_space if the file is larger. After a failure the content of `into` is undefined.
SAFEMAP_API std::shared_ptr<Sink> memory_sink(std::string name, std::span<std::byte> into);
/// Returns a sink that hands what it is given to `write(offset, bytes)`, which may be called from several threads at
/// once, and may throw. It hears of no end: a save that returns has written everything. Throws invalid_argument if
/// there is no function.
SAFEMAP_API std::shared_ptr<Sink> callback_sink(
    std::string name, std::function<void(std::uint64_t offset, std::span<const std::byte> bytes)> write);

}  // namespace safemap::SAFEMAP_ABI
