// safemap convert: one open, one save.
#include "command.hpp"
#include "entries.hpp"
#include "memory.hpp"
#include "parse.hpp"
#include "progress.hpp"
#include "signals.hpp"

#include <safemap/save.hpp>

#include <fmt/core.h>

#include <optional>
#include <utility>

namespace safemap::cli {
namespace {

/// What the report says besides what save() says.
struct Around {
    std::vector<AliasGroup> aliases = {};
    std::vector<SkippedObject> skipped = {};
    std::vector<std::string> notes = {};
    double seconds = 0;
    std::uint64_t peak_anon_bytes = 0;
};

std::string cast_name(const CastReport& cast) { return fmt::format("{}->{}", name(cast.from), name(cast.to)); }

JsonWriter as_json(const SaveReport& saved, const Around& around) {
    JsonWriter json;
    json.begin_object();
    json.member("tensors", saved.tensors).member("files", saved.files);
    json.member("bytes_read", saved.bytes_read).member("bytes_written", saved.bytes_written);
    json.member("seconds", around.seconds).member("peak_anon_bytes", around.peak_anon_bytes);
    json.key("cast").begin_object();
    for (const CastReport& cast : saved.casts) {
        json.key(cast_name(cast)).begin_object();
        json.member("tensors", cast.tensors).member("values", cast.counts.values);
        json.member("overflowed", cast.counts.overflowed).member("non_finite", cast.counts.non_finite);
        json.end_object();
    }
    json.end_object();
    json.member("aliases", around.aliases);
    json.key("skipped").begin_array();
    for (const SkippedObject& object : around.skipped)
        json.begin_object().member("name", object.name).member("why", object.why).end_object();
    json.end_array();
    json.member("notes", around.notes);
    json.end_object();
    return json;
}

std::string as_text(const SaveReport& saved, const Around& around, const std::string& out, bool dry_run) {
    std::string text = fmt::format("{}: {} {}, {}, {}\n", printable(out), dry_run ? "would write" : "wrote",
                                   count_text(saved.tensors, "tensor"), count_text(saved.files.size(), "file"),
                                   bytes_text(saved.bytes_written));
    if (dry_run)
        for (const std::string& file : saved.files) text += fmt::format("  file     {}\n", printable(file));
    for (const CastReport& cast : saved.casts)
        text += fmt::format("  cast     {}: {}, {}, {} overflowed, {} not finite\n", cast_name(cast),
                            count_text(cast.tensors, "tensor"), count_text(cast.counts.values, "value"),
                            cast.counts.overflowed, cast.counts.non_finite);
    for (const AliasGroup& group : around.aliases) {
        // The stored name stands last, and once: a name may be as long as the file.
        text += "  tied     ";
        for (std::size_t i = 1; i < group.size(); ++i) text += printable(group[i]) + " = ";
        text += printable(group.front()) + '\n';
    }
    for (const SkippedObject& object : around.skipped)
        text += fmt::format("  skipped  {}: {}\n", printable(object.name), printable(object.why));
    for (const std::string& note : around.notes) text += fmt::format("  note     {}\n", printable(note));
    if (!dry_run)
        text += fmt::format("  took     {}, {} read, {} of memory at most\n", duration_text(around.seconds),
                            bytes_text(saved.bytes_read), bytes_text(around.peak_anon_bytes));
    return text;
}

class Convert final : public Command {
public:
    void declare(CLI::App& app) override {
        app.add_option("IN", in_, "a file, a folder or an index")->required()->type_name("");
        app.add_option("OUT", out_, "a new folder, or a new file in .safetensors")->required()->type_name("");
        add_parsed(app, "--dtype", options_.dtype, parse_dtype_name, "cast floating-point tensors: bf16, f16, f32, ...")
            ->type_name("D");
        add_repeatable(app, "--keep-dtype", keep_, "but not tensors of such names (repeatable)")->type_name("GLOB");
        add_parsed(app, "--max-shard-size", options_.max_shard_size, parse_size,
                   "bytes of tensors in one file at most (default: 5GB)")
            ->type_name("SIZE");
        app.add_option("--align", options_.alignment, "data begins at a multiple of 8 (default), 64, 256 or 4096")
            ->type_name("N");
        app.add_flag("--force", options_.overwrite,
                     "replace the checkpoint that is at OUT, once the new one is complete");
        app.add_flag("--dry-run", options_.plan_only, "lay out and report, write nothing");
    }

    int run(Console& console) override {
        if (out_ == "-")
            throw Error(Errc::invalid_argument, "OUT is '-', and nothing is written to stdout")
                .with_hint("./- is a folder of that name");
        MemoryPeak memory;
        ProgressBar bar(console);
        const Checkpoint checkpoint = Checkpoint::open(in_, common.open);
        require_selection({checkpoint}, common);
        const std::vector<Entry> entries = select_entries(checkpoint, common.selection());
        const SaveReport saved = save_entries(checkpoint, entries, bar);

        Around around{.skipped = checkpoint.skipped(), .notes = checkpoint.notes()};
        for (const Entry& entry : entries)
            if (entry.tied()) around.aliases.push_back(entry.names());
        around.skipped.insert(around.skipped.end(), saved.skipped.begin(), saved.skipped.end());
        around.seconds = bar.seconds();
        around.peak_anon_bytes = memory.bytes();

        if (console.json()) console.result(as_json(saved, around));
        else console.result(as_text(saved, around, out_, options_.plan_only));
        return 0;
    }

private:
    SaveReport save_entries(const Checkpoint& checkpoint, const std::vector<Entry>& entries, ProgressBar& bar) const {
        const DeferSignals deferred;
        SaveOptions options = options_;
        options.threads = common.open.threads;
        if (!keep_.empty()) {
            Selection keep;
            for (const std::string& glob : keep_) keep.include(glob);
            options.keep_dtype = keep;
        }
        options.monitor.on_progress = [&bar](const Progress& progress) {
            bar.show(progress);
            return !DeferSignals::cancelled();
        };
        if (common.selects_all()) return save(out_, checkpoint, options);

        // A part of a checkpoint keeps what the whole would have kept: metadata, then the names of tied tensors.
        std::vector<LazyTensor> tensors;
        tensors.reserve(entries.size());
        for (const auto& [key, value] : checkpoint.metadata()) options.metadata.emplace(key, value);
        for (const Entry& entry : entries) {
            tensors.push_back(entry.named());
            for (const std::string_view other : entry.others) options.metadata.emplace(other, entry.name);
        }
        return save(out_, tensors, options);
    }

    std::string in_;
    std::string out_;
    std::vector<std::string> keep_;
    SaveOptions options_;
};

}  // namespace

std::unique_ptr<Command> make_convert() { return std::make_unique<Convert>(); }

}  // namespace safemap::cli
