// Reads Hugging Face shards: safetensors files that hold parts of tensors (DCP_SHARDING_INFO).
#include "distributed/hf_shards.hpp"
#include "open/formats.hpp"
#include "open/read.hpp"
#include "safetensors/digests.hpp"
#include "safetensors/sharding_info.hpp"

#include <map>
#include <unordered_map>

namespace safemap::SAFEMAP_ABI::open {

namespace {

/// Returns true if torch has written an object before the header, as it does with values that are not tensors.
bool begins_with_object(const Source& source) { return sniff(source).content == Content::zip; }

/// Reads one file of Hugging Face shards.
void read_hf_file(const std::shared_ptr<const Source>& source, const OpenOptions& options, FaultSink& faults,
                  distributed::HfFile& file) {
    const auto add = [&](Error& error) {
        error.with_path(source->name());
        if (begins_with_object(*source))
            error.with_hint("torch wrote an object before the header, and the file cannot be read: save only tensors");
    };
    ThrowFirst first;
    adding(add, [&] { file.contents = read_tensors(source, options, begins_with_object(*source) ? first : faults); });
    file.contents.files = {file.name};
    file.contents.sources = {source};
}

std::shared_ptr<const Source> open_shard(const Folder& folder, const std::string& name) {
    if (auto source = folder.open(name)) return source;
    throw Error(Errc::shard_missing, "there is no such file (or it is a broken link)")
        .with_path(folder.name() + "/" + name);
}

/// Reads the files side by side and joins them.
Contents join_files(const Folder& folder, const FileNames& names, const OpenOptions& options, FaultSink& faults) {
    std::vector<distributed::HfFile> files(names.size());
    auto found = read_each(files.size(), options.work, [&](std::size_t i, FaultSink& own) {
        files[i].name = names[i];
        const auto source = open_shard(folder, names[i]);
        PathSink with_path(own, source->name());
        read_hf_file(source, options, with_path, files[i]);
    });
    for (std::size_t i = 0; i < files.size(); ++i) {
        files[i].sound = found[i].empty();
        for (Error& fault : found[i]) faults.fault(std::move(fault));
    }
    return distributed::join_hf_shards(std::move(files), faults);
}

/// Adds the other names of tied tensors, which are in the metadata.
void take_aliases(Contents& contents) {
    std::unordered_map<std::string_view, std::uint32_t> numbers;
    for (std::uint32_t i = 0; i < contents.tensors.size(); ++i) numbers.emplace(contents.tensors[i].name(), i);
    const auto number_of = [&](std::string_view name) -> std::optional<std::uint32_t> {
        const auto found = numbers.find(name);
        return found == numbers.end() ? std::nullopt : std::optional(found->second);
    };
    std::map<std::uint32_t, AliasGroup> groups;
    safetensors::for_each_alias(contents.metadata, number_of, [&](const std::string& other, std::uint32_t number) {
        AliasGroup& group = groups[number];
        if (group.empty()) group.push_back(contents.tensors[number].name());
        group.push_back(other);
    });
    for (auto& [number, group] : groups) contents.aliases.push_back(std::move(group));
}

/// Returns true if a tensor of the file is smaller than its whole, or begins elsewhere, as the metadata says.
bool states_parts(const Contents& contents) {
    const std::string* const info = state::find_value(contents.metadata, safetensors::sharding_info_key);
    if (info == nullptr) return false;
    std::unordered_map<std::string_view, const Shape*> shapes;
    for (const LazyTensor& tensor : contents.tensors) shapes.emplace(tensor.name(), &tensor.shape());
    bool parts = false;
    try {
        safetensors::read_sharding_info(
            *info, [&](std::string_view stored) { return shapes.contains(stored); },
            [&](const safetensors::ShardPlace& place) {
                for (const std::uint64_t offset : place.offsets) parts = parts || offset != 0;
                parts = parts || (place.global_shape && *place.global_shape != *shapes.at(place.stored));
            });
    } catch (const Error& error) {
        return error.code() == Errc::piece_outside;
    }
    return parts;
}

}  // namespace

Contents read_hf_shards(const std::shared_ptr<const Folder>& folder, const FolderShape& shape,
                        const OpenOptions& options, FaultSink& faults) {
    Contents contents = join_files(*folder, shape.files, options, faults);
    take_structure(contents, options.policy, faults);
    take_aliases(contents);
    return contents;
}

std::optional<std::string> note_of_hf_shard(const std::filesystem::path& file, const Contents& contents) {
    if (state::find_value(contents.metadata, safetensors::sharding_info_key) == nullptr) return std::nullopt;
    if (const auto shard = names::shard_file(file.filename().native()))
        return "this is the part of rank " + std::to_string(shard->shard) +
               " of Hugging Face shards; open its folder, which gives whole tensors";
    if (!states_parts(contents)) return std::nullopt;
    return "the file holds parts of tensors (" + std::string(safetensors::sharding_info_key) +
           "); open its folder, which gives whole tensors";
}

std::optional<std::string> note_of_parts(const Contents& contents, std::string_view name) {
    if (!states_parts(contents)) return std::nullopt;
    return std::string(name) + " holds parts of tensors (" + std::string(safetensors::sharding_info_key) +
           "), which are opened as tensors of their own";
}

}  // namespace safemap::SAFEMAP_ABI::open
