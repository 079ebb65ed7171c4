// save(): lay out, fill a hidden sibling, rename.
#include <safemap/save.hpp>

#include "write/engine.hpp"
#include "write/extras.hpp"
#include "write/job.hpp"
#include "write/reading.hpp"
#include "write/saving.hpp"
#include "write/target.hpp"

namespace safemap::SAFEMAP_ABI {

namespace {

using write::Metadata;

/// As huggingface_hub tells of tied tensors. What the caller says goes over what the checkpoint said.
Metadata metadata_of(const Checkpoint& checkpoint, const SaveOptions& options) {
    Metadata metadata = options.metadata;
    for (const auto& [key, value] : checkpoint.metadata()) metadata.try_emplace(key, value);
    for (const AliasGroup& group : checkpoint.aliases())
        for (std::size_t i = 1; i < group.size(); ++i) metadata.try_emplace(group[i], group.front());
    return metadata;
}

/// All that safetensors has a dtype for, under their names.
StoredName saved_name(const Checkpoint& checkpoint) {
    return [&checkpoint](const std::string& name) -> std::optional<std::string> {
        const LazyTensor* const tensor = checkpoint.find(name);
        if (tensor == nullptr || !in_safetensors(tensor->dtype())) return std::nullopt;
        return name;
    };
}

}  // namespace

SaveReport write::save_all(const std::filesystem::path& out, std::span<const LazyTensor> tensors,
                           const Metadata& metadata, const SaveOptions& options, const std::string& replaced) {
    Layout layout = lay_out_at(out, tensors, metadata, options);
    SaveReport report = report_on(layout);
    report.buffer_bytes = buffer_bytes(tensors, layout, options.threads);
    report_reading(tensors, layout, report);
    const PlannedExtras extras = plan_extras(out, options, layout);
    extras.report(report);
    const auto tell = [&] {
        if (options.on_plan) options.on_plan(report);
    };
    if (options.plan_only) {
        tell();
        return report;
    }

    const io::Job job{.id = names_file(out) ? std::string() : job_of(tensors, layout),
                      .resume = options.resume,
                      .replaced = replaced};
    Target target(out, options.overwrite, job);
    tell();
    copy_extras(extras, target.staging());
    write_files(tensors, layout, target.staging(), options.monitor, options.threads);
    target.commit();
    report.notes.insert(report.notes.end(), target.notes().begin(), target.notes().end());
    report.bytes_read = layout.read_bytes;
    report.casts = std::move(layout.casts);
    report.resumed = std::move(layout.resumed);
    return report;
}

std::uint64_t unreferenced_bytes(const Checkpoint& checkpoint, const Selection& selection) {
    std::vector<const LazyTensor*> tensors;
    for (const NamedTensor& named : all_names(checkpoint, selection)) {
        const LazyTensor* const tensor = &checkpoint.tensor(named.tensor);
        if (tensors.empty() || tensors.back() != tensor) tensors.push_back(tensor);
    }
    return write::storage_use(tensors, checkpoint.storages()).unreferenced;
}

SaveReport save(const std::filesystem::path& out, std::span<const LazyTensor> tensors, const SaveOptions& options) {
    return write::during_save(out, [&] { return write::save_all(out, tensors, options.metadata, options); });
}

SaveReport save(const std::filesystem::path& out, const Checkpoint& checkpoint, const SaveOptions& options) {
    return write::during_save(out, [&] {
        SaveOptions full = options;
        full.metadata = metadata_of(checkpoint, options);
        const AddedStructure added = add_structure(checkpoint, saved_name(checkpoint), full);
        std::span<const LazyTensor> tensors(checkpoint.begin(), checkpoint.size());
        std::vector<LazyTensor> with_structure;
        if (added.tensor) {
            with_structure.assign(tensors.begin(), tensors.end());
            with_structure.push_back(*added.tensor);
            tensors = with_structure;
        }
        const auto with_notes = [&added](SaveReport report) {
            report.notes.insert(report.notes.begin(), added.notes.begin(), added.notes.end());
            return report;
        };
        if (options.on_plan) full.on_plan = [&](const SaveReport& plan) { options.on_plan(with_notes(plan)); };
        return with_notes(write::save_all(out, tensors, full.metadata, full));
    });
}

}  // namespace safemap::SAFEMAP_ABI
