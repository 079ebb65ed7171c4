// The steps that all saves share: check options, lay out, allocate and report.
#include "write/saving.hpp"

#include "base/faults.hpp"
#include "base/text.hpp"
#include "tensor/convert.hpp"
#include "write/reshard.hpp"
#include "write/shards.hpp"

#include <optional>
#include <string_view>

namespace safemap::SAFEMAP_ABI::write {

namespace {

/// An option, and for each kind of save why it refuses the option; null: that kind takes it.
struct OptionRow {
    bool (*is_set)(const SaveOptions& options);
    const char* one_file = nullptr;
    const char* sink = nullptr;
    const char* writer = nullptr;
    const char* exact_metadata = nullptr;
};

/// Options that only some kinds of saves take. The first refused one is named.
constexpr OptionRow option_rows[] = {
    {.is_set =
         [](auto& o) { return o.dtype || o.keep_dtype || o.optimizer_dtype || !o.dtype_of.empty() || o.apply_scales; },
     .writer = "writes the declared dtypes; it does not take dtype, dtype_of, keep_dtype, optimizer_dtype or "
               "apply_scales"},
    {.is_set = [](auto& o) { return o.checksums; }, .exact_metadata = "digests"},
    {.is_set = [](auto& o) { return o.structure == StructurePolicy::keep; }, .exact_metadata = "a structure document"},
    {.is_set = [](auto& o) { return o.overwrite; }, .sink = "overwrite"},
    {.is_set = [](auto& o) { return o.resume; },
     .sink = "resume",
     .writer = "does not take resume, because it has no sources to compare with an earlier save"},
    {.is_set = [](auto& o) { return !o.durable; }, .sink = "durable = false"},
    {.is_set = [](auto& o) { return !o.extras.files.empty(); }, .sink = "extras"},
    {.is_set = [](auto& o) { return o.ranks > 0; },
     .one_file = "each rank has a file of its own, but the target is one file",
     .sink = "ranks",
     .writer = "does not cut tensors for ranks",
     .exact_metadata = "files of ranks, whose metadata says where parts belong"},
    {.is_set = [](auto& o) { return !o.folders.empty(); },
     .one_file = "folders cannot be written with one file",
     .sink = "folders",
     .writer = "does not write folders"},
    {.is_set = [](auto& o) { return o.team != nullptr; }, .sink = "team", .writer = "does not take a team"},
    {.is_set = [](auto& o) { return o.plan_only; }, .writer = "does not take plan_only"},
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

/// Returns "F8_E5M2, F8_E4M3, ...": every dtype that a cast can give.
std::string castable_names() {
    std::string names;
    for (auto dtype = Dtype::boolean; dtype <= Dtype::u64; dtype = static_cast<Dtype>(static_cast<int>(dtype) + 1))
        if (is_castable(dtype)) names += (names.empty() ? "" : ", ") + std::string(name(dtype));
    return names;
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
            throw Error(Errc::unsupported_cast, "casts to " + std::string(name(dtype)) + " are not supported")
                .with_hint("floating-point tensors can be cast to " + castable_names() + "; others keep their dtype");
    };
    if (options.dtype) require_cast(*options.dtype);
    if (options.optimizer_dtype) require_cast(*options.optimizer_dtype);
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
