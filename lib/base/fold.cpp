// Cuts names into parts, and folds names that differ only in a number of one part. From top to bottom:
//   - Cut: the parts of one name.
//   - Digits: the number at the end of a part, and whether it can be folded.
//   - Ranges: the numbers of one group.
//   - PaddedKeys: the groups that have a number with zeros in front.
//   - Folder: folds names by their last number as they come, and then the groups by their other numbers.
#include <safemap/advanced/fold.hpp>
#include <safemap/error.hpp>

#include "base/name_index.hpp"

#include <algorithm>
#include <array>
#include <charconv>
#include <iterator>
#include <optional>
#include <span>
#include <unordered_map>
#include <unordered_set>
#include <utility>

namespace safemap::SAFEMAP_ABI {
namespace {

// Only the beginning of a hostile name with a million dots is cut.
constexpr std::size_t most_parts = 64;

/// The parts of a name, which are views of it.
class Cut {
public:
    explicit Cut(std::string_view name) {
        while (!name.empty()) {
            const bool last = count_ + 1 == most_parts;
            const std::size_t next = last ? name.size() : std::min(name.find_first_of("./", 1), name.size());
            parts_[count_++] = name.substr(0, next);
            name.remove_prefix(next);
        }
    }
    std::span<const std::string_view> parts() const noexcept { return std::span(parts_).first(count_); }

private:
    std::array<std::string_view, most_parts> parts_;
    std::size_t count_ = 0;
};

bool has_separator(std::string_view part) { return !part.empty() && (part.front() == '.' || part.front() == '/'); }

bool is_digit(char c) noexcept { return c >= '0' && c <= '9'; }

/// The digits at the end of a part.
struct Digits {
    std::string_view before;  ///< the rest of the part, with its separator
    std::string_view digits;
    std::uint64_t number = 0;

    /// Returns true if the part is a number, written without zeros in front.
    bool plain() const { return (digits.size() == 1 || !starts_with_zero()) && only_digits(); }
    bool only_digits() const { return before.size() == (has_separator(before) ? 1 : 0); }
    bool starts_with_zero() const { return digits.front() == '0'; }
    /// Returns true if the part may be in a group of numbers of one width.
    bool has_width() const { return digits.size() > 1 && digits.size() <= most_width; }

    static constexpr std::size_t most_width = 100;  // keys have the width as one character
};

/// Returns nothing if the part does not end in digits, or if the number does not fit in 64 bits.
std::optional<Digits> digits_of(std::string_view part) {
    std::size_t first = part.size();
    while (first > 0 && is_digit(part[first - 1])) --first;
    if (first == part.size()) return std::nullopt;
    Digits found{part.substr(0, first), part.substr(first)};
    const auto end = part.data() + part.size();
    if (std::from_chars(found.digits.data(), end, found.number).ec != std::errc()) return std::nullopt;
    return found;
}

/// Sets `key` to a text that is equal for names that differ only in the digits of the part at `place`. `width` is that
/// of the digits if it has to be equal too, or 0. NUL separates the parts, so that they cannot run together.
template <class Parts>
void set_key(std::string& key, std::string_view kind, const Parts& parts, std::size_t place, const Digits& digits,
             std::size_t width) {
    key.assign(1, static_cast<char>(place));
    key += kind;
    for (std::size_t i = 0; i < parts.size(); ++i) {
        key += '\0';
        // The separator stays: a.1 and a/1 are different names.
        key += i == place ? digits.before : std::string_view(parts[i]);
        if (i != place || width == 0) continue;
        key += '\1';
        key += static_cast<char>(width);
    }
}

/// The numbers of a group as ranges, in the order in which they came.
class Ranges {
public:
    void add(std::uint64_t number) {
        if (!ranges_.empty() && ranges_.back().second + 1 == number) ranges_.back().second = number;
        else ranges_.emplace_back(number, number);
    }
    bool empty() const noexcept { return ranges_.empty(); }
    bool only_one() const { return ranges_.size() == 1 && ranges_[0].first == ranges_[0].second; }

    /// Returns "{0..3,7}", or "5" for a single number. Fills numbers up to `width` with zeros.
    std::string text(std::size_t width) {
        std::sort(ranges_.begin(), ranges_.end());
        const auto padded = [width](std::uint64_t number) {
            const std::string digits = std::to_string(number);
            return std::string(width - std::min(width, digits.size()), '0') + digits;
        };
        if (only_one()) return padded(ranges_[0].first);
        std::string text = "{";
        for (std::size_t i = 0; i < ranges_.size();) {
            std::size_t last = i;
            while (last + 1 < ranges_.size() && ranges_[last + 1].first == ranges_[last].second + 1) ++last;
            if (i > 0) text += ',';
            text += padded(ranges_[i].first);
            if (ranges_[last].second > ranges_[i].first) text += ".." + padded(ranges_[last].second);
            i = last + 1;
        }
        return text + '}';
    }

private:
    std::vector<std::pair<std::uint64_t, std::uint64_t>> ranges_;
};

struct Group {
    std::size_t first = 0;  // index of the group in the result
    std::size_t place = 0;
    std::size_t width = 0;
    Ranges numbers = {};
};

void add_file(std::vector<std::uint64_t>& files, std::uint64_t file) {
    const auto at = std::lower_bound(files.begin(), files.end(), file);
    if (at == files.end() || *at != file) files.insert(at, file);
}

void merge(Folded& into, std::uint64_t count, std::uint64_t bytes, std::span<const std::uint64_t> files) {
    into.count += count;
    into.bytes += bytes;
    for (const std::uint64_t file : files) add_file(into.files, file);
}

/// The groups of names in which a number has zeros in front. Numbers of such a group have one width, and they may
/// follow letters: w007, w008, w110.
class PaddedKeys {
public:
    template <class Parts>
    void add(std::string_view kind, const Parts& parts, std::size_t place, const Digits& digits) {
        set_key(key_, kind, parts, place, digits, digits.digits.size());
        keys_.insert(key_);
    }
    /// Returns true if the part is in one of the groups, whose key is then in `key`.
    template <class Parts>
    bool has(std::string& key, std::string_view kind, const Parts& parts, std::size_t place,
             const Digits& digits) const {
        if (keys_.empty() || !digits.has_width()) return false;
        set_key(key, kind, parts, place, digits, digits.digits.size());
        return keys_.contains(key);
    }

private:
    std::unordered_set<std::string, NameHash> keys_;
    std::string key_;
};

/// The groups of one pass, and the items that are in none.
class Groups {
public:
    explicit Groups(const PaddedKeys& padded) : padded_(padded) {}

    /// Adds a name to the group of the digits in the part at `place`. Returns false if they are in no group. `item`
    /// makes the Folded of a name that is the first of its group.
    template <class Parts, class Item>
    bool add(std::string_view kind, const Parts& parts, std::size_t place, const Digits& digits, Item&& item,
             std::uint64_t count, std::uint64_t bytes, std::span<const std::uint64_t> files) {
        const bool is_padded = padded_.has(key_, kind, parts, place, digits);
        if (!is_padded && !digits.plain()) return false;
        if (!is_padded) set_key(key_, kind, parts, place, digits, 0);
        if (last_ == nullptr || last_->first != key_) last_ = &*groups_.try_emplace(key_).first;
        Group& group = last_->second;
        if (group.numbers.empty()) {
            group.first = result_.size();
            group.place = place;
            group.width = is_padded ? digits.digits.size() : 0;
            result_.push_back(item());
        } else {
            merge(result_[group.first], count, bytes, files);
        }
        group.numbers.add(digits.number);
        return true;
    }
    void add(Folded item) { result_.push_back(std::move(item)); }

    std::vector<Folded> take() {
        for (auto& [key, group] : groups_) {
            std::string& part = result_[group.first].parts[group.place];
            part = std::string(digits_of(part)->before) + group.numbers.text(group.width);
        }
        return std::move(result_);
    }

private:
    const PaddedKeys& padded_;
    std::string key_;
    std::unordered_map<std::string, Group, NameHash> groups_;
    std::pair<const std::string, Group>* last_ = nullptr;  // most names are in the group of the name before
    std::vector<Folded> result_;
};

/// Folds the numbers in part number `place`.
std::vector<Folded> fold_place(std::vector<Folded> items, std::size_t place) {
    const auto digits_in = [place](const Folded& item) {
        return place < item.parts.size() ? digits_of(item.parts[place]) : std::nullopt;
    };
    PaddedKeys padded;
    for (const Folded& item : items) {
        const auto digits = digits_in(item);
        if (digits && digits->has_width() && digits->starts_with_zero())
            padded.add(item.kind, item.parts, place, *digits);
    }
    Groups groups(padded);
    for (Folded& item : items) {
        const auto digits = digits_in(item);
        const auto moved = [&] { return std::move(item); };
        if (!digits || !groups.add(item.kind, item.parts, place, *digits, moved, item.count, item.bytes, item.files))
            groups.add(moved());
    }
    return groups.take();
}

/// Finds the groups that numbers with zeros in front make, where such a number is the last one of its name.
PaddedKeys padded_keys(std::size_t count, const std::function<Foldable(std::size_t)>& name_at) {
    PaddedKeys padded;
    for (std::size_t i = 0; i < count; ++i) {
        const Foldable name = name_at(i);
        const Cut cut(name.name);
        for (std::size_t place = cut.parts().size(); place-- > 0;) {
            const auto digits = digits_of(cut.parts()[place]);
            if (!digits) continue;
            if (digits->plain()) break;
            if (!digits->has_width() || !digits->starts_with_zero()) continue;
            padded.add(name.kind, cut.parts(), place, *digits);
            break;
        }
    }
    return padded;
}

/// Folds names by their last number, without keeping the names.
std::vector<Folded> fold_last(std::size_t count, const std::function<Foldable(std::size_t)>& name_at) {
    const PaddedKeys padded = padded_keys(count, name_at);
    Groups groups(padded);
    for (std::size_t i = 0; i < count; ++i) {
        const Foldable name = name_at(i);
        const Cut cut(name.name);
        const std::span files(&name.file, name.file == 0 ? 0 : 1);
        const auto item = [&] {
            return Folded{name_parts(name.name), name.kind, 1, name.bytes, {files.begin(), files.end()}};
        };
        bool folded = false;
        for (std::size_t place = cut.parts().size(); place-- > 0 && !folded;)
            if (const auto digits = digits_of(cut.parts()[place]))
                folded = groups.add(name.kind, cut.parts(), place, *digits, item, 1, name.bytes, files);
        if (!folded) groups.add(item());
    }
    return groups.take();
}

}  // namespace

NameParts name_parts(std::string_view name) {
    const Cut cut(name);
    return {cut.parts().begin(), cut.parts().end()};
}

std::string Folded::name() const {
    std::string name;
    for (const std::string& part : parts) name += part;
    return name;
}

std::string Folded::times() const { return count > 1 ? "x " + std::to_string(count) : std::string(); }

std::vector<Folded> fold(const std::vector<Foldable>& names) {
    return fold(names.size(), [&](std::size_t i) { return names[i]; });
}

std::vector<Folded> fold(std::size_t count, const std::function<Foldable(std::size_t)>& name_at) {
    if (!name_at) throw Error(Errc::invalid_argument, "there is no function that returns names");
    std::vector<Folded> items = fold_last(count, name_at);
    std::size_t places = 0;
    for (const Folded& item : items) places = std::max(places, item.parts.size());
    // Fold the last part first: experts inside layers, then layers. By then, parts that are folded are equal text.
    for (std::size_t place = places; place-- > 0;) items = fold_place(std::move(items), place);
    return items;
}

std::string prefix_of(std::string_view name) {
    const Cut cut(name);
    const auto parts = cut.parts();
    const auto is_number = [](std::string_view part) {
        const auto digits = digits_of(part);
        return digits && digits->only_digits();
    };
    const auto number = std::find_if(parts.begin(), parts.end(), is_number);
    const auto end = number == parts.end() && !parts.empty() ? std::prev(parts.end()) : number;
    std::string prefix;
    for (auto part = parts.begin(); part != end; ++part) prefix += *part;
    return prefix;
}

std::string number_ranges(const std::vector<std::uint64_t>& numbers) {
    Ranges ranges;
    for (const std::uint64_t number : numbers) ranges.add(number);
    return ranges.text(0);
}

}  // namespace safemap::SAFEMAP_ABI
