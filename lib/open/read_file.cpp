// Reads one file with the reader that the table of formats gives. Turns the contents of a torch file into names and
// tensors.
#include "base/checked.hpp"
#include "base/faults.hpp"
#include "base/text.hpp"
#include "open/formats.hpp"
#include "open/layouts.hpp"
#include "open/read_torch.hpp"
#include "state/findings.hpp"

#include <algorithm>
#include <filesystem>
#include <iterator>
#include <limits>
#include <optional>
#include <utility>

namespace safemap::SAFEMAP_ABI::open {

namespace {

[[noreturn]] void refuse_file(const Sniffed& sniffed) {
    Error error(Errc::unknown_format,
                "this is " + (sniffed.looks_like.empty() ? "a file of no known format" : sniffed.looks_like) +
                    "; expected safetensors or a file of torch.save");
    if (!sniffed.hint.empty()) error.with_hint(sniffed.hint);
    throw error;
}

/// Adds the path to a fault, and a hint if the file ends too early.
class OfFile final : public FaultSink {
public:
    OfFile(FaultSink& next, const Source& source) : next_(next), source_(source) {}
    void fault(Error error) override {
        add(error);
        next_.fault(std::move(error));
    }
    void add(Error& error) const {
        constexpr Errc truncated[] = {Errc::file_truncated, Errc::header_past_end, Errc::pickle_truncated};
        error.with_path(source_.name());
        if (std::find(std::begin(truncated), std::end(truncated), error.code()) != std::end(truncated))
            error.with_hint(interrupted);
    }

private:
    FaultSink& next_;
    const Source& source_;
};

/// Adds a note if the values take far more bytes than the file: a small file can fill a disk.
void note_expansion(const Source& source, Contents& contents) {
    constexpr std::uint64_t least = 64 << 20;
    constexpr std::uint64_t times = 16;
    std::uint64_t values = 0;
    for (const LazyTensor& tensor : contents.tensors)
        values = checked_add(values, tensor.nbytes()).value_or(std::numeric_limits<std::uint64_t>::max());
    if (values < least || values / times < source.size()) return;
    contents.notes.push_back("the values take " + bytes_text(values) + ", but the file has only " +
                             bytes_text(source.size()) +
                             ": tensors are expanded (a few elements, repeated) or compressed; convert writes all "
                             "values, and convert --dry-run shows the size");
}

Contents read_by_itself(const std::shared_ptr<const Source>& source, const OpenOptions& options, FaultSink& faults) {
    const std::string name = std::filesystem::path(source->name()).filename().native();
    OfFile of_file(faults, *source);
    return adding([&](Error& error) { of_file.add(error); },
                  [&] {
                      refuse_part(name);
                      const Sniffed sniffed = recognise(*source);
                      if (sniffed.read == nullptr) refuse_file(sniffed);
                      Contents contents = sniffed.read(source, options, of_file);
                      note_expansion(*source, contents);
                      contents.format = sniffed.format;
                      contents.files = {name};
                      contents.sources = {source};
                      return contents;
                  });
}

/// Returns the whole tensors of a file of a rank; nothing if `plain` is no such file.
std::optional<Contents> read_whole(const std::shared_ptr<const Source>& source, const Contents& plain,
                                   const OpenOptions& options) {
    if (plain.format != Format::torch || plain.sources.empty()) return std::nullopt;
    return about_file(source->name(), [&] { return read_part(source, plain, options); });
}

/// Reads a file whose classes may be those of torch.distributed, which only read_part() knows: what is strict about
/// other classes does not say whether the file is that of a rank.
Contents read_strictly(const std::shared_ptr<const Source>& source, const OpenOptions& options, FaultSink& faults) {
    CollectFaults found;
    Contents strict;
    reporting(found, [&] { strict = read_by_itself(source, options, found); });
    Contents loose;
    if (!found.faults().empty()) {
        OpenOptions without = options;
        without.strict_globals = false;
        CollectFaults unused;
        reporting(unused, [&] { loose = read_by_itself(source, without, unused); });
    }
    if (auto whole = read_whole(source, found.faults().empty() ? strict : loose, options)) return *std::move(whole);
    for (Error& error : found.take()) faults.fault(std::move(error));
    return strict;
}

}  // namespace

Contents read_file(const std::shared_ptr<const Source>& source, const OpenOptions& options, FaultSink& faults) {
    if (options.as_parts) return read_by_itself(source, options, faults);
    if (options.strict_globals) return read_strictly(source, options, faults);
    Contents contents = read_by_itself(source, options, faults);
    if (auto whole = read_whole(source, contents, options)) return *std::move(whole);
    return contents;
}

// ---- files of torch

void add_globals(const torch::NamedGlobals& globals, const std::string& prefix, Contents& contents) {
    for (NamedGlobal named : globals.all()) {
        named.record.insert(0, prefix);
        contents.globals.push_back(std::move(named));
    }
    if (const auto note = globals.note()) contents.notes.push_back(prefix + *note);
    state::add_findings(globals.findings(), contents.findings, prefix);
    contents.asks_for_code = contents.asks_for_code || globals.asks_for_code();
}

Contents contents_of(torch::Archive archive, const torch::NamedGlobals& globals) {
    Contents contents;
    contents.notes = std::move(archive.notes);
    if (archive.flat) state::set_flat(contents, std::move(*archive.flat));
    else state::set_tree(contents, std::move(archive.tree));
    add_globals(globals, {}, contents);
    contents.stored = {.checksums = std::move(archive.records), .storages = std::move(archive.storages)};
    return contents;
}

}  // namespace safemap::SAFEMAP_ABI::open
