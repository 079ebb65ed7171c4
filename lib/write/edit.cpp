// edit(): the same values under other names and with other metadata, in the place of the old file.
#include <safemap/edit.hpp>

#include "base/text.hpp"
#include "safetensors/digests.hpp"
#include "write/saving.hpp"

#include <safemap/file.hpp>
#include <safemap/verify.hpp>

#include <algorithm>
#include <utility>

namespace safemap::SAFEMAP_ABI {

namespace {

using Metadata = std::map<std::string, std::string>;

void require_safetensors(const std::filesystem::path& file, const Checkpoint& model) {
    if (model.format() == Format::safetensors && write::names_file(file) && model.files().size() == 1 &&
        std::filesystem::is_regular_file(file))
        return;
    throw Error(Errc::invalid_argument,
                "only a file in the safetensors format whose name ends in '.safetensors' or '.sft' is edited");
}

bool has_digests(const Checkpoint& model) {
    return std::any_of(model.metadata().begin(), model.metadata().end(),
                       [](const auto& entry) { return safetensors::is_digest_key(entry.first); });
}

/// New digests would make damage look sound.
void require_sound(const std::filesystem::path& file, const EditOptions& options) {
    VerifyReport report = verify(file, {.open = options.open, .monitor = options.monitor, .threads = options.threads});
    if (!report.ok()) throw std::move(report.faults.front());
}

/// The largest alignment that the data has already.
std::uint32_t alignment_of(const Checkpoint& model) {
    std::uint64_t begin = 0;
    for (const LazyTensor& tensor : model)
        if (const auto placement = tensor.placement())
            begin = begin == 0 ? placement->extent.offset : std::min(begin, placement->extent.offset);
    for (const std::uint32_t alignment : {4096U, 256U, 64U})
        if (begin != 0 && begin % alignment == 0) return alignment;
    return 8;
}

/// How many names change. Throws for a name that is not there.
std::uint64_t changes_in(const std::map<std::string, std::string>& rename, const Checkpoint& model) {
    std::uint64_t changes = 0;
    for (const auto& [from, to] : rename) {
        if (model.find(from) == nullptr)
            throw Error(Errc::invalid_argument, "no tensor is called " + safemap::quoted(from));
        changes += from == to ? 0 : 1;
    }
    return changes;
}

const std::string& renamed(const std::string& name, const EditOptions& options) {
    const auto found = options.rename.find(name);
    return found == options.rename.end() ? name : found->second;
}

/// What stands in the file, where ties follow the names of their tensors.
Metadata metadata_of(const Checkpoint& model, const EditOptions& options) {
    Metadata metadata(model.metadata().begin(), model.metadata().end());
    for (const AliasGroup& group : model.aliases())
        for (std::size_t i = 1; i < group.size(); ++i) metadata.erase(group[i]);
    for (const AliasGroup& group : model.aliases())
        for (std::size_t i = 1; i < group.size(); ++i)
            if (!metadata.emplace(renamed(group[i], options), renamed(group.front(), options)).second)
                throw Error(Errc::name_collision, safemap::quoted(group[i]) + " would become " +
                                                      safemap::quoted(renamed(group[i], options)) +
                                                      ", which the metadata has already");
    return metadata;
}

void require_free(const std::string& key) {
    if (safetensors::is_digest_key(key))
        throw Error(Errc::invalid_argument, safemap::quoted(key) + " holds digests, which are not edited");
    if (key == structure_key)
        throw Error(Errc::invalid_argument,
                    safemap::quoted(key) + " holds the structure document, which is not edited");
}

void change(Metadata& metadata, const EditOptions& options) {
    for (const std::string& key : options.unset) require_free(key);
    for (const auto& [key, value] : options.set) require_free(key);
    for (const std::string& key : options.unset)
        if (metadata.erase(key) == 0)
            throw Error(Errc::invalid_argument, "the metadata has no " + safemap::quoted(key) + " to unset");
    for (const auto& [key, value] : options.set) metadata.insert_or_assign(key, value);
}

/// What the file has now. It is written: a file that cannot be read again is no failure of the edit.
void report_metadata(const std::filesystem::path& file, const EditOptions& options, const Metadata& wanted,
                     EditReport& report) {
    try {
        const Checkpoint now = Checkpoint::open(file, options.open);
        report.metadata.assign(now.metadata().begin(), now.metadata().end());
    } catch (const Error& error) {
        Metadata written = wanted;
        written.try_emplace("format", "pt");
        report.metadata.assign(written.begin(), written.end());
        report.notes.push_back("the file is written, but could not be read again: " + std::string(error.what()));
    }
}

EditReport edit_file(const std::filesystem::path& file, const EditOptions& options) {
    const std::string identity = open_file(file)->identity();
    OpenOptions as_they_stand = options.open;
    as_they_stand.olmo_names = false;
    const Checkpoint model = Checkpoint::open(file, as_they_stand);
    require_safetensors(file, model);
    const bool digests = has_digests(model);
    if (digests) require_sound(file, options);

    EditReport report{.renamed = changes_in(options.rename, model)};
    std::vector<LazyTensor> tensors;
    tensors.reserve(model.size());
    for (const LazyTensor& tensor : model) tensors.push_back(tensor.renamed(renamed(tensor.name(), options)));
    Metadata metadata = metadata_of(model, options);
    change(metadata, options);

    report.changed = report.renamed > 0 || !std::equal(metadata.begin(), metadata.end(), model.metadata().begin(),
                                                       model.metadata().end(), [](const auto& a, const auto& b) {
                                                           return a.first == b.first && a.second == b.second;
                                                       });
    if (report.changed) {
        SaveOptions saving{.metadata = std::move(metadata), .alignment = alignment_of(model), .checksums = digests};
        saving.overwrite = true;
        const auto stored_name = [&](const std::string& name) { return std::optional(renamed(name, options)); };
        saving.structure = model.tree() == nullptr ? StructurePolicy::drop : StructurePolicy::keep;
        const AddedStructure added = add_structure(model, stored_name, saving);
        if (added.tensor) tensors.push_back(*added.tensor);
        saving.monitor = options.monitor;
        saving.threads = options.threads;
        const SaveReport saved =
            write::during_save(file, [&] { return write::save_all(file, tensors, saving.metadata, saving, identity); });
        report.notes = saved.notes;
        report_metadata(file, options, saving.metadata, report);
    } else {
        report.metadata.assign(model.metadata().begin(), model.metadata().end());
    }
    return report;
}

}  // namespace

EditReport edit(const std::filesystem::path& file, const EditOptions& options) {
    try {
        return edit_file(file, options);
    } catch (Error& error) {
        throw error.with_path(file.native());
    }
}

}  // namespace safemap::SAFEMAP_ABI
