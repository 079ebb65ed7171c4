// Lists the records of a torch file, for verify(). Reads its directory and none of its pickles.
#include "base/zstd.hpp"
#include "open/formats.hpp"
#include "open/read.hpp"
#include "pickle/zip.hpp"

#include <limits>
#include <string>
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

}  // namespace safemap::SAFEMAP_ABI::open
