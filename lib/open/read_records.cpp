// Lists the records of a torch file, for verify(). Reads its directory and none of its pickles.
#include "base/zstd.hpp"
#include "io/file_folder.hpp"
#include "open/formats.hpp"
#include "open/read.hpp"
#include "pickle/zip.hpp"

#include <filesystem>
#include <limits>
#include <string>
#include <system_error>
#include <utility>

namespace safemap::SAFEMAP_ABI::open {

namespace {

void add_records(const ZipDirectory& zip, Contents& contents) {
    for (const ZipRecord& record : zip.records()) {
        if (!record.deflated && !record.has_crc32()) continue;
        RecordData data = zip.open(record);
        if (record.has_crc32())
            contents.stored.checksums.push_back(
                {std::move(data.source), data.extent, record.crc32, std::string(record.name)});
        else contents.stored.storages.push_back({std::move(data.source), data.extent});
    }
}

Contents records_of(const std::shared_ptr<const Source>& source, FaultSink& faults) {
    Contents contents;
    if (sniff(*source).content == Content::zip) add_records(ZipDirectory::read(source, faults), contents);
    contents.sources.push_back(source);
    return contents;
}

/// Adds the torch files in a folder, and in `levels` levels of folders below it, as paths that begin with `prefix`.
void add_files(const Folder& folder, const std::string& prefix, int levels, FileNames& files) {
    for (const std::string& name : folder.list())
        if (name.ends_with(".pt")) files.push_back(prefix + name);
    if (levels == 0) return;
    for (const std::string& name : folder.folders())
        if (const auto below = folder.folder(name)) add_files(*below, prefix + name + '/', levels - 1, files);
}

}  // namespace

Contents read_records(const std::shared_ptr<const Source>& source, FaultSink& faults) {
    Contents contents;
    reporting(faults, [&] { about_file(source->name(), [&] { contents = records_of(source, faults); }); });
    return contents;
}

Contents read_records(const std::shared_ptr<const Source>& source, Extent part, FaultSink& faults) {
    Contents contents;
    add_records(ZipDirectory::read(source, part, *source, faults), contents);
    return contents;
}

std::shared_ptr<const Source> unpacked_item(const std::string& name, const std::shared_ptr<const Source>& source,
                                            Extent packed) {
    // open() has read the item, and has limited its size by that of its chunk.
    const std::uint64_t size = scan_zstd(name, *source, packed, std::numeric_limits<std::uint64_t>::max()).size;
    return zstd_source(name, source, packed, size);
}

RunFiles files_of_run(const std::filesystem::path& path) {
    std::error_code ignored;
    if (!std::filesystem::is_directory(path, ignored)) return {};
    CollectFaults unused;
    RunFiles run;
    reporting(unused, [&] {
        const Located found = locate(open_folder(path, Mapping::never), OpenOptions().max_header_bytes);
        if (found.shape.kind == ShapeKind::rank_files || found.shape.kind == ShapeKind::ranks_lack) {
            run = {found.folder, found.shape.present};
            return;
        }
        const bool universal = found.shape.kind == ShapeKind::universal;
        if ((!universal && found.shape.kind != ShapeKind::deepspeed) || found.shape.files.empty()) return;
        run.folder = found.folder;
        const std::string& tag = found.shape.files.front();
        const auto below = found.shape.inside ? found.folder->folder(tag) : nullptr;
        // The state of a parameter is in a folder of its own: TAG/zero/PARAMETER/fp32.pt.
        if (below) add_files(*below, tag + '/', universal ? 2 : 0, run.files);
        else add_files(*found.folder, "", universal ? 2 : 0, run.files);
    });
    return run;
}

}  // namespace safemap::SAFEMAP_ABI::open
