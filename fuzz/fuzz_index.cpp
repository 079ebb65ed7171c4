// Fuzzes indexes. Properties: no shard is outside the folder, tensor names are unique, and writing then reading gives
// the same.
#include "fuzz_target.hpp"
#include "safetensors/index.hpp"

#include <cstdint>
#include <cstdlib>
#include <set>
#include <span>
#include <string>
#include <utility>
#include <vector>

namespace fuzz_index {

namespace {

using namespace safemap;

void require(bool holds) {
    if (!holds) std::abort();
}

safetensors::Index read(std::span<const std::byte> text, FaultSink& faults) {
    return safetensors::read_index(*memory_source("fuzzed", std::vector<std::byte>(text.begin(), text.end())), faults);
}

using Map = std::vector<std::pair<std::string_view, std::string_view>>;

Map map_of(const safetensors::Index& index) {
    Map map;
    for (const auto& place : index.weight_map) map.emplace_back(place.tensor, index.shards.at(place.shard));
    return map;
}

/// Checks a shard name independently of the library: no absolute path, "..", backslash, drive or NUL.
bool stays_in_folder(const std::string& shard) {
    if (shard.empty() || shard.front() == '/' || shard.find_first_of(std::string_view("\\\0", 2)) != shard.npos)
        return false;
    if (shard.size() > 1 && shard[1] == ':') return false;
    return ('/' + shard + '/').find("/../") == std::string::npos;
}

void require_sound(const safetensors::Index& index) {
    std::set<std::string_view> tensors;
    for (const auto& [tensor, shard] : map_of(index)) require(tensors.insert(tensor).second);
    require(std::set<std::string>(index.shards.begin(), index.shards.end()).size() == index.shards.size());
    for (const std::string& shard : index.shards) require(stays_in_folder(shard));
    for (const std::uint32_t number : index.repeated) require(number < index.weight_map.size());
}

}  // namespace

FUZZ_TARGET(index, bytes, size) {
    const auto text = std::as_bytes(std::span(bytes, size));
    CollectFaults collected;
    const auto loose = read(text, collected);
    require_sound(loose);

    ThrowFirst throwing;
    try {
        const auto index = read(text, throwing);
        require(collected.faults().empty() && map_of(index) == map_of(loose));
        // The writer adds the total itself.
        auto metadata = index.metadata;
        std::erase_if(metadata, [](const auto& pair) { return pair.first == "total_size"; });
        const std::string written = safetensors::write_index(7, metadata, map_of(index));
        const auto again = read(std::as_bytes(std::span(written)), throwing);
        require(map_of(again) == map_of(index) && again.repeated.empty());
        require(again.total_size == 7 && again.metadata == metadata);
    } catch (const Error& error) {
        require(exit_code(error.code()) == 1);
        require(!collected.faults().empty());
    }
    return 0;
}

}  // namespace fuzz_index
