// The Sink that writes a file of the file system.
#include <safemap/advanced/file.hpp>
#include <safemap/error.hpp>

#include "io/staging.hpp"

#include <memory>
#include <optional>
#include <string>

namespace safemap::SAFEMAP_ABI {

namespace {

class FileSink final : public Sink {
public:
    FileSink(const std::filesystem::path& path, const FileSinkOptions& options)
        : path_(path), name_(path.native()), options_(options) {}

    const std::string& name() const noexcept override { return name_; }

    void allocate(std::uint64_t size) override {
        const auto existing = options_.overwrite ? io::Existing::replace : io::Existing::refuse;
        staging_.emplace(path_, io::Staging::Kind::file, existing, io::StagingOptions{.durable = options_.durable});
        output_.emplace(staging_->add(path_.filename().native()));
        output_->allocate(size);
        if (io::prefers_direct_io(size)) output_->bypass_cache();
    }

    void write_at(std::uint64_t offset, std::span<const std::byte> bytes) override { output_->write_at(offset, bytes); }

    bool read_back(std::uint64_t offset, std::span<std::byte> into) const override {
        if (!into.empty()) output_->reader(name_).read_at(offset, into);
        return true;
    }

    void commit() override {
        output_->finish();
        staging_->finished(path_.filename().native());
        staging_->commit();
        abandon();
    }

    void abandon() noexcept override {
        output_.reset();
        staging_.reset();
    }

private:
    std::filesystem::path path_;
    std::string name_;
    FileSinkOptions options_;
    std::optional<io::Staging> staging_;
    std::optional<io::OutputFile> output_;
};

}  // namespace

std::shared_ptr<Sink> file_sink(const std::filesystem::path& path, const FileSinkOptions& options) {
    if (path.empty()) throw Error(Errc::invalid_argument, "there is no path to save to");
    if (path.native().ends_with('/'))
        throw Error(Errc::invalid_argument, "expected one file, but the path ends in a slash").with_path(path.native());
    return std::make_shared<FileSink>(path, options);
}

}  // namespace safemap::SAFEMAP_ABI
