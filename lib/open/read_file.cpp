// Reads one file with the reader that the table of formats gives.
#include "base/faults.hpp"
#include "open/formats.hpp"
#include "open/layouts.hpp"

#include <filesystem>

namespace safemap::SAFEMAP_ABI::open {

namespace {

[[noreturn]] void refuse_file(const Sniffed& sniffed) {
    Error error(Errc::unknown_format,
                sniffed.looks_like.empty()
                    ? "neither safetensors nor a file of torch.save"
                    : "this is " + sniffed.looks_like + "; expected safetensors or a file of torch.save");
    if (!sniffed.hint.empty()) error.with_hint(sniffed.hint);
    throw error;
}

}  // namespace

Contents read_file(const std::shared_ptr<const Source>& source, const OpenOptions& options, FaultSink& faults) {
    const std::string name = std::filesystem::path(source->name()).filename().native();
    PathSink with_path(faults, source->name());
    return about_file(source->name(), [&] {
        refuse_part(name);
        const Sniffed sniffed = recognise(*source);
        if (sniffed.read == nullptr) refuse_file(sniffed);
        Contents contents = sniffed.read(source, options, with_path);
        contents.format = sniffed.format;
        contents.files = {name};
        contents.sources = {source};
        return contents;
    });
}

}  // namespace safemap::SAFEMAP_ABI::open
