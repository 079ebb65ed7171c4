// Opens paths of the file system.
#include "checkpoint/contents.hpp"
#include "checkpoint/sniff.hpp"
#include "safetensors/index.hpp"

#include <safemap/file.hpp>

#include <string_view>

namespace safemap::checkpoint {

namespace {

/// By name, so that one that is damaged is told as such; else by content, whatever its name.
bool is_index(const Source& source) {
    const std::string_view name = source.name();
    if (name.ends_with(".index.json")) return true;
    return !name.ends_with(".safetensors") && sniff(source).content == Content::json && safetensors::is_index(source);
}

}  // namespace

Contents read_path(const std::filesystem::path& path, const OpenOptions& options, FaultSink& faults) {
    const Mapping mapping = mapping_of(options.access);
    std::error_code ignored;
    if (std::filesystem::is_directory(path, ignored)) return read_folder(*open_folder(path, mapping), options, faults);

    const auto source = open_file(path, mapping);
    if (!is_index(*source)) return read_file(source, options, faults);
    const auto parent = path.parent_path();
    return read_shards(*open_folder(parent.empty() ? "." : parent, mapping), source, options, faults);
}

}  // namespace safemap::checkpoint
