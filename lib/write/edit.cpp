// edit(): replaces a file by one with the same values, other names and other metadata.
#include <safemap/advanced/edit.hpp>

#include "base/faults.hpp"
#include "base/text.hpp"
#include "safetensors/digests.hpp"
#include "state/structure.hpp"
#include "write/saving.hpp"

#include <safemap/advanced/file.hpp>
#include <safemap/verify.hpp>

#include <algorithm>
#include <utility>

namespace safemap::SAFEMAP_ABI {

namespace {

using write::Metadata;

void require_safetensors(const std::filesystem::path& file, const Checkpoint& model) {
    if (model.format() == Format::safetensors && write::names_file(file) && model.files().size() == 1 &&
        std::filesystem::is_regular_file(file))
        return;
    throw Error(Errc::invalid_argument, "only a safetensors file that ends in '.safetensors' or '.sft' can be edited");
}

bool has_digests(const Checkpoint& model) {
    return std::any_of(model.metadata().begin(), model.metadata().end(),
                       [](const auto& entry) { return safetensors::is_digest_key(entry.first); });
}

/// Throws the first fault of the file. Without this check, new digests would make damage look valid.
void require_sound(const std::filesystem::path& file, const EditOptions& options) {
    VerifyReport report = verify(file, {.open = options.open, .work = options.work});
    if (!report.ok()) throw std::move(report.faults.front());
}

/// Returns the largest alignment that the data already has.
std::uint32_t alignment_of(const Checkpoint& model) {
    std::uint64_t begin = 0;
    for (const LazyTensor& tensor : model)
        if (const auto placement = tensor.placement())
            begin = begin == 0 ? placement->extent.offset : std::min(begin, placement->extent.offset);
    for (const std::uint32_t alignment : {4096U, 256U, 64U})
        if (begin != 0 && begin % alignment == 0) return alignment;
    return 8;
}

/// Returns the number of names that change. Throws if a name to change does not exist.
std::uint64_t changes_in(const std::map<std::string, std::string>& rename, const Checkpoint& model) {
    std::uint64_t changes = 0;
    for (const auto& [from, to] : rename) {
        if (model.find(from) == nullptr)
            throw Error(Errc::invalid_argument, "no tensor has the name " + safemap::quoted(from));
        changes += from == to ? 0 : 1;
    }
    return changes;
}

/// Returns the model with new names. Ties in the metadata follow the names of their tensors.
Checkpoint renamed(const Checkpoint& model, const EditOptions& options) {
    return model.renamed([&](std::string_view name) {
        const auto found = options.rename.find(std::string(name));
        return found == options.rename.end() ? std::string(name) : found->second;
    });
}

void require_free(const std::string& key) {
    if (safetensors::is_digest_key(key))
        throw Error(Errc::invalid_argument, safemap::quoted(key) + " holds digests and cannot be edited");
    if (key == state::structure_key)
        throw Error(Errc::invalid_argument,
                    safemap::quoted(key) + " holds the structure document and cannot be edited");
}

void change(Metadata& metadata, const EditOptions& options) {
    for (const std::string& key : options.unset) require_free(key);
    for (const auto& [key, value] : options.set) require_free(key);
    for (const std::string& key : options.unset)
        if (metadata.erase(key) == 0)
            throw Error(Errc::invalid_argument, "the metadata has no " + safemap::quoted(key) + " to unset");
    for (const auto& [key, value] : options.set) metadata.insert_or_assign(key, value);
}

/// Returns options that give tensors the names that the file has for them.
OpenOptions as_they_stand(const EditOptions& options) {
    OpenOptions open = options.open;
    open.olmo_names = false;
    open.root.reset();
    open.stored_names = true;
    open.ema = false;
    return open;
}

/// Reports the metadata that the file now has. The file is already written, so a file that cannot be read again is a
/// note and not a failure of the edit.
void report_metadata(const std::filesystem::path& file, const EditOptions& options, const Metadata& wanted,
                     EditReport& report) {
    try {
        const Checkpoint now = Checkpoint::open(file, as_they_stand(options));
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
    const Checkpoint model = Checkpoint::open(file, as_they_stand(options));
    require_safetensors(file, model);
    const bool digests = has_digests(model);
    if (digests) require_sound(file, options);

    EditReport report{.renamed = changes_in(options.rename, model)};
    const Checkpoint edited = renamed(model, options);
    Metadata metadata = write::metadata_of(edited);
    for (const auto& [key, value] : model.metadata())
        if (write::hashes_a_file(key)) metadata.emplace(key, value);
    change(metadata, options);

    report.changed = report.renamed > 0 || !std::equal(metadata.begin(), metadata.end(), model.metadata().begin(),
                                                       model.metadata().end(), [](const auto& a, const auto& b) {
                                                           return a.first == b.first && a.second == b.second;
                                                       });
    if (report.changed) {
        std::erase_if(metadata, [&](const auto& entry) {
            return write::hashes_a_file(entry.first) && !options.set.contains(entry.first);
        });
        const SaveOptions saving{.max_header_bytes = options.open.max_header_bytes,
                                 .alignment = alignment_of(model),
                                 .structure = model.tree() == nullptr ? StructurePolicy::drop : StructurePolicy::keep,
                                 .checksums = digests,
                                 .overwrite = true,
                                 .work = options.work};
        const SaveReport saved = write::during_save(
            file, saving.one_file, [&] { return write::save_checkpoint(file, edited, metadata, saving, identity); });
        report.notes = saved.notes;
        report_metadata(file, options, metadata, report);
    } else {
        report.metadata.assign(model.metadata().begin(), model.metadata().end());
    }
    return report;
}

}  // namespace

EditReport edit(const std::filesystem::path& file, const EditOptions& options) {
    return about_file(file.native(), [&] { return edit_file(file, options); });
}

}  // namespace safemap::SAFEMAP_ABI
