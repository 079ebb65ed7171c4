// Fuzzes DCP_SHARDING_INFO, the places of the parts in a file of Hugging Face shards. Properties: a place is of a
// tensor that the file has, faults are those of the list, and writing then reading gives the same. Then a folder of two
// shards with this text: what opens has only tensors that its parts cover.
#include "forge/hf_shards.hpp"
#include "fuzz_target.hpp"
#include "open/read.hpp"
#include "safetensors/sharding_info.hpp"

#include <cstdint>
#include <cstdlib>
#include <string>
#include <vector>

namespace fuzz_sharding {

namespace {

using namespace safemap;
using safetensors::ShardPlace;

void require(bool holds) {
    if (!holds) std::abort();
}

bool is_stored(std::string_view name) { return name == "w" || name == "v"; }

std::vector<ShardPlace> read(std::string_view text) {
    std::vector<ShardPlace> places;
    safetensors::read_sharding_info(text, is_stored, [&](const ShardPlace& place) {
        require(is_stored(place.stored));
        places.push_back(place);
    });
    return places;
}

void check_text(std::string_view text) {
    try {
        std::vector<ShardPlace> places = read(text);
        const std::vector<ShardPlace> again = read(safetensors::write_sharding_info(places));
        require(again.size() == places.size());
        for (std::size_t i = 0; i < places.size(); ++i)
            require(again[i].stored == places[i].stored && again[i].name == places[i].name &&
                    again[i].offsets == places[i].offsets && again[i].global_shape == places[i].global_shape);
    } catch (const Error& error) {
        require(error.code() == Errc::header_bad_metadata || error.code() == Errc::field_missing ||
                error.code() == Errc::piece_outside);
    }
}

std::map<std::string, std::string> shards(const std::string& text) {
    hf_forge::Part first{.name = "w", .start = {0, 0}, .shape = {1, 2}, .bytes = "12345678"};
    hf_forge::Part second{.name = "v", .start = {1, 0}, .shape = {1, 2}, .bytes = "abcdefgh", .stored = "v"};
    second.name = "w";
    return {{hf_forge::shard_name(1), hf_forge::file({first})},
            {hf_forge::shard_name(2), hf_forge::file({second}, {{"DCP_SHARDING_INFO", text}})}};
}

void check_folder(const std::string& text) {
    CollectFaults faults;
    const auto contents = open::read_located(open::locate(std::make_shared<forge::Folder>(shards(text))), {}, faults);
    for (const Error& fault : faults.faults()) require(exit_code(fault.code()) == 1);
    for (const LazyTensor& tensor : contents.tensors) {
        require(tensor.nbytes() <= 16);
        const TensorView value = tensor.load();
        require(value.bytes().size() == tensor.nbytes());
    }
}

}  // namespace

FUZZ_TARGET(sharding, bytes, size) {
    const std::string text(reinterpret_cast<const char*>(bytes), size);
    check_text(text);
    check_folder(text);
    return 0;
}

}  // namespace fuzz_sharding
