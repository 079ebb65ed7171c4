// The options that every command takes, and helpers to declare options.
#pragma once

#include <safemap/checkpoint.hpp>
#include <safemap/error.hpp>
#include <safemap/selection.hpp>

#include <CLI/App.hpp>

#include <string>
#include <vector>

namespace safemap::cli {

/// The options that every command takes.
struct CommonOptions {
    bool json = false;
    bool quiet = false;
    OpenOptions open = {};  ///< --policy, --access, --threads, --weights, ...
    std::vector<std::string> includes = {};
    std::vector<std::string> excludes = {};
    bool selectable = true;      ///< true if --help shows --include and --exclude
    bool selects_files = false;  ///< true if --include and --exclude are for files, not for tensors
    bool trainable = true;       ///< true if the command takes the options for folders of DeepSpeed
    bool opens = true;           ///< false if the command opens no checkpoint: it has only --json and --quiet
    std::string selecting = "Every command";  ///< the group of --include and --exclude in --help

    void declare(CLI::App& app);
    /// Returns true if --root names a part, or lets safemap find the model.
    bool picks_part() const noexcept { return open.root_auto || (open.root && !open.root->empty()); }
    bool selects_all() const noexcept { return includes.empty() && excludes.empty(); }
    Selection selection() const;
};

/// Adds an option. `parse` converts its text, and the result is stored in `into`. Its errors are prefixed with `name`.
template <class T, class Parse>
CLI::Option* add_parsed(CLI::App& app, const std::string& name, T& into, Parse parse, const std::string& help) {
    return app.add_option_function<std::string>(
        name,
        [&into, parse, name](const std::string& text) {
            try {
                into = parse(text);
            } catch (const Error& error) {
                throw Error(error.code(), name + ": " + error.message()).with_hint(error.hint());
            }
        },
        help);
}

/// Adds an option that may be given several times, with one value each time.
CLI::Option* add_repeatable(CLI::App& app, const std::string& name, std::vector<std::string>& into,
                            const std::string& help);

}  // namespace safemap::cli
