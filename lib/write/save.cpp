// save(): lay out, fill a hidden sibling, rename.
#include <safemap/save.hpp>

#include "write/engine.hpp"
#include "write/job.hpp"
#include "write/saving.hpp"
#include "write/target.hpp"

namespace safemap {

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

}  // namespace

SaveReport write::save_all(const std::filesystem::path& out, std::span<const LazyTensor> tensors,
                           const Metadata& metadata, const SaveOptions& options, const std::string& replaced) {
    Layout layout = lay_out_at(out, tensors, metadata, options);
    if (options.plan_only) {
        SaveReport report = report_on(layout);
        report.buffer_bytes = buffer_bytes(tensors, layout, options.threads);
        return report;
    }

    const io::Job job{.id = names_file(out) ? std::string() : job_of(tensors, layout),
                      .resume = options.resume,
                      .replaced = replaced};
    Target target(out, options.overwrite, job);
    write_files(tensors, layout, target.staging(), options.monitor, options.threads);
    target.commit();
    return report_on(layout);
}

SaveReport save(const std::filesystem::path& out, std::span<const LazyTensor> tensors, const SaveOptions& options) {
    return write::during_save(out, [&] { return write::save_all(out, tensors, options.metadata, options); });
}

SaveReport save(const std::filesystem::path& out, const Checkpoint& checkpoint, const SaveOptions& options) {
    return write::during_save(out, [&] {
        return write::save_all(out, {checkpoint.begin(), checkpoint.size()}, metadata_of(checkpoint, options), options);
    });
}

}  // namespace safemap
