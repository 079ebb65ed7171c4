// safemap convert: one open, one save. From top to bottom:
//   - Around: the parts of the report that save() does not return, such as skipped objects, ties and notes.
//   - as_json(): the report as JSON.
//   - plan_text() and outcome_text(): the report for people, before and after the save.
//   - Convert::declare(): the options, stored in SaveOptions.
//   - Convert::run(): opens IN, selects, renames and saves to OUT. The plan is printed before the first byte is
//     written, the outcome after the last.
//   - take_out() and protect_shards(): checks of OUT against IN, before anything is opened.
//   - open_in() and add_optimizer(): IN, and the state of its optimizer for --optimizer.
//   - known_before(), note_parts(), as_written(), dtype_of(): notes, skipped objects, --keep-dtype and --dtype-of, by
//     the names of IN.
#include "command.hpp"
#include "entries.hpp"
#include "layout.hpp"
#include "many_nodes.hpp"
#include "memory.hpp"
#include "parse.hpp"
#include "progress.hpp"
#include "rename.hpp"
#include "signals.hpp"

#include <safemap/advanced/fold.hpp>
#include <safemap/advanced/stored_tensor.hpp>
#include <safemap/advanced/text.hpp>
#include <safemap/save.hpp>

#include <fmt/core.h>

#include <cstddef>
#include <filesystem>
#include <optional>
#include <set>
#include <string_view>
#include <system_error>
#include <utility>

namespace safemap::cli {
namespace {

constexpr const char* optimizer_folder = "optimizer";

/// The parts of the report that SaveReport does not have.
struct Around {
    std::vector<AliasGroup> aliases = {};
    std::vector<SkippedObject> skipped = {};  ///< `quantized` is set only if the values of the tensor are selected
    std::vector<std::string> notes = {};
    std::optional<TrainingLayout> layout = {};
    Weights weights = Weights::automatic;  ///< the written weights, if `layout` is set
    std::size_t planned_notes = 0;         ///< number of notes that the plan has printed
    double seconds = 0;
    std::uint64_t peak_anon_bytes = 0;
    bool dry_run = false;

    /// Returns the predicted peak: the peak so far, plus the buffers of the save. All else is allocated before the
    /// plan.
    std::uint64_t predicted_anon_bytes(const SaveReport& saved) const {
        return peak_anon_bytes + saved.layout.buffer_bytes;
    }
    /// Returns all skipped objects. A quantised tensor is skipped twice: on opening, which knows the reason, and on
    /// saving its values. It is listed once, and not at all if its values are saved.
    std::vector<SkippedObject> all_skipped(const SaveReport& saved) const {
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
    /// Returns the groups of tied tensors, without skipped names.
    std::vector<AliasGroup> written_aliases(const SaveReport& saved) const {
        std::set<std::string_view> left_out;
        for (const SkippedObject& object : saved.skipped) left_out.insert(object.name);
        std::vector<AliasGroup> written = aliases;
        for (AliasGroup& group : written)
            std::erase_if(group, [&](const std::string& name) { return left_out.contains(name); });
        std::erase_if(written, [](const AliasGroup& group) { return group.size() < 2; });
        return written;
    }
    std::vector<std::string> all_notes(const SaveReport& saved) const {
        std::vector<std::string> all = notes;
        all.insert(all.end(), saved.notes.begin(), saved.notes.end());
        return all;
    }
};

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

JsonWriter as_json(const SaveReport& saved, const Around& around) {
    JsonWriter json;
    json.begin_object();
    json.member("tensors", saved.tensors).member("files", saved.files);
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

std::string total_text(const SaveReport& saved, const std::string& out, std::string_view verb) {
    return fmt::format("{}: {} {}, {}, {}\n", printable(out), verb, count_text(saved.tensors, "tensor"),
                       count_text(saved.files.size(), "file"), bytes_text(saved.bytes_written));
}

/// Returns the report before the first byte is written.
std::string plan_text(const SaveReport& saved, const Around& around, const std::string& out, bool align_tensors) {
    std::string text = total_text(saved, out, around.dry_run ? "would write" : "will write") + run_text(around);
    text += files_text(saved) + extras_text(saved) + reading_text(saved);
    if (align_tensors)
        text += fmt::format("  aligned  all but {}\n", count_text(saved.layout.unaligned_tensors, "tensor"));
    for (const AliasGroup& group : around.written_aliases(saved)) {
        // The stored name comes last, and only once: a name may be as long as the file.
        text += "  tied     ";
        for (std::size_t i = 1; i < group.size(); ++i) text += printable(group[i]) + " = ";
        text += printable(group.front()) + '\n';
    }
    std::vector<Foldable> skipped;  // a model may have thousands of scales
    for (const SkippedObject& object : around.all_skipped(saved))
        skipped.push_back({.name = object.name, .kind = object.why});
    for (const Folded& group : fold(skipped)) {
        const std::string times = group.count > 1 ? ' ' + group.times() : std::string();
        text +=
            warned(fmt::format("  skipped  {}{}: {}", printable(group.name()), times, printable(group.kind))) + '\n';
    }
    for (const std::string& note : around.all_notes(saved)) text += fmt::format("  note     {}\n", printable(note));
    return text + fmt::format("  takes    {} to read, {} of memory at most\n", bytes_text(saved.bytes_read),
                              bytes_text(around.predicted_anon_bytes(saved)));
}

std::string outcome_text(const SaveReport& saved, const Around& around, const std::string& out) {
    std::string text = total_text(saved, out, "wrote");
    // The notes of the plan are already printed.
    for (std::size_t i = around.planned_notes; i < saved.notes.size(); ++i)
        text += fmt::format("  note     {}\n", printable(saved.notes[i]));
    for (const SaveReport::Cast& cast : saved.casts)
        text += fmt::format("{}, {}, {} overflowed, {} not finite\n", cast_text(cast), count_text(cast.values, "value"),
                            cast.overflowed, cast.non_finite);
    if (!saved.resumed.empty())
        text += fmt::format("  resumed  {} already finished\n", count_text(saved.resumed.size(), "file"));
    return text + fmt::format("  took     {}, {} read, {} of memory at most\n", duration_text(around.seconds),
                              bytes_text(saved.bytes_read), bytes_text(around.peak_anon_bytes));
}

class Convert final : public Command {
public:
    void declare(CLI::App& app) override {
        app.add_option("IN...", first_, "a file, a folder or an index; several files are the shards of one checkpoint")
            ->required()
            ->type_name("");
        app.add_option("OUT", out_, "a new folder, or a new file that ends in .safetensors or .sft")->type_name("");
        // CLI11 would split a path such as [a,b] into a list, so the other paths are its unparsed extras.
        app.allow_extras();
        app.callback([this, &app] { rest_ = paths_of(app.remaining()); });
        add_parsed(app, "--dtype", options_.dtype, parse_dtype_name, "cast floating-point tensors: bf16, f16, f32, ...")
            ->type_name("D");
        add_repeatable(app, "--dtype-of", dtypes_of_,
                       "cast the tensors whose names match, also without --dtype; the last match counts (repeatable)")
            ->type_name("GLOB=D");
        add_repeatable(app, "--keep-dtype", keep_, "do not cast tensors whose names match (repeatable)")
            ->type_name("GLOB");
        app.add_flag("--apply-scales", options_.apply_scales,
                     "multiply quantised F8 weights by their scales, as bf16 or --dtype, and leave out the scales");
        for_shards_ = {add_parsed(app, "--max-shard-size", options_.max_shard_size, parse_size,
                                  "most bytes of tensors in one shard (default: 5GB)")
                           ->type_name("SIZE"),
                       add_parsed(app, "--strategy", options_.strategy, parse_strategy,
                                  "how tensors are split into shards: greedy (default), balanced or by_prefix")
                           ->type_name("HOW"),
                       add_parsed(app, "--index-style", options_.index_style, parse_index_style,
                                  "style of the index: hub (default) or transformers")
                           ->type_name("STYLE")};
        for_ranks_ = {app.add_option("--shards-for", options_.ranks,
                                     "write a file for each of N ranks (Hugging Face shards): a part of each tensor")
                          ->type_name("N"),
                      app.add_option("--shard-dim", options_.rank_dimension,
                                     "the dimension along which --shards-for cuts tensors (default: 0)")
                          ->type_name("D")};
        app.add_option("--align", options_.alignment,
                       "the data begins at a multiple of N: 8 (default), 64, 256 or 4096")
            ->type_name("N");
        app.add_flag("--align-tensors", options_.align_tensors,
                     "align tensors too: those whose sizes are multiples of N come first");
        add_repeatable(app, "--strip-prefix", prefixes_,
                       "remove the prefix P from names that begin with it (repeatable)")
            ->type_name("P");
        add_repeatable(app, "--rename", rules_, "rename tensors, after --strip-prefix: 's/RE/TEXT/' (repeatable)")
            ->type_name("RULE");
        app.add_option("--root", root_, "convert only this part of a nested state dict or module, for example model")
            ->type_name("PATH");
        add_parsed(app, "--structure", options_.structure, parse_structure,
                   "write the structure document: auto (default: for nested trees), keep (always) or drop (never)")
            ->type_name("WHEN");
        app.add_flag("--optimizer", optimizer_,
                     "also write the state of the optimizer, if IN has it apart from the model, to OUT/optimizer/");
        app.add_flag("--checksums", options_.checksums, "store a digest of each tensor, for verify to check");
        app.add_flag("--no-extras", no_extras_,
                     "do not copy the small files beside a model: config.json, tokenizer.json, ...");
        app.add_flag("--force", options_.overwrite,
                     "replace an existing checkpoint at OUT once the new one is complete");
        app.add_flag("--resume", options_.resume, "keep finished shards if interrupted, and continue from them");
        app.add_flag("--drop-cache", options_.drop_cache,
                     "evict what is read of IN from the page cache once it is written");
        app.add_flag("--dry-run", options_.plan_only, "report what would be written, and write nothing");
    }

    int run(Console& console) override {
        take_out();
        if (continues()) hint_for_signals("to continue: " + typed);
        Renaming renaming(prefixes_, rules_);
        MemoryPeak memory;
        ProgressBar bar(console);
        const Checkpoint in = open_in();
        const Checkpoint opened = root_.empty() ? in : root_of(in);
        require_selection({opened}, common);
        const Checkpoint chosen = opened.select(common.selection());
        const Checkpoint model =
            renaming.empty() ? chosen : chosen.renamed([&](std::string_view name) { return renaming.apply(name); });
        Around around = known_before(opened, chosen, model, renaming.notes());
        if (optimizer_) add_optimizer(in, around);
        options_.stem = opened.stem();
        if (!no_extras_) options_.extras = opened.extras();
        if (!console.json() && !around.dry_run)
            options_.on_plan = [&](const SaveReport& plan) {
                around.peak_anon_bytes = memory.bytes();
                around.planned_notes = plan.notes.size();
                console.announce(plan_text(plan, around, out_, options_.align_tensors));
            };
        if (!keep_.empty()) options_.keep_dtype = selection_of(keep_);
        for (const std::string& rule : dtypes_of_) options_.dtype_of.push_back(dtype_of(rule, chosen));
        // A signal that comes when the save commits is too late: OUT is complete, and the report says so.
        std::optional<DeferSignals> deferred(std::in_place);
        const SaveReport saved = save_model(chosen, model, bar);
        around.seconds = bar.seconds();
        around.peak_anon_bytes = memory.bytes();
        output_begins();
        deferred.reset();

        if (console.json()) console.result(as_json(saved, around));
        else if (around.dry_run) console.result(plan_text(saved, around, out_, options_.align_tensors));
        else console.result(outcome_text(saved, around, out_));
        return 0;
    }

private:
    /// Returns the paths among the extras. Throws ExtrasError if one before "--" is an unknown option.
    static std::vector<std::string> paths_of(std::vector<std::string> words) {
        const auto end = std::find(words.begin(), words.end(), "--");
        if (std::any_of(words.begin(), end, [](const auto& word) { return word.size() > 1 && word.front() == '-'; }))
            throw CLI::ExtrasError("convert", std::move(words));
        if (end != words.end()) words.erase(end);
        return words;
    }

    /// Takes the last path as OUT. Throws invalid_argument or already_exists if it cannot be written.
    void take_out() {
        in_ = {first_};
        if (!out_.empty()) in_.push_back(std::exchange(out_, {}));
        in_.insert(in_.end(), rest_.begin(), rest_.end());
        if (in_.size() < 2)
            throw Error(Errc::invalid_argument, "OUT is missing").with_hint("safemap convert IN... OUT [options]");
        out_ = in_.back();
        in_.pop_back();
        require_out(out_);
        check_shard_options();
        if (optimizer_ && is_one_file(out_))
            throw Error(Errc::invalid_argument, "--optimizer writes a folder, but OUT is one file: " + printable(out_))
                .with_hint("give an OUT that does not end in .safetensors or .sft");
        if (in_.size() == 1) return;
        if (!root_.empty())
            throw Error(Errc::invalid_argument,
                        fmt::format("--root takes one nested state dict, but IN has {} paths", in_.size()));
        protect_shards();
    }

    /// Throws invalid_argument for options of shards that do not apply to OUT, or to each other.
    void check_shard_options() const {
        const CLI::Option* const ranks = for_ranks_.front();
        for (const auto& options : {for_shards_, for_ranks_})
            for (const CLI::Option* const option : options)
                if (option->count() > 0 && is_one_file(out_))
                    throw Error(Errc::invalid_argument, fmt::format("{} is for shards, but OUT is one file: {}",
                                                                    option->get_name(), printable(out_)))
                        .with_hint("for a folder of shards, give an OUT that does not end in .safetensors or .sft");
        for (const CLI::Option* const option : for_shards_)
            if (option->count() > 0 && ranks->count() > 0)
                throw Error(
                    Errc::invalid_argument,
                    fmt::format("{} does not apply to --shards-for: each rank has one file", option->get_name()));
        if (ranks->count() > 0 && options_.ranks == 0)
            throw Error(Errc::invalid_argument, "--shards-for 0: expected the number of ranks, 1 or more");
        if (for_ranks_.back()->count() > 0 && ranks->count() == 0)
            throw Error(Errc::invalid_argument, "--shard-dim needs --shards-for N");
    }

    /// Throws already_exists if OUT may be a shard of IN: in `convert *.safetensors`, the user forgot OUT.
    void protect_shards() const {
        namespace fs = std::filesystem;
        std::error_code ignored;
        if (!fs::is_directory(out_, ignored)) {
            if (!fs::exists(fs::symlink_status(out_, ignored))) return;
            throw Error(Errc::already_exists, "the last path is OUT; with several IN, it must be new or a folder")
                .with_path(out_);
        }
        for (const std::string& path : in_)
            if (options_.overwrite && (is_below(path, out_) || is_below(fs::weakly_canonical(path, ignored), out_)))
                throw Error(Errc::already_exists, "--force would replace files of IN").with_path(path);
    }

    /// Returns true if `path` is in `folder` or in a folder below it.
    static bool is_below(const std::filesystem::path& path, const std::filesystem::path& folder) {
        std::error_code ignored;
        std::filesystem::path above = std::filesystem::absolute(path, ignored);
        while (above.has_relative_path()) {
            above = above.parent_path();
            if (std::filesystem::equivalent(above, folder, ignored)) return true;
        }
        return false;
    }

    Checkpoint open_in() const {
        if (in_.size() == 1)
            return optimizer_ ? open_training(in_.front()) : Checkpoint::open(in_.front(), common.open);
        const std::vector<std::filesystem::path> files(in_.begin(), in_.end());
        return Checkpoint::open(files, common.open);
    }

    /// Opens a checkpoint with the state of an optimizer. Beside a finished model, a DeepSpeed folder is opened only if
    /// its weights are asked for.
    Checkpoint open_training(const std::string& path) const {
        Checkpoint checkpoint = Checkpoint::open(path, common.open);
        if (checkpoint.layout() || checkpoint.optimizer() || common.open.weights != Weights::automatic)
            return checkpoint;
        OpenOptions options = common.open;
        options.weights = Weights::fp32;
        const Checkpoint beside = Checkpoint::open(path, options);
        if (!beside.layout()) return checkpoint;
        options.weights = weights_given(*beside.layout(), Weights::automatic);
        return options.weights == Weights::fp32 ? beside : Checkpoint::open(path, options);
    }

    /// Adds the state of the optimizer to the folders to save. Throws invalid_argument if the
    /// checkpoint has no such state.
    void add_optimizer(const Checkpoint& in, Around& around) {
        const std::optional<Checkpoint> optimizer = in.optimizer();
        if (!optimizer) {
            const bool deepspeed = in.layout() && is_deepspeed(*in.layout());
            std::string why = deepspeed ? "--optimizer: the files have no state of an optimizer"
                                        : "--optimizer is for folders of DeepSpeed, and for models with the state of "
                                          "their optimizer beside them; this is neither";
            for (const SkippedObject& object : in.skipped())
                if (deepspeed && object.name == optimizer_folder) why = "--optimizer: " + object.why;
            Error error(Errc::invalid_argument, std::move(why));
            if (!deepspeed) error.with_hint("without --optimizer, all tensors are converted");
            throw std::move(error.with_path(in_.front()));
        }
        std::erase_if(around.skipped, [](const SkippedObject& object) { return object.name == optimizer_folder; });
        const auto& skipped = optimizer->skipped();
        around.skipped.insert(around.skipped.end(), skipped.begin(), skipped.end());
        for (const std::string& note : optimizer->notes())
            around.notes.push_back(fmt::format("{}/: {}", optimizer_folder, note));
        options_.folders.insert_or_assign(optimizer_folder, *optimizer);
    }

    Around known_before(const Checkpoint& opened, const Checkpoint& chosen, const Checkpoint& model,
                        const std::vector<std::string>& renaming) const {
        Around around{.aliases = model.aliases(),
                      .skipped = opened.skipped(),
                      .notes = opened.notes(),
                      .layout = opened.layout(),
                      .dry_run = options_.plan_only};
        if (around.layout) around.weights = weights_given(*around.layout, common.open.weights);
        // An object that occurs a second time has no tensor of its own.
        for (SkippedObject& object : around.skipped)
            object.quantized =
                object.quantized && (chosen.find(object.name) != nullptr || opened.find(object.name) == nullptr);
        if (root_.empty()) note_parts(opened, around.notes);
        around.notes.insert(around.notes.end(), renaming.begin(), renaming.end());
        return around;
    }

    Checkpoint root_of(const Checkpoint& checkpoint) const {
        try {
            return checkpoint.below(root_);
        } catch (Error& error) {
            throw error.with_path(in_.front());
        }
    }

    /// Notes the parts of a checkpoint that --root can select, if there are several.
    static void note_parts(const Checkpoint& checkpoint, std::vector<std::string>& notes) {
        const std::vector<std::string> parts = checkpoint.parts();
        if (parts.size() < 2) return;
        std::string all;
        for (const std::string& part : parts) all += (all.empty() ? "" : ", ") + part;
        notes.push_back("the checkpoint has the parts " + all + "; --root PART converts one of them");
    }

    /// Returns true if the same call continues, should this one be interrupted.
    bool continues() const { return options_.resume && !options_.plan_only && !is_one_file(out_); }

    SaveReport save_model(const Checkpoint& chosen, const Checkpoint& model, ProgressBar& bar) const {
        SaveOptions options = options_;
        if (options.keep_dtype) options.keep_dtype = as_written(*options.keep_dtype, chosen, model);
        for (SaveOptions::DtypeOf& each : options.dtype_of) each.tensors = as_written(each.tensors, chosen, model);
        options.max_header_bytes = common.open.max_header_bytes;
        options.work.threads = common.open.work.threads;
        options.work.monitor = bar.monitor();
        options.team = Nodes::team_for_save();
        try {
            return save(out_, model, options);
        } catch (const Error& error) {
            if (error.code() == Errc::cancelled && continues()) throw how_to_continue(error);
            if (error.code() == Errc::quantized_cast && !(prefixes_.empty() && rules_.empty()))
                require_whole_casts(chosen);
            throw;
        }
    }

    /// Throws the refusal of a cast with names of IN, which --keep-dtype takes: it is one with these names, too.
    void require_whole_casts(const Checkpoint& chosen) const {
        SaveOptions options = options_;
        options.plan_only = true;
        options.on_plan = nullptr;
        try {
            save(out_, chosen, options);
        } catch (const Error& error) {
            if (error.code() == Errc::quantized_cast) throw;
        }
    }

    /// Returns the error of a cancelled save with the command that continues.
    Error how_to_continue(const Error& cancelled) const {
        const std::string& kept = cancelled.hint();
        Error error(cancelled.code(), cancelled.message());
        error.with_hint(kept.empty() ? "no file is finished; to start again: " + typed
                                     : kept + "; to continue: " + typed);
        return std::move(error.during("save " + out_));
    }

    static Selection selection_of(const std::vector<std::string>& globs) {
        Selection selection;
        for (const std::string& glob : globs) selection.include(glob);
        return selection;
    }

    /// Returns the tensors that `selection` selects. Like every GLOB, it matches names of IN, before --rename.
    static Selection as_written(const Selection& selection, const Checkpoint& chosen, const Checkpoint& model) {
        std::vector<std::string> names;
        for (std::size_t i = 0; i < chosen.size(); ++i)
            if (selection.matches(chosen.tensor(i).name())) names.push_back(model.tensor(i).name());
        return Selection::names(std::move(names));
    }

    /// Returns the meaning of "GLOB=D". Throws invalid_argument for any other text, unsupported_cast if no tensor can
    /// be cast to D, and tensor_not_found if the GLOB matches none that can be.
    static SaveOptions::DtypeOf dtype_of(const std::string& rule, const Checkpoint& chosen) {
        const std::size_t equals = rule.rfind('=');  // a name may have one, a dtype has none
        if (equals == std::string::npos || equals == 0)
            throw Error(Errc::invalid_argument,
                        fmt::format("--dtype-of {}: expected GLOB=D, for example '*norm*=f32'", printable(rule)));
        const std::string glob = rule.substr(0, equals);
        SaveOptions::DtypeOf of{Selection::glob(glob), Dtype::f32};
        try {
            of.dtype = parse_dtype_name(std::string_view(rule).substr(equals + 1));
        } catch (const Error& error) {
            throw Error(error.code(), fmt::format("--dtype-of {}: {}", printable(rule), error.message()));
        }
        std::size_t matches = 0;
        for (const LazyTensor& tensor : chosen) {
            if (!of.tensors.matches(tensor.name())) continue;
            ++matches;
            if (can_cast(tensor.dtype(), of.dtype)) return of;
        }
        if (matches > 0 && !can_cast(Dtype::f32, of.dtype))
            throw Error(Errc::unsupported_cast,
                        fmt::format("--dtype-of {}: casts to {} are not supported", printable(rule), name(of.dtype)));
        const std::string what = matches == 0 ? "matches none of" : "matches no tensor that can be cast, of";
        throw Error(Errc::tensor_not_found,
                    fmt::format("--dtype-of {} {} {}", printable(rule), what, count_text(chosen.size(), "tensor")))
            .with_hint("safemap inspect lists names and dtypes; a GLOB must match a whole name");
    }

    std::string first_;
    std::vector<std::string> rest_;  // paths after the first two
    std::vector<std::string> in_;
    std::string out_;
    std::vector<CLI::Option*> for_shards_;
    std::vector<CLI::Option*> for_ranks_;
    std::string root_;
    bool no_extras_ = false;
    bool optimizer_ = false;
    std::vector<std::string> dtypes_of_;
    std::vector<std::string> keep_;
    std::vector<std::string> prefixes_;
    std::vector<std::string> rules_;
    SaveOptions options_;
};

}  // namespace

std::unique_ptr<Command> make_convert() { return std::make_unique<Convert>(); }

}  // namespace safemap::cli
