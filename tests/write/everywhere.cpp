// Saves to memory, a vector, a callback and a file, and compares each with the file at the path.
#include "write/everywhere.hpp"

#include "doctest_safemap.hpp"
#include "temp_dir.hpp"

#include <safemap/advanced/file.hpp>

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <span>
#include <stdexcept>

namespace samples {
namespace {

Saved saved_to(Sink& sink, const SaveTo& what, const SaveOptions& options) {
    Saved saved;
    try {
        saved.report = what(sink, options);
    } catch (const Error& error) {
        saved.error = error.code();
    }
    return saved;
}

}  // namespace

std::vector<Saved> saved_to_sinks(const std::string& name, const SaveTo& what, const SaveOptions& options) {
    std::vector<std::byte> vector = {std::byte{7}};
    std::vector<Saved> all = {saved_to(*memory_sink(name, vector), what, options)};
    all[0].bytes = all[0].error ? std::string() : text_of(vector);
    if (all[0].error) CHECK(vector == std::vector<std::byte>{std::byte{7}});

    std::vector<std::byte> memory(all[0].bytes.size());
    all.push_back(saved_to(*memory_sink(name, std::span(memory)), what, options));
    all.back().bytes = text_of(memory);

    std::vector<std::byte> called(all[0].bytes.size());
    std::atomic<std::uint64_t> written = 0;
    const auto keep = [&](std::uint64_t offset, std::span<const std::byte> bytes) {
        if (offset > called.size() || bytes.size() > called.size() - offset) throw std::out_of_range("beyond the file");
        std::copy(bytes.begin(), bytes.end(), called.begin() + static_cast<std::ptrdiff_t>(offset));
        written += bytes.size();
    };
    all.push_back(saved_to(*callback_sink(name, keep), what, options));
    all.back().bytes = text_of(called);
    if (!all.back().error) CHECK(written == called.size());  // each byte is written once

    const TempDir dir;
    all.push_back(saved_to(*file_sink(dir / name), what, options));
    if (!all.back().error) all.back().bytes = TempDir::read(dir / name);
    return all;
}

SaveReport save_and_compare(const std::filesystem::path& out, const SaveTo& to_sink, const SaveAt& to_path,
                            const SaveOptions& options) {
    SaveOptions of_sinks = options;
    of_sinks.overwrite = of_sinks.resume = false;
    of_sinks.durable = true;
    of_sinks.extras = {};
    // Sinks come first, because the source may be at `out`.
    const std::vector<Saved> all = saved_to_sinks(out.filename().native(), to_sink, of_sinks);
    const SaveReport report = to_path(out, options);
    const std::string bytes = TempDir::read(out);
    for (std::size_t i = 0; i < all.size(); ++i) {
        CAPTURE(i);
        CHECK_FALSE(all[i].error);
        CHECK(all[i].bytes == bytes);
        CHECK(all[i].report.tensors == report.tensors);
        CHECK(all[i].report.bytes_read == report.bytes_read);
        CHECK(all[i].report.bytes_written == report.bytes_written);
        CHECK(all[i].report.skipped.size() == report.skipped.size());
        CHECK(all[i].report.notes == report.notes);
        REQUIRE(all[i].report.casts.size() == report.casts.size());
        for (std::size_t c = 0; c < report.casts.size(); ++c) {
            CHECK(all[i].report.casts[c].tensors == report.casts[c].tensors);
            CHECK(all[i].report.casts[c].values == report.casts[c].values);
            CHECK(all[i].report.casts[c].overflowed == report.casts[c].overflowed);
            CHECK(all[i].report.casts[c].non_finite == report.casts[c].non_finite);
        }
        if (i < 3) CHECK(all[i].report.files == report.files);  // the file sink reports its path
        REQUIRE(all[i].report.layout.files.size() == report.layout.files.size());
        CHECK(all[i].report.layout.files[0].bytes == report.layout.files[0].bytes);
        CHECK(all[i].report.reading.gathered.bytes == report.reading.gathered.bytes);
        CHECK(all[i].report.unsupported.size() == report.unsupported.size());
    }
    return report;
}

}  // namespace samples
