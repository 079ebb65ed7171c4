// Reads one file: safetensors, or what torch wrote.
#include "open/layouts.hpp"
#include "open/named_globals.hpp"
#include "open/olmo.hpp"
#include "open/readers.hpp"
#include "open/sniff.hpp"
#include "open/structure.hpp"
#include "safetensors/header.hpp"
#include "torch/archive.hpp"
#include "torch/legacy.hpp"
#include "torch/plain.hpp"
#include "torch/tar.hpp"

#include <filesystem>

namespace safemap::SAFEMAP_ABI::open {

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
    take_structure(contents, options.policy, faults);
    if (!contents.tree && options.olmo_names) take_olmo_names(contents, options);
    return contents;
}

Contents contents_of(torch::Archive archive, const torch::NamedGlobals& globals) {
    FlatState flat = flatten(archive.tree);

    Contents contents;
    contents.format = Format::torch;
    contents.notes = std::move(archive.notes);
    contents.notes.insert(contents.notes.end(), flat.notes.begin(), flat.notes.end());
    add_globals(globals, {}, contents);
    contents.only_in_tree = std::move(flat.only_in_tree);
    contents.skipped = std::move(flat.skipped);
    contents.aliases = std::move(flat.aliases);
    contents.tensors = std::move(flat.tensors);
    contents.tree = std::make_shared<const StateTree>(std::move(archive.tree));
    for (RecordData& storage : archive.storages)
        contents.storages.push_back({std::move(storage.source), storage.extent});
    contents.checksums.reserve(archive.records.size());
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

/// A file that both formats can read shows its tensors here and runs its code in torch.load.
void refuse_second_format(const Source& source) {
    const std::string_view other = torch_takes_for(source);
    if (other.empty()) return;
    throw Error(Errc::unknown_global, "this is safetensors, and torch.load reads it as " + std::string(other) +
                                          " that may call any function; wanted a file of one format")
        .with_hint("do not load it with torch.load; a name that ends in .safetensors says that it is safetensors");
}

/// Says of a file that is no safetensors, whatever its name, what it is.
class Recognise final : public FaultSink {
public:
    Recognise(FaultSink& next, const Source& source) : next_(next), source_(source) {}

    void fault(Error error) override { next_.fault(is_length(error.code()) ? recognised(error) : std::move(error)); }

private:
    static bool is_length(Errc code) {
        return code == Errc::header_too_short || code == Errc::header_too_large || code == Errc::header_past_end;
    }
    Error recognised(const Error& error) const {
        const Sniffed sniffed = sniff(source_);
        const std::string is = sniffed.content == Content::zip ? "a zip, as torch.save writes" : sniffed.looks_like;
        Error known(error.code(), error.message() + (is.empty() ? "" : "; this is " + is));
        return std::move(known.with_hint(sniffed.hint));
    }

    FaultSink& next_;
    const Source& source_;
};

/// Who reads which content of torch. A new format is a row here, and one in sniff.cpp.
struct TorchFormat {
    Content content;
    torch::Archive (*read)(const std::shared_ptr<const Source>&, FaultSink&, torch::NamedGlobals*);
};

constexpr TorchFormat torch_formats[] = {
    {Content::zip, torch::read_archive},
    {Content::legacy, torch::read_legacy},
    {Content::pickle, torch::read_plain},
    {Content::tar, torch::read_tar},
};

Contents read_known(const std::shared_ptr<const Source>& source, const OpenOptions& options, FaultSink& faults) {
    refuse_part(std::filesystem::path(source->name()).filename().native());
    if (source->name().ends_with(".safetensors")) {
        Recognise recognise(faults, *source);
        return read_safetensors(source, options, recognise);
    }
    const Sniffed sniffed = sniff(*source);
    if (sniffed.content == Content::safetensors) {
        if (options.strict_globals) refuse_second_format(*source);
        return read_safetensors(source, options, faults);
    }
    torch::NamedGlobals globals(options.strict_globals);
    for (const TorchFormat& format : torch_formats)
        if (format.content == sniffed.content) return contents_of(format.read(source, faults, &globals), globals);
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

}  // namespace safemap::SAFEMAP_ABI::open
