// Pieces that do not make a tensor.
#include "doctest_safemap.hpp"

#include <safemap/lazy_tensor.hpp>

#include <vector>

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

TEST_CASE("runs hold every element once") {
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

TEST_CASE("runs stay inside their source") {
    CHECK_OK(runs({4}, {{bytes(16), 0, 0, 4}}));
    CHECK_FAULT(runs({4}, {{bytes(15), 0, 0, 4}}), Errc::storage_too_short);
    CHECK_FAULT(runs({4}, {{bytes(16), 1, 0, 4}}), Errc::storage_too_short);
    CHECK_FAULT(runs({4}, {{bytes(16), UINT64_MAX - 3, 0, 4}}), Errc::storage_too_short);
    CHECK_FAULT(runs({4}, {{nullptr, 0, 0, 4}}), Errc::invalid_argument);
    CHECK_FAULT(stored_run(Dtype::u8, {4}, nullptr, 0), Errc::invalid_argument);
}

TEST_CASE("sizes that overflow or cut bytes are no tensors") {
    CHECK_FAULT(runs({1ULL << 62, 4}, {}), Errc::shape_overflow);
    CHECK_FAULT(runs({1ULL << 62}, {}), Errc::shape_overflow);
    CHECK_FAULT(stored_run(Dtype::f4, {3}, bytes(2), 0), Errc::partial_byte);
    const RunPiece halves[] = {{bytes(4), 0, 0, 3}, {bytes(4), 0, 3, 5}};
    CHECK_FAULT(stored_runs(Dtype::f4, {8}, halves), Errc::partial_byte);
}

TEST_CASE("boxes hold every element once and stay inside their source") {
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
