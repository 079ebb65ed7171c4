// Lists the small files of a model folder that are copied when the model is saved elsewhere, and names the model.
#include "base/folder.hpp"
#include "base/text.hpp"
#include "checkpoint/state.hpp"
#include "names/file_names.hpp"
#include "names/model_names.hpp"

#include <string_view>

namespace safemap::SAFEMAP_ABI {

namespace {

constexpr std::uint64_t largest = 64 << 20;

bool has_name_of_extra(std::string_view name) {
    static constexpr std::string_view endings[] = {".json", ".model", ".txt", ".jinja"};
    if (name.starts_with('.') || name.ends_with(".index.json") || names::is_weights_or_code(name)) return false;
    return names::ends_in(name, endings) || name.starts_with("tokenizer") || name.starts_with("LICENSE") ||
           name.starts_with("NOTICE") || name == "README.md";
}

Error changed(std::string_view what, const Folder& folder) {
    Error error(Errc::file_changed, std::string(what) + " since the folder was opened");
    error.with_path(folder.name());
    return error;
}

}  // namespace

Extras Checkpoint::extras() const {
    const state::Contents& contents = state_->contents;
    Extras extras;
    if (!contents.folder || contents.model_file.empty()) return extras;
    const Folder& folder = *contents.folder;
    const std::vector<std::string> names = folder.list();
    // The folder is empty if a save has replaced it; then its model is not the model that was opened.
    if (!names::has(names, contents.model_file))
        throw changed(safemap::quoted(contents.model_file) + " has disappeared", folder);
    for (const std::string& name : names) {
        if (!has_name_of_extra(name) || name == contents.model_file || names::has(contents.files, name)) continue;
        auto source = folder.open(name);
        if (!source) throw changed(safemap::quoted(name) + " has disappeared", folder);
        // Asked after it is open: a link that is replaced in between is not followed.
        if (const std::string target = folder.link_out(name); !target.empty()) {
            extras.notes.push_back(safemap::quoted(name) + " is not copied: it is a link out of the folder, to " +
                                   excerpt(target));
            continue;
        }
        if (source->size() > largest)
            extras.notes.push_back(safemap::quoted(name) + " is not copied: it has " + bytes_text(source->size()) +
                                   ", more than " + bytes_text(largest));
        else extras.files.push_back({.name = name, .source = std::move(source)});
    }
    return extras;
}

std::string Checkpoint::stem() const { return names::stem_of_saved(state_->contents.model_file); }

}  // namespace safemap::SAFEMAP_ABI
