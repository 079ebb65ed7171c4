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

Contents read_by_itself(const std::shared_ptr<const Source>& source, const OpenOptions& options, FaultSink& faults) {
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

/// Returns the contents as a plain file, also if the classes in it are those of torch.distributed, which only
/// read_part() knows.
Contents read_loosely(const std::shared_ptr<const Source>& source, OpenOptions options) {
    options.strict_globals = false;
    Contents contents;
    CollectFaults unused;
    reporting(unused, [&] { contents = read_by_itself(source, options, unused); });
    return contents;
}

}  // namespace

Contents read_file(const std::shared_ptr<const Source>& source, const OpenOptions& options, FaultSink& faults) {
    if (options.as_parts) return read_by_itself(source, options, faults);
    Contents contents =
        options.strict_globals ? read_loosely(source, options) : read_by_itself(source, options, faults);
    if (contents.format == Format::torch && !contents.sources.empty())
        if (auto whole = about_file(source->name(), [&] { return read_part(source, contents, options); }))
            return *std::move(whole);
    if (options.strict_globals) return read_by_itself(source, options, faults);
    return contents;
}

}  // namespace safemap::SAFEMAP_ABI::open
