// Compares what two checkpoints hold under each name. Tensors of the same dtype and shape are read side by side, block
// by block, by several workers; each pair remembers the first element that differs, and blocks behind it are not read.
#include <safemap/diff.hpp>

#include "base/name_index.hpp"
#include "base/pool.hpp"
#include "base/watch.hpp"
#include "checkpoint/bulk.hpp"
#include "lazy/blocks.hpp"
#include "lazy/page_cache.hpp"
#include "tensor/element_text.hpp"

#include <algorithm>
#include <atomic>
#include <bit>
#include <cstring>
#include <limits>
#include <numeric>
#include <optional>
#include <unordered_map>
#include <utility>

namespace safemap {

namespace {

using checkpoint::BlockRow;
using checkpoint::Workers;

using What = TensorDifference::What;

constexpr std::uint64_t none = std::numeric_limits<std::uint64_t>::max();

/// Two tensors of the same dtype and shape.
struct Pair {
    const LazyTensor* a;
    const LazyTensor* b;
};

// ---- elements and their numbers, row-major

Shape index_of(std::uint64_t element, const Shape& shape) {
    Shape index(shape.size(), 0);
    for (std::size_t d = shape.size(); d-- > 0;) {
        index[d] = element % shape[d];
        element /= shape[d];
    }
    return index;
}

std::uint64_t number_of(const Shape& index, const Shape& shape) {
    std::uint64_t number = 0;
    for (std::size_t d = 0; d < shape.size(); ++d) number = number * shape[d] + index[d];
    return number;
}

std::uint64_t elements_of(const Box& box) {
    return std::accumulate(box.extent.begin(), box.extent.end(), std::uint64_t{1}, std::multiplies<>());
}

/// The first element that differs. Packed elements begin at the lowest bits of a byte.
std::optional<std::uint64_t> first_difference(Dtype dtype, std::span<const std::byte> a, std::span<const std::byte> b) {
    if (a.empty() || std::memcmp(a.data(), b.data(), a.size()) == 0) return std::nullopt;
    const auto byte = static_cast<std::size_t>(std::mismatch(a.begin(), a.end(), b.begin()).first - a.begin());
    const auto bit = std::countr_zero(std::to_integer<unsigned>(a[byte] ^ b[byte]));
    return (std::uint64_t{byte} * 8 + static_cast<unsigned>(bit)) / bits(dtype);
}

/// The bytes of one element; of a packed one, a byte with its bits lowest.
std::vector<std::byte> read_element(const LazyTensor& tensor, std::uint64_t element) {
    const unsigned width = bits(tensor.dtype());
    const unsigned group = std::lcm(width, 8U) / 8;  // the bytes that whole elements fill
    const unsigned in_group = group * 8 / width;
    std::vector<std::byte> bytes(group);
    tensor.read(element / in_group * group, bytes);
    if (in_group == 1) return bytes;
    std::uint32_t packed = 0;
    std::memcpy(&packed, bytes.data(), group);
    const auto shift = static_cast<unsigned>(element % in_group) * width;
    return {static_cast<std::byte>(packed >> shift & ((1U << width) - 1))};
}

// ---- comparing values

class Comparer {
public:
    /// `pairs` and `watch` outlive it.
    Comparer(const std::vector<Pair>& pairs, unsigned threads, Watch& watch)
        : pairs_(pairs), workers_(threads, 2), watch_(watch), first_(pairs.size()) {
        for (auto& first : first_) first = none;
        for (const Pair& pair : pairs_) row_.add(blocks_of(pair).count());
    }

    void run() {
        watch_.tell();
        parallel_for(
            row_.size(), workers_.count(), [this](std::size_t i, unsigned worker) { do_block(row_.at(i), worker); },
            [this] { watch_.tick(); });
        watch_.tell();
    }

    /// The first element of a pair that differs, or none.
    std::uint64_t first(std::size_t pair) const noexcept { return first_[pair]; }

private:
    /// As it suits the one that stands transposed, where one does.
    Blocks blocks_of(const Pair& pair) const {
        const Blocks blocks(*pair.a, workers_.buffer_size());
        return blocks.ranges() ? Blocks(*pair.b, workers_.buffer_size()) : blocks;
    }

    void do_block(BlockRow::Place place, unsigned worker) {
        watch_.check_stop();
        const Blocks blocks = blocks_of(pairs_[place.item]);
        if (blocks.ranges()) compare(place.item, blocks.range(place.block), worker);
        else compare(place.item, blocks.box(place.block), worker);
    }

    void compare(std::size_t pair, Extent range, unsigned worker) {
        const LazyTensor& a = *pairs_[pair].a;
        const std::uint64_t begin = range.offset * 8 / bits(a.dtype());
        if (begin < first_[pair]) {
            const auto size = static_cast<std::size_t>(range.size);
            const auto of_a = workers_.buffer(worker, 0).first(size);
            const auto of_b = workers_.buffer(worker, 1).first(size);
            workers_.gatherer(worker).fill(a, range.offset, of_a);
            workers_.gatherer(worker).fill(*pairs_[pair].b, range.offset, of_b);
            if (const auto element = first_difference(a.dtype(), of_a, of_b)) found(pair, begin + *element);
        }
        watch_.add(range.size);
    }

    void compare(std::size_t pair, const Box& box, unsigned worker) {
        const LazyTensor& a = *pairs_[pair].a;
        const std::uint64_t size = elements_of(box) * element_size(a.dtype());
        // A box is row-major as its tensor is, so its first difference is the first in the tensor too.
        if (number_of(box.start, a.shape()) < first_[pair]) {
            const auto of_a = workers_.buffer(worker, 0).first(static_cast<std::size_t>(size));
            const auto of_b = workers_.buffer(worker, 1).first(static_cast<std::size_t>(size));
            workers_.gatherer(worker).fill(a, box, of_a);
            workers_.gatherer(worker).fill(*pairs_[pair].b, box, of_b);
            if (const auto element = first_difference(a.dtype(), of_a, of_b)) {
                Shape index = index_of(*element, box.extent);
                for (std::size_t d = 0; d < index.size(); ++d) index[d] += box.start[d];
                found(pair, number_of(index, a.shape()));
            }
        }
        watch_.add(size);
    }

    void found(std::size_t pair, std::uint64_t element) noexcept {
        std::uint64_t before = first_[pair];
        while (element < before && !first_[pair].compare_exchange_weak(before, element)) {
        }
    }

    const std::vector<Pair>& pairs_;
    Workers workers_;
    Watch& watch_;
    BlockRow row_;
    std::vector<std::atomic<std::uint64_t>> first_;  // by pair
};

// ---- comparing names

struct Names {
    Names(const Checkpoint& checkpoint_, const Selection& selection)
        : checkpoint(checkpoint_), all(all_names(checkpoint, selection)) {
        by_name.reserve(all.size());
        for (const NamedTensor& named : all) by_name.emplace(named.name, named.tensor);
    }

    const LazyTensor* find(std::string_view name) const {
        const auto found = by_name.find(name);
        return found == by_name.end() ? nullptr : &checkpoint.tensor(found->second);
    }
    std::vector<std::string> missing_in(const Names& other) const {
        std::vector<std::string> missing;
        for (const NamedTensor& named : all)
            if (other.find(named.name) == nullptr) missing.emplace_back(named.name);
        return missing;
    }

    const Checkpoint& checkpoint;
    std::vector<NamedTensor> all;
    std::unordered_map<std::string_view, std::size_t, NameHash> by_name;
};

/// A name that both have.
struct Shared {
    std::string_view name;
    Pair tensors;
    std::size_t pair;  // its number; means nothing where dtype or shape differ
};

bool comparable(const Pair& pair) { return pair.a->dtype() == pair.b->dtype() && pair.a->shape() == pair.b->shape(); }

/// Finds each pair once, however many names it has; all names of one `a` come one after the other.
class PairNumbers {
public:
    std::size_t of(const Pair& pair) {
        if (pair.a != a_) by_b_ = {};
        a_ = pair.a;
        const auto [known, fresh] = by_b_.try_emplace(pair.b, pairs.size());
        if (fresh) pairs.push_back(pair);
        return known->second;
    }

    std::vector<Pair> pairs;

private:
    const LazyTensor* a_ = nullptr;
    std::unordered_map<const LazyTensor*, std::size_t> by_b_;
};

// ---- reporting

TensorDifference described(const Shared& shared, What what) {
    const auto& [a, b] = shared.tensors;
    return {.name = std::string(shared.name),
            .what = what,
            .a = {.dtype = a->dtype(), .shape = a->shape()},
            .b = {.dtype = b->dtype(), .shape = b->shape()}};
}

TensorDifference value_difference(const Shared& shared, std::uint64_t element) {
    TensorDifference found = described(shared, What::value);
    found.index = index_of(element, found.a.shape);
    const auto a = read_element(*shared.tensors.a, element);
    const auto b = read_element(*shared.tensors.b, element);
    found.a.value = element_text(found.a.dtype, a.data(), 0);
    found.b.value = element_text(found.b.dtype, b.data(), 0);
    if (found.a.value == found.b.value) {
        found.a.value += " (" + element_bits(a) + ')';
        found.b.value += " (" + element_bits(b) + ')';
    }
    return found;
}

std::optional<TensorDifference> difference(const Shared& shared, const Comparer& values) {
    const auto& [a, b] = shared.tensors;
    if (a->dtype() != b->dtype()) return described(shared, What::dtype);
    if (!comparable(shared.tensors)) return described(shared, What::shape);
    const std::uint64_t first = values.first(shared.pair);
    if (first == none) return std::nullopt;
    return value_difference(shared, first);
}

}  // namespace

std::string_view name(TensorDifference::What what) noexcept {
    switch (what) {
        case What::dtype: return "dtype";
        case What::shape: return "shape";
        case What::value: return "value";
    }
    return "unknown";
}

DiffReport diff(const Checkpoint& a, const Checkpoint& b, const DiffOptions& options) {
    const Names names_a(a, options.selection);
    const Names names_b(b, options.selection);
    DiffReport report{.only_in_a = names_a.missing_in(names_b), .only_in_b = names_b.missing_in(names_a)};

    std::vector<Shared> both;
    PairNumbers numbers;
    for (const NamedTensor& named : names_a.all) {
        const LazyTensor* const other = names_b.find(named.name);
        if (other == nullptr) continue;
        const Pair pair{&a.tensor(named.tensor), other};
        both.push_back({named.name, pair, comparable(pair) ? numbers.of(pair) : 0});
    }
    report.tensors = both.size();
    for (const Pair& pair : numbers.pairs) report.bytes = checked_add(report.bytes, pair.a->nbytes()).value_or(none);

    Watch watch(options.monitor, "comparing", report.bytes);
    Comparer values(numbers.pairs, options.threads, watch);
    values.run();
    for (const Checkpoint* each : {&a, &b}) require_unchanged(std::span(each->begin(), each->size()));
    for (const Shared& shared : both)
        if (auto found = difference(shared, values)) report.different.push_back(std::move(*found));
    return report;
}

}  // namespace safemap
