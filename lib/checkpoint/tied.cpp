// Chooses the name under which a tied tensor is stored. Tested by tests/checkpoint/tied_test.cpp.
#include "base/text.hpp"
#include "checkpoint/all_names.hpp"
#include "checkpoint/near_names.hpp"
#include "checkpoint/origin.hpp"
#include "checkpoint/state.hpp"

#include <algorithm>
#include <array>
#include <string_view>
#include <unordered_set>

namespace safemap::SAFEMAP_ABI {

namespace {

// The ends of names, as `_tied_weights_keys` of the models of transformers and their forerunners pair them: a class
// without an output layer has the first ones only. docs/format.md lists them.

/// Parameters that encoder and decoder share.
constexpr std::array<std::string_view, 1> shared_embeddings{"shared.weight"};
constexpr std::array<std::string_view, 12> input_embeddings{
    "embed_tokens.weight",   "wte.weight",        "word_embeddings.weight", "word_embedding.weight",
    "tok_embeddings.weight", "embed_in.weight",   "token_embedding.weight", "token_embeddings.weight",
    "tok_embedding.weight",  "embeddings.weight", "embedding.weight",       "embed.weight"};
constexpr std::array<std::string_view, 15> output_layers{"lm_head.weight",
                                                         "output.weight",
                                                         "decoder.weight",
                                                         "decoder.bias",
                                                         "proj_out.weight",
                                                         "embed_out.weight",
                                                         "vocab_projector.weight",
                                                         "lm_loss.weight",
                                                         "pred_layer.proj.weight",
                                                         "output_layer.weight",
                                                         "output_projection.weight",
                                                         "generator_lm_head.weight",
                                                         "lm_head_weight",
                                                         "head.weight",
                                                         "unembed.weight"};

/// Returns true if a name ends in one of `ends`, after a dot or a slash.
template <class Ends> bool ends_in(std::string_view name, const Ends& ends) {
    return std::any_of(ends.begin(), ends.end(), [name](std::string_view end) {
        if (!name.ends_with(end)) return false;
        const std::size_t before = name.size() - end.size();
        return before == 0 || name[before - 1] == '.' || name[before - 1] == '/';
    });
}

/// Returns a low number for a name that the base class of a model has.
int rank_of(std::string_view name) {
    if (ends_in(name, shared_embeddings)) return 0;
    if (ends_in(name, input_embeddings)) return 1;
    return ends_in(name, output_layers) ? 3 : 2;
}

}  // namespace

Checkpoint Checkpoint::stored_as(std::span<const std::string> wanted) const {
    for (const std::string& name : wanted)
        if (find(name) == nullptr) checkpoint::throw_not_found(name, {state_->contents.tensors, state_->aliases});
    if (aliases().empty()) return *this;
    const std::unordered_set<std::string_view> chosen(wanted.begin(), wanted.end());
    std::vector<NamedTensor> names = all_names(*this);
    bool changed = false;
    for (auto first = names.begin(); first != names.end();) {
        const auto last =
            std::find_if(first, names.end(), [&](const NamedTensor& named) { return named.tensor != first->tensor; });
        const auto is_chosen = [&](const NamedTensor& named) { return chosen.contains(named.name); };
        auto best = std::find_if(first, last, is_chosen);
        if (best != last) {
            const auto other = std::find_if(best + 1, last, is_chosen);
            if (other != last)
                throw Error(Errc::invalid_argument, safemap::quoted(best->name) + " and " +
                                                        safemap::quoted(other->name) + " are names of one tensor");
        } else {
            best = std::min_element(first, last, [](const NamedTensor& a, const NamedTensor& b) {
                return rank_of(a.name) < rank_of(b.name);
            });
        }
        changed = changed || best != first;
        std::rotate(first, best, best + 1);
        first = last;
    }
    if (!changed) return *this;
    std::vector<std::string> same;
    same.reserve(names.size());
    for (const NamedTensor& named : names) same.emplace_back(named.name);
    return Checkpoint(State::derive(*this, names, std::move(same)));
}

Checkpoint checkpoint::Origin::untied(const Checkpoint& checkpoint) {
    if (checkpoint.aliases().empty()) return checkpoint;
    const Checkpoint::State& before = *checkpoint.state_;
    state::Contents contents = before.contents;
    std::erase_if(contents.metadata, [&](const auto& pair) { return before.find(pair.first) != nullptr; });
    contents.aliases.clear();
    contents.tensors.clear();
    std::vector<std::uint32_t> numbers(checkpoint.size());
    const std::vector<NamedTensor> names = all_names(checkpoint);
    for (std::size_t i = 0; i < names.size(); ++i) {
        if (is_first_name(names, i)) numbers[names[i].tensor] = static_cast<std::uint32_t>(contents.tensors.size());
        contents.tensors.push_back(checkpoint.tensor(names[i].tensor).renamed(std::string(names[i].name)));
    }
    if (!before.origin)
        return Checkpoint(
            std::make_shared<const Checkpoint::State>(std::move(contents), checkpoint.state_, std::move(numbers)));
    std::vector<std::uint32_t> from_origin = before.numbers;
    for (std::uint32_t& number : from_origin)
        if (number != Checkpoint::State::not_selected) number = numbers[number];
    return Checkpoint(
        std::make_shared<const Checkpoint::State>(std::move(contents), before.origin, std::move(from_origin)));
}

}  // namespace safemap::SAFEMAP_ABI
