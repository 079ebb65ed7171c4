// Reads headers until two files hold parts of one tensor. Tested by tests/safetensors/sharding_info_test.cpp.
#include "safetensors/shard_files.hpp"

#include "base/faults.hpp"
#include "base/name_index.hpp"
#include "safetensors/header.hpp"
#include "safetensors/sharding_info.hpp"

#include <algorithm>
#include <string_view>
#include <unordered_map>
#include <utility>

namespace safemap::SAFEMAP_ABI::safetensors {

namespace {

/// Returns the header of a file, or an empty header if the file cannot be read.
Header header_of(const Folder& folder, const std::string& file, std::uint64_t max_header_bytes) {
    CollectFaults faults;
    Header header;
    reporting(faults, [&] {
        if (const auto source = folder.open(file))
            header = read_header(*source, Rules::lenient, max_header_bytes, faults);
    });
    return faults.faults().empty() ? std::move(header) : Header();
}

const std::string* info_in(const Header& header) {
    const auto found = std::find_if(header.metadata.begin(), header.metadata.end(),
                                    [](const auto& pair) { return pair.first == sharding_info_key; });
    return found == header.metadata.end() ? nullptr : &found->second;
}

/// Returns the names of the whole tensors that a file has parts of. If the information is damaged, returns the names
/// in the file: the reader reports the fault.
std::vector<std::string> wholes_in(const Header& header, const std::string& info) {
    std::vector<std::string> names;
    std::vector<std::string> stored;
    for (const TensorInfo tensor : header.tensors) stored.emplace_back(tensor.name);
    NameIndex index;
    index.add_all(NamesOf(stored));
    try {
        read_sharding_info(
            info, [&](std::string_view name) { return index.find(name, NamesOf(stored)).has_value(); },
            [&](const ShardPlace& place) { names.push_back(place.name); });
    } catch (const Error&) {
        return stored;
    }
    return names;
}

}  // namespace

std::vector<std::string> shard_files(const Folder& folder, std::vector<std::string> files,
                                     std::uint64_t max_header_bytes) {
    std::vector<std::string> shards;
    std::unordered_map<std::string, std::size_t, NameHash> owner;  // number of the file that was first
    bool shared = false;
    std::erase_if(files,
                  [](const std::string& file) { return file.starts_with('.') || !file.ends_with(".safetensors"); });
    if (files.size() < 2) return {};
    for (const std::string& file : files) {
        const Header header = header_of(folder, file, max_header_bytes);
        const std::string* const info = info_in(header);
        if (info == nullptr) continue;
        if (!shared)
            for (std::string& name : wholes_in(header, *info))
                shared = shared || owner.try_emplace(std::move(name), shards.size()).first->second != shards.size();
        shards.push_back(file);
    }
    return shared ? shards : std::vector<std::string>();
}

}  // namespace safemap::SAFEMAP_ABI::safetensors
