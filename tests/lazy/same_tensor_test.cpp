// Tests when two tensors count as the same.
#include <safemap/advanced/stored_tensor.hpp>
#include <safemap/advanced/strides.hpp>

#include "doctest_safemap.hpp"
#include "lazy/same_tensor.hpp"

#include <vector>

namespace same_tensor_test {

using namespace safemap;

TEST_CASE("tensors are the same if store, view, decoding and dtype are equal, whatever their names") {
    const auto nothing = callback_source("zeros", 1U << 20, [](auto, auto) {});
    const auto store = stored_run(Dtype::f32, {4, 4}, nothing, 0);
    const LazyTensor whole("a", store);
    const LazyTensor spelled("b", store, StridedView{{4, 4}, {4, 1}, 0});  // the same view, with explicit strides
    CHECK(SameTensor{}(&whole, &spelled));
    CHECK(TensorHash{}(&whole) == TensorHash{}(&spelled));
    TensorTable<int> table;
    table.emplace(&whole, 1);
    CHECK(table.count(&spelled) == 1);

    const std::vector<LazyTensor> others = {
        LazyTensor("a", stored_run(Dtype::f32, {4, 4}, nothing, 0)),
        LazyTensor("a", store, StridedView{{4, 4}, {1, 4}, 0}),
        LazyTensor("a", store, StridedView{{3, 4}, {4, 1}, 0}),
        LazyTensor("a", store, StridedView{{3, 4}, {4, 1}, 4}),
        LazyTensor("a", store, Decoding{.byte_swap = true}),
        whole.cast(Dtype::f16),
    };
    for (const LazyTensor& other : others) {
        CHECK_FALSE(SameTensor{}(&whole, &other));
        CHECK(table.count(&other) == 0);
    }
}

}  // namespace same_tensor_test
