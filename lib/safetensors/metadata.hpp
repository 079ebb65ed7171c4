// Sorts the string maps of headers and indexes.
#pragma once

#include <safemap/api.hpp>

#include <algorithm>
#include <optional>
#include <vector>

namespace safemap::SAFEMAP_ABI::safetensors {

/// Sorts by key_of(pair). Of a repeated key, keeps the last pair, as every JSON reader in the field does. Returns a
/// pair with the first key that is repeated, if there is one.
template <class Pair, class KeyOf> std::optional<Pair> sort_by_key(std::vector<Pair>& pairs, KeyOf&& key_of) {
    const auto same = [&](const Pair& a, const Pair& b) { return key_of(a) == key_of(b); };
    std::stable_sort(pairs.begin(), pairs.end(), [&](const Pair& a, const Pair& b) { return key_of(a) < key_of(b); });
    const auto twice = std::adjacent_find(pairs.begin(), pairs.end(), same);
    if (twice == pairs.end()) return std::nullopt;
    std::optional<Pair> repeated = *twice;
    pairs.erase(pairs.begin(), std::unique(pairs.rbegin(), pairs.rend(), same).base());
    return repeated;
}

}  // namespace safemap::SAFEMAP_ABI::safetensors
