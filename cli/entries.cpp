// Opens the sides of a comparison. Finds out which option leaves no tensor, and quotes it as it was typed.
#include "entries.hpp"

#include "output.hpp"

#include <safemap/advanced/names.hpp>
#include <safemap/advanced/text.hpp>
#include <safemap/error.hpp>

#include <fmt/core.h>

#include <algorithm>
#include <string_view>

namespace safemap::cli {
namespace {

/// Returns the options as typed: "--include 'a*' --include 'b'".
std::string as_given(std::string_view option, const std::vector<std::string>& globs) {
    std::string text;
    for (const std::string& glob : globs)
        text += fmt::format("{}{} '{}'", text.empty() ? "" : " ", option, printable(glob));
    return text;
}

}  // namespace

Checkpoint open_side(const std::string& path, const CommonOptions& common, std::string& lacks) {
    OpenOptions options = common.open;
    for (;;) {
        try {
            return Checkpoint::open(path, options);
        } catch (const Error& error) {
            const bool no_part = error.code() == Errc::invalid_argument && options.root && !options.root->empty();
            const bool no_averages = error.code() == Errc::tensor_not_found && options.ema;
            if (!no_part && !no_averages) throw;
            lacks += lacks.empty() ? "" : " and no ";
            lacks += no_part ? fmt::format("part '{}'", printable(*options.root)) : "averages";
            if (no_part) options.root.reset();
            else options.ema = false;
        }
    }
}

std::string empty_selection(Checkpoints checkpoints, const CommonOptions& common) {
    const auto selects = [&](const Selection& selection) {
        return std::any_of(checkpoints.begin(), checkpoints.end(),
                           [&](const Checkpoint& checkpoint) { return !all_names(checkpoint, selection).empty(); });
    };
    std::size_t count = 0;
    for (const Checkpoint& checkpoint : checkpoints) count += checkpoint.size();
    if (count == 0 || common.selects_all() || selects(common.selection())) return {};

    Selection included;
    for (const std::string& glob : common.includes) included.include(glob);
    const std::string all = count_text(count, "tensor");
    if (!selects(included)) return fmt::format("{} matches none of {}", as_given("--include", common.includes), all);
    return fmt::format("{} leaves none of {}", as_given("--exclude", common.excludes), all);
}

void require_selection(Checkpoints checkpoints, const CommonOptions& common) {
    const std::string wrong = empty_selection(checkpoints, common);
    if (!wrong.empty())
        throw Error(Errc::tensor_not_found, wrong)
            .with_hint("safemap inspect lists the names; a GLOB must match a whole name");
}

}  // namespace safemap::cli
