// Implements the destinations: files of a staging, also of one that another process has made, and a sink.
#include "write/destination.hpp"

#include "base/faults.hpp"
#include "write/saving.hpp"

#include <utility>

namespace safemap::SAFEMAP_ABI::write {

namespace {

class SiblingFile final : public OpenFile {
public:
    using Finished = std::function<void()>;

    SiblingFile(const io::SiblingFiles& files, const std::string& name, bool direct_io, Finished finished)
        : path_(files.path_of(name)),
          output_(files.reopen(name)),
          direct_io_(direct_io),
          finished_(std::move(finished)) {
        if (direct_io) output_.bypass_cache();
    }

    void write_at(std::uint64_t offset, std::span<const std::byte> bytes) const override {
        output_.write_at(offset, bytes);
    }
    bool takes_any_address() const noexcept override { return !direct_io_; }
    Read reader() const override {
        const std::shared_ptr<const io::File> file(new io::File(output_.reader(path_)));
        return [file](std::uint64_t offset, std::span<std::byte> into) { file->read_at(offset, into); };
    }
    void finish() override {
        output_.finish();
        if (finished_) finished_();
    }
    void release() override { output_.finish(); }

private:
    std::string path_;
    io::OutputFile output_;
    bool direct_io_;
    Finished finished_;
};

/// Files that another process has made.
class JoinedFiles : public Destination {
public:
    JoinedFiles(const io::SiblingFiles& files, const Layout& layout)
        : files_(files), direct_io_(io::prefers_direct_io(layout.data_bytes)) {}

    std::string path_of(const PlannedFile& file) const override { return files_.path_of(file.name); }
    void allocate(const Layout&, const PlannedFile&) override {}  // the other process has done it
    std::unique_ptr<OpenFile> open(const PlannedFile& file) override { return open(file, nullptr); }
    bool reads_back() const override { return true; }

protected:
    std::unique_ptr<OpenFile> open(const PlannedFile& file, SiblingFile::Finished finished) const {
        return std::make_unique<SiblingFile>(files_, file.name, direct_io_, std::move(finished));
    }

private:
    const io::SiblingFiles& files_;
    bool direct_io_;
};

class OwnFiles final : public JoinedFiles {
public:
    OwnFiles(io::Staging& staging, const Layout& layout) : JoinedFiles(staging.files(), layout), staging_(staging) {}

    std::unique_ptr<OpenFile> adopt(const PlannedFile& file) override {
        if (!staging_.adopt(file.name)) return nullptr;
        return std::make_unique<SiblingFile>(staging_.files(), file.name, false, nullptr);
    }
    void allocate(const Layout& layout, const PlannedFile& file) override { write::allocate(staging_, layout, file); }
    void finished_by_other(const PlannedFile& file) override { staging_.finished_by_other(file.name); }
    std::unique_ptr<OpenFile> open(const PlannedFile& file) override {
        return JoinedFiles::open(file, [this, name = file.name] { staging_.finished(name); });
    }

private:
    io::Staging& staging_;
};

class SinkFile final : public OpenFile {
public:
    explicit SinkFile(Sink& sink) noexcept : sink_(sink) {}
    void write_at(std::uint64_t offset, std::span<const std::byte> bytes) const override {
        sink_.write_at(offset, bytes);
    }
    Read reader() const override {
        return [this](std::uint64_t offset, std::span<std::byte> into) {
            if (!sink_.read_back(offset, into))
                throw Error(Errc::io_error, "read_back() of the sink returned false, but returned true before");
        };
    }

private:
    Sink& sink_;
};

class OneSink final : public Destination {
public:
    explicit OneSink(Sink& sink) noexcept : sink_(sink) {}

    std::string path_of(const PlannedFile&) const override { return sink_.name(); }
    void allocate(const Layout&, const PlannedFile& file) override {
        begun_ = true;
        about_file(sink_.name(), [&] { sink_.allocate(file.size); });
    }
    std::unique_ptr<OpenFile> open(const PlannedFile&) override { return std::make_unique<SinkFile>(sink_); }
    bool reads_back() const override { return sink_.read_back(0, {}); }
    void commit() override {
        about_file(sink_.name(), [&] { sink_.commit(); });
    }
    void abandon() noexcept override {
        if (begun_) sink_.abandon();
    }

private:
    Sink& sink_;
    bool begun_ = false;
};

}  // namespace

std::unique_ptr<Destination> into_staging(io::Staging& staging, const Layout& layout) {
    return std::make_unique<OwnFiles>(staging, layout);
}

std::unique_ptr<Destination> into_joined(const io::JoinedSibling& files, const Layout& layout) {
    return std::make_unique<JoinedFiles>(files, layout);
}

std::unique_ptr<Destination> into_sink(Sink& sink) { return std::make_unique<OneSink>(sink); }

}  // namespace safemap::SAFEMAP_ABI::write
