// Order in the string maps that headers and indexes carry.
#pragma once

#include <safemap/api.hpp>

#include <algorithm>
#include <vector>

namespace safemap::SAFEMAP_ABI::safetensors {

/// Sorts by key_of(pair); of a repeated key the last pair stays, as in every JSON reader of the field.
template <class Pair, class KeyOf> void sort_by_key(std::vector<Pair>& pairs, KeyOf&& key_of) {
    std::stable_sort(pairs.begin(), pairs.end(), [&](const Pair& a, const Pair& b) { return key_of(a) < key_of(b); });
    const auto kept =
        std::unique(pairs.rbegin(), pairs.rend(), [&](const Pair& a, const Pair& b) { return key_of(a) == key_of(b); });
    pairs.erase(pairs.begin(), kept.base());
}

}  // namespace safemap::SAFEMAP_ABI::safetensors
