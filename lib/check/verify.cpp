// Reads every byte of a checkpoint, compares all checksums, and collects the faults.
#include <safemap/verify.hpp>

#include "base/checked.hpp"
#include "base/text.hpp"
#include "base/watch.hpp"
#include "check/stored_digests.hpp"
#include "check/stretches.hpp"
#include "check/training_files.hpp"
#include "check/whole_digest.hpp"
#include "open/read.hpp"
#include "state/findings.hpp"

#include <algorithm>
#include <functional>
#include <iterator>
#include <limits>
#include <string>
#include <unordered_set>
#include <utility>
#include <vector>

namespace safemap::SAFEMAP_ABI {

namespace {

using check::FileDigests;
using check::Stretch;
using check::WholeDigest;
using state::Contents;
using state::move_to_end;

/// Adds the names that are not there yet.
void add_names(const std::vector<std::string>& from, std::vector<std::string>& to) {
    const std::unordered_set<std::string> known(to.begin(), to.end());
    std::copy_if(from.begin(), from.end(), std::back_inserter(to),
                 [&known](const std::string& name) { return !known.contains(name); });
}

/// Returns true for the files of a training run, whose records are read file by file.
bool is_run(const Contents& contents) { return contents.format == Format::zero || contents.format == Format::fsdp; }

/// Checks that wait until the bytes of all files are read.
struct Later {
    std::vector<FileDigests> files = {};
    std::vector<WholeDigest> wholes = {};

    std::uint64_t bytes() const {
        std::uint64_t total = 0;
        for (const WholeDigest& whole : wholes) total = checked_add(total, whole.bytes()).value_or(total);
        return total;
    }
    /// Compares digests of whole tensors, unless parts of them are wrong already.
    void compare(unsigned threads, Watch& watch, VerifyReport& report) const {
        CollectFaults faults;
        for (const WholeDigest& whole : wholes)
            if (report.ok()) whole.compare(threads, watch, faults);
        move_to_end(faults.take(), report.faults);
    }
};

Error not_indexed(const state::Unindexed& tensor) {
    Error error(Errc::index_lacks_tensor, "the shard holds it, but the index does not name it");
    error.with_path(tensor.shard).with_tensor(tensor.name);
    return error.with_hint("`safemap repair` writes an index that names it");
}

/// Returns why save() refuses the name of a tensor; empty if it does not.
std::string_view why_not_saved(std::string_view name) {
    if (name.find('\0') != std::string_view::npos) return "it has a NUL byte";
    if (name == "__metadata__") return "it is reserved";
    return is_utf8(name) ? std::string_view() : "it is not UTF-8";
}

/// Returns why save() refuses another name of a tied tensor, which it writes as a key of the metadata.
std::string_view why_not_tied(std::string_view name) {
    const bool has_meaning = name == "format" || name.starts_with("safemap.");
    return has_meaning ? "it is the name of a tied tensor, and a metadata key with a meaning" : why_not_saved(name);
}

/// Adds a note on the names that save() refuses.
void note_refused_names(const Contents& contents, std::vector<std::string>& notes) {
    std::uint64_t count = 0;
    std::string first;
    const auto look = [&](const std::string& name, std::string_view why) {
        if (!why.empty() && count++ == 0) first = safemap::quoted(name) + ": " + std::string(why);
    };
    for (const LazyTensor& tensor : contents.tensors) look(tensor.name(), why_not_saved(tensor.name()));
    for (const AliasGroup& group : contents.aliases)
        for (std::size_t i = 1; i < group.size() && contents.format != Format::safetensors; ++i)
            look(group[i], why_not_tied(group[i]));
    if (count > 0)
        notes.push_back("convert refuses " + counted(count, "name") + ", the first is " + first +
                        "; --rename 's/RE/TEXT/' changes it");
}

/// State of an optimizer that is sound, but not read: no fault.
bool is_unnamed(const Error& error) { return error.code() == Errc::optimizer_unnamed; }

std::string note_of(const Error& error) {
    return (error.path().empty() ? std::string() : excerpt(error.path()) + ": ") + "not read: " + error.message();
}

/// Handles faults as another sink does, apart from the optimizer's state without names, which becomes a note.
class NamedStates final : public FaultSink {
public:
    NamedStates(FaultSink& next, std::vector<std::string>& notes) : next_(next), notes_(notes) {}
    void fault(Error error) override {
        if (is_unnamed(error)) notes_.push_back(note_of(error));
        else next_.fault(std::move(error));
    }

private:
    FaultSink& next_;
    std::vector<std::string>& notes_;
};

/// Opens a checkpoint and checks all that can be checked without reading its data. Adds to `later` and `report`. If it
/// is the state of an optimizer beside its model, `beside` is how the model gives it.
Contents look_at(const std::filesystem::path& path, const VerifyOptions& options, Later& later, VerifyReport& report,
                 const std::function<Contents()>& beside = {}) {
    CollectFaults collected;
    NamedStates faults(collected, report.notes);
    Contents contents;
    OpenOptions open_options = options.open;
    open_options.work = options.work;
    reporting(faults, [&] {
        contents = beside ? beside() : open::read_path(path, open_options, faults);
        report.bytes += state::total_bytes(contents);
    });
    report.tensors += contents.tensors.size();
    for (const state::Unindexed& tensor : contents.unindexed) faults.fault(not_indexed(tensor));
    if (is_run(contents)) {
        contents.sources.clear();  // check_rank_files() reads them
        const auto look_at_optimizer = [&] {
            try {
                add_names(contents.optimizer().files, contents.files);
            } catch (const Error& error) {
                if (is_unnamed(error) && contents.folder)
                    add_names(open::optimizer_files(*contents.folder, contents.files), contents.files);
                throw;
            }
        };
        if (contents.optimizer && contents.optimizer_path.empty())
            reporting(faults, [&] { about_file(path.native(), look_at_optimizer); });
    }
    if (contents.stored.items) contents.sources.clear();  // check_items() reads them
    std::vector<FileDigests> own;
    for (const auto& source : contents.sources) own.push_back(check::read_file_digests(*source, options.open, faults));
    // Missing tensors and files are faults of their own, so the digest is not compared.
    if (collected.faults().empty()) check_identity(contents, own, path, faults);
    if (auto whole = WholeDigest::of(contents, own, path)) later.wholes.push_back(std::move(*whole));
    move_to_end(own, later.files);
    move_to_end(collected.take(), report.faults);
    add_names(contents.notes, report.notes);
    note_refused_names(contents, report.notes);
    report.asks_for_code = report.asks_for_code || contents.asks_for_code;
    state::add_findings(contents.findings, report.findings);
    contents.metadata = {};  // lists of digests take as much memory as all names
    return contents;
}

/// Adds the files of another checkpoint to the files to be read.
void add_files(Contents from, Contents& to) {
    move_to_end(from.sources, to.sources);
    move_to_end(from.stored.checksums, to.stored.checksums);
    move_to_end(from.stored.storages, to.stored.storages);
}

/// Returns the files of ranks that were read. If the folder could not be opened, returns those that its names show:
/// their records are checked all the same.
open::RunFiles files_of_run(const Contents& contents, const std::filesystem::path& path) {
    if (is_run(contents) && contents.folder) return {contents.folder, contents.files};
    return contents.files.empty() ? open::files_of_run(path) : open::RunFiles();
}

/// The state of an optimizer that is a checkpoint beside its model.
struct Beside {
    std::string path = {};
    std::function<Contents()> open = {};  ///< how the model gives it; empty if it is opened by its path
};

/// Verifies a checkpoint, but no state of its optimizer that is a checkpoint beside it: sets `optimizer` for that.
VerifyReport verify_one(const Beside& checkpoint, const VerifyOptions& options, Beside& optimizer) {
    const std::filesystem::path path = checkpoint.path;
    VerifyReport report;
    Later later;
    Contents contents = look_at(path, options, later, report, checkpoint.open);
    const open::RunFiles run = files_of_run(contents, path);
    if (open::has_optimizer(path)) add_files(look_at(path / names::optimizer_folder, options, later, report), contents);

    const std::vector<Stretch> stretches = check::stretches_of(contents, later.files);
    std::uint64_t total = contents.stored.items ? check::size_of(*contents.stored.items) : check::size_of(run);
    total = checked_add(total, later.bytes()).value_or(std::numeric_limits<std::uint64_t>::max());
    for (const Stretch& stretch : stretches)
        total = checked_add(total, stretch.extent.size).value_or(std::numeric_limits<std::uint64_t>::max());
    Watch watch(options.work.monitor, "verifying", total);
    watch.check_stop();
    check::read_stretches(stretches, options.work.threads, watch, report);
    for (const auto& source : contents.sources) source->require_unchanged();
    check::check_rank_files(run, options.work.threads, watch, report);
    if (contents.stored.items) check::check_items(*contents.stored.items, options.work.threads, watch, report);
    later.compare(options.work.threads, watch, report);
    move_to_end(check::compare_replicas(contents, watch), report.notes);
    watch.tell();
    optimizer.path = std::move(contents.optimizer_path);
    // Files of ranks may need those of the model, which name the parameters.
    if (!optimizer.path.empty() && open::files_of_run(optimizer.path).folder)
        optimizer.open = std::move(contents.optimizer);
    return report;
}

void add_report(VerifyReport from, VerifyReport& to) {
    to.tensors += from.tensors;
    to.bytes += from.bytes;
    to.checked_bytes += from.checked_bytes;
    to.asks_for_code = to.asks_for_code || from.asks_for_code;
    state::add_findings(from.findings, to.findings);
    move_to_end(from.faults, to.faults);
    move_to_end(from.notes, to.notes);
}

}  // namespace

Findings examine(const std::filesystem::path& path, const OpenOptions& options) { return open::examine(path, options); }

VerifyReport verify(const std::filesystem::path& path, const VerifyOptions& options) {
    Beside optimizer;
    VerifyReport report = verify_one({.path = path.native()}, options, optimizer);
    Beside further;  // a link may lead back
    if (!optimizer.path.empty()) add_report(verify_one(optimizer, options, further), report);
    // A program unpickles a damaged file up to the damage.
    if (!report.ok()) state::add_findings(examine(path, options.open), report.findings);
    return report;
}

}  // namespace safemap::SAFEMAP_ABI
