// Finds the names that a selection matches, without looking at all names of a checkpoint.
#include "checkpoint/sorted_names.hpp"

#include "checkpoint/all_names.hpp"

#include <algorithm>
#include <numeric>
#include <string>
#include <utility>

namespace safemap::SAFEMAP_ABI::checkpoint {
namespace {

// The number of selections that look at all names before these are sorted, which takes as long as 10 to 30 of them.
constexpr unsigned looks_before_sort = 8;
// With a larger share of all names, it is as fast to look at all of them.
constexpr std::size_t least_share = 8;

}  // namespace

/// The candidates for one selection.
class SortedNames::Search {
public:
    Search(const SortedNames& in, const Checkpoint& checkpoint) : in_(in), checkpoint_(checkpoint) {}

    /// Returns false for a selection that could match any name.
    static bool is_narrow(const Selection& selection) noexcept {
        return (selection.names_ || !selection.includes_.empty()) &&
               std::ranges::none_of(selection.includes_, [](const Rule& rule) { return literal(rule).empty(); });
    }
    /// Adds all names that a narrow selection could match, some of them twice. Returns false if there are too many.
    bool add(const Selection& selection) {
        if (selection.names_) {
            if (selection.names_->size() > most()) return false;
            for (const std::string& name : *selection.names_) add_name(name);
        }
        return std::ranges::all_of(selection.includes_, [&](const Rule& rule) {
            add_rule(rule);
            return found_.size() <= most();
        });
    }
    std::vector<std::uint32_t> take() noexcept { return std::move(found_); }

private:
    using Rule = Selection::Rule;

    /// Returns the text with which all names begin that match the rule.
    static std::string_view literal(const Rule& rule) noexcept {
        const std::string_view text = rule.text;
        return rule.kind == Rule::Kind::glob ? text.substr(0, text.find_first_of("*?[")) : text;
    }
    std::size_t most() const noexcept { return in_.order_.size() / least_share; }
    void add_rule(const Rule& rule) {
        const std::string text(literal(rule));
        if (rule.kind == Rule::Kind::glob || text.back() == '.' || text.back() == '/') return add_all_with(text);
        add_name(text);
        add_all_with(text + '.');
        add_all_with(text + '/');
    }
    void add_all_with(std::string_view prefix) {
        const auto first = lower_bound(prefix);
        const auto last = std::partition_point(first, in_.order_.cend(), [&](std::uint32_t number) {
            return in_.entry(checkpoint_, number).name.starts_with(prefix);
        });
        found_.insert(found_.end(), first, last);
    }
    void add_name(std::string_view name) {
        for (auto at = lower_bound(name); at != in_.order_.end(); ++at) {
            if (in_.entry(checkpoint_, *at).name != name) return;
            found_.push_back(*at);
        }
    }
    std::vector<std::uint32_t>::const_iterator lower_bound(std::string_view name) const {
        return std::ranges::lower_bound(in_.order_, name, {},
                                        [&](std::uint32_t number) { return in_.entry(checkpoint_, number).name; });
    }

    const SortedNames& in_;
    const Checkpoint& checkpoint_;
    std::vector<std::uint32_t> found_;
};

std::optional<std::vector<NamedTensor>> SortedNames::find(const Checkpoint& checkpoint,
                                                          const Selection& selection) const {
    if (!Search::is_narrow(selection)) return std::nullopt;
    if (asked_.load(std::memory_order_relaxed) < looks_before_sort) {
        asked_.fetch_add(1, std::memory_order_relaxed);
        return std::nullopt;
    }
    std::call_once(sorted_, [&] { sort(checkpoint); });
    Search search(*this, checkpoint);
    if (!search.add(selection)) return std::nullopt;
    std::vector<std::uint32_t> numbers = search.take();
    // The other names of a tensor have higher numbers than its own one.
    std::ranges::sort(numbers, {},
                      [&](std::uint32_t number) { return std::pair(entry(checkpoint, number).tensor, number); });
    numbers.erase(std::unique(numbers.begin(), numbers.end()), numbers.end());
    std::vector<NamedTensor> names;
    for (const std::uint32_t number : numbers)
        if (const NamedTensor found = entry(checkpoint, number); selection.matches(found.name)) names.push_back(found);
    return names;
}

void SortedNames::sort(const Checkpoint& checkpoint) const {
    tied_.clear();
    for_each_name(checkpoint, [&](std::string_view name, std::size_t tensor, bool is_own) {
        if (!is_own) tied_.push_back({name, tensor});
    });
    std::vector<std::uint32_t> order(checkpoint.size() + tied_.size());
    std::iota(order.begin(), order.end(), 0U);
    // Names of a file are sorted already, or in long runs, and then this is the fastest.
    std::ranges::stable_sort(order, {}, [&](std::uint32_t number) { return entry(checkpoint, number).name; });
    order_ = std::move(order);
}

NamedTensor SortedNames::entry(const Checkpoint& checkpoint, std::uint32_t number) const noexcept {
    const std::size_t tensors = checkpoint.size();
    if (number >= tensors) return tied_[number - tensors];
    return {checkpoint.tensor(number).name(), number};
}

}  // namespace safemap::SAFEMAP_ABI::checkpoint
