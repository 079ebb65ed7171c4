// The string map that headers and indexes carry.
#pragma once

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

namespace safemap::safetensors {

using Metadata = std::vector<std::pair<std::string, std::string>>;

/// Sorts by key; of a repeated key the last value stays, as in every JSON reader of the field.
inline void sort_metadata(Metadata& metadata) {
    std::stable_sort(metadata.begin(), metadata.end(), [](const auto& a, const auto& b) { return a.first < b.first; });
    const auto kept = std::unique(metadata.rbegin(), metadata.rend(),
                                  [](const auto& a, const auto& b) { return a.first == b.first; });
    metadata.erase(metadata.begin(), kept.base());
}

}  // namespace safemap::safetensors
