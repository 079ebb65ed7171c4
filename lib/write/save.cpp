// save(): lay out, fill a hidden sibling, rename.
#include <safemap/save.hpp>

#include "write/engine.hpp"
#include "write/extras.hpp"
#include "write/job.hpp"
#include "write/reading.hpp"
#include "write/saving.hpp"
#include "write/structure.hpp"
#include "write/target.hpp"

#include <utility>

namespace safemap::SAFEMAP_ABI {

namespace {

using write::Input;

/// If `replaced` is not empty, the file that is replaced has to have that identity.
SaveReport save_all(const std::filesystem::path& out, const Input& input, const SaveOptions& options,
                    const std::string& replaced = {}) {
    const bool one_file = write::is_one_file(out, options);
    write::Layout layout = write::lay_out_at(out, input, options);
    SaveReport report = write::report_on(layout);
    report.notes.insert(report.notes.begin(), input.notes.begin(), input.notes.end());
    report.buffer_bytes = write::buffer_bytes(input.tensors, layout, options.threads);
    write::report_reading(input, layout, report);
    const write::PlannedExtras extras = write::plan_extras(out, options, layout);
    extras.report(report);
    if (options.plan_only) {
        if (options.on_plan) options.on_plan(report);
        return report;
    }

    const io::Job job{.id = one_file ? std::string() : write::job_of(input.tensors, layout),
                      .resume = options.resume,
                      .replaced = replaced,
                      .durable = options.durable};
    write::Target target(out, options, job);
    if (options.on_plan) options.on_plan(report);
    write::copy_extras(extras, target.staging());
    write::write_files(input.tensors, layout, target.staging(), options.monitor, options.threads);
    target.commit();
    report.notes.insert(report.notes.end(), target.notes().begin(), target.notes().end());
    report.bytes_read = layout.read_bytes;
    report.casts = std::move(layout.casts);
    report.resumed = std::move(layout.resumed);
    return report;
}

}  // namespace

write::Metadata write::metadata_of(const Checkpoint& checkpoint, Metadata given) {
    for (const auto& [key, value] : checkpoint.metadata()) given.try_emplace(key, value);
    for (const AliasGroup& group : checkpoint.aliases())
        for (std::size_t i = 1; i < group.size(); ++i) given.try_emplace(group[i], group.front());
    return given;
}

SaveReport write::save_checkpoint(const std::filesystem::path& out, const Checkpoint& checkpoint, Metadata metadata,
                                  const SaveOptions& options, const std::string& replaced) {
    Input input{.tensors = {checkpoint.begin(), checkpoint.size()},
                .metadata = std::move(metadata),
                .ties = checkpoint.aliases(),
                .storages = checkpoint.storages()};
    std::vector<LazyTensor> with_structure;
    if (auto document = add_structure(checkpoint, options, input)) {
        with_structure.assign(checkpoint.begin(), checkpoint.end());
        with_structure.push_back(std::move(*document));
        input.tensors = with_structure;
    }
    return save_all(out, input, options, replaced);
}

SaveReport save(const std::filesystem::path& out, std::span<const LazyTensor> tensors, const SaveOptions& options) {
    return write::during_save(out, options.one_file, [&] {
        return save_all(out, {.tensors = tensors, .metadata = options.metadata}, options);
    });
}

SaveReport save(const std::filesystem::path& out, const Checkpoint& checkpoint, const SaveOptions& options) {
    return write::during_save(out, options.one_file, [&] {
        write::Metadata metadata =
            options.exact_metadata ? options.metadata : write::metadata_of(checkpoint, options.metadata);
        return write::save_checkpoint(out, checkpoint, std::move(metadata), options);
    });
}

}  // namespace safemap::SAFEMAP_ABI
