#include "entries.hpp"

#include "output.hpp"

#include <safemap/error.hpp>

#include <fmt/core.h>

#include <algorithm>
#include <string_view>

namespace safemap::cli {

std::vector<Entry> select_entries(const Checkpoint& checkpoint, const Selection& selection) {
    std::vector<Entry> entries;
    for (const NamedTensor& named : all_names(checkpoint, selection)) {
        const LazyTensor* const stored = &checkpoint.tensor(named.tensor);
        if (!entries.empty() && entries.back().stored == stored) entries.back().others.push_back(named.name);
        else entries.push_back({stored, named.name, {}});
    }
    return entries;
}

std::vector<std::string> Entry::names() const {
    std::vector<std::string> all = {std::string(name)};
    all.insert(all.end(), others.begin(), others.end());
    return all;
}

namespace {

/// "--include 'a*' --include 'b'".
std::string as_given(std::string_view option, const std::vector<std::string>& globs) {
    std::string text;
    for (const std::string& glob : globs)
        text += fmt::format("{}{} '{}'", text.empty() ? "" : " ", option, printable(glob));
    return text;
}

}  // namespace

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
    if (!selects(included))
        return fmt::format("{}: none of {} has such a name", as_given("--include", common.includes), all);
    return fmt::format("{}: none of {} is left", as_given("--exclude", common.excludes), all);
}

void require_selection(Checkpoints checkpoints, const CommonOptions& common) {
    const std::string wrong = empty_selection(checkpoints, common);
    if (!wrong.empty())
        throw Error(Errc::tensor_not_found, wrong)
            .with_hint("safemap inspect lists the names; a glob is matched with all of a name");
}

std::uint64_t total_bytes(const std::vector<Entry>& entries) {
    std::uint64_t total = 0;
    for (const Entry& entry : entries) total += entry.tensor().nbytes();
    return total;
}

}  // namespace safemap::cli
