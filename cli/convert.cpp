// safemap convert: one open, one save. From top to bottom:
//   - Convert::declare(): the options, stored in SaveOptions.
//   - Convert::run(): opens IN, selects, renames and saves to OUT, and prints the report of convert_report.hpp.
//   - print_plan(): the plan, if it is printed before the outcome.
//   - take_out() and protect_shards(): checks of OUT against IN, before anything is opened.
//   - open_in() and add_optimizer(): IN, and the state of its optimizer for --optimizer.
//   - known_before(), note_parts(), stored_by_new_names(), as_written(), dtype_of(): notes, skipped objects,
//     --keep-dtype and --dtype-of, by the names of IN.
#include "command.hpp"
#include "convert_report.hpp"
#include "describe.hpp"
#include "entries.hpp"
#include "layout.hpp"
#include "many_nodes.hpp"
#include "memory.hpp"
#include "parse.hpp"
#include "progress.hpp"
#include "rename.hpp"
#include "signals.hpp"
#include "verdicts.hpp"

#include <safemap/advanced/names.hpp>
#include <safemap/advanced/stored_tensor.hpp>
#include <safemap/advanced/text.hpp>
#include <safemap/save.hpp>

#include <fmt/core.h>

#include <cstddef>
#include <filesystem>
#include <optional>
#include <span>
#include <string_view>
#include <system_error>
#include <utility>

namespace safemap::cli {
namespace {

constexpr const char* optimizer_folder = "optimizer";

class Convert final : public Command {
public:
    Convert() { common.selecting = "What to convert"; }

    void declare(CLI::App& app) override {
        app.add_option("IN...", first_, "a file, a folder or an index; several files are the shards of one checkpoint")
            ->required()
            ->type_name("");
        app.add_option("OUT", out_, "a new folder, or a new file that ends in .safetensors or .sft")->type_name("");
        // CLI11 would split a path such as [a,b] into a list, so the other paths are its unparsed extras.
        app.allow_extras();
        app.callback([this, &app] { rest_ = paths_of(app.remaining()); });
        app.option_defaults()->group(common.selecting);
        app.add_flag("--optimizer", optimizer_,
                     "also write the state of the optimizer, if IN has it apart from the model, to OUT/optimizer/");
        app.option_defaults()->group("Names");
        renaming_.declare(app, "tensors");
        add_repeatable(app, "--keep-name", keep_names_,
                       "store the tied tensor that has this name under it (default: the name of the input embedding)")
            ->type_name("NAME");
        app.add_flag("--untie", options_.untie, "write a tensor for each name of a tied tensor");
        app.option_defaults()->group("Values");
        add_parsed(app, "--dtype", options_.dtype, parse_dtype_name, "cast floating-point tensors: bf16, f16, f32, ...")
            ->type_name("D");
        add_repeatable(app, "--dtype-of", dtypes_of_,
                       "cast the tensors whose names match, also without --dtype; the last match counts (repeatable)")
            ->type_name("GLOB=D");
        add_repeatable(app, "--keep-dtype", keep_, "do not cast tensors whose names match (repeatable)")
            ->type_name("GLOB");
        add_parsed(app, "--dtype-optimizer", options_.optimizer_dtype, parse_dtype_name,
                   "cast the state of the optimizer, which --dtype leaves as it is")
            ->type_name("D");
        app.add_flag("--apply-scales", options_.apply_scales,
                     "multiply quantised F8 weights by their scales, as bf16 or --dtype, and leave out the scales");
        app.option_defaults()->group("Files written");
        app.add_option("-o", named_out_, "where to write, in place of the last path: then all paths are IN")
            ->type_name("OUT");
        app.add_flag("-f,--force", options_.overwrite,
                     "replace an existing checkpoint at OUT once the new one is complete");
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
                          ->type_name("DIM")};
        app.add_option("--align", options_.alignment,
                       "the data begins at a multiple of N: 8 (default), 64, 256 or 4096")
            ->type_name("N");
        app.add_flag("--align-tensors", options_.align_tensors,
                     "align tensors too: those whose sizes are multiples of N come first");
        add_parsed(app, "--structure", options_.structure, parse_structure,
                   "write the structure document: auto (default: for nested trees), keep (always) or drop (never)")
            ->type_name("WHEN");
        app.add_flag("--checksums", options_.checksums, "store a digest of each tensor, for verify to check");
        app.add_flag("--no-extras", no_extras_,
                     "do not copy the small files beside a model: config.json, tokenizer.json, ...");
        app.add_flag("--allow-empty", options_.allow_empty,
                     "write an output that has neither a tensor nor a structure document");
        app.option_defaults()->group("How it runs");
        app.add_flag("-n,--dry-run", options_.plan_only, "report what would be written, and write nothing");
        app.add_flag("-v,--verbose", verbose_, "print the plan before it is written, and all notes");
        app.add_flag("--resume", options_.resume, "keep finished shards if interrupted, and continue from them");
        app.add_flag("--drop-cache", options_.drop_cache,
                     "evict what is read of IN from the page cache once it is written");
    }

    int run(Console& console) override {
        if (common.quiet && verbose_)
            throw Error(Errc::invalid_argument, "--quiet and --verbose contradict each other");
        take_out();
        if (continues()) hint_for_signals("to continue: " + typed);
        Renaming renaming(renaming_);
        MemoryPeak memory;
        ProgressBar bar(console);
        const Checkpoint opened = open_in();
        require_selection({opened}, common);
        const Checkpoint chosen = opened.select(common.selection()).stored_as(keep_names_);
        const Checkpoint model = stored_by_new_names(renaming.apply(chosen), renaming);
        Around around = known_before(opened, chosen, model, renaming.notes());
        around.findings = opened.findings();
        if (optimizer_) add_optimizer(opened, around);
        options_.stem = opened.stem();
        if (!no_extras_) options_.extras = opened.extras();
        if (!around.aliases.empty() && names_are_apart(options_.extras))
            around.notes.emplace_back(
                "config.json has tie_word_embeddings: false, so loaders look for each name of a "
                "tied tensor; --untie writes a tensor for each");
        if (opened.layout() && !no_extras_ && !is_one_file(out_) && !has_configuration(options_.extras))
            around.notes.emplace_back(
                "no config.json was found beside IN, in it or above it; from_pretrained(OUT) needs one");
        const Monitor monitor = print_plan(console, bar, memory, around);
        if (!keep_.empty()) options_.keep_dtype = selection_of(keep_);
        for (const std::string& rule : dtypes_of_) options_.dtype_of.push_back(dtype_of(rule, chosen));
        // A signal that comes when the save commits is too late: OUT is complete, and the report says so.
        std::optional<DeferSignals> deferred(std::in_place);
        const SaveReport saved = save_model(chosen, model, monitor);
        around.seconds = bar.seconds();
        around.peak_anon_bytes = memory.bytes();
        output_begins();
        deferred.reset();

        if (console.json()) console.result(convert_json(saved, around, opened));
        else {
            const std::string told = around.dry_run ? plan_text(saved, around, out_, options_.align_tensors)
                                                    : outcome_text(saved, around, out_);
            console.result(told + warning_of_code(around.findings));
        }
        return 0;
    }

private:
    /// Makes the save print its plan: with --verbose before it writes, on a terminal with the progress bar, after a
    /// second. Returns the monitor of the save. The arguments must outlive it.
    Monitor print_plan(Console& console, ProgressBar& bar, MemoryPeak& memory, Around& around) {
        const auto announce = [this, &console, &around] {
            console.announce(std::exchange(plan_, {}));
            around.planned = true;
        };
        if (!console.json() && !around.dry_run && (verbose_ || console.has_reader()))
            options_.on_plan = [this, announce, &memory, &around](const SaveReport& planned) {
                around.peak_anon_bytes = memory.bytes();
                around.planned_notes = planned.notes.size();
                plan_ = plan_text(planned, around, out_, options_.align_tensors);
                if (verbose_) announce();
            };
        return {.on_progress = [this, announce, &bar, show = bar.monitor().on_progress](const Progress& progress) {
            if (!plan_.empty() && bar.is_due()) announce();
            return show(progress);
        }};
    }

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
        if (named_out_) {
            out_ = *named_out_;
            require_one_out();
        } else {
            if (in_.size() < 2)
                throw Error(Errc::invalid_argument, "OUT is missing").with_hint("safemap convert IN... OUT [options]");
            out_ = in_.back();
            in_.pop_back();
        }
        require_out(out_);
        check_shard_options();
        if (!keep_.empty() && !options_.dtype && dtypes_of_.empty() && !options_.apply_scales)
            throw Error(Errc::invalid_argument,
                        "--keep-dtype has no effect without --dtype, --dtype-of or --apply-scales")
                .with_hint("without these options, every tensor keeps its dtype");
        if (optimizer_ && is_one_file(out_))
            throw Error(Errc::invalid_argument, "--optimizer writes a folder, but OUT is one file: " + printable(out_))
                .with_hint("give an OUT that does not end in .safetensors or .sft");
        if (in_.size() == 1) return;
        if (common.picks_part())
            throw Error(Errc::invalid_argument,
                        fmt::format("--root takes one nested state dict, but IN has {} paths", in_.size()));
        protect_shards();
    }

    /// Throws invalid_argument if the last path, beside -o, can only be a second OUT.
    void require_one_out() const {
        std::error_code ignored;
        if (in_.size() < 2 || std::filesystem::exists(std::filesystem::symlink_status(in_.back(), ignored))) return;
        if (in_.back().find_first_of("*?[") != std::string::npos) return;
        throw Error(Errc::invalid_argument, fmt::format("there are two OUT: -o {} and {}, which does not exist",
                                                        printable(out_), printable(in_.back())))
            .with_hint("with -o, all paths are IN");
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

    /// Returns "a.pt", or "a.pt and 2 more".
    std::string from() const {
        const std::string first = printable(in_.front());
        return in_.size() == 1 ? first : fmt::format("{} and {} more", first, in_.size() - 1);
    }

    Around known_before(const Checkpoint& opened, const Checkpoint& chosen, const Checkpoint& model,
                        const std::vector<std::string>& renaming) const {
        Around around{.from = from(),
                      .aliases = options_.untie ? std::vector<AliasGroup>() : model.aliases(),
                      .skipped = opened.skipped(),
                      .notes = opened.notes(),
                      .layout = opened.layout(),
                      .dry_run = options_.plan_only,
                      .verbose = verbose_};
        if (around.layout) around.weights = weights_given(*around.layout, common.open.weights);
        // An object that occurs a second time has no tensor of its own.
        for (SkippedObject& object : around.skipped)
            object.quantized =
                object.quantized && (chosen.find(object.name) != nullptr || opened.find(object.name) == nullptr);
        note_parts(opened, around.notes);
        around.notes.insert(around.notes.end(), renaming.begin(), renaming.end());
        return around;
    }

    /// Returns the model with its tied tensors stored under the names of --keep-name, or the new names of a base class.
    Checkpoint stored_by_new_names(const Checkpoint& model, Renaming& renaming) const {
        std::vector<std::string> names;
        for (const std::string& name : keep_names_) names.push_back(renaming.apply(name));
        return model.stored_as(names);
    }

    /// Returns true if the configuration of a model says that its embeddings are not tied.
    static bool has_configuration(const Extras& extras) {
        return std::any_of(extras.files.begin(), extras.files.end(), [](const ExtraFile& file) {
            return file.name == "config.json" || file.name == "adapter_config.json";
        });
    }

    static bool names_are_apart(const Extras& extras) {
        const auto config = std::find_if(extras.files.begin(), extras.files.end(),
                                         [](const ExtraFile& file) { return file.name == "config.json"; });
        if (config == extras.files.end()) return false;
        std::string text(config->source->size(), '\0');
        config->source->read_at(0, std::as_writable_bytes(std::span(text)));
        std::erase_if(text, [](char c) { return c == ' ' || c == '\t' || c == '\n' || c == '\r'; });
        // A part of a model may have a configuration of its own inside.
        return text.find("\"tie_word_embeddings\":false") != text.npos &&
               text.find("\"tie_word_embeddings\":true") == text.npos;
    }

    /// Notes first that all parts of a checkpoint are converted, if there are several.
    static void note_parts(const Checkpoint& checkpoint, std::vector<std::string>& notes) {
        constexpr std::size_t most = 16;  // a note with the thousands of parts of a list does not help
        const std::vector<StatePart>& parts = checkpoint.all_parts();
        if (parts.size() < 2 || !checkpoint.root().empty()) return;
        std::string all;
        for (std::size_t i = 0; i < std::min(most, parts.size()); ++i)
            all += fmt::format("{}{} ({}, {})", i == 0 ? "" : ", ", parts[i].name,
                               count_text(parts[i].tensors, "tensor"), bytes_text(parts[i].bytes));
        if (parts.size() > most) all += fmt::format(" and {} more", parts.size() - most);
        notes.insert(notes.begin(), fmt::format("all parts are converted: {}; --root auto takes the model, --root PART "
                                                "one of them",
                                                all));
    }

    /// Returns true if the same call continues, should this one be interrupted.
    bool continues() const { return options_.resume && !options_.plan_only && !is_one_file(out_); }

    SaveReport save_model(const Checkpoint& chosen, const Checkpoint& model, const Monitor& monitor) const {
        SaveOptions options = options_;
        if (options.keep_dtype) options.keep_dtype = as_written(*options.keep_dtype, chosen, model);
        for (SaveOptions::DtypeOf& each : options.dtype_of) each.tensors = as_written(each.tensors, chosen, model);
        options.max_header_bytes = common.open.max_header_bytes;
        options.work.threads = common.open.work.threads;
        options.work.monitor = monitor;
        options.team = Nodes::team_for_save();
        try {
            return save(out_, model, options);
        } catch (const Error& error) {
            if (error.code() == Errc::cancelled && continues()) throw how_to_continue(error);
            if (error.code() == Errc::quantized_cast && !renaming_.empty()) require_whole_casts(chosen);
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

    /// Returns the tensors that `selection` selects, by any of their names. Like every GLOB, it matches names of IN,
    /// before --rename.
    static Selection as_written(const Selection& selection, const Checkpoint& chosen, const Checkpoint& model) {
        std::vector<std::string> names;
        for (const NamedTensor& named : all_names(chosen, selection))
            names.push_back(model.tensor(named.tensor).name());
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
            throw Error(error.code(), fmt::format("--dtype-of {}: {}", printable(rule), error.message()))
                .with_hint(error.hint());
        }
        std::size_t matches = 0;
        for (const NamedTensor& named : all_names(chosen, of.tensors)) {
            ++matches;
            if (can_cast(chosen.tensor(named.tensor).dtype(), of.dtype)) return of;
        }
        if (matches > 0 && !can_cast(Dtype::f32, of.dtype))
            throw Error(Errc::unsupported_cast,
                        fmt::format("--dtype-of {}: casts to {} are not supported", printable(rule), name(of.dtype)))
                .with_hint(castable());
        const std::string what = matches == 0 ? "matches none of" : "matches no tensor that can be cast, of";
        throw Error(Errc::tensor_not_found,
                    fmt::format("--dtype-of {} {} {}", printable(rule), what, count_text(chosen.size(), "tensor")))
            .with_hint("safemap inspect lists names and dtypes; a GLOB must match a whole name");
    }

    std::string first_;
    std::vector<std::string> rest_;  // paths after the first two
    std::vector<std::string> in_;
    std::string out_;
    std::optional<std::string> named_out_;
    bool verbose_ = false;
    std::string plan_;  // not printed yet
    std::vector<CLI::Option*> for_shards_;
    std::vector<CLI::Option*> for_ranks_;
    bool no_extras_ = false;
    bool optimizer_ = false;
    std::vector<std::string> dtypes_of_;
    std::vector<std::string> keep_;
    RenameOptions renaming_;
    std::vector<std::string> keep_names_;
    SaveOptions options_ = {.allow_empty = false};
};

}  // namespace

std::unique_ptr<Command> make_convert() { return std::make_unique<Convert>(); }

}  // namespace safemap::cli
