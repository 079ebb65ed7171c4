// Tests the refusal of pieces that do not form a tensor.
#include "doctest_safemap.hpp"

#include "lazy/stored_tensor.hpp"

#include <safemap/advanced/stored_tensor.hpp>

#include <algorithm>
#include <random>
#include <vector>

namespace stored_tensor_test {

using namespace safemap;

namespace {

std::shared_ptr<const Source> bytes(std::size_t n) { return memory_source("bytes", std::vector<std::byte>(n)); }

std::shared_ptr<const StoredTensor> runs(Shape shape, std::vector<RunPiece> pieces) {
    return stored_runs(Dtype::f32, std::move(shape), pieces);
}

BoxPiece box(Shape start, Shape extent, Strides strides, std::uint64_t offset = 0) {
    return {bytes(64), offset, {std::move(start), std::move(extent)}, std::move(strides)};
}

std::shared_ptr<const StoredTensor> boxes(Shape shape, std::vector<BoxPiece> pieces) {
    return stored_boxes(Dtype::f32, std::move(shape), pieces);
}

}  // namespace

TEST_CASE("runs must hold every element once") {
    const auto s = bytes(64);
    CHECK_OK(runs({4}, {{s, 0, 2, 2}, {s, 8, 0, 2}}));
    CHECK_OK(runs({0}, {}));
    CHECK_OK(runs({4}, {{s, 0, 0, 4}, {s, 0, 4, 0}}));
    CHECK_FAULT(runs({4}, {}), Errc::bad_tensor);
    CHECK_FAULT(runs({4}, {{s, 0, 0, 3}}), Errc::bad_tensor);
    CHECK_FAULT(runs({4}, {{s, 0, 1, 3}}), Errc::bad_tensor);
    CHECK_FAULT(runs({4}, {{s, 0, 0, 2}, {s, 0, 3, 1}}), Errc::bad_tensor);
    CHECK_FAULT(runs({4}, {{s, 0, 0, 3}, {s, 0, 2, 2}}), Errc::bad_tensor);
    CHECK_FAULT(runs({4}, {{s, 0, 0, 5}}), Errc::bad_tensor);
    CHECK_FAULT(runs({4}, {{s, 0, UINT64_MAX, 4}}), Errc::bad_tensor);
    CHECK_FAULT(runs({0}, {{s, 0, 0, 1}}), Errc::bad_tensor);
}

TEST_CASE("runs must be inside their source") {
    CHECK_OK(runs({4}, {{bytes(16), 0, 0, 4}}));
    CHECK_FAULT(runs({4}, {{bytes(15), 0, 0, 4}}), Errc::storage_too_short);
    CHECK_FAULT(runs({4}, {{bytes(16), 1, 0, 4}}), Errc::storage_too_short);
    CHECK_FAULT(runs({4}, {{bytes(16), UINT64_MAX - 3, 0, 4}}), Errc::storage_too_short);
    CHECK_FAULT(runs({4}, {{nullptr, 0, 0, 4}}), Errc::invalid_argument);
    CHECK_FAULT(stored_run(Dtype::u8, {4}, nullptr, 0), Errc::invalid_argument);
}

TEST_CASE("sizes that overflow or cut bytes are refused") {
    CHECK_FAULT(runs({1ULL << 62, 4}, {}), Errc::shape_overflow);
    CHECK_FAULT(runs({1ULL << 62}, {}), Errc::shape_overflow);
    CHECK_FAULT(stored_run(Dtype::f4, {3}, bytes(2), 0), Errc::partial_byte);
    const RunPiece halves[] = {{bytes(4), 0, 0, 3}, {bytes(4), 0, 3, 5}};
    CHECK_FAULT(stored_runs(Dtype::f4, {8}, halves), Errc::partial_byte);
}

TEST_CASE("boxes must hold every element once and be inside their source") {
    CHECK_OK(boxes({2, 4}, {box({0, 0}, {2, 3}, {3, 1}), box({0, 3}, {2, 1}, {1, 1})}));
    CHECK_OK(boxes({2, 2}, {box({0, 0}, {2, 2}, {-2, -1}, 12)}));
    CHECK_OK(boxes({}, {box({}, {}, {})}));
    CHECK_FAULT(boxes({2, 4}, {box({0, 0}, {2, 3}, {3, 1})}), Errc::bad_tensor);
    CHECK_FAULT(boxes({2, 4}, {box({0, 0}, {2, 3}, {3, 1}), box({0, 2}, {2, 1}, {1, 1})}), Errc::bad_tensor);
    CHECK_FAULT(boxes({2, 2}, {box({0, 1}, {2, 2}, {2, 1})}), Errc::bad_tensor);
    CHECK_FAULT(boxes({2, 2}, {box({0}, {2}, {1})}), Errc::bad_tensor);
    CHECK_FAULT(boxes({2, 2}, {box({0, 0}, {2, 2}, {-2, -1}, 8)}), Errc::storage_too_short);
    CHECK_FAULT(boxes({2, 2}, {box({0, 0}, {2, 2}, {16, 1})}), Errc::storage_too_short);
    CHECK_FAULT(boxes({2, 2}, {box({0, 0}, {2, 2}, {INT64_MAX, 1})}), Errc::storage_too_short);
    CHECK_FAULT(stored_boxes(Dtype::f4, {2}, {}), Errc::bad_tensor);
}

TEST_CASE("pieces refer to the sources of a table by number") {
    const auto table = std::make_shared<const SourceTable>(std::vector{bytes(8), bytes(64)});
    const auto indexed = [&](std::vector<IndexedRun> pieces) { return stored_runs(Dtype::f32, {4}, table, pieces); };
    CHECK_OK(indexed({{0, 0, 2, 0}, {40, 2, 2, 1}}));
    CHECK_FAULT(indexed({{0, 0, 2, 0}, {40, 2, 2, 2}}), Errc::invalid_argument);
    CHECK_FAULT(indexed({{0, 0, 3, 0}, {40, 3, 1, 1}}), Errc::storage_too_short);
    CHECK_FAULT(indexed({{0, 0, 2, 0}, {40, 3, 1, 1}}), Errc::bad_tensor);
    CHECK_FAULT(stored_runs(Dtype::f32, {4}, nullptr, {}), Errc::invalid_argument);
    CHECK_FAULT(SourceTable({bytes(8), nullptr}), Errc::invalid_argument);
    const auto in_boxes = [&](std::vector<IndexedBox> pieces) { return stored_boxes(Dtype::f32, {4}, table, pieces); };
    CHECK_OK(in_boxes({{0, {{0}, {2}}, {1}, 0}, {40, {{2}, {2}}, {1}, 1}}));
    CHECK_FAULT(in_boxes({{0, {{0}, {2}}, {1}, 0}, {40, {{2}, {2}}, {1}, 2}}), Errc::invalid_argument);
    CHECK_FAULT(in_boxes({{0, {{0}, {3}}, {1}, 0}, {40, {{3}, {1}}, {1}, 1}}), Errc::storage_too_short);
    CHECK_FAULT(in_boxes({{0, {{0}, {2}}, {1}, 0}, {40, {{3}, {1}}, {1}, 1}}), Errc::bad_tensor);
    CHECK_FAULT(stored_boxes(Dtype::f32, {4}, nullptr, {}), Errc::invalid_argument);
}

TEST_CASE("runs are found at their place, in any order, by number or with their source") {
    std::mt19937 random(14);
    for (int round = 0; round < 300; ++round) {
        const std::uint64_t count = 1 + random() % 60;
        std::vector<std::shared_ptr<const Source>> sources;
        for (int i = 0; i < 5; ++i) sources.push_back(bytes(1000));
        std::vector<RunPiece> pieces;
        std::vector<IndexedRun> indexed;
        for (std::uint64_t first = 0; first < count;) {
            const std::uint64_t n = std::min<std::uint64_t>(count - first, random() % 9);
            const auto source = static_cast<std::uint32_t>(random() % 4);  // the last source is not used
            indexed.push_back({random() % 900, first, n, source});
            pieces.push_back({sources[source], indexed.back().offset, first, n});
            first += n;
        }
        const std::vector<IndexedRun> in_order = indexed;
        if (round % 2 == 0) std::shuffle(indexed.begin(), indexed.end(), random);
        std::shuffle(pieces.begin(), pieces.end(), random);
        const auto table = std::make_shared<const SourceTable>(sources);
        for (const auto& stored :
             {stored_runs(Dtype::u16, {count}, table, indexed), stored_runs(Dtype::u16, {count}, pieces)}) {
            std::vector<const Source*> met;
            stored->each_source([&](const Source& source) { met.push_back(&source); });
            std::vector<const Source*> wanted;
            for (const IndexedRun& run : in_order) {
                const Source* const source = sources[run.source].get();
                if (run.count > 0 && (wanted.empty() || wanted.back() != source)) wanted.push_back(source);
                for (std::uint64_t i = 0; i < run.count; ++i) {
                    const auto place = stored->locate(run.first + i);
                    CHECK(&stored->source(place.source) == source);
                    CHECK(place.offset == run.offset + i * 2);
                    CHECK(place.count == run.count - i);
                }
            }
            CHECK(met == wanted);
        }
    }
}

TEST_CASE("a hundred thousand runs in as many sources are described quickly") {
    constexpr std::uint64_t count = 100'000;
    std::vector<RunPiece> pieces;
    for (std::uint64_t i = 0; i < count; ++i) pieces.push_back({bytes(4), 0, count - 1 - i, 1});
    CHECK(runs({count}, pieces)->piece_count() == count);
}

TEST_CASE("many tensors of one run are what each is alone, and outlive each other") {
    std::mt19937 random(3);
    const std::vector<std::shared_ptr<const Source>> sources = {bytes(4'000), bytes(2'000)};
    StoredRuns runs;
    std::vector<std::pair<std::shared_ptr<const StoredTensor>, std::shared_ptr<const StoredTensor>>> pairs;
    for (int i = 0; i < 2'000; ++i) {
        Shape shape;
        for (auto rank = random() % 4; rank > 0; --rank) shape.push_back(random() % 8);
        const auto& source = sources[random() % 40 == 0 ? 1 : 0];
        const Dtype dtype = random() % 2 == 0 ? Dtype::u8 : Dtype::bf16;
        const std::uint64_t offset = random() % 1'000;
        pairs.emplace_back(runs.add(dtype, shape, source, offset), stored_run(dtype, shape, source, offset));
        if (random() % 3 == 0) pairs.erase(pairs.begin() + static_cast<std::ptrdiff_t>(random() % pairs.size()));
    }
    for (const auto& [made, alone] : pairs) {
        CHECK(made->dtype() == alone->dtype());
        CHECK(made->shape() == alone->shape());
        CHECK(made->element_count() == alone->element_count());
        CHECK(made->piece_count() == alone->piece_count());
        CHECK(&made->source(0) == &alone->source(0));
        CHECK(made->locate(0).offset == alone->locate(0).offset);
    }
    CHECK_FAULT(runs.add(Dtype::u8, {3}, nullptr, 0), Errc::invalid_argument);
    CHECK_FAULT(runs.add(Dtype::u8, {4'001}, sources[0], 0), Errc::storage_too_short);
    CHECK_OK(runs.add(Dtype::u8, {4'000}, sources[0], 0));
}

}  // namespace stored_tensor_test
