// save(): lay out, fill a hidden sibling, rename.
#include <safemap/save.hpp>

#include "tensor/convert.hpp"
#include "write/engine.hpp"
#include "write/layout.hpp"
#include "write/shards.hpp"
#include "write/target.hpp"

#include <string>

namespace safemap {

namespace {

using write::Layout;
using write::Metadata;

void require_sense(const SaveOptions& options) {
    const std::uint32_t alignment = options.alignment;
    if (alignment != 8 && alignment != 64 && alignment != 256 && alignment != 4096)
        throw Error(Errc::invalid_argument, "alignment " + std::to_string(alignment) + ", wanted 8, 64, 256 or 4096");
    if (options.dtype && !is_castable(*options.dtype))
        throw Error(Errc::unsupported_cast, "there are no casts to " + std::string(name(*options.dtype)));
}

SaveReport report_on(Layout& layout) {
    SaveReport report;
    report.tensors = layout.tensors;
    report.bytes_read = layout.read_bytes;
    report.casts = std::move(layout.casts);
    report.skipped = std::move(layout.skipped);
    for (const auto& file : layout.files) {
        report.files.push_back(file.name);
        report.bytes_written = write::sum_of_sizes(report.bytes_written, file.size);
    }
    return report;
}

SaveReport save_all(const std::filesystem::path& out, std::span<const LazyTensor> tensors, const Metadata& metadata,
                    const SaveOptions& options) {
    require_sense(options);
    const bool one_file = write::names_file(out);
    // Before the names, so that the commonest mistake is told first; the target looks again.
    if (!options.plan_only && !options.overwrite) io::require_absent(out);
    Layout layout =
        write::lay_out(tensors, metadata, options, one_file ? std::optional(out.filename().native()) : std::nullopt);
    if (options.plan_only) return report_on(layout);

    write::Target target(out, options.overwrite);
    write::write_files(tensors, layout, target.staging(), options.monitor, options.threads);
    target.commit();
    return report_on(layout);
}

/// "save out/" before whatever went wrong.
template <class Run> SaveReport during_save(const std::filesystem::path& out, Run&& run) {
    try {
        return run();
    } catch (Error& error) {
        const std::string& path = out.native();
        const bool folder = !write::names_file(out) && !path.ends_with('/');
        error.during("save " + path + (folder ? "/" : ""));
        throw;
    }
}

/// As huggingface_hub tells of tied tensors. What the caller says goes over what the checkpoint said.
Metadata metadata_of(const Checkpoint& checkpoint, const SaveOptions& options) {
    Metadata metadata = options.metadata;
    for (const auto& [key, value] : checkpoint.metadata()) metadata.try_emplace(key, value);
    for (const AliasGroup& group : checkpoint.aliases())
        for (std::size_t i = 1; i < group.size(); ++i) metadata.try_emplace(group[i], group.front());
    return metadata;
}

}  // namespace

SaveReport save(const std::filesystem::path& out, std::span<const LazyTensor> tensors, const SaveOptions& options) {
    return during_save(out, [&] { return save_all(out, tensors, options.metadata, options); });
}

SaveReport save(const std::filesystem::path& out, const Checkpoint& checkpoint, const SaveOptions& options) {
    return during_save(out, [&] {
        return save_all(out, {checkpoint.begin(), checkpoint.size()}, metadata_of(checkpoint, options), options);
    });
}

}  // namespace safemap
