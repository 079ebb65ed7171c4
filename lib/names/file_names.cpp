// Says what a name is. From top to bottom:
//   name_rows          every name with numbers that we know, by trainer
//   lists              endings, files beside a model, words of models and optimizers
//   Matcher, spelled   read and write a name by its row
//   ..._name, ..._file the rows of one trainer, and which numbers it takes
#include "names/file_names.hpp"

#include <charconv>
#include <map>
#include <utility>

namespace safemap::SAFEMAP_ABI::names {

namespace {

/// A pattern of names: `*` is any text, also an empty one; `#` is a digit; `{field:2}` is a number, which is written
/// with two digits or more, and read with any number of them. Any other character is itself.
struct NameRow {
    NameKind kind;
    std::string_view pattern;
};

constexpr NameRow name_rows[] = {
    // In the text before "zero_pp_rank" is the dtype of the optimizer; the oldest files lack the '_' before "optim".
    {NameKind::zero_model, "mp_rank_{model:2}_model_states.pt"},
    {NameKind::zero_ranked_model, "*zero_pp_rank_{rank}_mp_rank_{model:2}_model_states.pt"},
    {NameKind::zero_optimizer, "*zero_pp_rank_{rank}_mp_rank_{model:2}_optim_states.pt"},
    {NameKind::zero_optimizer, "*zero_pp_rank_{rank}_mp_rank_{model:2}optim_states.pt"},
    {NameKind::zero_expert, "layer_{layer}_expert_{expert}_mp_rank_{model:2}_model_states.pt"},
    {NameKind::zero_expert, "expert_{expert}_mp_rank_{model:2}_model_states.pt"},  // the oldest
    {NameKind::zero_expert_optimizer, "expp_rank_{expert}_mp_rank_{model:2}_optim_states.pt"},
    {NameKind::zero_layer, "layer_{layer:2}-model_{model:2}-model_states.pt"},
    {NameKind::zero_shared_layer, "layer_{layer:2}-model_states.pt"},
    {NameKind::zero_similar, "*mp_rank_*model_states.pt"},
    {NameKind::zero_similar, "*mp_rank_*optim_states.pt"},
    {NameKind::zero_similar, "layer_*model_states.pt"},
    {NameKind::zero_similar, "layer_*optim_states.pt"},
    {NameKind::dcp_unfinished, ".metadata.tmp"},
    {NameKind::dcp_unfinished, "__{rank}.metadata.tmp"},
    {NameKind::dcp_metadata, ".metadata"},
    {NameKind::dcp_rank_metadata, "__{rank}.metadata"},
    {NameKind::dcp_items, "__{rank}_{file}.distcp"},
    {NameKind::dcp_similar, "*.distcp"},
    {NameKind::hf_shard, "shard-{shard:5}-model-{file:5}-of-{files:5}.safetensors"},
    {NameKind::sized_rank, "*_world_size_{world}_rank_{rank}.pt"},  // FSDP: verl, SkyRL
    {NameKind::sized_rank, "*_world_size_{world}_rank_{rank}.bin"},
    {NameKind::rank, "*_rank{rank}.pt"},  // FSDP: accelerate
    {NameKind::rank, "*_rank{rank}.bin"},
    {NameKind::rank, "rank{rank}.pt"},  // OLMo
    {NameKind::rank, "rank_{rank}.pt"},
    {NameKind::rank, "checkpoint_{rank}.pt"},
    {NameKind::item_of_rank, "*_rank_{rank}"},
    {NameKind::megatron_rank, "mp_rank_##"},
    {NameKind::megatron_rank, "mp_rank_##_###"},  // with the stage of the pipeline
    {NameKind::iteration, "iter_{number:7}"},
    {NameKind::iteration, "global_step_{number}"},
    {NameKind::iteration, "release"},
    {NameKind::part, "consolidated.{number}"},
    {NameKind::shard, "*-{number}-of-{shards}"},
    {NameKind::shard, "*_{number}_of_{shards}"},
};

/// Numbers of ranks and shards have no more.
constexpr std::size_t most_digits = 9;

constexpr std::string_view zero_prefixes[] = {"", "bf16_", "fp16_"};

/// Weights of other frameworks. The second list is not kept from being copied beside a model, as tokenizer.nemo.
constexpr std::string_view foreign_endings[] = {".gguf", ".ggml", ".h5", ".msgpack", ".onnx", ".npz", ".tflite"};
constexpr std::string_view foreign_model_endings[] = {".keras", ".mlmodel", ".nemo", ".pdparams"};
constexpr std::string_view code_endings[] = {".npy", ".pkl", ".pickle", ".joblib", ".dill", ".zip",
                                             ".tar", ".gz",  ".py",     ".pyc",    ".pyi",  ".ipynb",
                                             ".sh",  ".so",  ".js",     ".cpp",    ".cu",   ".rs"};

/// Names of files that trainers leave beside a model: stems, which a number may follow.
constexpr std::string_view companion_stems[] = {"dataloader",       "dl_state_dict", "lr_scheduler", "optimizer",
                                                "rng_state",        "sampler",       "scaler",       "scheduler",
                                                "train_dataloader", "train_state",   "training_args"};
constexpr std::string_view companion_files[] = {"common.pt", "data.pt", "meta.pt", "trainer_state.pt"};

/// Longer words first: "pytorch_model" begins with a word of its own, and ends with one.
constexpr std::string_view model_words[] = {"pytorch_model_fsdp", "pytorch_model", "model", "weights"};
constexpr std::string_view optimizer_words[] = {"optimizer", "optim"};

/// Words before the number of a save.
constexpr std::string_view save_words[] = {"ba",   "batch",      "checkpoint", "ckpt", "ep",   "epoch",
                                           "iter", "globalstep", "iteration",  "save", "step", "update"};

// Reading a name by its row.

bool is_digit(char c) { return c >= '0' && c <= '9'; }

/// A field of a pattern.
struct Field {
    std::string_view name;
    std::size_t digits = 0;  ///< with which it is written at least
};

/// Takes a field from the beginning of the pattern.
Field take_field(std::string_view& pattern) {
    const std::string_view inside = pattern.substr(1, pattern.find('}') - 1);
    pattern.remove_prefix(inside.size() + 2);
    const std::size_t colon = inside.find(':');
    if (colon == inside.npos) return {inside};
    return {inside.substr(0, colon), static_cast<std::size_t>(inside[colon + 1] - '0')};
}

/// Compares a name with a pattern, and finds its numbers.
class Matcher {
public:
    explicit Matcher(std::string_view name) : name_(name) {}

    /// Returns true if the name fits from `at` on. `number` is the number of numbers before.
    bool fits(std::string_view pattern, std::size_t at = 0, std::size_t number = 0) {
        for (; !pattern.empty(); pattern.remove_prefix(1), ++at) {
            if (pattern.front() == '*') return fits_text(pattern.substr(1), at, number);
            if (pattern.front() == '{') return fits_number(pattern, at, number);
            if (at == name_.size()) return false;
            if (pattern.front() == '#' ? !is_digit(name_[at]) : pattern.front() != name_[at]) return false;
        }
        return at == name_.size();
    }

    KnownName found = {};

private:
    bool fits_text(std::string_view rest, std::size_t at, std::size_t number) {
        std::size_t end = at;
        while (end <= name_.size() && !fits(rest, end, number)) ++end;
        if (end > name_.size()) return false;
        found.text = name_.substr(at, end - at);
        return true;
    }

    bool fits_number(std::string_view rest, std::size_t at, std::size_t number) {
        const std::string_view text = name_.substr(at, name_.find_first_not_of("0123456789", at) - at);
        NumberInName one{.field = take_field(rest).name, .at = at, .digits = text.size()};
        if (text.empty()) return false;
        one.overflows = std::from_chars(text.data(), text.data() + text.size(), one.value).ec != std::errc();
        if (one.overflows) one.value = UINT64_MAX;
        found.numbers[number] = one;
        return fits(rest, at + text.size(), number + 1);
    }

    std::string_view name_;
};

std::uint64_t& number_of(RankedName& name, std::string_view field) {
    if (field == "rank") return name.rank;
    if (field == "model") return name.model_rank;
    if (field == "layer") return name.layer;
    if (field == "expert") return name.expert;
    if (field == "shard") return name.shard;
    if (field == "file") return name.file;
    if (field == "files") return name.files;
    return name.world_size ? *name.world_size : name.world_size.emplace();
}

RankedName numbers_of(const KnownName& known) {
    RankedName name{.kind = known.kind};
    for (const NumberInName& number : known.numbers)
        if (!number.field.empty()) number_of(name, number.field) = number.value;
    return name;
}

template <class List> bool among(std::string_view name, const List& list) {
    return std::find(std::begin(list), std::end(list), name) != std::end(list);
}

/// Returns the text without a '_' and a number at its end.
std::string_view without_number(std::string_view stem) {
    const std::size_t number = stem.find_last_not_of("0123456789") + 1;  // npos + 1 is 0
    return number > 0 && number < stem.size() && stem[number - 1] == '_' ? stem.substr(0, number - 1) : stem;
}

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

/// The name of one of the saves of a run: its numbers, and the words before them.
struct SaveName {
    std::string words = {};                      ///< "epoch#step#", with the text before the first word
    std::vector<std::string_view> numbers = {};  ///< without zeros before them

    /// Returns true if this save is older than another one whose words are the same.
    bool operator<(const SaveName& other) const {
        return std::lexicographical_compare(
            numbers.begin(), numbers.end(), other.numbers.begin(), other.numbers.end(),
            [](std::string_view a, std::string_view b) { return std::pair(a.size(), a) < std::pair(b.size(), b); });
    }
};

bool is_letter(char c) { return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z'); }

/// Returns the length of the part of `text` from `at` on whose characters are all of one kind.
template <class Kind> std::size_t length_of(std::string_view text, std::size_t at, Kind&& kind) {
    const auto* const begin = text.data() + at;
    return static_cast<std::size_t>(std::find_if_not(begin, text.data() + text.size(), kind) - begin);
}

/// Finds the numbers that follow words of saves, directly or after one more character.
SaveName save_name(std::string_view name) {
    SaveName found;
    for (std::size_t at = 0; at < name.size();) {
        const std::size_t letters = length_of(name, at, is_letter);
        if (letters == 0) {
            ++at;
            continue;
        }
        std::string word(name.substr(at, letters));
        std::transform(word.begin(), word.end(), word.begin(), [](char c) { return static_cast<char>(c | 0x20); });
        const std::size_t begin = at;
        at += letters;
        const std::size_t number = at < name.size() && !is_digit(name[at]) ? at + 1 : at;
        const std::size_t digits = number < name.size() ? length_of(name, number, is_digit) : 0;
        if (digits == 0 || !among(word, save_words)) continue;
        if (found.numbers.empty()) found.words = name.substr(0, begin);
        found.words += word + '#';
        const std::string_view text = name.substr(number, digits);
        found.numbers.push_back(text.substr(std::min(text.find_first_not_of('0'), text.size() - 1)));
        at = number + digits;
    }
    return found;
}

}  // namespace

bool has(const FileNames& names, std::string_view name) { return among(name, names); }

bool is_digits(std::string_view text) { return !text.empty() && std::all_of(text.begin(), text.end(), is_digit); }

std::string padded(std::uint64_t number, std::size_t digits) {
    const std::string text = std::to_string(number);
    return std::string(digits > text.size() ? digits - text.size() : 0, '0') + text;
}

bool KnownName::is_short() const {
    return std::all_of(numbers.begin(), numbers.end(),
                       [](const NumberInName& one) { return one.digits <= most_digits; });
}

std::optional<KnownName> known_name(std::string_view file, std::initializer_list<NameKind> kinds) {
    for (const NameRow& row : name_rows) {
        if (std::find(kinds.begin(), kinds.end(), row.kind) == kinds.end()) continue;
        Matcher matcher(file);
        if (!matcher.fits(row.pattern)) continue;
        matcher.found.kind = row.kind;
        return matcher.found;
    }
    return std::nullopt;
}

std::string spelled(const RankedName& name) {
    RankedName numbers = name;
    const NameRow* row = std::find_if(std::begin(name_rows), std::end(name_rows),
                                      [&](const NameRow& one) { return one.kind == name.kind; });
    std::string text;
    for (std::string_view pattern = row->pattern; !pattern.empty();) {
        if (pattern.front() == '{') {
            const Field field = take_field(pattern);
            text += padded(number_of(numbers, field.name), field.digits);
            continue;
        }
        if (pattern.front() == '*') text += name.prefix;
        else text += pattern.front();
        pattern.remove_prefix(1);
    }
    return text;
}

constexpr std::initializer_list<NameKind> zero_kinds = {
    NameKind::zero_model, NameKind::zero_ranked_model,     NameKind::zero_optimizer,   NameKind::zero_expert,
    NameKind::zero_layer, NameKind::zero_expert_optimizer, NameKind::zero_shared_layer};

std::optional<RankedName> any_zero_name(std::string_view file) {
    const auto known = known_name(file, zero_kinds);
    if (!known || !among(known->text, zero_prefixes)) return std::nullopt;
    RankedName name = numbers_of(*known);
    name.prefix = known->text;
    return name;
}

std::uint64_t largest_number(const RankedName& zero_name) {
    return std::max({zero_name.rank, zero_name.model_rank, zero_name.layer, zero_name.expert});
}

std::optional<RankedName> zero_name(std::string_view file) {
    auto name = any_zero_name(file);
    return name && largest_number(*name) <= largest_zero_number ? std::move(name) : std::nullopt;
}

std::optional<RankedName> dcp_name(std::string_view file) {
    const auto known = known_name(file, {NameKind::dcp_rank_metadata, NameKind::dcp_items});
    if (!known || known->numbers[0].overflows || known->numbers[1].overflows) return std::nullopt;
    return numbers_of(*known);
}

std::optional<RankedName> shard_file(std::string_view file) {
    const auto known = known_name(file, {NameKind::hf_shard});
    const auto is_canonical = [file](const NumberInName& one) {
        return one.digits == 5 || (one.digits > 5 && one.digits <= most_digits && file[one.at] != '0');
    };
    if (!known || !std::all_of(known->numbers.begin(), known->numbers.end(), is_canonical)) return std::nullopt;
    return numbers_of(*known);
}

std::optional<RankedName> rank_file(std::string_view file) {
    const auto known = known_name(file, {NameKind::sized_rank, NameKind::rank});
    if (!known || file.starts_with('.') || !known->is_short()) return std::nullopt;
    RankedName name = numbers_of(*known);
    const NumberInName& rank = known->numbers[known->kind == NameKind::sized_rank ? 1 : 0];
    name.set = std::string(file).replace(rank.at, rank.digits, "*");
    return name;
}

std::string file_in_set(std::string set, std::uint64_t number, std::size_t digits) {
    return set.replace(set.rfind('*'), 1, padded(number, digits));
}

bool is_training_state(const RankedName& rank_file) {
    std::string_view stem = rank_file.set;
    stem = without_number(stem.substr(0, std::min(stem.find("_world_size_"), stem.find("_rank"))));
    return stem == "extra_state" || (stem != "optimizer" && among(stem, companion_stems));
}

bool is_dcp_metadata(std::string_view file) {
    return known_name(file, {NameKind::dcp_metadata, NameKind::dcp_rank_metadata}).has_value();
}

bool is_item_of_rank(std::string_view file) {
    const auto known = known_name(file.substr(0, file.rfind('.')), {NameKind::item_of_rank});
    return known && !known->text.empty();
}

std::string_view ending_of_weights(std::string_view name) {
    for (const std::string_view ending : safetensors_endings)
        if (name.ends_with(ending)) return ending;
    for (const std::string_view ending : torch_endings)
        if (name.ends_with(ending)) return ending;
    return {};
}

bool is_foreign_weights(std::string_view name) {
    return !name.starts_with('.') && (ends_in(name, foreign_endings) || ends_in(name, foreign_model_endings));
}

bool is_weights_or_code(std::string_view name) {
    return !ending_of_weights(name).empty() || ends_in(name, foreign_endings) || ends_in(name, code_endings);
}

bool is_companion(std::string_view name) {
    if (ends_as_safetensors(name)) return false;
    return among(without_number(name.substr(0, name.rfind('.'))), companion_stems) || among(name, companion_files);
}

bool names_model(std::string_view name) {
    const auto rest = rest_of(without_number(name), model_words);
    return rest && rest->empty();
}

bool names_optimizer(std::string_view name) {
    const auto rest = rest_of(without_number(name), optimizer_words);
    return rest && rest->empty();
}

bool is_numbered_save(std::string_view name) { return !save_name(name).numbers.empty(); }

std::string newest_save(const FileNames& names) {
    std::map<std::string, std::vector<std::pair<SaveName, std::string_view>>> by_words;
    for (const std::string& name : names)
        if (SaveName save = save_name(name); !save.numbers.empty()) by_words[save.words].emplace_back(save, name);
    const auto fewer = [](const auto& a, const auto& b) { return a.second.size() < b.second.size(); };
    const auto most = std::max_element(by_words.begin(), by_words.end(), fewer);
    if (most == by_words.end()) return {};
    const auto is_as_many = [&](const auto& each) { return each.second.size() == most->second.size(); };
    const auto& saves = most->second;
    const auto older = [](const auto& a, const auto& b) { return a.first < b.first; };
    const auto newest = std::max_element(saves.begin(), saves.end(), older);
    const auto is_as_new = [&](const auto& save) { return !older(save, *newest); };
    if (std::count_if(by_words.begin(), by_words.end(), is_as_many) > 1) return {};
    if (std::count_if(saves.begin(), saves.end(), is_as_new) > 1) return {};
    return std::string(newest->second);
}

std::optional<ModelAndOptimizer> model_and_optimizer(const FileNames& names) {
    if (names.size() != 2) return std::nullopt;
    if (is_pair(names[0], names[1])) return ModelAndOptimizer{.model = names[0], .optimizer = names[1]};
    if (is_pair(names[1], names[0])) return ModelAndOptimizer{.model = names[1], .optimizer = names[0]};
    return std::nullopt;
}

}  // namespace safemap::SAFEMAP_ABI::names
