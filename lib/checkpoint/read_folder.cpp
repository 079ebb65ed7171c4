// Finds the checkpoint in a folder.
#include "base/text.hpp"
#include "checkpoint/contents.hpp"

#include <algorithm>
#include <functional>
#include <iterator>

namespace safemap::SAFEMAP_ABI::checkpoint {

namespace {

using Names = std::vector<std::string>;

/// Hidden files are none: macOS leaves "._model.safetensors" beside a model.
bool is_weights(std::string_view name) {
    if (name.starts_with('.')) return false;
    for (const std::string_view ending : {".safetensors", ".pt", ".pth", ".ckpt", ".bin"})
        if (name.size() > ending.size() && name.ends_with(ending)) return true;
    return false;
}

/// What the trainers of Hugging Face leave beside a model: the stem of the name, and perhaps a number behind it.
constexpr std::string_view companions[] = {"optimizer", "rng_state", "sampler", "scaler", "scheduler", "training_args"};

bool is_companion(std::string_view name) {
    if (name.ends_with(".safetensors")) return false;
    std::string_view stem = name.substr(0, name.rfind('.'));
    const std::size_t number = stem.find_last_not_of("0123456789") + 1;  // npos + 1 is 0
    if (number > 0 && number < stem.size() && stem[number - 1] == '_') stem = stem.substr(0, number - 1);
    return std::find(std::begin(companions), std::end(companions), stem) != std::end(companions);
}

Names ending_in(const Names& names, std::string_view ending) {
    Names found;
    std::copy_if(names.begin(), names.end(), std::back_inserter(found),
                 [&](const auto& name) { return name.ends_with(ending); });
    return found;
}

/// "a, b and 3 more".
std::string listed(const Names& names) {
    constexpr std::size_t most = 8;
    std::string text;
    for (std::size_t i = 0; i < std::min(names.size(), most); ++i) text += (i > 0 ? ", " : "") + excerpt(names[i]);
    if (names.size() > most) text += " and " + std::to_string(names.size() - most) + " more";
    return text;
}

[[noreturn]] void several(const Names& names, std::string_view what, std::string_view hint = "name one of them") {
    Error error(Errc::several_models, std::to_string(names.size()) + ' ' + std::string(what) + ": " + listed(names));
    error.with_hint(hint);
    throw error;
}

struct Choice {
    std::string name;
    bool index = false;
    bool finished = true;  ///< false: the only file of weights, which may be anything
};

/// Throws several_models and not_a_checkpoint.
Choice choose(const Names& names) {
    const auto has = [&](std::string_view name) { return std::find(names.begin(), names.end(), name) != names.end(); };
    const Names all_indexes = ending_in(names, ".index.json");
    const Names pickle_indexes = ending_in(names, ".bin.index.json");
    Names indexes;
    std::set_difference(all_indexes.begin(), all_indexes.end(), pickle_indexes.begin(), pickle_indexes.end(),
                        std::back_inserter(indexes));
    // Beside an index of safetensors, those of other frameworks (flax, tf) are of other models.
    const Names own = ending_in(indexes, ".safetensors.index.json");
    if (!own.empty()) indexes = own;
    if (indexes.size() > 1) several(indexes, "indexes");
    if (indexes.size() == 1) return {indexes.front(), true, !own.empty()};
    if (has("model.safetensors")) return {"model.safetensors"};
    if (pickle_indexes.size() > 1) several(pickle_indexes, "indexes");
    if (pickle_indexes.size() == 1) return {pickle_indexes.front(), true};
    if (has("pytorch_model.bin")) return {"pytorch_model.bin"};

    Names weights;
    std::copy_if(names.begin(), names.end(), std::back_inserter(weights), is_weights);
    // Companions are no rivals of a model; a folder of nothing else is judged by them.
    if (!std::all_of(weights.begin(), weights.end(), is_companion)) std::erase_if(weights, is_companion);
    if (weights.size() > 1)
        several(weights, "files of weights and no index",
                "name one of them, or convert all of them together if they are the shards of one checkpoint");
    if (weights.size() == 1) return {weights.front(), false, false};
    throw Error(Errc::not_a_checkpoint,
                names.empty() ? "the folder holds no files"
                              : "the folder holds neither an index nor a file of weights, but " + listed(names));
}

}  // namespace

Contents read_folder(const Folder& folder, const OpenOptions& options, FaultSink& faults) {
    try {
        Names names = folder.list();
        std::sort(names.begin(), names.end());
        const Choice choice = choose(names);
        const auto source = folder.open(choice.name);
        if (!source) throw Error(Errc::not_a_checkpoint, excerpt(choice.name) + " cannot be opened as a file");
        Contents contents =
            choice.index ? read_shards(folder, source, options, faults) : read_file(source, options, faults);
        if (choice.finished) contents.model_file = choice.name;

        Names others;
        for (const std::string& name : names) {
            const bool used = name == choice.name ||
                              std::find(contents.files.begin(), contents.files.end(), name) != contents.files.end();
            if (!used && (is_weights(name) || name.ends_with(".index.json"))) others.push_back(name);
        }
        if (!others.empty()) contents.notes.push_back("read " + choice.name + "; not read: " + listed(others));
        return contents;
    } catch (Error& error) {
        throw std::move(error.with_path(folder.name()));
    }
}

}  // namespace safemap::SAFEMAP_ABI::checkpoint
