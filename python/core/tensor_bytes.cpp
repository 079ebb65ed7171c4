// LazyTensor and its bytes: digests, reads, and the page cache.
#include "core.hpp"
#include "parse.hpp"

#include <nanobind/stl/optional.h>

#include <algorithm>
#include <new>

#include <sys/mman.h>

namespace safemap::python {
namespace {

/// Returns a checkpoint of one tensor, for operations that can be cancelled.
Checkpoint alone(const LazyTensor& tensor) { return Checkpoint::of(std::span(&tensor, 1)); }

nb::object digest_of(const Tensor& tensor, const std::string& algorithm) {
    const DigestOptions options{.algorithm = cli::parse_digest_algorithm(algorithm),
                                .work = {.monitor = monitor_for(nb::none())}};
    const CheckpointDigests found = without_gil([&] { return digests(alone(tensor.lazy), options); });
    return to_python(found.tensors.front().digest);
}

/// Smaller values are read at once: threads and a look for Ctrl-C would take longer.
constexpr std::uint64_t quickly_read = 4 << 20;

/// Reads a whole value. Ctrl-C ends it.
void fill_with(const LazyTensor& tensor, std::span<std::byte> into) {
    if (into.size() <= quickly_read) return without_gil([&] { tensor.read(0, into); });
    const Work work{.monitor = monitor_for(nb::none())};
    const LoadTarget target{tensor, into};
    without_gil([&] { load_into({&target, 1}, work); });
}

/// Reads a part of a value in blocks, between which Ctrl-C raises.
void fill_part(const LazyTensor& tensor, std::uint64_t offset, std::span<std::byte> into) {
    do {
        const std::span<std::byte> block = into.first(std::min<std::size_t>(into.size(), std::size_t{64} << 20));
        without_gil([&] { tensor.read(offset, block); });
        if (PyErr_CheckSignals() != 0) throw nb::python_error();
        into = into.subspan(block.size());
        offset += block.size();
    } while (!into.empty());
}

nb::object new_bytes(std::uint64_t size) {
    const nb::object bytes = nb::steal(PyBytes_FromStringAndSize(nullptr, static_cast<Py_ssize_t>(size)));
    if (!bytes.is_valid()) throw nb::python_error();
    return bytes;
}

std::span<std::byte> span_of(const nb::object& bytes) {
    return {reinterpret_cast<std::byte*>(PyBytes_AsString(bytes.ptr())),
            static_cast<std::size_t>(PyBytes_Size(bytes.ptr()))};
}

nb::object read(const Tensor& tensor, std::uint64_t offset, std::optional<std::uint64_t> size) {
    const std::uint64_t all = tensor.lazy.nbytes();
    if (offset > all || (size && *size > all - offset))
        raise(std::move(Error(Errc::index_out_of_range, "the value has " + std::to_string(all) + " bytes")
                            .with_tensor(tensor.lazy.name())));
    const nb::object bytes = new_bytes(size.value_or(all - offset));
    const std::span<std::byte> into = span_of(bytes);
    if (into.size() == all) fill_with(tensor.lazy, into);
    else fill_part(tensor.lazy, offset, into);
    return bytes;
}

nb::object residency_of(const Tensor& tensor) {
    const Residency found = without_gil([&] { return tensor.lazy.residency(); });
    return record("Residency", found.resident, found.total);
}

void prefetch(const Tensor& tensor, nb::object progress, unsigned threads) {
    const Work work{.monitor = monitor_for(std::move(progress)), .threads = threads};
    without_gil([&] { tensor.lazy.prefetch(work); });
}

}  // namespace

SharedBytes memory_for(std::uint64_t size) {
    constexpr std::size_t alignment = 64;
    constexpr std::uint64_t large = std::uint64_t{1} << 20;
    constexpr int populate_write = 23;  // MADV_POPULATE_WRITE, which old headers and kernels lack
    std::byte* bytes = nullptr;
    std::shared_ptr<const void> owner;
    if (size < large) {
        bytes = static_cast<std::byte*>(::operator new (std::max<std::size_t>(size, 1), std::align_val_t{alignment}));
        owner.reset(bytes, [](std::byte* memory) { ::operator delete (memory, std::align_val_t{alignment}); });
    } else {
        void* const mapped = ::mmap(nullptr, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        if (mapped == MAP_FAILED) throw Error(Errc::out_of_memory, "no memory for " + std::to_string(size) + " bytes");
        bytes = static_cast<std::byte*>(mapped);
        owner.reset(bytes, [size](std::byte* memory) { ::munmap(memory, size); });
        (void)::madvise(mapped, size, populate_write);
    }
    return {.bytes = {bytes, size}, .owner = std::move(owner), .writable = true};
}

TensorView load_value(const LazyTensor& tensor) {
    if (tensor.nbytes() <= quickly_read) return without_gil([&] { return tensor.load(); });
    const SharedBytes memory = without_gil([&] { return memory_for(tensor.nbytes()); });
    const TensorView value = TensorView::row_major(tensor.dtype(), memory, tensor.shape());
    fill_with(tensor, value.mutable_bytes());
    return value;
}

void bind_tensor_bytes(nb::class_<Tensor>& type) {
    type.def("digest", digest_of, nb::arg("algorithm") = "xxh3-128",
             nb::sig("def digest(self, algorithm: str = \"xxh3-128\") -> str"),
             "Returns the digest of the value as hex digits: \"xxh3-128\" or \"sha256\".")
        .def(
            "as_bytes",
            [](const Tensor& self) {
                const LazyTensor& lazy = self.lazy;
                return Tensor{LazyTensor(lazy.name(), value_of(lazy).as_bytes()),
                              nb::none(),
                              lazy.name(),
                              {},
                              self.copies_read_only};
            },
            nb::sig("def as_bytes(self) -> LazyTensor"),
            R"doc(Returns the value as U8, for dtypes that torch or NumPy lack. The last dimension counts bytes.

It shares the mapped file; a value that is not mapped is read.)doc")
        .def(
            "tobytes", [](const Tensor& self) { return read(self, 0, std::nullopt); },
            nb::sig("def tobytes(self) -> bytes"), "Returns a copy of the row-major little-endian value.")
        .def("read", read, nb::arg("offset") = 0U, nb::arg("size") = nb::none(),
             nb::sig("def read(self, offset: int = 0, size: int | None = None) -> bytes"),
             R"doc(Returns `size` bytes of the row-major value from byte `offset` on; all that follow for None.

Reads no others. Raises IndexError for bytes outside the value, and SafemapError for a range that cuts an element.)doc")
        .def("residency", residency_of, nb::sig("def residency(self) -> safemap._records.Residency"),
             "Returns how many of its bytes are in memory: a record (resident, total).")
        .def("prefetch", prefetch, nb::kw_only(), nb::arg("progress") = nb::none(), nb::arg("threads") = 0U,
             nb::sig("def prefetch(self, *, progress: typing.Any = None, threads: int = 0) -> None"),
             "Reads its bytes into the page cache of the kernel, and returns when they are there.")
        .def(
            "evict", [](const Tensor& self) { without_gil([&] { self.lazy.evict(); }); },
            "Evicts its bytes from the page cache of the kernel. Views of it stay valid.");
}

}  // namespace safemap::python
