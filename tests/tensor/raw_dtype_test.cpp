// Tests the raw dtypes: for each dtype without a name in safetensors, a dtype of the same bits that has one.
#include "tensor/raw_dtype.hpp"

#include "doctest_safemap.hpp"

#include <safemap/advanced/dtypes.hpp>

namespace raw_dtype_test {

using namespace safemap;

TEST_CASE("every dtype has a raw dtype of the same bits that safetensors can name") {
    for (int i = 0; i <= static_cast<int>(Dtype::bits4x2); ++i) {
        const auto dtype = static_cast<Dtype>(i);
        CAPTURE(name(dtype));
        const Dtype raw = raw_dtype(dtype);
        CHECK(in_safetensors(raw));
        CHECK((raw == dtype) == in_safetensors(dtype));
        for (const Shape& shape : {Shape{}, Shape{0}, Shape{3}, Shape{2, 2}, Shape{4, 0, 2}}) {
            const Shape stored = raw_shape(dtype, shape);
            CHECK(*element_count(stored) * bits(raw) == *element_count(shape) * bits(dtype));
            CHECK(shape_of_raw(dtype, stored) == shape);
        }
        CHECK(swap_size(raw) == swap_size(dtype));
    }
    CHECK(raw_shape(Dtype::c128, {3}) == Shape{3, 2});
    CHECK(raw_shape(Dtype::c64, {3}) == Shape{3});
    for (const Shape& shape : {Shape{}, Shape{1}, Shape{2, 3}, Shape{0}}) {
        CHECK_FALSE(shape_of_raw(Dtype::c128, shape));
        CHECK_FALSE(shape_of_raw(Dtype::c32, shape));
        CHECK(shape_of_raw(Dtype::qint8, shape) == shape);
    }
}

}  // namespace raw_dtype_test
