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

/// An option, and why a kind of save refuses it; null: that kind takes it.
struct OptionRow {
    bool (*is_set)(const SaveOptions& options);
    const char* one_file;
    const char* sink;
    const char* writer;
    const char* exact_metadata;
};

constexpr const char* takes = nullptr;

/// Options that only some kinds of saves take. The first refused one is named.
constexpr OptionRow option_rows[] = {
    {[](const SaveOptions& o) { return o.dtype || o.keep_dtype || !o.dtype_of.empty() || o.apply_scales; }, takes,
     takes, "writes the declared dtypes; it does not take dtype, dtype_of, keep_dtype or apply_scales", takes},
    {[](const SaveOptions& o) { return o.checksums; }, takes, takes, takes, "digests"},
    {[](const SaveOptions& o) { return o.structure == StructurePolicy::keep; }, takes, takes, takes,
     "a structure document"},
    {[](const SaveOptions& o) { return o.overwrite; }, takes, "overwrite", takes, takes},
    {[](const SaveOptions& o) { return o.resume; }, takes, "resume",
     "does not take resume, because it has no sources to compare with an earlier save", takes},
    {[](const SaveOptions& o) { return !o.durable; }, takes, "durable = false", takes, takes},
    {[](const SaveOptions& o) { return !o.extras.files.empty(); }, takes, "extras", takes, takes},
    {[](const SaveOptions& o) { return o.ranks > 0; }, "each rank has a file of its own, but the target is one file",
     "ranks", "does not cut tensors for ranks", "files of ranks, whose metadata says where parts belong"},
    {[](const SaveOptions& o) { return !o.folders.empty(); }, "folders cannot be written with one file", "folders",
     "does not write folders", takes},
    {[](const SaveOptions& o) { return o.team != nullptr; }, takes, "team", "does not take a team", takes},
    {[](const SaveOptions& o) { return o.plan_only; }, takes, takes, "does not take plan_only", takes},
};

/// Throws invalid_argument for an option that the kind of save in a column of the table refuses.
void require_taken(const SaveOptions& options, const char* OptionRow::*column, const std::string& before,
                   const std::string& after = {}) {
    for (const OptionRow& row : option_rows)
        if (row.*column != nullptr && row.is_set(options))
            throw Error(Errc::invalid_argument, before + row.*column + after);
}

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
    if (options.exact_metadata)
        require_taken(options, &OptionRow::exact_metadata, "exact metadata cannot be combined with ");
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

const SaveOptions& options_of_writer(const SaveOptions& options) {
    require_taken(options, &OptionRow::writer, "a ShardWriter ");
    return options;
}

Layout lay_out_at(const std::filesystem::path& out, const Input& input, const SaveOptions& options) {
    require_sense(options);
    // Checked before the names, so that the most common mistake is reported first. The target checks again.
    const bool one_file = is_one_file(out, options);
    if (one_file) about_file(out.native(), [&] { require_taken(options, &OptionRow::one_file, {}); });
    const bool new_in_any_case = !one_file && counts_as_new(out, options);
    const bool may_be_published = !one_file && options.resume;  // by a save that was killed after that
    if (!options.plan_only && !options.overwrite && !new_in_any_case && !may_be_published) io::require_absent(out);
    return lay_out(input, options, one_file ? std::optional(out.filename().native()) : std::nullopt);
}

Layout lay_out_for(const Sink& sink, const Input& input, const SaveOptions& options) {
    require_sense(options);
    require_taken(options, &OptionRow::sink, "the option ", " is only for a save to a path");
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
