// Parses the names of models, and finds the model of a folder among them.
#include "names/model_names.hpp"

#include "base/text.hpp"
#include "names/file_names.hpp"

#include <algorithm>
#include <array>
#include <iterator>
#include <map>
#include <set>
#include <tuple>
#include <utility>

namespace safemap::SAFEMAP_ABI::names {

namespace {

/// How a stem is preferred to others of the same folder.
enum class Rank : std::uint8_t { model, other, adapter };

/// A stem that libraries give to the file of a whole model, and the stem of their safetensors file.
struct Stem {
    std::string_view stem;
    std::string_view saved_as;
    Rank rank = Rank::other;
};

constexpr std::array<Stem, 8> stems = {{
    {"model", "model", Rank::model},
    {"pytorch_model", "model", Rank::model},
    {"diffusion_pytorch_model", "diffusion_pytorch_model"},
    {"open_clip_model", "open_clip_model"},
    {"open_clip_pytorch_model", "open_clip_model"},
    {"consolidated", "consolidated"},
    {"adapter_model", "adapter_model", Rank::adapter},
    {"pytorch_lora_weights", "pytorch_lora_weights", Rank::adapter},
}};

/// For a part of the model, as Llama's files are cut. Parts are not joined.
constexpr Stem stem_of_part = {{}, "model"};

const Stem* known_stem(std::string_view stem) {
    if (is_kind(stem, NameKind::part)) return &stem_of_part;
    const auto* found = std::find_if(stems.begin(), stems.end(), [stem](const Stem& one) { return one.stem == stem; });
    return found == stems.end() ? nullptr : found;
}

bool is_word(std::string_view text) {
    return !text.empty() && std::all_of(text.begin(), text.end(), [](char c) {
        return (c >= '0' && c <= '9') || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '_';
    });
}

/// Removes the ending of weights from the end of `text`, and returns it.
std::string_view take_ending(std::string_view& text) {
    const std::string_view ending = ending_of_weights(text);
    text.remove_suffix(ending.size());
    return ending;
}

bool take_at_end(std::string_view& text, std::string_view end) {
    if (!text.ends_with(end)) return false;
    text.remove_suffix(end.size());
    return true;
}

/// Removes ".fp16" from the end of `text`, and returns "fp16". A number is not a variant: "consolidated.00" is a part.
std::string_view take_variant(std::string_view& text) {
    const std::size_t dot = text.rfind('.');
    if (dot == text.npos || dot == 0) return {};
    const std::string_view variant = text.substr(dot + 1);
    if (!is_word(variant) || is_digits(variant)) return {};
    text = text.substr(0, dot);
    return variant;
}

/// Takes the variant of a known stem: "model.fp16". Any other stem may have dots of its own.
void split_variant(ModelName& name) {
    std::string_view stem = name.stem;
    const std::string variant(take_variant(stem));
    if (!name.variant.empty() || variant.empty() || !known_stem(stem)) return;
    name.variant = variant;
    name.stem.resize(stem.size());
}

/// Takes "-00001-of-00003" from the end of the stem. Some programs write '_', or "OF". diffusers wrote the variant
/// after it at first.
bool take_shard(ModelName& name, std::string_view file) {
    std::string_view stem = name.stem;
    const std::string variant(take_variant(stem));
    std::string lower(stem);
    std::transform(lower.begin(), lower.end(), lower.begin(), [](char c) {
        return c == 'O' ? 'o' : c == 'F' ? 'f' : c;
    });
    const auto known = known_name(lower, {NameKind::shard});
    if (!known || !known->is_short() || known->text.empty()) return false;
    const auto& [number, shards, none] = known->numbers;
    if (shards.value == 0 || number.value > shards.value) return false;
    name.kind = ModelName::Kind::shard;
    name.number = number.value;
    name.shards = shards.value;
    name.digits = shards.digits;
    name.set = std::string(file).replace(number.at, number.digits, "*");
    name.width = number.digits;
    name.of = stem.substr(number.at + number.digits, shards.at - number.at - number.digits);
    name.variant = variant;
    name.stem.resize(known->text.size());
    return true;
}

std::optional<ModelName> index_name(std::string_view file) {
    constexpr std::string_view json = ".json";
    constexpr std::string_view index = ".index";
    if (!take_at_end(file, json)) return std::nullopt;
    const std::string variant(file.ends_with(index) ? std::string_view() : take_variant(file));
    if (!take_at_end(file, index)) return std::nullopt;
    const std::string_view ending = take_ending(file);
    if (ending != ".safetensors" && ending != ".bin") return std::nullopt;
    ModelName name{
        .kind = ModelName::Kind::index, .stem = std::string(file), .variant = variant, .ending = std::string(ending)};
    split_variant(name);
    return name;
}

/// The words that the files of one model share.
using Model = std::tuple<std::string, std::string, std::string>;
Model model_of(const ModelName& name) { return {name.stem, name.variant, name.ending}; }

Rank rank_of(const ModelName& name) {
    if (const Stem* known = known_stem(name.stem)) return known->rank;
    // The index of any model is as good as that of `model`. A shard without an index is not.
    return name.kind == ModelName::Kind::index ? Rank::model : Rank::other;
}

/// The order of endings: safetensors before pickles, and its usual ending first.
int order_of_ending(std::string_view ending) { return ending == ".safetensors" ? 0 : ending == ".sft" ? 1 : 2; }

/// The order of preference. The smallest is preferred.
auto preference(const ModelName& name) {
    return std::tuple(!name.variant.empty(), rank_of(name), order_of_ending(name.ending), name.kind);
}

/// Adds the files of a set, and says which numbers it lacks. Numbers begin with 0 if that is there, else with 1.
void take_files(ShardSet& set, const std::map<std::uint64_t, std::string>& numbered) {
    constexpr std::uint64_t most = 8;
    const std::uint64_t first = numbered.contains(0) ? 0 : 1;
    for (const auto& [number, file] : numbered)
        if (number - first < set.name.shards) set.files.push_back(file);
    set.missing = set.name.shards - set.files.size();
    for (std::uint64_t n = first; set.lacks.size() < std::min(most, set.missing); ++n)
        if (!numbered.contains(n)) set.lacks.push_back(file_in_set(set.name.set, n, set.name.width));
}

}  // namespace

std::optional<ModelName> model_name(std::string_view file) {
    const std::string_view whole = file;
    if (file.starts_with('.') || shard_file(file)) return std::nullopt;
    if (auto index = index_name(file)) return index;
    const std::string_view ending = take_ending(file);
    if (ending.empty()) return std::nullopt;
    ModelName name{.stem = std::string(file), .ending = std::string(ending)};
    const bool is_shard = take_shard(name, whole);
    split_variant(name);
    if (is_shard || known_stem(name.stem)) return name;
    return std::nullopt;
}

bool is_usual_model(std::string_view file) {
    const auto name = model_name(file);
    if (!name) return false;
    if (name->stem == "adapter_model") return true;
    const bool usual = name->stem == "model" || name->stem == "pytorch_model";
    return usual && (name->ending == ".bin" || ends_as_safetensors(name->ending));
}

std::vector<ShardSet> shard_sets(std::span<const std::string> names) {
    using Key = std::tuple<Model, std::uint64_t, std::size_t, std::string>;
    std::map<Key, std::map<std::uint64_t, std::string>> sets;
    for (const std::string& file : names) {
        const auto name = model_name(file);
        if (!name || name->kind != ModelName::Kind::shard) continue;
        sets[{model_of(*name), name->shards, name->digits, name->of}].emplace(name->number, file);
    }
    std::vector<ShardSet> found;
    for (const auto& [key, numbered] : sets)
        take_files(found.emplace_back(ShardSet{.name = *model_name(numbered.begin()->second)}), numbered);
    return found;
}

std::optional<ShardSet> set_of_shard(const std::string& file) {
    std::vector<ShardSet> sets = shard_sets(std::span(&file, 1));
    if (sets.empty() || sets.front().complete()) return std::nullopt;
    return std::move(sets.front());
}

std::vector<std::string> shards_beside(std::span<const std::string> named, std::span<const std::string> all) {
    const std::set<std::string_view> are_named(named.begin(), named.end());
    std::vector<std::string> together(named.begin(), named.end());
    std::copy_if(all.begin(), all.end(), std::back_inserter(together),
                 [&](const std::string& name) { return !are_named.contains(name); });
    std::vector<std::string> beside;
    for (ShardSet& set : shard_sets(together)) {
        const auto first = std::stable_partition(set.files.begin(), set.files.end(),
                                                 [&](const std::string& file) { return are_named.contains(file); });
        if (first == set.files.begin()) continue;
        beside.insert(beside.end(), std::make_move_iterator(first), std::make_move_iterator(set.files.end()));
    }
    return beside;
}

Error lacks_shards(const ShardSet& set) {
    constexpr std::size_t most = 8;
    Error error(Errc::shard_missing,
                "the files " + excerpt(set.text()) + " are " + std::to_string(set.files.size()) + " of " +
                    std::to_string(set.name.shards) + " shards; missing: " + names_text(set.lacks, most) +
                    (set.missing > set.lacks.size() ? " and " + std::to_string(set.missing - set.lacks.size()) + " more"
                                                    : std::string()));
    error.with_hint("give all shards; one shard by itself opens by its own path");
    return error;
}

Heads find_heads(std::span<const std::string> names) {
    struct Candidate {
        ModelName name;
        std::vector<std::string> files;
    };
    std::vector<Candidate> candidates;
    for (const std::string& file : names)
        if (auto name = model_name(file); name && name->kind != ModelName::Kind::shard)
            candidates.push_back({.name = *std::move(name), .files = {file}});
    for (ShardSet& set : shard_sets(names)) {
        if (set.complete()) candidates.push_back({.name = std::move(set.name), .files = std::move(set.files)});
    }
    if (candidates.empty()) return {};
    const auto preferred = [](const Candidate& a, const Candidate& b) {
        return preference(a.name) < preference(b.name);
    };
    const auto best = std::min_element(candidates.begin(), candidates.end(), preferred);
    Heads heads{.files = best->files, .kind = best->name.kind};
    for (const Candidate& other : candidates)
        if (&other != &*best && preference(other.name) == preference(best->name))
            heads.equals.push_back(other.files.front());
    return heads;
}

std::string stem_of_saved(std::string_view model_file) {
    const auto name = model_name(model_file);
    const Stem* known = name ? known_stem(name->stem) : nullptr;
    return std::string(known ? known->saved_as : stems.front().saved_as);
}

}  // namespace safemap::SAFEMAP_ABI::names
