// Sorts the string maps of headers and indexes.
#pragma once

#include <safemap/api.hpp>

#include <algorithm>
#include <vector>

namespace safemap::SAFEMAP_ABI::safetensors {

/// Sorts by key_of(pair). Of a repeated key, keeps the last pair, as every JSON reader in the field does.
template <class Pair, class KeyOf> void sort_by_key(std::vector<Pair>& pairs, KeyOf&& key_of) {
    std::stable_sort(pairs.begin(), pairs.end(), [&](const Pair& a, const Pair& b) { return key_of(a) < key_of(b); });
    const auto kept =
        std::unique(pairs.rbegin(), pairs.rend(), [&](const Pair& a, const Pair& b) { return key_of(a) == key_of(b); });
    pairs.erase(pairs.begin(), kept.base());
}

}  // namespace safemap::SAFEMAP_ABI::safetensors
