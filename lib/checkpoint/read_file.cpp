// Reads one file: safetensors, or an archive of torch.save.
#include "base/name_index.hpp"
#include "base/text.hpp"
#include "checkpoint/contents.hpp"
#include "checkpoint/sniff.hpp"
#include "safetensors/header.hpp"
#include "torch/archive.hpp"

#include <filesystem>

namespace safemap::checkpoint {

namespace {

safetensors::Rules rules_of(Policy policy) {
    switch (policy) {
        case Policy::compatible: return safetensors::Rules::compatible;
        case Policy::strict: return safetensors::Rules::strict;
        case Policy::lenient: return safetensors::Rules::lenient;
    }
    throw Error(Errc::invalid_argument, "a policy that does not exist");
}

Contents read_safetensors(const std::shared_ptr<const Source>& source, const OpenOptions& options, FaultSink& faults) {
    safetensors::Header header = read_header(*source, rules_of(options.policy), options.max_header_bytes, faults);
    Contents contents;
    contents.metadata = std::move(header.metadata);
    contents.notes = std::move(header.notes);
    contents.tensors.reserve(header.tensors.size());
    for (safetensors::TensorInfo info : header.tensors)
        contents.tensors.emplace_back(std::string(info.name),
                                      stored_run(info.dtype, std::move(info.shape), source, info.data.offset));
    return contents;
}

Contents read_torch(const std::shared_ptr<const Source>& source, FaultSink& faults) {
    torch::Archive archive = torch::read_archive(source, faults);
    FlatState flat = flatten(archive.tree);

    Contents contents;
    contents.format = Format::torch;
    contents.notes = std::move(archive.notes);
    contents.notes.insert(contents.notes.end(), flat.notes.begin(), flat.notes.end());
    contents.skipped = std::move(flat.skipped);
    contents.aliases = std::move(flat.aliases);
    contents.tensors = std::move(flat.tensors);
    contents.tree = std::make_shared<const StateTree>(std::move(archive.tree));
    for (torch::Archive::Record& record : archive.records)
        contents.checksums.push_back({std::move(record.source), record.extent, record.crc32, std::move(record.name)});
    return contents;
}

[[noreturn]] void refuse(const Sniffed& sniffed) {
    Error error(Errc::unknown_format, sniffed.looks_like.empty() ? "neither safetensors nor a file of torch.save"
                                                                 : "this is " + sniffed.looks_like +
                                                                       "; wanted safetensors or a file of torch.save");
    if (!sniffed.hint.empty()) error.with_hint(sniffed.hint);
    throw error;
}

Contents read_known(const std::shared_ptr<const Source>& source, const OpenOptions& options, FaultSink& faults) {
    if (source->name().ends_with(".safetensors")) return read_safetensors(source, options, faults);
    const Sniffed sniffed = sniff(*source);
    switch (sniffed.content) {
        case Content::safetensors: return read_safetensors(source, options, faults);
        case Content::zip: return read_torch(source, faults);
        case Content::json:
        case Content::unknown: break;
    }
    refuse(sniffed);
}

}  // namespace

Contents read_file(const std::shared_ptr<const Source>& source, const OpenOptions& options, FaultSink& faults) {
    PathSink with_path(faults, source->name());
    try {
        Contents contents = read_known(source, options, with_path);
        contents.files = {std::filesystem::path(source->name()).filename().native()};
        contents.sources = {source};
        return contents;
    } catch (Error& error) {
        throw std::move(error.with_path(source->name()));
    }
}

}  // namespace safemap::checkpoint
