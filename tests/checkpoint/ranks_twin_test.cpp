// Tests tensors_of_rank() with random tensors and rules, against a slow twin that picks elements of whole tensors one
// by one.
#include <safemap/ranks.hpp>

#include "doctest_safemap.hpp"
#include "soak.hpp"

#include <safemap/advanced/dtypes.hpp>
#include <safemap/advanced/stored_tensor.hpp>
#include <safemap/advanced/strides.hpp>

#include <algorithm>
#include <cstdint>
#include <random>
#include <string>
#include <utility>
#include <vector>

namespace ranks_twin_test {

using namespace safemap;

namespace {

using Split = RankRule::Split;

/// Random tensors and rules that fit together, and the slow twin.
class Twin {
public:
    explicit Twin(unsigned seed) : random_(seed) {}

    void check() {
        ranks_ = std::uint64_t{1} << below(4);
        if (below(4) == 0) ranks_ = 1 + below(7);
        make_rule();
        const LazyTensor tensor = make_tensor();
        const TensorView whole = tensor.load();
        std::vector<bool> covered(size_ == 0 ? 0 : tensor.element_count());
        for (std::uint64_t rank = 0; rank < ranks_; ++rank) {
            CAPTURE(rank);
            const auto parts = tensors_of_rank({&tensor, 1}, {&rule_, 1}, {rank, ranks_});
            REQUIRE(parts.size() == 1);
            const LazyTensor& mine = parts[0];
            CHECK(mine.dtype() == tensor.dtype());
            CHECK(expected(whole, rank, covered) == bytes_of(mine.load()));
        }
        CHECK(std::all_of(covered.begin(), covered.end(), [](bool one) { return one; }));
    }

private:
    std::uint64_t below(std::uint64_t n) { return std::uniform_int_distribution<std::uint64_t>(0, n - 1)(random_); }
    static std::string bytes_of(const TensorView& view) {
        return {reinterpret_cast<const char*>(view.bytes().data()), view.bytes().size()};
    }

    /// Makes a rule, and the size of a dimension that it fits.
    void make_rule() {
        dimension_ = below(3);
        rule_ = {.names = "*", .split = below(2) == 0 ? Split::column : Split::row, .dimension = dimension_};
        size_ = ranks_ * below(5);
        switch (below(5)) {
            case 0: rule_.split = Split::experts, rule_.experts = size_ += ranks_; break;
            case 1: rule_.uneven = true, size_ = below(20); break;
            case 2: rule_.padded_size = size_ + ranks_, size_ += below(ranks_ + 1); break;
            case 3: make_sections(); break;
            default: break;
        }
    }
    void make_sections() {
        std::uint64_t sharing = ranks_;  // ranks that share a group
        if (below(2) == 0) {
            rule_.groups = 1 + below(3);
            if (ranks_ % rule_.groups == 0) sharing = ranks_ / rule_.groups;
            else rule_.groups = ranks_ * (1 + below(2)), sharing = 1;
        }
        std::uint64_t total = 0;
        for (std::uint64_t i = 1 + below(3); i > 0; --i) {
            RankRule::Section section = {.heads = sharing * (1 + below(3))};
            if (below(2) == 0) section = {.heads = divisor_of(sharing), .repeat = true};
            section.size = section.heads * (1 + below(3));
            if (below(3) == 0) section = {.size = sharing * (1 + below(3))};
            total += section.size;
            rule_.sections.push_back(section);
        }
        size_ = rule_.groups * total * below(4);
    }
    std::uint64_t divisor_of(std::uint64_t n) {
        std::uint64_t divisor = 1 + below(n);
        while (n % divisor != 0) --divisor;
        return divisor;
    }

    /// Makes a tensor of one run or several, in any order of dimensions and in both directions, decoded or cast.
    LazyTensor make_tensor() {
        Shape shape;
        for (std::size_t d = 0; d < 3; ++d) shape.push_back(d == dimension_ ? size_ : 1 + below(4));
        std::vector<std::size_t> order = {0, 1, 2};
        std::shuffle(order.begin(), order.end(), random_);
        const Shape stored_shape = {shape[order[0]], shape[order[1]], shape[order[2]]};
        const std::uint64_t count = *element_count(shape);
        std::vector<RunPiece> runs;
        for (std::uint64_t first = 0; first < count;) {
            const std::uint64_t n = below(2) == 0 ? count - first : 1 + below(count - first);
            std::vector<std::byte> bytes(n * 4 + 3);
            for (std::byte& byte : bytes) byte = static_cast<std::byte>(random_());
            runs.push_back({memory_source("run", std::move(bytes)), 3, first, n});
            first += n;
        }
        const bool one_run = runs.size() == 1;
        const auto stored = one_run ? stored_run(Dtype::f32, stored_shape, runs[0].source, runs[0].offset)
                                    : stored_runs(Dtype::f32, stored_shape, runs);
        const Strides stored_strides = row_major(stored_shape);
        StridedView view{shape, Strides(3, 0), 0};
        for (std::size_t d = 0; d < 3; ++d) view.strides[order[d]] = stored_strides[d];
        const LazyTensor tensor("w", stored, view, {.byte_swap = below(2) == 0});
        const LazyTensor turned = one_run && below(2) == 0 ? tensor.slice({{.step = -1}, {}, {.step = -1}}) : tensor;
        return below(3) == 0 ? turned.cast(Dtype::bf16) : turned;
    }

    /// Picks the elements of a rank one by one, and notes them.
    std::string expected(const TensorView& whole, std::uint64_t rank, std::vector<bool>& covered) const {
        const std::string bytes = bytes_of(whole);
        const std::uint64_t element = element_size(whole.dtype());
        std::uint64_t inner = 1;
        for (std::size_t d = dimension_ + 1; d < 3; ++d) inner *= whole.shape()[d];
        std::string out;
        for (std::uint64_t i = 0; i < covered.size(); ++i) {
            if (!owns(rank, i / inner % size_)) continue;
            covered[i] = true;
            out += bytes.substr(i * element, element);
        }
        return out;
    }

    /// Returns true if the rank has this index of the dimension.
    bool owns(std::uint64_t rank, std::uint64_t index) const {
        if (rule_.sections.empty()) {
            const std::uint64_t size = rule_.padded_size != 0 ? rule_.padded_size : size_;
            return index / ((size + ranks_ - 1) / ranks_) == rank;
        }
        const std::uint64_t length = size_ / rule_.groups;
        const std::uint64_t group = index / length;
        if (rule_.groups > ranks_) return group * ranks_ / rule_.groups == rank;
        const std::uint64_t sharing = ranks_ / rule_.groups;
        if (rank / sharing != group) return false;
        std::uint64_t at = index % length;
        std::uint64_t total = 0;
        for (const RankRule::Section& section : rule_.sections) total += section.size;
        for (const RankRule::Section& section : rule_.sections) {
            const std::uint64_t rows = length * section.size / total;
            if (at >= rows) {
                at -= rows;
                continue;
            }
            const std::uint64_t heads = section.heads != 0 ? section.heads : rows;
            const std::uint64_t head = at * heads / rows;
            const std::uint64_t member = rank % sharing;
            return heads < sharing ? member * heads / sharing == head : head * sharing / heads == member;
        }
        return false;
    }

    std::mt19937 random_;
    RankRule rule_;
    std::size_t dimension_ = 0;
    std::uint64_t ranks_ = 1;
    std::uint64_t size_ = 0;
};

}  // namespace

TEST_CASE("random tensors and rules agree with a slow twin, and ranks have the whole together") {
    const unsigned seed = soak::seed(7);
    CAPTURE(seed);
    Twin twin(seed);
    for (int i = 0; i < soak::rounds_of_one_thread(20'000); ++i) twin.check();
}

}  // namespace ranks_twin_test
