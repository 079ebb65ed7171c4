// What every command takes, and the kinds of option that commands declare.
#pragma once

#include <safemap/checkpoint.hpp>
#include <safemap/error.hpp>
#include <safemap/selection.hpp>

#include <CLI/App.hpp>

#include <functional>
#include <string>
#include <string_view>
#include <vector>

namespace safemap::cli {

struct CommonOptions {
    bool json = false;
    bool quiet = false;
    OpenOptions open = {};  ///< --policy, --access, --threads
    std::vector<std::string> includes = {};
    std::vector<std::string> excludes = {};
    bool selectable = true;  ///< whether --help has --include and --exclude

    void declare(CLI::App& app);
    bool selects_all() const noexcept { return includes.empty() && excludes.empty(); }
    Selection selection() const;
};

/// An option whose text goes through `parse` and then into `into`. What is wrong with it is said with its name.
template <class T, class Parse>
CLI::Option* add_parsed(CLI::App& app, const std::string& name, T& into, Parse parse, const std::string& help) {
    return app.add_option_function<std::string>(
        name,
        [&into, parse, name](const std::string& text) {
            try {
                into = parse(text);
            } catch (const Error& error) {
                throw Error(error.code(), name + ": " + error.message());
            }
        },
        help);
}

/// An option that may be given several times, with one value each time.
CLI::Option* add_repeatable(CLI::App& app, const std::string& name, std::vector<std::string>& into,
                            const std::string& help);

}  // namespace safemap::cli
