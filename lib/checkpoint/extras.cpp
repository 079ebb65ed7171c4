// Lists the small files of a model that are copied when the model is saved elsewhere, and names the model. From top to
// bottom:
// - has_name_of_extra(), belongs_to_model(): which names count, in the folder of a finished model and in all others
// - places_of_small_files(): where they are looked for
// - ExtrasFinder: takes them from one folder after another, and notes what it leaves out
#include "base/folder.hpp"
#include "base/text.hpp"
#include "checkpoint/small_files.hpp"
#include "checkpoint/state.hpp"
#include "io/file_folder.hpp"
#include "names/file_names.hpp"
#include "names/model_names.hpp"

#include <algorithm>
#include <filesystem>
#include <iterator>
#include <set>
#include <string_view>
#include <system_error>
#include <utility>

namespace safemap::SAFEMAP_ABI {

namespace {

using checkpoint::SmallFilesPlace;
using names::FileNames;

constexpr std::uint64_t largest = 64 << 20;

constexpr std::string_view configurations[] = {"config.json", "adapter_config.json"};

/// Folders beside the weights to which trainers save the configuration of the model: verl, NeMo.
constexpr const char* inner_folders[] = {"huggingface", ".hf_metadata"};

bool has_name_of_extra(std::string_view name) {
    static constexpr std::string_view endings[] = {".json", ".model", ".txt", ".jinja"};
    if (name.starts_with('.') || name.ends_with(".index.json") || names::is_weights_or_code(name)) return false;
    return names::ends_in(name, endings) || name.starts_with("tokenizer") || name.starts_with("LICENSE") ||
           name.starts_with("NOTICE") || name == "README.md";
}

/// Returns true for the files of which transformers, diffusers and PEFT make a configuration, a tokenizer or a
/// processor. Trainers write other `*.json` beside the state of a training.
bool belongs_to_model(std::string_view name) {
    static constexpr std::string_view files[] = {"config.json",
                                                 "adapter_config.json",
                                                 "generation_config.json",
                                                 "preprocessor_config.json",
                                                 "processor_config.json",
                                                 "video_preprocessor_config.json",
                                                 "feature_extractor_config.json",
                                                 "image_processor_config.json",
                                                 "special_tokens_map.json",
                                                 "added_tokens.json",
                                                 "chat_template.json",
                                                 "chat_template.jinja",
                                                 "vocab.json",
                                                 "vocab.txt",
                                                 "vocab.bpe",
                                                 "merges.txt",
                                                 "bpe.codes",
                                                 "dict.txt",
                                                 "entity_vocab.json",
                                                 "normalizer.json",
                                                 "tekken.json"};
    static constexpr std::string_view endings[] = {".model", ".spm", ".tiktoken"};
    if (name.starts_with('.') || names::is_weights_or_code(name)) return false;
    return std::find(std::begin(files), std::end(files), name) != std::end(files) || name.starts_with("tokenizer") ||
           names::ends_in(name, endings);
}

/// Returns true for the code that transformers loads with `trust_remote_code`.
bool is_code_of_model(std::string_view name) {
    static constexpr std::string_view begins[] = {"configuration_", "feature_extraction_", "image_processing_",
                                                  "modeling_",      "processing_",         "tokenization_"};
    return name.ends_with(".py") &&
           std::any_of(std::begin(begins), std::end(begins), [name](auto begin) { return name.starts_with(begin); });
}

/// Returns true for the folder of a module of sentence-transformers: "1_Pooling".
bool is_folder_of_module(std::string_view name) { return names::is_digits(name.substr(0, name.find('_'))); }

bool has_configuration(const FileNames& names) {
    return std::any_of(std::begin(configurations), std::end(configurations),
                       [&](std::string_view name) { return names::has(names, name); });
}

/// Returns true for the folder of a training, as small files are looked for in and around it.
bool is_training(const state::Contents& contents) {
    const bool of_trainer = !contents.files.empty() && contents.files.front().starts_with("pytorch_model");
    return contents.folder && (contents.layout || (contents.model_file.empty() && of_trainer));
}

bool is_adapter(const state::Contents& contents) {
    return names::stem_of_saved(contents.model_file) == "adapter_model";
}

/// Opens a folder that may hold small files. Returns null if it cannot be opened.
template <class Open> std::shared_ptr<const Folder> opened_if_possible(Open&& open) {
    try {
        return open();
    } catch (const Error&) {
        return nullptr;
    }
}

/// Returns the folder around the one that was opened, as it is in the file system: a link in the path is followed.
/// Returns null if the weights are deeper in it, unless it is one of the saves of a run.
std::shared_ptr<const Folder> folder_above(const state::Contents& contents) {
    std::error_code failed;
    const std::filesystem::path opened = std::filesystem::canonical(contents.opened, failed);
    if (failed || !opened.has_relative_path()) return nullptr;
    if (!std::filesystem::equivalent(contents.folder->name(), opened, failed) &&
        !names::is_numbered_save(opened.filename().native()))
        return nullptr;
    return opened_if_possible([&] { return open_folder(opened.parent_path(), Mapping::automatic); });
}

class Places {
public:
    std::vector<SmallFilesPlace> places = {};

    void add(std::shared_ptr<const Folder> folder) {
        if (folder) places.push_back({std::move(folder)});
    }
    /// Adds a folder in the folder, unless it is a link out of it.
    void add_below(const Folder& folder, const std::string& name) {
        if (folder.link_out(name).empty()) add(opened_if_possible([&] { return folder.folder(name); }));
    }
    void add_with_inner(const std::shared_ptr<const Folder>& folder) {
        add(folder);
        for (const char* const inner : inner_folders) add_below(*folder, inner);
    }
};

Error changed(std::string_view what, const Folder& folder) {
    Error error(Errc::file_changed, std::string(what) + " since the folder was opened");
    error.with_path(folder.name());
    return error;
}

class ExtrasFinder {
public:
    explicit ExtrasFinder(const state::Contents& contents) : contents_(contents) {}

    void look_into(const SmallFilesPlace& place) {
        const Folder& folder = *place.folder;
        const FileNames names = folder.list();
        // The folder is empty if a save has replaced it; then its model is not the model that was opened.
        if (place.of_model && !names::has(names, contents_.model_file))
            throw changed(safemap::quoted(contents_.model_file) + " has disappeared", folder);
        for (const std::string& name : names) {
            const bool wanted = place.of_model ? has_name_of_extra(name) : belongs_to_model(name);
            if (wanted && name != contents_.model_file && !names::has(contents_.files, name)) take(place, name);
        }
        for (const std::string_view name : configurations)
            if (!names::has(names, name)) note_other_kind(folder, std::string(name));
        for (const char* const inner : inner_folders)
            if (const std::string target = folder.link_out(inner); !target.empty() && !names::has(names, inner))
                notes_.push_back(safemap::quoted(inner) + " is not looked into: it is a link out of the folder, to " +
                                 excerpt(target));
        note_code(names);
        note_modules(folder, names);
    }

    /// Notes the other modules of sentence-transformers, if the model is one of them.
    void look_around() {
        for (const auto& folder : contents_.around) note_modules(*folder, folder->list());
    }

    Extras take() {
        for (auto& [name, note] : refused_)
            if (!taken_.contains(name)) extras_.notes.push_back(std::move(note));
        std::move(notes_.begin(), notes_.end(), std::back_inserter(extras_.notes));
        std::sort(extras_.files.begin(), extras_.files.end(),
                  [](const ExtraFile& a, const ExtraFile& b) { return a.name < b.name; });
        return std::move(extras_);
    }

private:
    void take(const SmallFilesPlace& place, const std::string& name) {
        if (taken_.contains(name)) {
            notes_.push_back(safemap::quoted(name) + " of " + excerpt(place.folder->name()) +
                             " is not copied: another one is nearer to the weights");
            return;
        }
        const auto source = opened(place, name);
        if (!source) return;
        // Asked after it is open: a link that is replaced in between is not followed.
        if (const std::string target = place.folder->link_out(name); !target.empty())
            return refuse(name, "it is a link out of the folder, to " + excerpt(target));
        if (source->size() > largest)
            return refuse(name, "it has " + bytes_text(source->size()) + ", more than " + bytes_text(largest));
        taken_.insert(name);
        extras_.files.push_back({.name = name, .source = source});
    }

    /// Opens a file. Returns null if it cannot be opened, and throws if it is in the folder of the model.
    std::shared_ptr<const Source> opened(const SmallFilesPlace& place, const std::string& name) {
        try {
            auto source = place.folder->open(name);
            if (!source && place.of_model) throw changed(safemap::quoted(name) + " has disappeared", *place.folder);
            return source;
        } catch (const Error& error) {
            if (place.of_model) throw;
            refuse(name, error.message());
            return nullptr;
        }
    }

    void refuse(const std::string& name, const std::string& why) {
        refused_.emplace_back(name, safemap::quoted(name) + " is not copied: " + why);
    }

    void note_other_kind(const Folder& folder, const std::string& name) {
        if (const std::string kind = folder.other_kind(name); !kind.empty()) refuse(name, "it is " + kind);
    }

    void note_code(const FileNames& names) {
        FileNames code;
        std::copy_if(names.begin(), names.end(), std::back_inserter(code), is_code_of_model);
        if (!code.empty())
            notes_.push_back("code is not copied: " + names_text(code, most_named) +
                             "; the model may need it (trust_remote_code)");
    }

    void note_modules(const Folder& folder, const FileNames& names) {
        if (!names::has(names, "modules.json")) return;
        FileNames folders = folder.folders();
        const std::string model = std::filesystem::path(contents_.folder ? contents_.folder->name() : "").filename();
        std::erase_if(folders, [&](const std::string& name) { return !is_folder_of_module(name) || name == model; });
        if (!folders.empty())
            notes_.push_back("folders of modules are not copied: " + names_text(folders, most_named) +
                             "; sentence-transformers needs those that modules.json lists");
    }

    static constexpr std::size_t most_named = 8;

    const state::Contents& contents_;
    std::set<std::string, std::less<>> taken_;
    std::vector<std::pair<std::string, std::string>> refused_;  ///< names and notes
    std::vector<std::string> notes_;
    Extras extras_;
};

/// Returns true if the path that was opened is a file.
bool is_file(const state::Contents& contents) {
    std::error_code ignored;
    return !contents.opened.empty() && !std::filesystem::is_directory(contents.opened, ignored);
}

/// Returns the folder of a file that was opened by a usual name, beside its configuration.
std::shared_ptr<const Folder> folder_of_model_file(const state::Contents& contents) {
    if (!is_file(contents) || !names::is_usual_model(contents.opened.filename().native())) return nullptr;
    return opened_if_possible([&]() -> std::shared_ptr<const Folder> {
        auto folder = open_folder(contents.opened.parent_path(), Mapping::automatic);
        return has_configuration(folder->list()) ? folder : nullptr;
    });
}

}  // namespace

std::vector<SmallFilesPlace> checkpoint::places_of_small_files(const state::Contents& contents) {
    if (auto folder = folder_of_model_file(contents)) return {{std::move(folder)}};
    if (!contents.folder || is_file(contents)) return {};
    const bool finished = !contents.model_file.empty();
    if (finished && !is_adapter(contents)) return {{contents.folder, true}};
    if (!finished && !is_training(contents)) return {};
    Places found;
    if (contents.layout && !contents.layout->tag.empty()) found.add_below(*contents.folder, contents.layout->tag);
    const std::size_t nearest = found.places.size();
    found.add_with_inner(contents.folder);
    found.places[nearest].of_model = finished;
    for (const auto& folder : contents.around) found.add_with_inner(folder);
    found.add(folder_above(contents));
    return std::move(found.places);
}

Extras Checkpoint::extras() const {
    ExtrasFinder finder(state_->contents);
    const std::vector<SmallFilesPlace> places = checkpoint::places_of_small_files(state_->contents);
    for (const SmallFilesPlace& place : places) finder.look_into(place);
    if (places.size() == 1) finder.look_around();
    return finder.take();
}

std::string Checkpoint::stem() const {
    const state::Contents& contents = state_->contents;
    if (!contents.model_file.empty()) return names::stem_of_saved(contents.model_file);
    if (folder_of_model_file(contents)) return names::stem_of_saved(contents.opened.filename().native());
    if (is_file(contents) || !is_training(contents)) return names::stem_of_saved({});
    const auto has_extra = [extras = extras()](std::string_view name) {
        return std::any_of(extras.files.begin(), extras.files.end(),
                           [name](const auto& file) { return file.name == name; });
    };
    const bool of_adapter = has_extra("adapter_config.json") && !has_extra("config.json");
    return of_adapter ? "adapter_model" : names::stem_of_saved({});
}

}  // namespace safemap::SAFEMAP_ABI
