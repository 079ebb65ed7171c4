// Finds near names by edit distance. The computation stops where the distance is too large to matter.
#include "checkpoint/near_names.hpp"

#include "base/text.hpp"

#include <algorithm>
#include <numeric>
#include <utility>

namespace safemap::SAFEMAP_ABI::checkpoint {

namespace {

constexpr std::size_t most_names = 3;
constexpr std::size_t longest_name = 256;  // the time for a distance is the product of the lengths

/// Returns the largest distance that is near: a third of the name, and at least two edits.
std::size_t near(std::string_view wanted) { return std::max<std::size_t>(2, wanted.size() / 3); }

/// Returns true if one name is the other below a prefix, "model/norm.weight" and "norm.weight".
bool is_below(std::string_view longer, std::string_view shorter) {
    if (shorter.empty() || longer.size() <= shorter.size() || !longer.ends_with(shorter)) return false;
    const char before = longer[longer.size() - shorter.size() - 1];
    return before == '.' || before == '/';
}

}  // namespace

void NearNames::consider(std::string_view name) {
    const std::size_t longer = std::max(name.size(), wanted_.size());
    const std::size_t shorter = std::min(name.size(), wanted_.size());
    const std::size_t worst = names_.size() == most_names ? distances_.back() : near(wanted_) + 1;
    const bool below = is_below(name, wanted_) || is_below(wanted_, name);
    if (!below && (longer > longest_name || longer - shorter >= worst)) return;
    const std::size_t edits = below ? 1 : distance(name);
    if (edits >= worst) return;
    const auto place = std::upper_bound(distances_.begin(), distances_.end(), edits) - distances_.begin();
    distances_.insert(distances_.begin() + place, edits);
    names_.insert(names_.begin() + place, std::string(name));
    if (names_.size() > most_names) {
        names_.pop_back();
        distances_.pop_back();
    }
}

std::string NearNames::question() const {
    std::string question;
    for (const std::string& name : names_)
        question += (question.empty() ? "did you mean " : " or ") + safemap::quoted(name);
    return question.empty() ? question : question + '?';
}

std::size_t NearNames::distance(std::string_view name) const {
    std::vector<std::size_t> row(wanted_.size() + 1);  // from the prefix of `name` so far to every prefix of wanted_
    std::iota(row.begin(), row.end(), std::size_t{0});
    for (std::size_t i = 0; i < name.size(); ++i) {
        std::size_t diagonal = row[0];
        row[0] = i + 1;
        for (std::size_t j = 0; j < wanted_.size(); ++j) {
            const std::size_t replaced = diagonal + (name[i] == wanted_[j] ? 0 : 1);
            diagonal = row[j + 1];
            row[j + 1] = std::min({replaced, row[j] + 1, diagonal + 1});
        }
    }
    return row.back();
}

void throw_not_found(std::string_view wanted, const std::array<std::span<const LazyTensor>, 2>& tensors) {
    constexpr std::size_t most = 4096;  // a suggestion must not take longer than the rest
    Error error(Errc::tensor_not_found, "no tensor has the name " + safemap::quoted(wanted));
    NearNames near(wanted);
    if (tensors.front().size() <= most)
        for (const std::span<const LazyTensor> list : tensors)
            for (const LazyTensor& tensor : list) near.consider(tensor.name());
    throw std::move(error.with_hint(near.question()));
}

}  // namespace safemap::SAFEMAP_ABI::checkpoint
