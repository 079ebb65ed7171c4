// safemap.ShardWriter: a checkpoint that is written piece by piece.
#include "core.hpp"
#include "parse.hpp"

#include <safemap/advanced/shard_writer.hpp>
#include <safemap/advanced/text.hpp>

#include <cstring>
#include <map>
#include <memory>
#include <utility>
#include <variant>

#include <unistd.h>

namespace safemap::python {
namespace {

/// A value of more bytes is written in blocks, between which Ctrl-C raises. Smaller ones are quick, and need no copy.
constexpr std::uint64_t most_at_once = std::uint64_t{256} << 20;

/// Bytes of Python, or a tensor: a view where it is in memory, so that no buffer is needed.
using Value = std::variant<std::shared_ptr<const Source>, TensorView, LazyTensor>;

/// The files of the writer. Threads that write share it: its end removes the files that were not committed.
class Writer {
public:
    Writer(std::filesystem::path out, const std::vector<Declaration>& tensors, const SaveOptions& options)
        : out_(std::move(out)) {
        for (const Declaration& one : tensors) declared_.emplace(one.name, one);
        shards_ = std::make_shared<ShardWriter>(without_gil([&] { return ShardWriter(out_, tensors, options); }));
    }
    ~Writer() { close(); }
    Writer(const Writer&) = delete;
    Writer& operator=(const Writer&) = delete;

    /// Returns the files. Raises writer_closed after commit() and close(), and invalid_argument in a forked child.
    std::shared_ptr<ShardWriter> shards() const {
        if (is_forked()) raise(Error(Errc::invalid_argument, "the writer is of the process that forked this one"));
        if (shards_) return shards_;
        raise(std::move(Error(Errc::writer_closed, "the writer is closed").with_path(out_.string())));
    }
    const Declaration* find(const std::string& name) const {
        const auto found = declared_.find(name);
        return found == declared_.end() ? nullptr : &found->second;
    }

    nb::object commit() {
        const std::shared_ptr<ShardWriter> shards = this->shards();
        report_ = to_python(without_gil([&] { return shards->commit(); }));
        shards_.reset();
        return report_;
    }
    /// Removes the files that were not committed, once no other thread writes.
    void close() {
        std::shared_ptr<ShardWriter> last = std::move(shards_);
        shards_.reset();
        // The files are the parent's: a child that ends must not remove them.
        if (is_forked()) static_cast<void>(new std::shared_ptr<ShardWriter>(std::move(last)));
        without_gil([&] { last.reset(); });
    }
    nb::object report() const { return report_.is_valid() ? report_ : nb::none(); }
    const std::filesystem::path& out() const noexcept { return out_; }
    bool open() const noexcept { return shards_ != nullptr; }

private:
    bool is_forked() const noexcept { return ::getpid() != owner_; }

    const ::pid_t owner_ = ::getpid();
    std::filesystem::path out_;
    std::map<std::string, Declaration, std::less<>> declared_;
    std::shared_ptr<ShardWriter> shards_;
    nb::object report_;
};

/// Returns a declaration of (dtype, shape), or of a tensor that has them.
Declaration declaration(std::string name, nb::handle value) {
    if (PyTuple_Check(value.ptr()) || PyList_Check(value.ptr())) {
        if (nb::len(value) != 2) wrong_type(("(dtype, shape) for " + printable(name, 200)).c_str(), value);
        return {.name = std::move(name), .dtype = dtype_from(value[0]), .shape = shape_from(value[1])};
    }
    const LazyTensor tensor = lazy_from(std::move(name), value);
    return {.name = tensor.name(), .dtype = tensor.dtype(), .shape = tensor.shape()};
}

std::vector<Declaration> declarations(nb::handle mapping) {
    std::vector<Declaration> declared;
    for (const nb::handle pair : nb::iter(pairs_of(mapping, "a dict of names and (dtype, shape)")))
        declared.push_back(declaration(text_from(pair[0], "the name of a tensor"), pair[1]));
    return declared;
}

void make_writer(Writer* self, nb::handle out, nb::handle tensors, const nb::kwargs& keywords) {
    SaveOptions options;
    for (const auto& [key, value] : keywords) {
        const std::string option = text_from(key, "an option");
        if (option == "progress" || !set_save_option(options, option, value)) unknown_option("ShardWriter", option);
    }
    const std::filesystem::path path = path_from(out);
    if (!options.one_file) cli::require_out(path.native());
    new (self) Writer(path, declarations(tensors), options);
}

Value value_from(const std::string& name, nb::handle value) {
    if (nb::isinstance<Tensor>(value)) return nb::cast<const Tensor&>(value).lazy;
    if (!nb::hasattr(value, "__dlpack__") && PyObject_CheckBuffer(value.ptr())) return source_from(value);
    LazyTensor tensor = lazy_from(name, value);
    if (tensor.decoding() == Decoding{} && tensor.placement()) return tensor.view();
    return tensor;
}

std::uint64_t size_of(const Value& value) {
    if (const auto* const source = std::get_if<0>(&value)) return (*source)->size();
    if (const auto* const view = std::get_if<TensorView>(&value)) return view->nbytes();
    return std::get<LazyTensor>(value).nbytes();
}

/// Returns true if the value is the declared tensor as it will be stored: its bytes can be written in any blocks.
bool is_plain(const Value& value, const Declaration& declared) {
    if (std::holds_alternative<std::shared_ptr<const Source>>(value)) return true;
    if (const auto* const view = std::get_if<TensorView>(&value))
        return view->contiguous() && view->dtype() == declared.dtype && view->shape() == declared.shape;
    const LazyTensor& tensor = std::get<LazyTensor>(value);
    return tensor.placement() && tensor.dtype() == declared.dtype && tensor.shape() == declared.shape;
}

void read_block(const Value& value, std::uint64_t offset, std::span<std::byte> into) {
    if (const auto* const source = std::get_if<0>(&value)) return (*source)->read_at(offset, into);
    if (const auto* const tensor = std::get_if<LazyTensor>(&value)) return tensor->read(offset, into);
    std::memcpy(into.data(), std::get<TensorView>(value).bytes().data() + offset, into.size());
}

/// Returns a function that gives the blocks of a value, and raises what handlers of signals raise.
ShardWriter::Fill blocks_of(const Value& value) {
    return [&value](std::uint64_t offset, std::span<std::byte> into) {
        read_block(value, offset, into);
        const GilAcquire acquired;
        if (PyErr_CheckSignals() != 0) throw nb::python_error();
    };
}

/// Calls `write` without the GIL with the bytes of the value, its view, or its lazy tensor.
template <class Write> void write_value(const Value& value, Write&& write) {
    const GilRelease released;
    if (const auto* const view = std::get_if<TensorView>(&value)) return write(*view);
    if (const auto* const tensor = std::get_if<LazyTensor>(&value)) return write(*tensor);
    const Source& source = *std::get<0>(value);
    const std::optional<SharedBytes> shared = source.map({0, source.size()});
    write(shared.value().bytes);
}

void write(Writer& self, nb::handle key, nb::handle given) {
    const std::string name = text_from(key, "the name of a tensor");
    const std::shared_ptr<ShardWriter> shards = self.shards();
    const Value value = value_from(name, given);
    const Declaration* const declared = self.find(name);
    if (declared != nullptr && size_of(value) > most_at_once && is_plain(value, *declared) &&
        size_of(value) == byte_size(declared->dtype, element_count(declared->shape).value_or(0)))
        return without_gil([&] { shards->write(name, blocks_of(value)); });
    write_value(value, [&](const auto& part) { shards->write(name, part); });
}

void write_range(Writer& self, nb::handle key, std::uint64_t offset, nb::handle given) {
    const std::string name = text_from(key, "the name of a tensor");
    const std::shared_ptr<ShardWriter> shards = self.shards();
    write_value(value_from(name, given), [&](const auto& part) { shards->write_range(name, offset, part); });
}

void write_box(Writer& self, nb::handle key, nb::handle start, nb::handle given) {
    const std::string name = text_from(key, "the name of a tensor");
    const std::shared_ptr<ShardWriter> shards = self.shards();
    const Shape at = shape_from(start, "the start of a box");
    const Value value = value_from(name, given);
    if (std::holds_alternative<std::shared_ptr<const Source>>(value)) wrong_type("a tensor, which has a shape", given);
    const GilRelease released;
    if (const auto* const view = std::get_if<TensorView>(&value)) shards->write_box(name, at, *view);
    else shards->write_box(name, at, std::get<LazyTensor>(value));
}

void leave(Writer& self, nb::handle exception_type, nb::handle, nb::handle) {
    if (!self.open()) return;
    if (exception_type.is_none()) self.commit();
    else self.close();
}

std::string description(const Writer& self) {
    return "<safemap.ShardWriter " + printable(self.out().string(), 200) + (self.open() ? ">" : ", closed>");
}

}  // namespace

void bind_shard_writer(nb::module_& module) {
    nb::class_<Writer>(module, "ShardWriter", nb::is_final(),
                       R"doc(Writes a checkpoint piece by piece, in any order and from any thread.

`tensors` declares what will be written: a dict of names and (dtype, shape), or tensors that have them. `options` are
those of safemap.save() for contents and layout, without casts, and `overwrite`, `durable` and `drop_cache`. Until the
commit, `out` holds what it held before.

Each byte is written once, and is checked: writing twice, outside a tensor, or too little is a SafemapError. A value is
a tensor of torch or NumPy, a LazyTensor, or bytes in row-major order. A tensor of another dtype is cast.

Leaving the block commits; leaving it by an exception removes everything.

Example:
    with safemap.ShardWriter("out/", {"w": ("F32", (2, 3)), "b": ("BF16", (3,))}) as writer:
        writer["w"] = torch.ones(2, 3)
        writer.write_range("b", 0, b"\0\0" * 3))doc")
        .def("__init__", make_writer, nb::arg("out").none(), nb::arg("tensors").none(), nb::arg("options"),
             nb::sig("def __init__(self, out: str | os.PathLike, "
                     "tensors: collections.abc.Mapping[str, typing.Any], **options: typing.Any) -> None"))
        .def("write", write, nb::arg("name"), nb::arg("value").none(),
             nb::sig("def write(self, name: str, value: typing.Any) -> None"), "Writes a whole tensor.")
        .def("__setitem__", write, nb::sig("def __setitem__(self, name: str, value: typing.Any, /) -> None"))
        .def("write_range", write_range, nb::arg("name"), nb::arg("offset"), nb::arg("data"),
             nb::sig("def write_range(self, name: str, offset: int, data: typing.Any) -> None"),
             "Writes bytes, or the elements of a tensor, from byte `offset` of the row-major tensor on.")
        .def("write_box", write_box, nb::arg("name"), nb::arg("start"), nb::arg("value"),
             nb::sig("def write_box(self, name: str, start: collections.abc.Sequence[int], value: typing.Any) -> None"),
             "Writes a tensor as the box that begins at the indices `start`: `w[start:start + value.shape] = value`.")
        .def("commit", &Writer::commit, nb::sig("def commit(self) -> safemap._records.SaveReport"),
             "Makes the checkpoint appear, and returns the report of a save. Raises SafemapError, code `not_written`, "
             "if "
             "bytes are missing; then more can be written.")
        .def("close", &Writer::close, "Removes everything, unless it was committed.")
        .def_prop_ro("report", &Writer::report, nb::sig("def report(self, /) -> safemap._records.SaveReport | None"),
                     "The report of the commit; None before it.")
        .def(
            "__enter__", [](nb::object self) { return self; }, nb::sig("def __enter__(self) -> ShardWriter"))
        .def("__exit__", leave, nb::arg("type").none(), nb::arg("value").none(), nb::arg("traceback").none(),
             nb::sig("def __exit__(self, type: object, value: object, traceback: object, /) -> None"))
        .def("__repr__", description);
}

}  // namespace safemap::python
