// Writes the report of a conversion: one JSON object, or the plan and the outcome for people.
#include "convert_report.hpp"

#include "describe.hpp"
#include "layout.hpp"
#include "verdicts.hpp"

#include <safemap/advanced/fold.hpp>
#include <safemap/advanced/text.hpp>

#include <fmt/core.h>

#include <algorithm>
#include <iterator>
#include <set>
#include <string_view>

namespace safemap::cli {
namespace {

std::string cast_name(const SaveReport::Cast& cast) { return fmt::format("{}->{}", name(cast.from), name(cast.to)); }

void write_reading(JsonWriter& json, const SaveReport& saved) {
    const auto write = [&json](std::string_view key, const SaveReport::Count& count) {
        json.key(key).begin_object().member("tensors", count.tensors).member("bytes", count.bytes).end_object();
    };
    write("copied_tensors", saved.reading.copied);
    write("scaled", saved.reading.scaled);
    write("gathered", saved.reading.gathered);
    write("views", saved.reading.views);
    json.member("unreferenced_bytes", saved.reading.unreferenced_bytes);
    json.key("unsupported").begin_array();
    for (const SaveReport::Unsupported& dtype : saved.unsupported)
        json.begin_object().member("dtype", torch_name(dtype.dtype)).member("tensors", dtype.tensors).end_object();
    json.end_array();
}

std::string files_text(const SaveReport& saved) {
    Table table({Table::Align::left, Table::Align::left, Table::Align::right, Table::Align::right});
    for (std::size_t i = 0; i < saved.files.size(); ++i) {
        const SaveReport::File& file = saved.layout.files[i];
        const bool is_index = saved.files[i].ends_with(".json");
        table.row({"file   ", printable(saved.files[i]), is_index ? "" : count_text(file.tensors, "tensor"),
                   bytes_text(file.bytes)});
    }
    return table.text();
}

std::string cast_text(const SaveReport::Cast& cast) {
    return fmt::format("  cast     {}: {}", cast_name(cast), count_text(cast.tensors, "tensor"));
}

std::string reading_text(const SaveReport& saved) {
    std::string text;
    const auto line = [&text](std::string_view label, const SaveReport::Count& count) {
        if (count.tensors > 0)
            text +=
                fmt::format("  {:<8} {}, {}\n", label, count_text(count.tensors, "tensor"), bytes_text(count.bytes));
    };
    line("copied", saved.reading.copied);
    line("scaled", saved.reading.scaled);
    for (const SaveReport::Cast& cast : saved.casts) text += cast_text(cast) + '\n';
    line("gathered", saved.reading.gathered);
    line("views", saved.reading.views);
    if (saved.reading.unreferenced_bytes > 0)
        text += fmt::format("  unused   {} of storages that no written tensor refers to\n",
                            bytes_text(saved.reading.unreferenced_bytes));
    for (const SaveReport::Unsupported& dtype : saved.unsupported)
        text += fmt::format("  unnamed  {}: {}\n", torch_name(dtype.dtype), count_text(dtype.tensors, "tensor"));
    return text;
}

std::string extras_text(const SaveReport& saved) {
    std::string text;
    for (const std::string& extra : saved.extras) text += (text.empty() ? "  extras   " : ", ") + printable(extra);
    return text.empty() ? text : text + '\n';
}

std::string run_text(const Around& around) {
    if (!around.layout) return {};
    std::string text = fmt::format("  layout   {}\n", layout_text(*around.layout));
    if (is_deepspeed(*around.layout))
        text += fmt::format("  weights  {}\n", around.weights == Weights::module ? "of the module" : "fp32 masters");
    return text;
}

/// Parts of notes, and of reasons why objects are skipped, that say only how a file was read. A person can act on every
/// other one.
constexpr std::string_view informative[] = {
    "read the tag ",
    "the state of the optimizer is in ",  // the skipped optimizer says so, too
    " shards are read by the numbers in their names",
    "the index says total_size ",
    ", as OLMo writes; they were decoded to paths",
    "so names are the keys of the state dict",
    "the values of common.pt are under the key ",
    "; the lowest rank's are read, and verify compares the others with them",
    "; the other files cover all of their tensors",
    "; they are listed below rank_N, where N is the rank",
    "; its tensors are replicated, so that they are whole",
    "(such as _metadata)",
    "is a Parameter or requires a gradient",
    "are Parameters or require gradients",
    " after the zip are ignored",
    " after the end of the pickle",
    " after the last storage are ignored",
    "allowed: ",
    " is left out: it is a hash of the file that was read",
    "the metadata is written without ",
    " is copied without its ",
    " is not copied: it describes the quantisation",
    "so copied files keep what they say of the quantisation",
    // Objects.
    "a whole module: its parameters and persistent buffers are kept",
    "a NumPy array of a subclass; it is kept as a plain array",
    "; it is kept in the dtype that it has on the CPU",
    "which are written as their values (apply_scales)",
};

std::string notes_text(const std::vector<std::string>& notes, bool all) {
    std::string text;
    for (const std::string& note : notes)
        if (all || is_actionable(note)) text += warned("  note     " + printable(note)) + '\n';
    return text;
}

std::string skipped_text(const SaveReport& saved, const Around& around) {
    constexpr std::size_t most = 20;
    std::vector<Foldable> skipped;  // a model may have thousands of scales
    const bool all = around.verbose || around.dry_run;
    for (const SkippedObject& object : around.all_skipped(saved))
        if (all || is_actionable(object.why)) skipped.push_back({.name = object.name, .kind = object.why});
    const std::vector<Folded> groups = fold(skipped);
    const std::size_t shown = all || groups.size() <= most ? groups.size() : most;
    std::string text;
    for (std::size_t i = 0; i < shown; ++i) {
        const Folded& group = groups[i];
        const std::string times = group.count > 1 ? ' ' + group.times() : std::string();
        text +=
            warned(fmt::format("  skipped  {}{}: {}", printable(group.name()), times, printable(group.kind))) + '\n';
    }
    if (shown < groups.size())
        text += warned(fmt::format("  skipped  {} more; --verbose lists them", groups.size() - shown)) + '\n';
    return text;
}

/// Returns a line for each cast. Unless `all`, only for those that lost values.
std::string casts_text(const SaveReport& saved, bool all) {
    std::string text;
    for (const SaveReport::Cast& cast : saved.casts) {
        if (!all && cast.overflowed == 0) continue;
        const std::string line = fmt::format("{}, {}, {} overflowed, {} not finite", cast_text(cast),
                                             count_text(cast.values, "value"), cast.overflowed, cast.non_finite);
        text += (cast.overflowed > 0 ? warned(line) : line) + '\n';
    }
    return text;
}

}  // namespace

std::uint64_t Around::predicted_anon_bytes(const SaveReport& saved) const {
    return peak_anon_bytes + saved.layout.buffer_bytes;
}

std::vector<SkippedObject> Around::all_skipped(const SaveReport& saved) const {
    std::vector<SkippedObject> all;
    std::set<std::string_view> listed;
    for (const SkippedObject& object : skipped) {
        if (saved.unsupported.empty() && object.quantized) continue;
        listed.insert(object.name);
        all.push_back(object);
    }
    for (const SkippedObject& object : saved.skipped)
        if (!listed.contains(object.name)) all.push_back(object);
    return all;
}

std::vector<AliasGroup> Around::written_aliases(const SaveReport& saved) const {
    std::set<std::string_view> left_out;
    for (const SkippedObject& object : saved.skipped) left_out.insert(object.name);
    std::vector<AliasGroup> written = aliases;
    for (AliasGroup& group : written)
        std::erase_if(group, [&](const std::string& name) { return left_out.contains(name); });
    std::erase_if(written, [](const AliasGroup& group) { return group.size() < 2; });
    return written;
}

std::vector<std::string> Around::all_notes(const SaveReport& saved) const {
    std::vector<std::string> all = notes;
    all.insert(all.end(), saved.notes.begin(), saved.notes.end());
    return all;
}

JsonWriter convert_json(const SaveReport& saved, const Around& around, const Checkpoint& opened) {
    JsonWriter json;
    json.begin_object();
    json.member("tensors", saved.tensors).member("files", saved.files);
    write_parts(json, opened);
    json.member("bytes_read", saved.bytes_read).member("bytes_written", saved.bytes_written);
    json.member("seconds", around.seconds).member("peak_anon_bytes", around.peak_anon_bytes);
    json.key("cast").begin_object();
    for (const SaveReport::Cast& cast : saved.casts) {
        json.key(cast_name(cast)).begin_object();
        json.member("tensors", cast.tensors).member("values", cast.values);
        json.member("overflowed", cast.overflowed).member("non_finite", cast.non_finite);
        json.end_object();
    }
    json.end_object();
    json.member("aliases", around.written_aliases(saved));
    json.key("skipped").begin_array();
    for (const SkippedObject& object : around.all_skipped(saved))
        json.begin_object().member("name", object.name).member("why", object.why).end_object();
    json.end_array();
    write_findings(json, around.findings);
    json.member("notes", around.all_notes(saved));
    json.member("unaligned_tensors", saved.layout.unaligned_tensors).member("resumed", saved.resumed);
    json.member("copied", saved.extras);
    write_reading(json, saved);
    if (around.layout) write_layout(json, *around.layout);
    if (around.layout && is_deepspeed(*around.layout))
        json.member("weights", around.weights == Weights::module ? "module" : "fp32");
    if (around.dry_run) {
        json.member("predicted_anon_bytes", around.predicted_anon_bytes(saved));
        json.key("plan").begin_array();
        for (std::size_t i = 0; i < saved.files.size(); ++i) {
            const SaveReport::File& file = saved.layout.files[i];
            json.begin_object().member("file", saved.files[i]).member("tensors", file.tensors);
            json.member("bytes", file.bytes).end_object();
        }
        json.end_array();
    }
    json.end_object();
    return json;
}

std::string saved_text(const std::string& from, const std::string& out, std::string_view verb,
                       const SaveReport& saved) {
    return fmt::format("{} → {}: {}{}, {}, {}", from, printable(out), verb, count_text(saved.tensors, "tensor"),
                       count_text(saved.files.size(), "file"), bytes_text(saved.bytes_written));
}

bool is_actionable(std::string_view note) {
    // The only folder with a checkpoint, unless the note goes on with others.
    if (note.starts_with("read the checkpoint in ") && note.find(';') == note.npos) return false;
    return std::none_of(std::begin(informative), std::end(informative),
                        [&](std::string_view part) { return note.find(part) != note.npos; });
}

std::string plan_text(const SaveReport& saved, const Around& around, const std::string& out, bool align_tensors) {
    std::string text = saved_text(around.from, out, around.dry_run ? "would write " : "will write ", saved) + '\n';
    text += run_text(around) + files_text(saved) + extras_text(saved) + reading_text(saved);
    if (align_tensors)
        text += fmt::format("  aligned  all but {}\n", count_text(saved.layout.unaligned_tensors, "tensor"));
    for (const std::string& tie : tied_names(around.written_aliases(saved)))
        text += fmt::format("  tied     {}\n", tie);
    text += skipped_text(saved, around) + notes_text(around.all_notes(saved), around.verbose || around.dry_run);
    return text + fmt::format("  takes    {} to read, {} of memory at most\n", bytes_text(saved.bytes_read),
                              bytes_text(around.predicted_anon_bytes(saved)));
}

std::string outcome_text(const SaveReport& saved, const Around& around, const std::string& out) {
    std::string text = saved_text(around.from, out, "", saved) + " in " + duration_text(around.seconds);
    if (!saved.resumed.empty()) text += fmt::format("; {} already finished", count_text(saved.resumed.size(), "file"));
    text += '\n';
    if (!around.planned) text += skipped_text(saved, around);
    text += casts_text(saved, around.verbose);
    std::vector<std::string> notes = around.planned ? std::vector<std::string>() : around.notes;
    const std::size_t first = around.planned ? around.planned_notes : 0;
    notes.insert(notes.end(), saved.notes.begin() + static_cast<std::ptrdiff_t>(first), saved.notes.end());
    text += notes_text(notes, around.verbose);
    if (!around.verbose) return text;
    return text + fmt::format("  took     {} read, {} of memory at most\n", bytes_text(saved.bytes_read),
                              bytes_text(around.peak_anon_bytes));
}

}  // namespace safemap::cli
