// The steps that all saves share: check options, lay out, allocate and report.
#include "write/saving.hpp"

#include "base/faults.hpp"
#include "base/text.hpp"
#include "tensor/convert.hpp"
#include "write/reshard.hpp"
#include "write/shards.hpp"

#include <optional>
#include <string_view>
#include <utility>

namespace safemap::SAFEMAP_ABI::write {

namespace {

void require_stem(const std::string& stem) {
    constexpr std::size_t longest = 200;  // a name has at most 255 bytes, and the numbers of a shard follow
    if (!stem.empty() && stem.size() <= longest && !stem.starts_with('.') &&
        stem.find_first_of(std::string_view("/\0", 2)) == stem.npos)
        return;
    throw Error(Errc::invalid_argument, "invalid stem for the names of files: " + safemap::quoted(stem) +
                                            "; expected 1 to 200 bytes that do not begin with a dot");
}

void require_sense(const SaveOptions& options) {
    const std::uint32_t alignment = options.alignment;
    if (alignment != 8 && alignment != 64 && alignment != 256 && alignment != 4096)
        throw Error(Errc::invalid_argument,
                    "invalid alignment " + std::to_string(alignment) + "; expected 8, 64, 256 or 4096");
    if (options.exact_metadata && (options.checksums || options.structure == StructurePolicy::keep))
        throw Error(Errc::invalid_argument, std::string("exact metadata cannot be combined with ") +
                                                (options.checksums ? "digests" : "a structure document"));
    if (options.exact_metadata && options.ranks > 0)
        throw Error(Errc::invalid_argument,
                    "exact metadata cannot be combined with files of ranks, whose metadata says where parts belong");
    if (options.ranks > most_ranks)
        throw Error(Errc::invalid_argument, "invalid number of ranks " + std::to_string(options.ranks) +
                                                "; expected at most " + std::to_string(most_ranks));
    require_stem(options.stem);
    const auto require_cast = [](Dtype dtype) {
        if (!is_castable(dtype))
            throw Error(Errc::unsupported_cast, "casts to " + std::string(name(dtype)) + " are not supported");
    };
    if (options.dtype) require_cast(*options.dtype);
    for (const SaveOptions::DtypeOf& each : options.dtype_of) require_cast(each.dtype);
}

}  // namespace

Layout lay_out_at(const std::filesystem::path& out, const Input& input, const SaveOptions& options) {
    require_sense(options);
    // Checked before the names, so that the most common mistake is reported first. The target checks again.
    const bool one_file = is_one_file(out, options);
    if (one_file && options.ranks > 0)
        throw Error(Errc::invalid_argument, "each rank has a file of its own, but the target is one file")
            .with_path(out.native());
    if (one_file && !options.folders.empty())
        throw Error(Errc::invalid_argument, "folders cannot be written with one file").with_path(out.native());
    const bool new_in_any_case = !one_file && counts_as_new(out, options);
    const bool may_be_published = !one_file && options.resume;  // by a save that was killed after that
    if (!options.plan_only && !options.overwrite && !new_in_any_case && !may_be_published) io::require_absent(out);
    return lay_out(input, options, one_file ? std::optional(out.filename().native()) : std::nullopt);
}

Layout lay_out_for(const Sink& sink, const Input& input, const SaveOptions& options) {
    require_sense(options);
    const char* const refused = options.overwrite               ? "overwrite"
                                : options.resume                ? "resume"
                                : !options.durable              ? "durable = false"
                                : !options.extras.files.empty() ? "extras"
                                : !options.folders.empty()      ? "folders"
                                : options.ranks > 0             ? "ranks"
                                : options.team != nullptr       ? "team"
                                                                : nullptr;
    if (refused != nullptr)
        throw Error(Errc::invalid_argument, std::string("the option ") + refused + " is only for a save to a path");
    return lay_out(input, options, sink.name());
}

void allocate(io::Staging& staging, const Layout& layout, const PlannedFile& file) {
    const auto add = [&](Error& error) {
        error.with_path(staging.path_of(file.name));
        if (error.code() != Errc::no_space) return;
        std::uint64_t all = 0;
        for (const PlannedFile& planned : layout.files) all = sum_of_sizes(all, planned.size);
        error.with_hint("all files together take " + bytes_text(all));
    };
    adding(add, [&] { staging.add(file.name).allocate(file.size); });
}

SaveReport report_on(const Layout& layout) {
    SaveReport report;
    report.tensors = layout.tensors;
    report.bytes_read = layout.read_bytes;
    report.casts = layout.casts;
    report.skipped = layout.skipped;
    for (const auto& file : layout.files) {
        report.files.push_back(file.name);
        report.layout.files.push_back({.tensors = file.tensors.size(), .bytes = file.size});
        report.bytes_written = sum_of_sizes(report.bytes_written, file.size);
    }
    report.layout.unaligned_tensors = layout.unaligned_tensors;
    report.notes = layout.notes;
    report.resumed = layout.resumed;
    return report;
}

}  // namespace safemap::SAFEMAP_ABI::write
