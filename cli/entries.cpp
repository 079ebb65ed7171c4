#include "entries.hpp"

#include "output.hpp"

#include <safemap/error.hpp>

#include <fmt/core.h>

#include <string_view>
#include <unordered_map>
#include <utility>

namespace safemap::cli {

std::vector<Entry> select_entries(const Checkpoint& checkpoint, const Selection& selection) {
    std::unordered_map<std::string_view, const AliasGroup*> groups;
    for (const AliasGroup& group : checkpoint.aliases())
        if (!group.empty()) groups.emplace(group.front(), &group);

    std::vector<Entry> entries;
    entries.reserve(checkpoint.size());
    for (const LazyTensor& tensor : checkpoint) {
        Entry entry{&tensor, {}, {}};
        bool selected = false;
        const auto select = [&](const std::string& name) {
            if (!selection.matches(name)) return;
            if (std::exchange(selected, true)) entry.others.push_back(name);
            else entry.name = name;
        };
        select(tensor.name());
        const auto group = groups.find(tensor.name());
        if (group != groups.end())
            for (std::size_t i = 1; i < group->second->size(); ++i) select((*group->second)[i]);
        if (selected) entries.push_back(std::move(entry));
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

std::string empty_selection(const Checkpoint& checkpoint, const CommonOptions& common,
                            const std::vector<Entry>& entries) {
    if (!entries.empty() || checkpoint.empty()) return {};
    Selection included;
    for (const std::string& glob : common.includes) included.include(glob);
    const std::string all = count_text(checkpoint.size(), "tensor");
    if (select_entries(checkpoint, included).empty())
        return fmt::format("{}: none of {} has such a name", as_given("--include", common.includes), all);
    return fmt::format("{}: none of {} is left", as_given("--exclude", common.excludes), all);
}

std::vector<Entry> require_entries(const Checkpoint& checkpoint, const CommonOptions& common) {
    std::vector<Entry> entries = select_entries(checkpoint, common.selection());
    const std::string wrong = empty_selection(checkpoint, common, entries);
    if (!wrong.empty())
        throw Error(Errc::tensor_not_found, wrong)
            .with_hint("safemap inspect lists the names; a glob is matched with all of a name");
    return entries;
}

std::uint64_t total_bytes(const std::vector<Entry>& entries) {
    std::uint64_t total = 0;
    for (const Entry& entry : entries) total += entry.tensor().nbytes();
    return total;
}

}  // namespace safemap::cli
