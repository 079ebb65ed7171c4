// Reads the nodes of a pickle's graph, and sets the limits of a pickle. Tested by tests/pickle/pickle_test.cpp.
#include "base/text.hpp"
#include "pickle/memory_share.hpp"
#include "pickle/pickle.hpp"

#include <algorithm>
#include <bit>
#include <cstring>

namespace safemap::SAFEMAP_ABI {

PickleLimits PickleLimits::of_packed(std::uint64_t packed) noexcept {
    const std::uint64_t bytes = std::min(packed, most_bytes);  // so that no product below overflows
    const std::uint64_t least = MemoryShare::least();
    constexpr std::uint64_t for_bytes = least_memory / least_bytes;
    return {.max_bytes = std::min(std::max(least / for_bytes, inflation * bytes), most_bytes),
            .max_memory = std::min(std::max(least, memory_per_byte * bytes), MemoryShare::most())};
}

void Allowance::exhausted() {
    left_ = 0;
    MemoryShare::exceed();
    throw Error(Errc::pickle_too_large,
                "the pickle needs more memory than " + bytes_text(all_) + ", the limit for its size");
}

double PickleGraph::real(Id id) const { return std::bit_cast<double>(nodes_[id].word); }

std::string_view PickleGraph::text(Id id) const {
    const Node& node = nodes_[id];
    return {std::bit_cast<const char*>(node.word), node.count};
}

std::span<const PickleGraph::Id> PickleGraph::items(Id id) const {
    if (nodes_[id].taken) throw TakenValue();
    return nodes_in(id);
}

bool PickleGraph::calls_any(Id callee) const {
    for (std::size_t i = 0; i < calls_.size(); i += 2)
        if (calls_[i] == callee) return true;
    return false;
}

std::span<const PickleGraph::Id> PickleGraph::nodes_in(Id id) const {
    const Node& node = nodes_[id];
    switch (node.kind) {
        case Kind::tuple:
        case Kind::frozenset: return std::span(fixed_).subspan(node.word, node.count);
        case Kind::list:
        case Kind::dict:
        case Kind::set: return node.count == no_extra ? std::span<const Id>() : growing_[node.count];
        default: return {};
    }
}

PickleGraph::Call PickleGraph::call(Id id) const {
    const Node& node = nodes_[id];
    Call call{.callee = calls_[node.word],
              .arguments = calls_[node.word + 1],
              .constructs = !node.bare,
              .of_class = node.of_class};
    if (node.count == no_extra) return call;
    const Extra& extra = extras_[node.count];
    call.keywords = extra.keywords;
    call.states = extra.states;
    call.items = extra.items;
    call.appends = extra.appends;
    return call;
}

std::string PickleGraph::decimal(Id id) const {
    const std::string_view bytes = text(id);
    if (nodes_[id].spelled) return std::string(bytes);
    const bool negative = (bytes.back() & 0x80) != 0;
    std::vector<std::uint32_t> words((bytes.size() + 3) / 4, negative ? 0xFFFF'FFFFU : 0U);
    std::memcpy(words.data(), bytes.data(), bytes.size());
    if (negative) {
        bool carry = true;
        for (std::uint32_t& word : words) {
            word = ~word + (carry ? 1U : 0U);
            carry = carry && word == 0;
        }
    }
    // Prints nine digits at a time, from the lowest.
    constexpr std::uint64_t billion = 1'000'000'000;
    std::string reversed;
    while (!words.empty()) {
        std::uint64_t rest = 0;
        for (auto word = words.rbegin(); word != words.rend(); ++word) {
            const std::uint64_t value = rest << 32 | *word;
            *word = static_cast<std::uint32_t>(value / billion);
            rest = value % billion;
        }
        while (!words.empty() && words.back() == 0) words.pop_back();
        for (int digit = 0; digit < 9; ++digit, rest /= 10) reversed += static_cast<char>('0' + rest % 10);
    }
    while (reversed.size() > 1 && reversed.back() == '0') reversed.pop_back();
    if (reversed.empty()) reversed = "0";
    if (negative) reversed += '-';
    return {reversed.rbegin(), reversed.rend()};
}

}  // namespace safemap::SAFEMAP_ABI
