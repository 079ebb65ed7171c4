// Saves to file objects of Python.
#include "core.hpp"

#include <algorithm>

namespace safemap::python {
namespace {

bool answers(nb::handle file, const char* method) {
    if (!nb::hasattr(file, method)) return false;
    const nb::object answer = file.attr(method)();
    const int is_true = PyObject_IsTrue(answer.ptr());
    if (is_true < 0) throw nb::python_error();
    return is_true == 1;
}

/// A file object, which gets the file from its position on. Its position is shared, so one thread writes at a time.
class FileSink final : public Sink {
public:
    explicit FileSink(nb::handle file)
        : file_(nb::borrow(file)),
          name_(name_of_file(file)),
          begin_(position_of(file)),
          readable_(answers(file, "readable")) {}

    const std::string& name() const noexcept override { return name_; }
    void allocate(std::uint64_t size) override { size_ = size; }

    void write_at(std::uint64_t offset, std::span<const std::byte> bytes) override {
        const Turn turn(turns_);
        const GilAcquire acquired;
        seek(begin_ + offset);
        while (!bytes.empty()) {
            const std::size_t most = std::min(bytes.size(), std::size_t{1} << 26);
            // A copy: the file object may keep what it is given.
            const nb::bytes part(bytes.data(), most);
            const std::size_t written = written_by(file_.get().attr("write")(part), most);
            bytes = bytes.subspan(written);
        }
    }

    bool read_back(std::uint64_t offset, std::span<std::byte> into) const override {
        if (!readable_ || into.empty()) return readable_;
        const Turn turn(turns_);
        const GilAcquire acquired;
        seek(begin_ + offset);
        read_from(file_.get(), begin_ + offset, into);
        return true;
    }

    void commit() override {
        const GilAcquire acquired;
        seek(begin_ + size_);
        if (nb::hasattr(file_.get(), "flush")) file_.get().attr("flush")();
    }

    /// Cuts off what was written. An object that cannot do that keeps it.
    void abandon() noexcept override {
        const GilAcquire acquired(std::nothrow);
        if (!acquired) return;
        PyObject *type = nullptr, *value = nullptr, *trace = nullptr;
        PyErr_Fetch(&type, &value, &trace);
        try {
            seek(begin_);
            file_.get().attr("truncate")();
        } catch (...) {
            PyErr_Clear();
        }
        PyErr_Restore(type, value, trace);
    }

private:
    void seek(std::uint64_t position) const { file_.get().attr("seek")(position); }

    /// Returns how many bytes write() has taken. Raises if it says none, as a file does that would block.
    std::size_t written_by(const nb::object& answer, std::size_t given) const {
        std::size_t written = 0;
        if (!PyLong_Check(answer.ptr()) || !nb::try_cast(answer, written) || written == 0 || written > given)
            throw Error(Errc::io_error,
                        "write() of the file object returned no number of bytes from 1 to " + std::to_string(given))
                .with_path(name_);
        return written;
    }

    Kept file_;
    std::string name_;
    std::uint64_t begin_;
    bool readable_;
    std::uint64_t size_ = 0;
    mutable Turns turns_;
};

SaveReport save_to(nb::handle file, const Checkpoint& checkpoint, const SaveOptions& options) {
    FileSink sink(file);
    return without_gil([&] { return safemap::save(sink, checkpoint, options); });
}

}  // namespace

SaveReport save_to_file(nb::handle file, const Checkpoint& checkpoint, const SaveOptions& options) {
    if (answers(file, "seekable")) return save_to(file, checkpoint, options);
    // The header is written last, and comes first.
    const nb::object spool = nb::module_::import_("tempfile").attr("TemporaryFile")();
    SaveReport report = save_to(spool, checkpoint, options);
    if (options.plan_only) return report;
    spool.attr("seek")(0);
    nb::module_::import_("shutil").attr("copyfileobj")(spool, file, 1 << 20);
    if (nb::hasattr(file, "flush")) file.attr("flush")();
    return report;
}

}  // namespace safemap::python
