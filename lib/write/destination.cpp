// Implements the destinations: files of a staging, also of one that another process has made, and a sink.
#include "write/destination.hpp"

#include "base/faults.hpp"
#include "write/saving.hpp"

#include <utility>

namespace safemap::SAFEMAP_ABI::write {

namespace {

/// A file of a Staging, or of a JoinedStaging.
class StagedFile final : public OpenFile {
public:
    using Finished = std::function<void()>;

    template <class Staging>
    StagedFile(const Staging& staging, const std::string& name, bool direct_io, Finished finished)
        : path_(staging.path_of(name)), output_(staging.reopen(name)), finished_(std::move(finished)) {
        if (direct_io) output_.bypass_cache();
    }

    void write_at(std::uint64_t offset, std::span<const std::byte> bytes) const override {
        output_.write_at(offset, bytes);
    }
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
    Finished finished_;
};

class StagedFiles final : public Destination {
public:
    StagedFiles(io::Staging& staging, const Layout& layout)
        : staging_(staging), direct_io_(io::prefers_direct_io(layout.data_bytes)) {}

    std::string path_of(const PlannedFile& file) const override { return staging_.path_of(file.name); }
    std::unique_ptr<OpenFile> adopt(const PlannedFile& file) override {
        return staging_.adopt(file.name) ? std::make_unique<StagedFile>(staging_, file.name, false, nullptr) : nullptr;
    }
    void allocate(const Layout& layout, const PlannedFile& file) override { write::allocate(staging_, layout, file); }
    void finished_by_other(const PlannedFile& file) override { staging_.finished_by_other(file.name); }
    std::unique_ptr<OpenFile> open(const PlannedFile& file) override {
        return std::make_unique<StagedFile>(staging_, file.name, direct_io_,
                                            [this, name = file.name] { staging_.finished(name); });
    }
    bool reads_back() const override { return true; }

private:
    io::Staging& staging_;
    bool direct_io_;
};

class JoinedFiles final : public Destination {
public:
    JoinedFiles(const io::JoinedStaging& staging, const Layout& layout)
        : staging_(staging), direct_io_(io::prefers_direct_io(layout.data_bytes)) {}

    std::string path_of(const PlannedFile& file) const override { return staging_.path_of(file.name); }
    void allocate(const Layout&, const PlannedFile&) override {}  // the other process has done it
    std::unique_ptr<OpenFile> open(const PlannedFile& file) override {
        return std::make_unique<StagedFile>(staging_, file.name, direct_io_, nullptr);
    }
    bool reads_back() const override { return true; }

private:
    const io::JoinedStaging& staging_;
    bool direct_io_;
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
    return std::make_unique<StagedFiles>(staging, layout);
}

std::unique_ptr<Destination> into_joined(const io::JoinedStaging& staging, const Layout& layout) {
    return std::make_unique<JoinedFiles>(staging, layout);
}

std::unique_ptr<Destination> into_sink(Sink& sink) { return std::make_unique<OneSink>(sink); }

}  // namespace safemap::SAFEMAP_ABI::write
