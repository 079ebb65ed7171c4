// Compares the tensors that two checkpoints have under each name. Tensors of the same dtype and shape are read side by
// side, block by block, by several workers. Each pair remembers the first element that differs, and later blocks are
// not read. If values are compared as numbers, every block is read, to find the largest difference.
//
//   Pair                        two tensors to compare, in one dtype
//   index_of(), read_element()  elements and their numbers
//   Comparer                    the workers: blocks of all pairs, and the first and the largest difference of each pair
//   Names, Shared, PairNumbers  the names that both checkpoints have, and the pairs that several names share
//   report_on(), note_...()     the results in words
//   diff()                      runs all of it
#include <safemap/diff.hpp>

#include <safemap/advanced/dtypes.hpp>
#include <safemap/advanced/names.hpp>

#include "base/checked.hpp"
#include "base/name_index.hpp"
#include "base/text.hpp"
#include "base/watch.hpp"
#include "checkpoint/prefixes.hpp"
#include "lazy/blocks.hpp"
#include "lazy/bulk.hpp"
#include "lazy/page_cache.hpp"
#include "tensor/closeness.hpp"
#include "tensor/convert.hpp"
#include "tensor/element_text.hpp"

#include <algorithm>
#include <atomic>
#include <bit>
#include <cmath>
#include <cstring>
#include <deque>
#include <limits>
#include <numeric>
#include <optional>
#include <unordered_map>
#include <utility>

namespace safemap::SAFEMAP_ABI {

namespace {

using What = TensorDifference::What;

constexpr std::uint64_t none = std::numeric_limits<std::uint64_t>::max();

/// Two tensors of the same shape, with the same dtype or with dtypes that can be cast.
struct Pair {
    const LazyTensor* a;
    const LazyTensor* b;

    bool same_dtype() const { return a->dtype() == b->dtype(); }
};

/// Calls `work(a, b)` with both tensors in one dtype.
template <class Work> auto as_one_dtype(const Pair& pair, Work&& work) {
    if (pair.same_dtype()) return work(*pair.a, *pair.b);
    return work(pair.a->cast(Dtype::f64), pair.b->cast(Dtype::f64));
}

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

/// Returns the number of the n-th element of a block. A box is row-major like its tensor, so the first element that
/// differs in the box is also the first in the tensor.
std::uint64_t number_of(const Blocks& blocks, std::uint64_t block, std::uint64_t n, const LazyTensor& tensor) {
    if (blocks.ranges()) return blocks.range(block).offset * 8 / bits(tensor.dtype()) + n;
    const Box box = blocks.box(block);
    Shape index = index_of(n, box.extent);
    for (std::size_t d = 0; d < index.size(); ++d) index[d] += box.start[d];
    return number_of(index, tensor.shape());
}

/// Returns the first element that differs. Packed elements begin at the lowest bits of a byte.
std::optional<std::uint64_t> first_difference(Dtype dtype, std::span<const std::byte> a, std::span<const std::byte> b) {
    if (a.empty() || std::memcmp(a.data(), b.data(), a.size()) == 0) return std::nullopt;
    const auto byte = static_cast<std::size_t>(std::mismatch(a.begin(), a.end(), b.begin()).first - a.begin());
    const auto bit = std::countr_zero(std::to_integer<unsigned>(a[byte] ^ b[byte]));
    return (std::uint64_t{byte} * 8 + static_cast<unsigned>(bit)) / bits(dtype);
}

/// Returns the bytes of one element. For a packed element, returns one byte with the element in its lowest bits.
std::vector<std::byte> read_element(const LazyTensor& tensor, std::uint64_t element) {
    const unsigned width = bits(tensor.dtype());
    const unsigned group = std::lcm(width, 8U) / 8;  // bytes that whole elements fill
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

/// The workers that compare the values of all pairs.
class Comparer {
public:
    /// Keeps references to `pairs` and `watch`.
    Comparer(const std::vector<Pair>& pairs, std::optional<Tolerance> tolerance, unsigned threads, Watch& watch)
        : pairs_(pairs),
          tolerance_(tolerance),
          workers_(threads, 2),
          watch_(watch),
          first_(pairs.size()),
          max_abs_(pairs.size()) {
        for (auto& first : first_) first = none;
        const auto count = [this](const LazyTensor& a, const LazyTensor& b) { return blocks_of(a, b).count(); };
        for (const Pair& pair : pairs_) row_.add(as_one_dtype(pair, count));
    }

    void run() {
        watch_.tell();
        row_.each(workers_.count(), watch_, [this](auto place, unsigned worker) { do_block(place, worker); });
        watch_.tell();
    }

    /// Returns the first element of a pair that differs, or `none`.
    std::uint64_t first(std::size_t pair) const noexcept { return first_[pair]; }
    /// Returns true if values of a pair are compared as numbers.
    bool by_number(std::size_t pair) const {
        const Pair& tensors = pairs_[pair];
        return !tensors.same_dtype() || (tolerance_ && has_numbers(tensors.a->dtype()));
    }
    /// Returns the largest difference. Only for pairs that are compared as numbers.
    double max_abs(std::size_t pair) const noexcept { return std::bit_cast<double>(max_abs_[pair].load()); }

private:
    /// Returns blocks that suit the transposed tensor, if one of the two is transposed.
    Blocks blocks_of(const LazyTensor& a, const LazyTensor& b) const {
        const Blocks blocks(a, workers_.buffer_size());
        return blocks.ranges() ? Blocks(b, workers_.buffer_size()) : blocks;
    }

    void do_block(BlockRow::Place place, unsigned worker) {
        watch_.check_stop();
        as_one_dtype(pairs_[place.item], [&](const LazyTensor& a, const LazyTensor& b) {
            const Blocks blocks = blocks_of(a, b);
            if (number_of(blocks, place.block, 0, a) < first_[place.item] || by_number(place.item)) {
                const auto read = [&](const LazyTensor& tensor, unsigned which) {
                    return blocks.gather(place.block, tensor, workers_.gatherer(worker),
                                         workers_.buffer(worker, which));
                };
                const auto of_a = read(a, 0);
                if (const auto element = first_apart(place.item, a.dtype(), of_a, read(b, 1)))
                    found(place.item, number_of(blocks, place.block, *element, a));
            }
            watch_.add(blocks.size(place.block));
        });
    }

    /// Returns the first element of a block that differs, or that is beyond the tolerance.
    std::optional<std::uint64_t> first_apart(std::size_t pair, Dtype dtype, std::span<const std::byte> a,
                                             std::span<const std::byte> b) {
        const auto first = first_difference(dtype, a, b);
        if (!first || !by_number(pair)) return first;
        const auto [atol, rtol] = tolerance_.value_or(Tolerance());
        const Closeness found = compare_numbers(dtype, a, b, atol, rtol);
        raise(max_abs_[pair], found.max_abs);
        return found.first_apart;
    }

    /// Raises `most` to the bits of `value`. The bits of non-negative doubles are in the order of their values, with
    /// NaN above all.
    static void raise(std::atomic<std::uint64_t>& most, double value) noexcept {
        const auto found = std::bit_cast<std::uint64_t>(std::copysign(value, 1.0));
        std::uint64_t before = most;
        while (found > before && !most.compare_exchange_weak(before, found)) {
        }
    }

    void found(std::size_t pair, std::uint64_t element) noexcept {
        std::uint64_t before = first_[pair];
        while (element < before && !first_[pair].compare_exchange_weak(before, element)) {
        }
    }

    const std::vector<Pair>& pairs_;
    std::optional<Tolerance> tolerance_;
    Workers workers_;
    Watch& watch_;
    BlockRow row_;
    std::vector<std::atomic<std::uint64_t>> first_;    // by number of the pair
    std::vector<std::atomic<std::uint64_t>> max_abs_;  // by number of the pair: the bits of a double
};

// ---- comparing names

using Rename = std::function<std::string(std::string_view)>;

/// The selected names of one checkpoint.
struct Names {
    Names(const Checkpoint& checkpoint_, const Selection& selection)
        : checkpoint(checkpoint_), all(all_names(checkpoint, selection)) {
        by_name.reserve(all.size());
        for (const NamedTensor& named : all) by_name.emplace(named.name, named.tensor);
    }
    /// Lists the names that `rename` returns.
    Names(const Checkpoint& checkpoint_, const Selection& selection, const Rename& rename) : checkpoint(checkpoint_) {
        for (const NamedTensor& named : all_names(checkpoint)) {
            std::string name = rename(named.name);
            if (!selection.matches(name)) continue;
            const std::string_view after = renamed.emplace_back(std::move(name));
            if (!by_name.emplace(after, named.tensor).second)
                throw Error(Errc::name_collision, safemap::quoted(named.name) + " and another name would both become " +
                                                      safemap::quoted(after));
            all.push_back({after, named.tensor});
        }
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
    std::deque<std::string> renamed;
    std::vector<NamedTensor> all;
    std::unordered_map<std::string_view, std::size_t, NameHash> by_name;
};

Names names_of(const Checkpoint& checkpoint, const DiffOptions& options) {
    if (options.rename) return {checkpoint, options.selection, options.rename};
    return {checkpoint, options.selection};
}

/// A name that both checkpoints have.
struct Shared {
    std::string_view name;
    Pair tensors;
    std::optional<What> obstacle;
    std::size_t pair;  // number of the pair; unused if there is an obstacle
};

/// Returns the reason why the values of a pair cannot be compared, or nothing if they can.
std::optional<What> obstacle_of(const Pair& pair, bool cast) {
    const bool castable = cast && is_castable(pair.a->dtype()) && is_castable(pair.b->dtype());
    if (!pair.same_dtype() && !castable) return What::dtype;
    if (pair.a->shape() != pair.b->shape()) return What::shape;
    return std::nullopt;
}

/// A list of pairs. Each pair is in it once, however many names it has. All names of one `a` must come one after the
/// other.
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

void report_on(const Shared& shared, const Comparer& values, DiffReport& report) {
    if (shared.obstacle) {
        report.different.push_back(described(shared, *shared.obstacle));
        return;
    }
    const std::uint64_t first = values.first(shared.pair);
    const bool by_number = values.by_number(shared.pair);
    if (first != none) {
        TensorDifference found = value_difference(shared, first);
        if (by_number) found.max_abs = values.max_abs(shared.pair);
        report.different.push_back(std::move(found));
    } else if (by_number && (values.max_abs(shared.pair) != 0 || !shared.tensors.same_dtype())) {
        report.close.push_back({.name = std::string(shared.name), .max_abs = values.max_abs(shared.pair)});
    }
}

std::vector<checkpoint::NamedShape> shapes_of(const std::vector<std::string>& lonely, const Names& names) {
    std::vector<checkpoint::NamedShape> shapes;
    for (const std::string& name : lonely) shapes.push_back({name, &names.find(name)->shape()});
    return shapes;
}

void note_prefix(const Names& a, const Names& b, DiffReport& report) {
    const auto only_in_a = shapes_of(report.only_in_a, a);
    const auto only_in_b = shapes_of(report.only_in_b, b);
    checkpoint::note_prefix(checkpoint::certain_prefix(only_in_b, only_in_a), "A", "B", report.notes);
    checkpoint::note_prefix(checkpoint::certain_prefix(only_in_a, only_in_b), "B", "A", report.notes);
}

/// Adds notes on names that only one side has, for a tensor that both sides have under another name.
void note_ties(const Names& has, const Names& lacks, const std::string& side, const std::string& other,
               DiffReport& report) {
    constexpr std::size_t most = 16;
    std::size_t found = 0;
    for (std::size_t begin = 0, end = 0; begin < has.all.size(); begin = end) {
        while (end < has.all.size() && has.all[end].tensor == has.all[begin].tensor) ++end;
        const std::span names(has.all.data() + begin, end - begin);
        const auto in_both = std::find_if(names.begin(), names.end(),
                                          [&](const NamedTensor& name) { return lacks.find(name.name) != nullptr; });
        if (in_both == names.end()) continue;
        for (const NamedTensor& name : names)
            if (lacks.find(name.name) == nullptr && ++found <= most)
                report.notes.push_back(safemap::quoted(name.name) + " is tied to " + safemap::quoted(in_both->name) +
                                       " in " + side + ", but not in " + other);
    }
    if (found > most) report.notes.push_back(other + " lacks " + std::to_string(found - most) + " more ties");
}

void require_sense(const std::optional<Tolerance>& tolerance) {
    if (!tolerance) return;
    for (const double bound : {tolerance->atol, tolerance->rtol})
        if (!std::isfinite(bound) || bound < 0)
            throw Error(Errc::invalid_argument, "invalid tolerance " + std::to_string(bound) +
                                                    "; expected a finite number that is not negative");
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
    require_sense(options.tolerance);
    const Names names_a = names_of(a, options);
    const Names names_b(b, options.selection);
    DiffReport report{.only_in_a = names_a.missing_in(names_b), .only_in_b = names_b.missing_in(names_a)};
    note_prefix(names_a, names_b, report);
    note_ties(names_a, names_b, "A", "B", report);
    note_ties(names_b, names_a, "B", "A", report);

    std::vector<Shared> both;
    PairNumbers numbers;
    for (const NamedTensor& named : names_a.all) {
        const LazyTensor* const other = names_b.find(named.name);
        if (other == nullptr) continue;
        const Pair pair{&a.tensor(named.tensor), other};
        const std::optional<What> obstacle = obstacle_of(pair, options.cast);
        both.push_back({named.name, pair, obstacle, obstacle ? 0 : numbers.of(pair)});
    }
    report.tensors = both.size();
    std::uint64_t work = 0;
    for (const Pair& pair : numbers.pairs) {
        report.bytes = checked_add(report.bytes, pair.a->nbytes()).value_or(none);
        const auto bytes = as_one_dtype(pair, [](const LazyTensor& one, const LazyTensor&) { return one.nbytes(); });
        work = checked_add(work, bytes).value_or(none);
    }

    Watch watch(options.work.monitor, "comparing", work);
    Comparer values(numbers.pairs, options.tolerance, options.work.threads, watch);
    values.run();
    for (const Checkpoint* each : {&a, &b}) require_unchanged(std::span(each->begin(), each->size()));
    for (const Shared& shared : both) report_on(shared, values, report);
    return report;
}

}  // namespace safemap::SAFEMAP_ABI
