// Compares checkpoints as multisets of values. Only pairs with a value in common are compared. Small values that are in
// many checkpoints, such as norms of ones, make no pairs.
#include "duplicates.hpp"

#include <algorithm>
#include <functional>
#include <set>
#include <utility>

namespace safemap::cli {
namespace {

bool is_common(std::uint64_t bytes, std::size_t checkpoints) {
    return bytes == 0 || (bytes < 4096 && checkpoints > 16);
}

}  // namespace

void DuplicateSearch::add_tensor(std::string_view name, std::string value, std::uint64_t bytes) {
    const auto next = static_cast<std::uint32_t>(values_.size());
    const auto number = value.empty() ? next : numbers_.try_emplace(std::move(value), next).first->second;
    if (number == next) values_.push_back({.bytes = bytes});
    const auto [part, is_new] = part_numbers_.try_emplace(std::string(name.substr(0, name.find_first_of("./"))),
                                                          static_cast<std::uint32_t>(parts_.size()));
    if (is_new) parts_.push_back(part->first);
    Row& row = rows_.back();
    row.tensors.push_back({number, part->second});
    row.names += std::hash<std::string_view>()(name);
    row.bytes += bytes;
}

bool DuplicateSearch::same_values(const Row& one, const Row& other) const {
    return std::equal(one.tensors.begin(), one.tensors.end(), other.tensors.begin(), other.tensors.end(),
                      [](const Tensor& a, const Tensor& b) { return a.value == b.value; });
}

/// Moves groups of equal checkpoints to `found`. Returns the first of each group, and all others.
std::vector<std::size_t> DuplicateSearch::take_copies(Duplicates& found) const {
    std::vector<std::size_t> order;
    for (std::size_t i = 0; i < rows_.size(); ++i)
        if (rows_[i].bytes > 0) order.push_back(i);
    const auto values_before = [&](std::size_t a, std::size_t b) {
        return std::lexicographical_compare(rows_[a].tensors.begin(), rows_[a].tensors.end(), rows_[b].tensors.begin(),
                                            rows_[b].tensors.end(),
                                            [](const Tensor& x, const Tensor& y) { return x.value < y.value; });
    };
    std::stable_sort(order.begin(), order.end(), values_before);
    std::vector<std::size_t> firsts;
    for (std::size_t i = 0; i < order.size();) {
        const Row& row = rows_[order[i]];
        Duplicates::Copies copies{.checkpoints = {order[i]}, .tensors = row.tensors.size(), .bytes = row.bytes};
        firsts.push_back(order[i]);
        for (++i; i < order.size() && same_values(row, rows_[order[i]]); ++i) {
            copies.checkpoints.push_back(order[i]);
            copies.same_names = copies.same_names && rows_[order[i]].names == row.names;
        }
        if (copies.checkpoints.size() > 1) found.copies.push_back(std::move(copies));
    }
    std::stable_sort(found.copies.begin(), found.copies.end(),
                     [](const auto& a, const auto& b) { return a.bytes > b.bytes; });
    std::sort(firsts.begin(), firsts.end());
    return firsts;
}

Duplicates::Shared DuplicateSearch::compare(std::size_t one, std::size_t other) const {
    const Row* more = &rows_[one];
    const Row* less = &rows_[other];
    Duplicates::Shared shared{.one = one, .other = other};
    if (more->tensors.size() < less->tensors.size()) {
        std::swap(more, less);
        std::swap(shared.one, shared.other);
    }
    std::set<std::string> parts;
    auto next = less->tensors.begin();
    for (const Tensor& tensor : more->tensors) {
        while (next != less->tensors.end() && next->value < tensor.value) ++next;
        const std::uint64_t bytes = values_[tensor.value].bytes;
        if (next != less->tensors.end() && next->value == tensor.value) {
            ++next;
            ++shared.tensors;
            shared.bytes += bytes;
            continue;
        }
        ++shared.more_tensors;
        shared.more_bytes += bytes;
        if (parts.size() < 4) parts.insert(parts_[tensor.part]);
    }
    shared.more_parts.assign(parts.begin(), parts.end());
    shared.contained = shared.tensors == less->tensors.size();
    return shared;
}

Duplicates DuplicateSearch::find() {
    for (Row& row : rows_) std::sort(row.tensors.begin(), row.tensors.end());
    Duplicates found;
    const std::vector<std::size_t> firsts = take_copies(found);
    for (const std::size_t row : firsts)
        for (const Tensor& tensor : rows_[row].tensors) {
            std::vector<std::uint32_t>& holders = values_[tensor.value].rows;
            if (holders.empty() || holders.back() != row) holders.push_back(static_cast<std::uint32_t>(row));
        }
    std::set<std::pair<std::size_t, std::size_t>> pairs;
    for (const Value& value : values_) {
        if (is_common(value.bytes, value.rows.size())) continue;
        for (std::size_t i = 0; i < value.rows.size(); ++i)
            for (std::size_t k = i + 1; k < value.rows.size(); ++k) pairs.emplace(value.rows[i], value.rows[k]);
    }
    for (const auto& [one, other] : pairs) {
        Duplicates::Shared shared = compare(one, other);
        const std::uint64_t smaller = std::min(rows_[one].bytes, rows_[other].bytes);
        if (shared.contained || shared.bytes >= smaller / 10) found.shared.push_back(std::move(shared));
    }
    std::stable_sort(found.shared.begin(), found.shared.end(), [](const auto& a, const auto& b) {
        return std::pair(a.contained, a.bytes) > std::pair(b.contained, b.bytes);
    });
    return found;
}

}  // namespace safemap::cli
