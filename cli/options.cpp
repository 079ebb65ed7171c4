// Declares the common options, with their help texts, and makes a Selection of the globs.
#include "options.hpp"

#include "parse.hpp"

namespace safemap::cli {
namespace {

constexpr unsigned most_threads = 1024;

}  // namespace

void CommonOptions::declare(CLI::App& app) {
    app.option_defaults()->group("Every command");
    app.add_flag("--json", json, "print one JSON object to stdout, also for an error");
    app.add_flag("-q,--quiet", quiet, "print nothing but errors");
    if (!opens) return;
    const auto threads = [](std::string_view text) { return parse_count(text, most_threads); };
    add_parsed(app, "--threads", open.work.threads, threads, "number of worker threads (default: chosen automatically)")
        ->type_name("N");
    add_parsed(app, "--policy", open.policy, parse_policy,
               "how strictly files are read: compatible (default), strict or lenient")
        ->type_name("POLICY");
    add_parsed(app, "--access", open.access, parse_access,
               "how files are read: map local files (auto), always map (mapped), or never map (copied)")
        ->type_name("ACCESS");
    add_parsed(app, "--max-header-size", open.max_header_bytes, parse_header_size,
               "longest header of a safetensors file, to read and to write (default: 100MB)")
        ->type_name("SIZE");
    app.add_flag("--strict-globals", open.strict_globals, "refuse pickles that name an unknown class or function");
    const auto take_root = [this](const std::string& path) {
        open.root_auto = path == "auto";
        open.root = open.root_auto ? std::nullopt : std::optional(path);
    };
    app.add_option_function<std::string>("--root", take_root,
                                         "the part of a nested state dict to use: a path such as model, auto for the "
                                         "model, or '' for all with whole paths (default: the only part with tensors)")
        ->group(selecting)
        ->type_name("PATH");
    if (trainable) {
        app.add_flag("--ema", open.ema, "use averages of weights (EMA) in the places of the weights")->group(selecting);
        add_parsed(
            app, "--weights", open.weights, parse_weights,
            "weights of a DeepSpeed folder: the fp32 masters (fp32), or the 16-bit weights of the module (module)")
            ->type_name("WHICH");
        app.add_flag("--deepspeed-compat", open.deepspeed_compat,
                     "read a DeepSpeed folder as DeepSpeed's own script zero_to_fp32 does");
        app.add_option("--manifest", open.manifest,
                       "names and shapes of flat parameters (default: manifest.json beside the files of ranks)")
            ->type_name("FILE");
        app.add_flag("--as-parts", open.as_parts,
                     "give the local parts in one file of a set of ranks, instead of refusing it");
    }
    const auto add_selection = [&](const char* name, std::vector<std::string>& into, const char* help) {
        CLI::Option* const option = add_repeatable(app, name, into, help)->type_name("GLOB");
        option->group(selectable ? selecting : "");  // hidden without a name
    };
    add_selection("--include", includes,
                  selects_files ? "open the files whose names or paths match, whatever their ending (repeatable)"
                                : "use only tensors whose names match (repeatable)");
    add_selection("--exclude", excludes,
                  selects_files ? "leave out files and folders whose names or paths match (repeatable)"
                                : "leave out tensors whose names match (repeatable)");
}

Selection CommonOptions::selection() const {
    Selection selection;
    for (const std::string& glob : includes) selection.include(glob);
    for (const std::string& glob : excludes) selection.exclude(glob);
    return selection;
}

CLI::Option* add_repeatable(CLI::App& app, const std::string& name, std::vector<std::string>& into,
                            const std::string& help) {
    // Without extra arguments, `--include a PATH` does not take PATH, and `[ab]*` is a pattern, not a list.
    return app.add_option(name, into, help)->allow_extra_args(false);
}

}  // namespace safemap::cli
