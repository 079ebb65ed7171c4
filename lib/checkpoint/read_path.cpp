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

Mapping mapping_of(Access access) {
    switch (access) {
        case Access::automatic: return Mapping::automatic;
        case Access::mapped: return Mapping::allowed;
        case Access::copied: return Mapping::never;
        case Access::private_copy: return Mapping::private_copy;
    }
    throw Error(Errc::invalid_argument, "an access that does not exist");
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
