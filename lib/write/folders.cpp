// Lays out each folder like a save to it, then puts the folder's name before the names of its files.
#include "write/folders.hpp"

#include "base/faults.hpp"
#include "base/text.hpp"
#include "names/file_names.hpp"
#include "write/saving.hpp"
#include "write/shards.hpp"
#include "write/storage_use.hpp"
#include "write/target.hpp"

#include <safemap/error.hpp>

#include <algorithm>
#include <iterator>
#include <string_view>
#include <system_error>
#include <utility>

namespace safemap::SAFEMAP_ABI::write {

namespace {

constexpr std::size_t longest_name = 255;

void require_name(const std::string& name, const SaveOptions& options, const Layout& layout) {
    if (name.empty() || name.starts_with('.') || name.size() > longest_name ||
        name.find_first_of(std::string_view("/\0", 2)) != std::string::npos)
        throw Error(Errc::invalid_argument, "invalid name of a folder: " + safemap::quoted(name) +
                                                "; expected at most 255 bytes that do not begin with a dot");
    const auto is_it = [&name](const auto& file) { return file.name == name; };
    if (std::any_of(layout.files.begin(), layout.files.end(), is_it) ||
        std::any_of(options.extras.files.begin(), options.extras.files.end(), is_it))
        throw Error(Errc::invalid_argument, "a folder and a file would both be named " + safemap::quoted(name));
}

/// Returns the options for contents and layout that also apply to folders, as SaveOptions::folders lists them.
SaveOptions options_for_folders(const SaveOptions& options) {
    return {.max_shard_size = options.max_shard_size,
            .max_header_bytes = options.max_header_bytes,
            .alignment = options.alignment,
            .align_tensors = options.align_tensors,
            .strategy = options.strategy,
            .index_style = options.index_style,
            .structure = options.structure,
            .checksums = options.checksums,
            .ranks = options.ranks,
            .rank_dimension = options.rank_dimension};
}

PlannedFolder plan_folder(const std::string& name, const Checkpoint& checkpoint, const SaveOptions& options) {
    PlannedFolder folder;
    folder.name = name;
    folder.input = input_of(checkpoint, metadata_of(checkpoint), options, folder.tensors);
    folder.layout = lay_out(folder.input, own_options(options, folder.input), std::nullopt);
    for (PlannedFile& file : folder.layout.files) file.name.insert(0, name + '/');
    return folder;
}

template <class T> void prepend(std::vector<T>& to, std::vector<T> from) {
    to.insert(to.begin(), std::make_move_iterator(from.begin()), std::make_move_iterator(from.end()));
}

void add(SaveReport::Count& to, const SaveReport::Count& from) {
    to.tensors += from.tensors;
    to.bytes += from.bytes;
}

void add_cast(const SaveReport::Cast& cast, std::vector<SaveReport::Cast>& casts) {
    SaveReport::Cast& sum = cast_of(casts, cast.from, cast.to);
    sum.tensors += cast.tensors;
    sum.values += cast.values;
    sum.overflowed += cast.overflowed;
    sum.non_finite += cast.non_finite;
}

}  // namespace

std::vector<PlannedFolder> plan_folders(const SaveOptions& options, const Layout& layout) {
    std::vector<PlannedFolder> planned;
    SaveOptions inner = options_for_folders(options);
    for (const auto& [name, checkpoint] : options.folders) {
        require_name(name, options, layout);
        inner.dtype = name == names::optimizer_folder ? options.optimizer_dtype : std::nullopt;
        inner.optimizer_dtype = inner.dtype;
        planned.push_back(
            adding([&name = name](Error& error) { error.during("lay out the folder " + name); },
                   [&, &name = name, &checkpoint = checkpoint] { return plan_folder(name, checkpoint, inner); }));
    }
    return planned;
}

void report_folder(const PlannedFolder& folder, SaveReport& report) {
    SaveReport own = report_on(folder.layout);
    report_reading(folder.input, folder.layout, own);
    prepend(report.files, std::move(own.files));
    prepend(report.layout.files, std::move(own.layout.files));
    state::move_to_end(own.skipped, report.skipped);
    state::move_to_end(own.unsupported, report.unsupported);
    for (const SaveReport::Cast& cast : own.casts) add_cast(cast, report.casts);
    std::vector<std::string> notes = folder.input.notes;
    state::move_to_end(own.notes, notes);
    for (const std::string& note : notes) report.notes.push_back(folder.name + "/: " + note);
    report.tensors += own.tensors;
    report.bytes_read += own.bytes_read;
    report.bytes_written = sum_of_sizes(report.bytes_written, own.bytes_written);
    report.layout.unaligned_tensors += own.layout.unaligned_tensors;
    report.reading.unreferenced_bytes += own.reading.unreferenced_bytes;
    add(report.reading.copied, own.reading.copied);
    add(report.reading.gathered, own.reading.gathered);
    add(report.reading.views, own.reading.views);
}

void report_written(const PlannedFolder& folder, SaveReport& report) {
    report.bytes_read += folder.layout.read_bytes;
    for (const SaveReport::Cast& cast : folder.layout.casts) add_cast(cast, report.casts);
    prepend(report.resumed, folder.layout.resumed);
}

std::vector<std::string> notes_on_folders(const std::filesystem::path& out, const SaveOptions& options) {
    const std::string name = names::optimizer_folder;
    std::error_code ignored;
    if (!options.overwrite || options.folders.count(name) != 0 || is_one_file(out, options) ||
        !std::filesystem::is_directory(out / name, ignored))
        return {};
    try {
        if (model_files(out / name, options.max_header_bytes).empty()) return {};
    } catch (const Error& error) {
        if (error.code() != Errc::several_models) return {};
    }
    return {safemap::quoted(name) + " in the output folder is from another save, and stays"};
}

}  // namespace safemap::SAFEMAP_ABI::write
