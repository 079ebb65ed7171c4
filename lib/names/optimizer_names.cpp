// Recognises a model and its optimizer by the one word in which their names differ.
#include "names/optimizer_names.hpp"

#include <algorithm>
#include <cstddef>
#include <iterator>
#include <string_view>
#include <utility>

namespace safemap::SAFEMAP_ABI::names {

namespace {

/// Longer words first: "pytorch_model" begins with a word of its own, and ends with one.
constexpr std::string_view model_words[] = {"pytorch_model_fsdp", "pytorch_model", "model", "weights"};
constexpr std::string_view optimizer_words[] = {"optimizer", "optim"};

bool ends_word(std::string_view name, std::size_t at) {
    return at >= name.size() || name[at] == '_' || name[at] == '.' || name[at] == '-';
}

/// Returns the name without the word; nothing if it is not there as a word of its own. A "_0" after it is left out.
std::optional<std::string> without_word(std::string_view name, std::string_view word) {
    constexpr std::string_view first = "_0";
    for (std::size_t at = name.find(word); at != name.npos; at = name.find(word, at + 1)) {
        std::size_t end = at + word.size();
        if ((at > 0 && !ends_word(name, at - 1)) || !ends_word(name, end)) continue;
        if (name.substr(end).starts_with(first) && ends_word(name, end + first.size())) end += first.size();
        return std::string(name.substr(0, at)).append(name.substr(end));
    }
    return std::nullopt;
}

template <std::size_t N> std::optional<std::string> rest_of(std::string_view name, const std::string_view (&words)[N]) {
    for (const std::string_view word : words)
        if (auto rest = without_word(name, word)) return rest;
    return std::nullopt;
}

bool is_pair(const std::string& model, const std::string& optimizer) {
    const auto rest = rest_of(model, model_words);
    // "model_and_optim" holds both.
    return rest && rest == rest_of(optimizer, optimizer_words) && !rest_of(model, optimizer_words) &&
           !rest_of(optimizer, model_words);
}

}  // namespace

std::optional<ModelAndOptimizer> model_and_optimizer(const std::vector<std::string>& names) {
    if (names.size() != 2) return std::nullopt;
    if (is_pair(names[0], names[1])) return ModelAndOptimizer{.model = names[0], .optimizer = names[1]};
    if (is_pair(names[1], names[0])) return ModelAndOptimizer{.model = names[1], .optimizer = names[0]};
    return std::nullopt;
}

}  // namespace safemap::SAFEMAP_ABI::names
