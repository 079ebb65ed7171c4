// save(): lays out, fills a hidden sibling and renames it; or fills a sink.
#include <safemap/save.hpp>

#include "checkpoint/origin.hpp"
#include "write/destination.hpp"
#include "write/extras.hpp"
#include "write/folders.hpp"
#include "write/resume_key.hpp"
#include "write/saving.hpp"
#include "write/shard_copier.hpp"
#include "write/storage_use.hpp"
#include "write/structure.hpp"
#include "write/target.hpp"

#include <algorithm>
#include <memory>
#include <utility>

namespace safemap::SAFEMAP_ABI {

namespace {

using write::Input;

/// Returns the report on the plan, which is available before the first byte is written.
SaveReport planned(const Input& input, const write::Layout& layout, const SaveOptions& options) {
    SaveReport report = write::report_on(layout);
    report.notes.insert(report.notes.begin(), input.notes.begin(), input.notes.end());
    report.layout.buffer_bytes =
        write::buffer_bytes(written_tensors(input.tensors, layout), layout, options.work.threads);
    write::report_reading(input, layout, report);
    return report;
}

/// Adds what is known after everything is copied.
void add_done(SaveReport& report, write::Layout& layout) {
    report.bytes_read = layout.read_bytes;
    report.casts = std::move(layout.casts);
    report.resumed = std::move(layout.resumed);
}

/// Returns the key of the save with all its folders, or an empty string if one of the checkpoints cannot be identified.
std::string resume_key_of_all(const Input& input, const write::Layout& layout,
                              const std::vector<write::PlannedFolder>& folders) {
    std::string all = write::resume_key_of(written_tensors(input.tensors, layout), layout);
    for (const write::PlannedFolder& folder : folders) {
        const std::string job =
            write::resume_key_of(written_tensors(folder.input.tensors, folder.layout), folder.layout);
        if (all.empty() || job.empty()) return {};
        all += '-' + job;
    }
    return all;
}

/// Saves to a path. If `replaced` is not empty, the file to be replaced must have that identity.
SaveReport save_all(const std::filesystem::path& out, const Input& input, const SaveOptions& options,
                    const std::string& replaced = {}) {
    const bool one_file = write::is_one_file(out, options);
    write::Layout layout = write::lay_out_at(out, input, options);
    SaveReport report = planned(input, layout, options);
    const write::PlannedExtras extras = write::plan_extras(out, options, layout);
    extras.report(report);
    std::vector<write::PlannedFolder> folders = write::plan_folders(options, layout);
    for (const write::PlannedFolder& folder : folders) {
        write::report_folder(folder, report);
        const std::uint64_t buffers = write::buffer_bytes(written_tensors(folder.input.tensors, folder.layout),
                                                          folder.layout, options.work.threads);
        report.layout.buffer_bytes = std::max(report.layout.buffer_bytes, buffers);
    }
    for (std::string& note : write::notes_on_folders(out, options)) report.notes.push_back(std::move(note));
    if (options.plan_only) {
        if (options.on_plan) options.on_plan(report);
        return report;
    }

    const io::StagingOptions job{.id = one_file ? std::string() : resume_key_of_all(input, layout, folders),
                                 .resume = options.resume,
                                 .replaced = replaced,
                                 .durable = options.durable};
    write::Target target(out, options, job);
    if (options.on_plan) options.on_plan(report);
    write::copy_extras(extras, target.staging());
    std::vector<std::unique_ptr<write::Destination>> destinations;
    std::vector<write::Written> parts;
    const auto add = [&](std::span<const LazyTensor> tensors, write::Layout& written) {
        destinations.push_back(write::into_staging(target.staging(), written));
        parts.push_back({written_tensors(tensors, written), written, *destinations.back()});
    };
    for (write::PlannedFolder& folder : folders) {
        target.staging().add_folder(folder.name);
        add(folder.input.tensors, folder.layout);
    }
    add(input.tensors, layout);  // last: the last file is the index, which names the others
    write::write_files(parts, options.work.monitor, options.work.threads, options.drop_cache);
    target.commit();
    report.notes.insert(report.notes.end(), target.notes().begin(), target.notes().end());
    add_done(report, layout);
    for (const write::PlannedFolder& folder : folders) write::report_written(folder, report);
    return report;
}

SaveReport save_to(Sink& sink, const Input& input, const SaveOptions& options) {
    write::Layout layout = write::lay_out_for(sink, input, options);
    SaveReport report = planned(input, layout, options);
    if (options.on_plan) options.on_plan(report);
    if (options.plan_only) return report;
    const auto destination = write::into_sink(sink);
    try {
        const write::Written all[] = {{input.tensors, layout, *destination}};
        write::write_files(all, options.work.monitor, options.work.threads, options.drop_cache);
        destination->commit();
    } catch (...) {
        destination->abandon();
        throw;
    }
    add_done(report, layout);
    return report;
}

}  // namespace

write::Metadata write::metadata_of(const Checkpoint& checkpoint, Metadata given) {
    for (const auto& [key, value] : checkpoint.metadata()) given.try_emplace(key, value);
    for (const AliasGroup& group : checkpoint.aliases())
        for (std::size_t i = 1; i < group.size(); ++i) given.try_emplace(group[i], group.front());
    return given;
}

write::Input write::input_of(const Checkpoint& checkpoint, Metadata metadata, const SaveOptions& options,
                             std::vector<LazyTensor>& with_structure) {
    Input input{.tensors = {checkpoint.begin(), checkpoint.size()},
                .metadata = std::move(metadata),
                .ties = checkpoint.aliases(),
                .storages = checkpoint::Origin::storages(checkpoint)};
    if (auto document = add_structure(checkpoint, options, input)) {
        with_structure.assign(checkpoint.begin(), checkpoint.end());
        with_structure.push_back(std::move(*document));
        input.tensors = with_structure;
    }
    return input;
}

namespace {

write::Metadata wanted_metadata(const Checkpoint& checkpoint, const SaveOptions& options) {
    return options.exact_metadata ? options.metadata : write::metadata_of(checkpoint, options.metadata);
}

}  // namespace

SaveReport write::save_checkpoint(const std::filesystem::path& out, const Checkpoint& checkpoint, Metadata metadata,
                                  const SaveOptions& options, const std::string& replaced) {
    std::vector<LazyTensor> with_structure;
    const Input input = input_of(checkpoint, std::move(metadata), options, with_structure);
    return save_all(out, input, options, replaced);
}

SaveReport save(const std::filesystem::path& out, std::span<const LazyTensor> tensors, const SaveOptions& options) {
    return write::during_save(out, options.one_file, [&] {
        return save_all(out, {.tensors = tensors, .metadata = options.metadata}, options);
    });
}

SaveReport save(const std::filesystem::path& out, const Checkpoint& checkpoint, const SaveOptions& options) {
    return write::during_save(out, options.one_file, [&] {
        return write::save_checkpoint(out, checkpoint, wanted_metadata(checkpoint, options), options);
    });
}

SaveReport save(Sink& sink, std::span<const LazyTensor> tensors, const SaveOptions& options) {
    return write::during_save(
        sink, [&] { return save_to(sink, {.tensors = tensors, .metadata = options.metadata}, options); });
}

SaveReport save(Sink& sink, const Checkpoint& checkpoint, const SaveOptions& options) {
    return write::during_save(sink, [&] {
        std::vector<LazyTensor> with_structure;
        const Input input = write::input_of(checkpoint, wanted_metadata(checkpoint, options), options, with_structure);
        return save_to(sink, input, options);
    });
}

}  // namespace safemap::SAFEMAP_ABI
