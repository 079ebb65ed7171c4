// Tests merging the slices of tensor parallelism: random tensors are cut as Megatron cuts them, spread over the files
// of ranks, merged, and compared; and everything that must not be merged.
#include "distributed/parallel/merge.hpp"

#include "doctest_safemap.hpp"

#include <safemap/lazy_tensor.hpp>

#include <algorithm>
#include <cmath>
#include <numeric>
#include <random>
#include <span>

namespace slices_test {

using namespace safemap;
using distributed::merge;
using distributed::ModelRank;
using distributed::ModelWeights;
using distributed::read_universal_info;
using distributed::UniversalInfo;

namespace {

using Kind = ModelWeights::Weight::Kind;

/// A tensor in memory.
struct Array {
    Shape shape;
    std::vector<float> values;
};

std::uint64_t product(const Shape& shape, std::size_t from, std::size_t to) {
    std::uint64_t count = 1;
    for (std::size_t d = from; d < to; ++d) count *= shape[d];
    return count;
}

Array counted(const Shape& shape, float first = 1) {
    Array array{shape, std::vector<float>(product(shape, 0, shape.size()))};
    std::iota(array.values.begin(), array.values.end(), first);
    return array;
}

/// Returns `count` indices from `first` on, along a dimension.
Array cut(const Array& whole, std::size_t dimension, std::uint64_t first, std::uint64_t count) {
    Array part{whole.shape, {}};
    part.shape[dimension] = count;
    const std::uint64_t inner = product(whole.shape, dimension + 1, whole.shape.size());
    for (std::uint64_t outer = 0; outer < product(whole.shape, 0, dimension); ++outer)
        for (std::uint64_t i = first; i < first + count; ++i)
            for (std::uint64_t j = 0; j < inner; ++j)
                part.values.push_back(whole.values[(outer * whole.shape[dimension] + i) * inner + j]);
    return part;
}

/// Returns the tensors one after the other along dimension 0.
Array stacked(const std::vector<Array>& parts) {
    Array all{parts.front().shape, {}};
    all.shape[0] = 0;
    for (const Array& part : parts) {
        all.shape[0] += part.shape[0];
        all.values.insert(all.values.end(), part.values.begin(), part.values.end());
    }
    return all;
}

std::shared_ptr<const Source> source_of(std::span<const float> values) {
    const auto bytes = std::as_bytes(values);
    return memory_source("rank", std::vector<std::byte>(bytes.begin(), bytes.end()));
}

/// Returns a tensor whose elements are spread over up to `most` files, as partitions of data parallelism are.
LazyTensor spread(const std::string& name, const Array& array, std::mt19937& random, std::size_t most = 3) {
    std::vector<RunPiece> runs;
    for (std::uint64_t first = 0; first < array.values.size();) {
        std::uint64_t count = array.values.size() - first;
        if (runs.size() + 1 < most) count = 1 + random() % count;
        else if (runs.empty()) return {name, stored_run(Dtype::f32, array.shape, source_of(array.values), 0)};
        runs.push_back({source_of(std::span(array.values).subspan(first, count)), 0, first, count});
        first += count;
    }
    return {name, stored_runs(Dtype::f32, array.shape, runs)};
}

Array loaded(const LazyTensor& tensor) {
    Array array{tensor.shape(), std::vector<float>(tensor.element_count())};
    tensor.read(0, std::as_writable_bytes(std::span(array.values)));
    return array;
}

void check_equal(const LazyTensor& tensor, const Array& expected) {
    CHECK(tensor.shape() == expected.shape);
    CHECK(loaded(tensor).values == expected.values);
}

/// Builds `universal_checkpoint_info`.
class Info {
public:
    using Node = StateTree::NodeId;

    Node text(const std::string& value) { return tree.add(value); }
    Node number(std::int64_t value) { return tree.add(value); }
    Node list(std::vector<Node> items) {
        return tree.add(StateTree::Sequence{StateTree::Sequence::Kind::list, std::move(items)});
    }
    Node numbers(const std::vector<std::int64_t>& values) {
        std::vector<Node> items;
        for (const std::int64_t value : values) items.push_back(number(value));
        return list(std::move(items));
    }
    Node texts(const std::vector<std::string>& values) {
        std::vector<Node> items;
        for (const std::string& value : values) items.push_back(text(value));
        return list(std::move(items));
    }
    Node dict(const std::vector<std::pair<std::string, Node>>& fields) {
        StateTree::Dict made;
        for (const auto& [key, value] : fields) made.items.emplace_back(text(key), value);
        return tree.add(std::move(made));
    }
    /// Reads the keys as the whole dictionary.
    UniversalInfo read(const std::vector<std::pair<std::string, Node>>& fields) {
        return read_universal_info(distributed::Value(tree, dict(fields)));
    }
    Node several(const std::string& pattern, Node shape, std::int64_t dimension) {
        return list({dict({{"patterns", texts({pattern})}, {"shape", shape}, {"partition_dim", number(dimension)}})});
    }

    StateTree tree;
};

UniversalInfo patterns(const std::string& key, const std::vector<std::string>& values) {
    Info info;
    return info.read({{key, info.texts(values)}});
}

/// Returns one rank for each slice of the only weight "w", with the state "exp_avg" of negative values.
std::vector<ModelRank> ranks_of(const std::vector<Array>& slices, std::mt19937& random, Kind kind = Kind::master,
                                std::size_t files = 3) {
    std::vector<ModelRank> ranks;
    for (std::size_t rank = 0; rank < slices.size(); ++rank) {
        ModelWeights::Weight weight{"w", spread("w", slices[rank], random, files), kind, {}};
        Array state = slices[rank];
        for (float& value : state.values) value = -value;
        if (kind == Kind::master) weight.state.emplace_back("exp_avg", spread("exp_avg", state, random, files));
        ModelWeights joined;
        joined.weights.push_back(std::move(weight));
        ranks.push_back({rank, "file of rank " + std::to_string(rank), std::move(joined)});
    }
    return ranks;
}

void check_merged(std::vector<ModelRank> ranks, const UniversalInfo& info, const Array& expected) {
    const ModelWeights merged = merge(std::move(ranks), &info);
    const std::string note = merged.notes.empty() ? "" : merged.notes.front();
    CAPTURE(note);
    REQUIRE(merged.weights.size() == 1);
    CHECK(merged.weights.front().name == "w");
    CHECK(merged.notes.empty());
    check_equal(merged.weights.front().tensor, expected);
    if (merged.weights.front().kind != Kind::master) return;
    REQUIRE(merged.weights.front().state.size() == 1);
    Array state = expected;
    for (float& value : state.values) value = -value;
    check_equal(merged.weights.front().state.front().second, state);
}

/// Checks that all ranks are listed with their own values, and that a note says why.
void check_listed(const std::vector<Array>& slices, const UniversalInfo* info, const std::string& why,
                  Kind kind = Kind::master, std::size_t files = 3) {
    std::mt19937 random(1);
    const ModelWeights listed = merge(ranks_of(slices, random, kind, files), info);
    REQUIRE(listed.weights.size() == slices.size());
    for (std::size_t rank = 0; rank < slices.size(); ++rank) {
        CHECK(listed.weights[rank].name == "mp_rank_0" + std::to_string(rank) + "/w");
        check_equal(listed.weights[rank].tensor, slices[rank]);
        if (kind == Kind::master) CHECK(listed.weights[rank].state.size() == 1);
    }
    REQUIRE(listed.notes.size() == 1);
    INFO(listed.notes.front());
    CHECK(listed.notes.front().find(why) != std::string::npos);
}

Shape random_shape(std::mt19937& random, std::size_t least) {
    Shape shape;
    const std::size_t rank = least + random() % 3;
    for (std::size_t d = 0; d < rank; ++d) shape.push_back(1 + random() % 6);
    return shape;
}

/// Returns sizes for all ranks, some of them 0, that are together `size`.
std::vector<std::uint64_t> random_widths(std::uint64_t size, std::size_t ranks, std::mt19937& random) {
    std::vector<std::uint64_t> widths(ranks, 0);
    for (std::uint64_t i = 0; i < size; ++i) ++widths[random() % ranks];
    return widths;
}

std::vector<Array> slices_of(const Array& whole, std::size_t dimension, const std::vector<std::uint64_t>& widths) {
    std::vector<Array> slices;
    std::uint64_t done = 0;
    for (const std::uint64_t width : widths) {
        slices.push_back(cut(whole, dimension, done, width));
        done += width;
    }
    return slices;
}

}  // namespace

TEST_CASE("slices along dimension 0 and 1, of any sizes") {
    std::mt19937 random(11);
    const UniversalInfo columns = patterns("tp_replicated_parameter_patterns", {"other"});
    const UniversalInfo rows = patterns("parameter_with_row_parallelism_patterns", {"w"});
    for (int turn = 0; turn < 200; ++turn) {
        CAPTURE(turn);
        const std::size_t dimension = turn % 2 == 0 ? 0 : 1;
        const Array whole = counted(random_shape(random, dimension + 1));
        const auto widths = random_widths(whole.shape[dimension], 2 + random() % 4, random);
        check_merged(ranks_of(slices_of(whole, dimension, widths), random), dimension == 0 ? columns : rows, whole);
    }
}

TEST_CASE("two parameters in one") {
    std::mt19937 random(12);
    const UniversalInfo info = patterns("parameter_with_2_sub_params_cat_dim_0", {"w"});
    for (int turn = 0; turn < 50; ++turn) {
        const std::size_t ranks = 2 + random() % 3;
        Shape shape = random_shape(random, 1);
        shape[0] *= ranks;
        const Array gate = counted(shape, 1);
        const Array up = counted(shape, 1000);
        std::vector<Array> slices;
        for (std::size_t rank = 0; rank < ranks; ++rank) {
            const std::uint64_t size = shape[0] / ranks;
            slices.push_back(stacked({cut(gate, 0, rank * size, size), cut(up, 0, rank * size, size)}));
        }
        check_merged(ranks_of(slices, random), info, stacked({gate, up}));
    }
    check_listed({counted({3, 2}), counted({3, 2}, 9)}, &info, "halved");
}

TEST_CASE("several parameters in one: widths of each rank") {
    std::mt19937 random(13);
    for (int turn = 0; turn < 60; ++turn) {
        CAPTURE(turn);
        const std::size_t ranks = 2 + random() % 3;
        const std::uint64_t columns = 1 + random() % 4;
        Info info;
        std::vector<std::int64_t> sizes;
        std::vector<Info::Node> widths;
        std::vector<Array> parts;
        std::vector<std::vector<Array>> of_ranks(ranks);
        for (int part = 0; part < 3; ++part) {
            const Array whole = counted({1 + random() % 5, columns}, static_cast<float>(1000 * part));
            const auto each = random_widths(whole.shape[0], ranks, random);
            sizes.push_back(static_cast<std::int64_t>(whole.shape[0]));
            widths.push_back(info.numbers({each.begin(), each.end()}));
            const auto cuts = slices_of(whole, 0, each);
            for (std::size_t rank = 0; rank < ranks; ++rank) of_ranks[rank].push_back(cuts[rank]);
            parts.push_back(whole);
        }
        std::vector<Array> slices;
        for (const auto& each : of_ranks) slices.push_back(stacked(each));
        const UniversalInfo read = info.read(
            {{"universal_checkpoint_version", info.tree.add(0.4)},
             {"parameter_with_sub_params", info.several("w", info.list({info.numbers(sizes), info.number(-1)}), 0)},
             {"sub_param_shard_widths", info.dict({{"w", info.list(widths)}})}});
        CHECK(read.fault == "");
        check_merged(ranks_of(slices, random), read, stacked(parts));
    }
}

TEST_CASE("several parameters in one: widths that contradict the sizes") {
    Info info;
    const auto rules = [&](const std::vector<std::int64_t>& first, const std::vector<std::int64_t>& second) {
        return info.read(
            {{"universal_checkpoint_version", info.tree.add(0.4)},
             {"parameter_with_sub_params", info.several("w", info.list({info.numbers({3, 3}), info.number(-1)}), 0)},
             {"sub_param_shard_widths", info.dict({{"w", info.list({info.numbers(first), info.numbers(second)})}})}});
    };
    const std::vector<Array> slices = {counted({3, 2}), counted({3, 2}, 50)};
    std::mt19937 random(22);
    const UniversalInfo good = rules({1, 2}, {2, 1});
    CHECK(merge(ranks_of(slices, random), &good).weights.size() == 1);
    const UniversalInfo other_sizes = rules({1, 1}, {2, 2});
    check_listed(slices, &other_sizes, "contradicts the sizes");
    const UniversalInfo other_ranks = rules({1, 1, 1}, {2, 1, 0});
    check_listed(slices, &other_ranks, "another number of ranks");
    const UniversalInfo other_shapes = rules({2, 1}, {2, 1});
    check_listed(slices, &other_shapes, "do not fit their shapes");
}

TEST_CASE("several parameters in one: older versions have a count, and cut evenly") {
    std::mt19937 random(14);
    Info three;
    const UniversalInfo info =
        three.read({{"universal_checkpoint_version", three.tree.add(0.3)},
                    {"parameter_with_sub_params", three.several("w", three.numbers({3, -1}), 0)}});
    std::vector<Array> parts;
    for (int part = 0; part < 3; ++part) parts.push_back(counted({4, 5}, static_cast<float>(100 * part)));
    std::vector<Array> slices;
    for (std::uint64_t rank = 0; rank < 2; ++rank) {
        std::vector<Array> own;
        for (const Array& part : parts) own.push_back(cut(part, 0, rank * 2, 2));
        slices.push_back(stacked(own));
    }
    check_merged(ranks_of(slices, random), info, stacked(parts));
    check_listed({counted({5, 2}), counted({4, 2})}, &info, "evenly");
    check_listed({counted({4, 2}), counted({4, 2})}, &info, "multiple");

    Info along;
    const UniversalInfo columns =
        along.read({{"parameter_with_sub_params", along.several("w", along.numbers({-1, 2}), 1)}});
    const std::vector<Array> halves = {counted({3, 2}, 1), counted({3, 2}, 50)};
    const std::vector<float> expected = {1, 50, 2, 51, 3, 52, 4, 53, 5, 54, 6, 55};
    for (const std::size_t files : {1U, 2U, 3U, 4U})
        check_merged(ranks_of(halves, random, Kind::master, files), columns, {{3, 4}, expected});

    Info none;
    const UniversalInfo lacking =
        none.read({{"universal_checkpoint_version", none.tree.add(0.4)},
                   {"parameter_with_sub_params", none.several("w", none.numbers({3, -1}), 0)}});
    check_listed(slices, &lacking, "sub_param_shard_widths");

    Info many;
    const UniversalInfo huge =
        many.read({{"parameter_with_sub_params", many.several("w", many.numbers({1 << 20, -1}), 0)}});
    check_listed({counted({1 << 20}), counted({1 << 20})}, &huge, "number of their parts");
}

TEST_CASE("rows that pad the vocabulary are cut off") {
    std::mt19937 random(15);
    Info tree;
    const UniversalInfo info =
        tree.read({{"original_vocab_size", tree.number(7)}, {"vocabulary_parameter_patterns", tree.texts({"w"})}});
    const Array padded = counted({8, 3});
    check_merged(ranks_of(slices_of(padded, 0, {4, 4}), random), info, cut(padded, 0, 0, 7));
    const Array small = counted({6, 3});
    check_merged(ranks_of(slices_of(small, 0, {3, 3}), random), info, small);
    const UniversalInfo unsized = patterns("vocabulary_parameter_patterns", {"w"});
    check_listed(slices_of(padded, 0, {4, 4}), &unsized, "original_vocab_size");
}

TEST_CASE("replicated slices: the first is given, the others can be compared") {
    std::mt19937 random(16);
    const UniversalInfo info = patterns("tp_replicated_parameter_patterns", {"w"});
    const Array whole = counted({4, 2});
    check_merged(ranks_of({whole, whole, whole}, random), info, whole);
    Array other = whole;
    other.values.back() += 1;
    const ModelWeights merged = merge(ranks_of({whole, whole, other}, random), &info);
    REQUIRE(merged.weights.size() == 1);
    check_equal(merged.weights.front().tensor, whole);
    REQUIRE(merged.notes.size() == 1);
    CHECK(merged.notes.front().ends_with(": w"));
    REQUIRE(merged.replicas.size() == 2);
    CHECK(merged.replicas[1].first_file == "file of rank 0");
    CHECK(merged.replicas[1].other_file == "file of rank 2");
    check_equal(merged.replicas[1].other, other);
    check_listed({whole, counted({2, 2})}, &info, "alike");
}

TEST_CASE("averaged slices: the whole is their mean, as torch computes it") {
    std::mt19937 random(17);
    const UniversalInfo info = patterns("parameter_to_average_patterns", {"w"});
    const auto check_mean = [&](const std::vector<Array>& slices, const Array& wanted) {
        const ModelWeights merged = merge(ranks_of(slices, random), &info);
        CHECK(merged.notes.empty());
        REQUIRE(merged.weights.size() == 1);
        const LazyTensor& mean = merged.weights.front().tensor;
        check_equal(mean, wanted);
        REQUIRE(merged.weights.front().state.size() == 1);
        Array moment = wanted;
        for (float& value : moment.values) value = -value;
        check_equal(merged.weights.front().state.front().second, moment);
        // Parts of it, from elements within a block on.
        const std::uint64_t elements = mean.element_count();
        for (int i = 0; i < 4 && elements > 0; ++i) {
            const std::uint64_t first = random() % elements;
            std::vector<float> part(1 + random() % (elements - first));
            mean.read(first * sizeof(float), std::as_writable_bytes(std::span(part)));
            CHECK(std::equal(part.begin(), part.end(), wanted.values.begin() + static_cast<std::ptrdiff_t>(first)));
        }
    };
    for (const std::uint64_t size : {0U, 5U, 16'384U, 40'000U})
        for (const std::size_t ranks : {2U, 3U, 7U}) {
            std::vector<Array> slices;
            for (std::size_t rank = 0; rank < ranks; ++rank) {
                slices.push_back(counted({size}));
                for (float& value : slices.back().values) value = std::ldexp(static_cast<float>(random()), -40);
            }
            Array wanted = counted({size});
            for (std::size_t i = 0; i < size; ++i) {
                float sum = 0;
                for (const Array& slice : slices) sum += slice.values[i];
                wanted.values[i] = sum / static_cast<float>(ranks);
            }
            check_mean(slices, wanted);
        }
    const Array scalar{{}, {3}};
    check_mean({scalar, Array{{}, {4}}}, Array{{}, {3.5}});
    const ModelWeights merged = merge(ranks_of({Array{{1}, {-0.0F}}, Array{{1}, {-0.0F}}}, random), &info);
    CHECK(!std::signbit(loaded(merged.weights.front().tensor).values.front()));
    check_listed({counted({2}), counted({3})}, &info, "shapes differ");
}

TEST_CASE("averaged slices that are not F32 are merged only if they are equal") {
    const UniversalInfo info = patterns("parameter_to_average_patterns", {"w"});
    const auto merged = [&](std::uint16_t last) {
        std::vector<ModelRank> ranks;
        for (std::uint64_t rank = 0; rank < 2; ++rank) {
            const std::uint16_t values[] = {0x3f80, rank == 0 ? std::uint16_t{0x4000} : last};
            const auto bytes = std::as_bytes(std::span(values));
            const auto source = memory_source("rank", std::vector<std::byte>(bytes.begin(), bytes.end()));
            ModelWeights one;
            one.weights.push_back({"w", {"w", stored_run(Dtype::bf16, {2}, source, 0)}, Kind::plain, {}});
            ranks.push_back({rank, "file of rank " + std::to_string(rank), std::move(one)});
        }
        return merge(std::move(ranks), &info);
    };
    CHECK(merged(0x4000).weights.size() == 1);
    const ModelWeights listed = merged(0x4040);
    CHECK(listed.weights.size() == 2);
    REQUIRE(listed.notes.size() == 1);
    CHECK(listed.notes.front().find("F32 only") != std::string::npos);
}

TEST_CASE("buffers that no rule describes are merged if they are equal") {
    std::mt19937 random(18);
    const UniversalInfo info = patterns("tp_replicated_parameter_patterns", {"other"});
    const Array whole = counted({5});
    check_merged(ranks_of({whole, whole}, random, Kind::buffer), info, whole);
    check_listed({whole, counted({5}, 2)}, &info, "buffers", Kind::buffer);
    const UniversalInfo rule = patterns("parameter_with_row_parallelism_patterns", {"w"});
    const Array wide = counted({2, 4});
    check_merged(ranks_of(slices_of(wide, 1, {1, 3}), random, Kind::buffer), rule, wide);
}

TEST_CASE("slices that no rule describes are listed by rank") {
    const std::vector<Array> slices = {counted({2, 3}), counted({2, 4}, 50)};
    const UniversalInfo info = patterns("tp_replicated_parameter_patterns", {"other"});
    check_listed(slices, nullptr, "universal_checkpoint_info");
    check_listed(slices, &info, "differ in other dimensions");
    const UniversalInfo unreadable = patterns("tp_replicated_parameter_patterns", {"(?=other)"});
    check_listed(slices, &unreadable, "(?=other)");
    const UniversalInfo twice = patterns("tp_replicated_parameter_patterns", {"w", "w.*"});
    check_listed(slices, &twice, "several patterns");
    const UniversalInfo unsupported = patterns("autotp_unsupported_parameter_patterns", {"w"});
    check_listed(slices, &unsupported, "autotp_unsupported_parameter_patterns");
    const UniversalInfo rows = patterns("parameter_with_row_parallelism_patterns", {"w"});
    check_listed({counted({2}), counted({3})}, &rows, "dimension 1");
}

TEST_CASE("affine maps say where each box of the whole is") {
    std::mt19937 random(19);
    // Rank 0 holds columns 0 to 1 and row 3, rank 1 columns 2 to 4 and row 3.
    const Array whole = counted({4, 5});
    const auto slices_with = [&](std::uint64_t first, std::uint64_t count) {
        Array part = cut(cut(whole, 0, 0, 3), 1, first, count);
        return part;
    };
    Info info;
    const auto map = [&](bool scaled) {
        const auto piece = [&](std::int64_t source, std::int64_t width) {
            std::vector<std::pair<std::string, Info::Node>> fields = {
                {"shape", info.numbers({3, width})},
                {"source", info.list({info.number(source), info.numbers({5, 1})})},
                {"dest", info.list({info.number(0), info.numbers({width, 1})})}};
            if (scaled) fields.emplace_back("scale", info.tree.add(0.5));
            return info.list({info.dict(fields)});
        };
        const auto rank = [&](std::int64_t source, std::int64_t width) {
            return info.dict({{"shard_shape", info.numbers({3, width})}, {"pieces", piece(source, width)}});
        };
        return info.dict(
            {{"logical_shape", info.numbers({3, 5})}, {"ranks", info.dict({{"0", rank(0, 2)}, {"1", rank(2, 3)}})}});
    };
    const std::vector<Array> slices = {slices_with(0, 2), slices_with(2, 3)};
    const UniversalInfo read = info.read(
        {{"affine_map", info.dict({{"version", info.number(1)}, {"params", info.dict({{"w", map(false)}})}})}});
    CHECK(read.fault == "");
    check_merged(ranks_of(slices, random), read, cut(whole, 0, 0, 3));
    const UniversalInfo scaled = info.read({{"affine_map", info.dict({{"params", info.dict({{"w", map(true)}})}})}});
    check_listed(slices, &scaled, "scaled");
    const UniversalInfo newer = info.read({{"affine_map", info.dict({{"version", info.number(2)}})}});
    check_listed(slices, &newer, "version");
}

TEST_CASE("ranks that lack a weight or its state, or have another dtype") {
    std::mt19937 random(20);
    const UniversalInfo info = patterns("tp_replicated_parameter_patterns", {"other"});
    const std::vector<Array> slices = {counted({2, 3}), counted({2, 3})};
    auto ranks = ranks_of(slices, random);
    ranks[1].joined.weights.clear();
    const auto error = error_of([&] { merge(ranks, &info); });
    REQUIRE(error.has_value());
    CHECK(error->code() == Errc::ranks_differ);
    CHECK(error->tensor() == "w");
    CHECK(error->message().find("file of rank 0") != std::string::npos);
    CHECK(error->message().find("file of rank 1") != std::string::npos);
    std::swap(ranks[0], ranks[1]);
    CHECK_FAULT(merge(ranks, &info), Errc::ranks_differ);

    ranks = ranks_of(slices, random);
    ranks[1].joined.weights.front().state.clear();
    CHECK_FAULT(merge(ranks, &info), Errc::ranks_differ);

    ranks = ranks_of(slices, random);
    LazyTensor& tensor = ranks[1].joined.weights.front().tensor;
    tensor = LazyTensor("w", stored_run(Dtype::i32, {2, 3}, memory_source("rank", std::vector<std::byte>(24)), 0));
    CHECK_FAULT(merge(ranks, &info), Errc::ranks_differ);
}

TEST_CASE("ties of the first rank hold for all") {
    std::mt19937 random(21);
    const UniversalInfo info = patterns("tp_replicated_parameter_patterns", {"other"});
    const Array whole = counted({4, 3});
    auto ranks = ranks_of(slices_of(whole, 0, {2, 2}), random);
    ranks[0].joined.aliases = {{"w", "head"}};
    ranks[1].joined.weights.push_back({"head", spread("head", counted({2, 3}), random), Kind::plain, {}});
    const ModelWeights merged = merge(ranks, &info);
    CHECK(merged.weights.size() == 1);
    CHECK(merged.aliases == std::vector<AliasGroup>{{"w", "head"}});
    ranks = ranks_of(slices_of(whole, 0, {2, 2}), random);
    ranks[0].joined.aliases = {{"w", "head"}};
    CHECK(merge(ranks, nullptr).aliases == std::vector<AliasGroup>{{"mp_rank_00/w", "mp_rank_00/head"}});
}

TEST_CASE("rules of a form that nobody writes are a fault, not a guess") {
    Info info;
    CHECK(read_universal_info(distributed::Value(info.tree, info.number(1))).fault.find("dictionary") !=
          std::string::npos);
    const auto fault = [&](const std::string& key, Info::Node value) { return info.read({{key, value}}).fault; };
    CHECK(fault("tp_replicated_parameter_patterns", info.number(1)).find("tp_replicated") != std::string::npos);
    CHECK(fault("tp_replicated_parameter_patterns", info.numbers({1})) != "");
    CHECK(fault("tp_replicated_parameter_patterns", info.texts({"a{2}"})) != "");
    CHECK(fault("pipeline_replicated_parameter_patterns", info.texts({"a{2}"})) == "");  // no rule needs them
    CHECK(fault("original_vocab_size", info.number(-1)) != "");
    CHECK(fault("original_vocab_size", info.text("x")) != "");
    CHECK(fault("universal_checkpoint_version", info.text("x")) != "");
    CHECK(fault("parameter_with_sub_params", info.list({info.number(1)})) != "");
    CHECK(fault("parameter_with_sub_params", info.several("w", info.numbers({3, -1}), 2)) != "");
    CHECK(fault("sub_param_shard_widths", info.dict({{"w", info.list({info.numbers({-1})})}})) != "");
    CHECK(fault("affine_map", info.dict({{"params", info.number(1)}})) != "");
    CHECK(fault("of another framework", info.number(1)) == "");
    // A set of patterns is a list of them. Other keys than texts, and members of enumerations, are of another form.
    const auto set_of = [&](const std::vector<Info::Node>& items) {
        return info.tree.add(StateTree::Sequence{StateTree::Sequence::Kind::set, items});
    };
    CHECK(fault("tp_replicated_parameter_patterns", set_of({info.text("w")})) == "");
    const auto with_key = [&](StateTree::Node key) {
        return info.tree.add(StateTree::Dict{.items = {{info.tree.add(std::move(key)), info.number(1)}}});
    };
    for (const StateTree::Node& key : {StateTree::Node(StateTree::None{}), StateTree::Node(std::int64_t{5})})
        for (const char* const name : {"tp_replicated_parameter_patterns", "sub_param_shard_widths"})
            CHECK(fault(name, with_key(key)) != "");
    StateTree::Opaque member{.type = "sizes.Size", .why = {}, .children = {{"0", info.number(3)}}, .arguments = 1};
    CHECK(fault("original_vocab_size", info.tree.add(std::move(member))) != "");

    // A list that is in many places is not read in all of them.
    const Info::Node long_list = info.numbers(std::vector<std::int64_t>(10'000, 1));
    const Info::Node rows = info.list(std::vector<Info::Node>(10'000, long_list));
    CHECK(fault("sub_param_shard_widths", info.dict({{"w", rows}})) != "");
}

}  // namespace slices_test
