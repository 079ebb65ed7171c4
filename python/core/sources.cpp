// Sources of Python: bytes-like objects, and file objects.
#include "core.hpp"

#include <cstring>

namespace safemap::python {
namespace {

/// A buffer of Python, which is kept until the last view of it is gone.
class Buffer {
public:
    explicit Buffer(nb::handle object) {
        if (PyObject_GetBuffer(object.ptr(), &view_, PyBUF_WRITABLE) != 0) {
            PyErr_Clear();
            if (PyObject_GetBuffer(object.ptr(), &view_, PyBUF_SIMPLE) != 0) throw nb::python_error();
        }
    }
    ~Buffer() {
        const GilAcquire acquired(std::nothrow);
        if (acquired) PyBuffer_Release(&view_);
    }
    Buffer(const Buffer&) = delete;
    Buffer& operator=(const Buffer&) = delete;

    bool writable() const noexcept { return view_.readonly == 0; }
    std::span<const std::byte> bytes() const noexcept {
        return {static_cast<const std::byte*>(view_.buf), static_cast<std::size_t>(view_.len)};
    }

private:
    Py_buffer view_{};
};

/// A file object of Python. Its position is shared, so one thread reads at a time.
class File {
public:
    explicit File(nb::handle object) : file_(nb::borrow(object)) {}

    std::uint64_t size() const {
        const nb::object before = file_.get().attr("tell")();
        file_.get().attr("seek")(0, 2);
        const std::uint64_t size = position_of(file_.get());
        file_.get().attr("seek")(before);
        return size;
    }

    void read(std::uint64_t offset, std::span<std::byte> into) const {
        const Turn turn(turns_);
        const GilAcquire acquired;
        turn.require_first("read() of a file object must not read from the checkpoint that reads from it");
        file_.get().attr("seek")(offset);
        read_from(file_.get(), offset, into);
    }

private:
    Kept file_;
    mutable Turns turns_;
};

std::shared_ptr<const Source> file_source(nb::handle object) {
    const auto file = std::make_shared<const File>(object);
    return callback_source(name_of_file(object), file->size(),
                           [file](std::uint64_t offset, std::span<std::byte> into) { file->read(offset, into); });
}

}  // namespace

std::string name_of_file(nb::handle file) {
    for (const char* const attribute : {"name", "path"}) {
        const nb::object name = nb::getattr(file, attribute, nb::none());
        if (PyUnicode_Check(name.ptr())) return text_from(name, "a name");
    }
    return "file object";
}

void read_from(nb::handle file, std::uint64_t offset, std::span<std::byte> into) {
    while (!into.empty()) {
        const std::size_t most = std::min(into.size(), std::size_t{1} << 30);
        const nb::object part = file.attr("read")(most);
        if (!PyBytes_Check(part.ptr())) wrong_type("bytes from read(): open the file in binary mode", part);
        const std::size_t got = std::min(static_cast<std::size_t>(PyBytes_Size(part.ptr())), most);
        if (got == 0) throw Error(Errc::file_truncated, "the file object has ended at byte " + std::to_string(offset));
        std::memcpy(into.data(), PyBytes_AsString(part.ptr()), got);
        into = into.subspan(got);
        offset += got;
    }
}

std::uint64_t position_of(nb::handle file) {
    const nb::object position = file.attr("tell")();
    std::uint64_t number = 0;
    if (!PyLong_Check(position.ptr())) wrong_type("an int from tell() of a file object", position);
    if (nb::try_cast(position, number)) return number;
    PyErr_Clear();
    raise(Error(Errc::invalid_argument, "tell() of the file object returned no position"));
}

std::shared_ptr<const Source> source_from(nb::handle value) {
    if (PyObject_CheckBuffer(value.ptr())) {
        const auto buffer = std::make_shared<const Buffer>(value);
        return memory_source("bytes", {.bytes = buffer->bytes(), .owner = buffer, .writable = buffer->writable()});
    }
    if (nb::hasattr(value, "read") && nb::hasattr(value, "seek")) return file_source(value);
    return nullptr;
}

}  // namespace safemap::python
