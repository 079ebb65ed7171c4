// Cuts names into parts, and folds names that differ only in a number of one part.
#include <safemap/advanced/fold.hpp>

#include "base/name_index.hpp"

#include <algorithm>
#include <charconv>
#include <iterator>
#include <optional>
#include <unordered_map>
#include <utility>

namespace safemap::SAFEMAP_ABI {
namespace {

// Only the beginning of a hostile name with a million dots is cut.
constexpr std::size_t most_parts = 64;

bool has_separator(std::string_view part) { return !part.empty() && (part.front() == '.' || part.front() == '/'); }

/// Returns the number in a part, after its separator. Returns nothing if the part is not a number, or if the number
/// would be written differently: "007".
std::optional<std::uint64_t> number_of(std::string_view part) {
    if (has_separator(part)) part.remove_prefix(1);
    if (part.empty() || (part.size() > 1 && part.front() == '0')) return std::nullopt;
    std::uint64_t number = 0;
    const auto [end, failed] = std::from_chars(part.data(), part.data() + part.size(), number);
    if (failed != std::errc() || end != part.data() + part.size()) return std::nullopt;
    return number;
}

/// Returns a key that is equal for names that differ only at `place`. NUL separates the parts, so that they cannot run
/// together.
std::string key_without(const Folded& folded, std::size_t place) {
    std::string key = folded.kind;
    for (std::size_t i = 0; i < folded.parts.size(); ++i) {
        key += '\0';
        const std::string& part = folded.parts[i];
        // Keep the separator: a.1 and a/1 are different names.
        if (i != place) key += part;
        else if (has_separator(part)) key += part.front();
    }
    return key;
}

struct Group {
    std::size_t first = 0;  // index of the group in the result
    std::vector<std::uint64_t> numbers;
};

void merge(Folded& into, const Folded& item) {
    into.count += item.count;
    into.bytes += item.bytes;
    if (into.files == item.files) return;
    std::vector<std::uint64_t> files;
    std::set_union(into.files.begin(), into.files.end(), item.files.begin(), item.files.end(),
                   std::back_inserter(files));
    into.files = std::move(files);
}

/// Folds the numbers in part number `place`.
std::vector<Folded> fold_place(std::vector<Folded> items, std::size_t place) {
    std::vector<Folded> result;
    std::unordered_map<std::string, Group, NameHash> groups;
    for (Folded& item : items) {
        const auto number = place < item.parts.size() ? number_of(item.parts[place]) : std::nullopt;
        if (!number) {
            result.push_back(std::move(item));
            continue;
        }
        Group& group = groups[key_without(item, place)];
        group.numbers.push_back(*number);
        if (group.numbers.size() == 1) {
            group.first = result.size();
            result.push_back(std::move(item));
        } else {
            merge(result[group.first], item);
        }
    }
    for (auto& [key, group] : groups) {
        std::sort(group.numbers.begin(), group.numbers.end());
        std::string& part = result[group.first].parts[place];
        part = part.substr(0, has_separator(part) ? 1 : 0) + number_ranges(group.numbers);
    }
    return result;
}

}  // namespace

NameParts name_parts(std::string_view name) {
    NameParts parts;
    while (!name.empty()) {
        const bool last = parts.size() + 1 == most_parts;
        const std::size_t next = last ? name.size() : std::min(name.find_first_of("./", 1), name.size());
        parts.emplace_back(name.substr(0, next));
        name.remove_prefix(next);
    }
    return parts;
}

std::string Folded::name() const {
    std::string name;
    for (const std::string& part : parts) name += part;
    return name;
}

std::string Folded::times() const { return count > 1 ? "x " + std::to_string(count) : std::string(); }

std::vector<Folded> fold(const std::vector<Foldable>& names) {
    std::vector<Folded> items;
    items.reserve(names.size());
    std::size_t places = 0;
    for (const Foldable& name : names) {
        items.push_back({name_parts(name.name), name.kind, 1, name.bytes});
        if (name.file != 0) items.back().files.push_back(name.file);
        places = std::max(places, items.back().parts.size());
    }
    // Fold the last part first: experts inside layers, then layers. By then, parts that are folded are equal text.
    for (std::size_t place = places; place-- > 0;) items = fold_place(std::move(items), place);
    return items;
}

std::string prefix_of(std::string_view name) {
    const NameParts parts = name_parts(name);
    const auto number = std::find_if(parts.begin(), parts.end(), [](const auto& part) { return number_of(part); });
    const auto end = number == parts.end() && !parts.empty() ? std::prev(parts.end()) : number;
    std::string prefix;
    for (auto part = parts.begin(); part != end; ++part) prefix += *part;
    return prefix;
}

std::string number_ranges(const std::vector<std::uint64_t>& numbers) {
    if (numbers.size() == 1) return std::to_string(numbers.front());
    std::string text = "{";
    for (std::size_t i = 0; i < numbers.size();) {
        std::size_t last = i;
        while (last + 1 < numbers.size() && numbers[last + 1] == numbers[last] + 1) ++last;
        if (i > 0) text += ',';
        text += std::to_string(numbers[i]);
        if (last > i) text += ".." + std::to_string(numbers[last]);
        i = last + 1;
    }
    return text + '}';
}

}  // namespace safemap::SAFEMAP_ABI
