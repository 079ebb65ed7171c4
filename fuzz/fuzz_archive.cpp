// Fuzzes whole zips, from the end record to tensor values. Property: any bytes give an Error, or a tree and records
// that do not overlap and lie inside the file, in time and memory proportional to the input. open() throws if and only
// if the reader that collects all faults finds one.
#include "fuzz_target.hpp"
#include "open/formats.hpp"
#include "pickle/zip.hpp"
#include "torch/archive.hpp"
#include "torch/examine.hpp"

#include <safemap/advanced/flatten.hpp>
#include <safemap/checkpoint.hpp>
#include <safemap/state_tree.hpp>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <span>
#include <vector>

namespace fuzz_archive {

using namespace safemap;

namespace {

void require(bool holds) {
    if (!holds) std::abort();
}

void require_sound(const ZipDirectory& zip, std::uint64_t size) {
    std::vector<Extent> places;
    for (const ZipRecord& record : zip.records()) {
        require(record.packed.inside(size));
        require(record.deflated || record.packed.size == record.size);
        require(zip.find(record.name) == &record);
        places.push_back(record.packed);
    }
    std::sort(places.begin(), places.end(), [](Extent a, Extent b) { return a.offset < b.offset; });
    for (std::size_t i = 1; i < places.size(); ++i) require(places[i - 1].end() <= places[i].offset);
}

bool opens(const std::shared_ptr<const Source>& source) {
    try {
        static_cast<void>(Checkpoint::open(source));
        return true;
    } catch (const Error& error) {
        require(remedy(error.code()) == Remedy::reject_data);
        return false;
    }
}

void walk(const std::shared_ptr<const Source>& source) {
    CollectFaults faults;
    require_sound(ZipDirectory::read(source, faults), source->size());
    const torch::Archive archive = torch::read_archive(source, faults);
    const FlatState flat = flatten(archive.tree);
    require(opens(source) == faults.faults().empty());
    for (const auto& record : archive.records) require(record.extent.inside(record.source->size()));
    for (const LazyTensor& tensor : flat.tensors) {
        if (tensor.nbytes() <= 65536) static_cast<void>(tensor.load());
    }
}

}  // namespace

FUZZ_TARGET(archive, data, size) {
    const auto bytes = std::as_bytes(std::span(data, size));
    const auto source = memory_source("fuzz", std::vector<std::byte>(bytes.begin(), bytes.end()));
    state::FindingList findings;
    static_cast<void>(torch::examine(source, {0, size}, "fuzz", findings));
    if (open::sniff(*source).content != open::Content::zip) return 0;
    try {
        walk(source);
    } catch (const Error& error) {
        require(remedy(error.code()) == Remedy::reject_data);
    }
    return 0;
}

}  // namespace fuzz_archive
