// Tests DLPack: export, import, which side calls the deleter, and refusals. tests/interop/dlpack.py tests it with NumPy
// and PyTorch.
#include "doctest_safemap.hpp"

#include <safemap/advanced/dlpack.hpp>
#include <safemap/advanced/dtypes.hpp>
#include <safemap/advanced/strides.hpp>

#include <memory>
#include <numeric>
#include <vector>

namespace dlpack_test {

using namespace safemap;

namespace {

std::shared_ptr<std::vector<float>> floats(std::size_t count) {
    auto out = std::make_shared<std::vector<float>>(count);
    std::iota(out->begin(), out->end(), 0.0F);
    return out;
}

TensorView view_of(const std::shared_ptr<std::vector<float>>& values, StridedView view, bool writable = false) {
    return TensorView(Dtype::f32, {std::as_bytes(std::span(*values)), values, writable}, std::move(view));
}

/// A tensor of 2 x 3 floats as another library exports it, which counts calls of its deleter.
template <class Managed> struct Producer {
    std::vector<float> values = {0, 1, 2, 3, 4, 5};
    std::vector<std::int64_t> shape = {2, 3};
    std::vector<std::int64_t> strides = {3, 1};
    int deleted = 0;
    Managed managed = {};

    Producer() {
        managed.manager_ctx = this;
        managed.deleter = [](Managed* self) { ++static_cast<Producer*>(self->manager_ctx)->deleted; };
        managed.dl_tensor.data = values.data();
        managed.dl_tensor.ndim = 2;
        managed.dl_tensor.shape = shape.data();
        managed.dl_tensor.strides = strides.data();
    }
};
using Versioned = Producer<dlpack::ManagedTensorVersioned>;
using Unversioned = Producer<dlpack::ManagedTensor>;

/// Checks that import throws this code and leaves the tensor to the producer.
template <class Change> void refused(Errc code, Change&& change) {
    Versioned producer;
    change(producer);
    CHECK_FAULT(dlpack::import_tensor(&producer.managed), code);
    CHECK(producer.deleted == 0);
}

}  // namespace

TEST_CASE("an exported view keeps its bytes alive until the deleter is called") {
    auto values = floats(6);
    const std::weak_ptr<const void> watched = values;
    std::optional<TensorView> view = view_of(values, {{3, 2}, {-1, 3}, 2});
    auto* versioned = dlpack::export_versioned(*view);
    auto* unversioned = dlpack::export_unversioned(*view);
    const auto* data = values->data();
    view.reset();
    values.reset();

    CHECK(versioned->version.major == 1);
    CHECK(versioned->flags == dlpack::flag_read_only);
    for (const dlpack::Tensor* tensor : {&versioned->dl_tensor, &unversioned->dl_tensor}) {
        CHECK(tensor->data == data + 2);
        CHECK(tensor->byte_offset == 0);
        CHECK(tensor->device.type == dlpack::DeviceType::cpu);
        CHECK(tensor->dtype == dlpack::DataType{dlpack::TypeCode::floating, 32, 1});
        REQUIRE(tensor->ndim == 2);
        CHECK(tensor->shape[0] == 3);
        CHECK(tensor->shape[1] == 2);
        CHECK(tensor->strides[0] == -1);
        CHECK(tensor->strides[1] == 3);
    }
    versioned->deleter(versioned);
    CHECK_FALSE(watched.expired());
    unversioned->deleter(unversioned);
    CHECK(watched.expired());
}

TEST_CASE("a writable view is exported without the read-only flag") {
    auto* tensor = dlpack::export_versioned(view_of(floats(2), {{2}, {1}, 0}, true));
    CHECK(tensor->flags == 0);
    tensor->deleter(tensor);
}

TEST_CASE("scalars, empty tensors and many dimensions pass both ways") {
    for (const Shape& shape : {Shape{}, Shape{0}, Shape{3, 0, 2}, Shape(12, 1), Shape{2, 1, 2, 1, 1, 1, 1, 1, 1, 2}}) {
        const auto values = floats(8);
        const TensorView view = view_of(values, {shape, row_major(shape), 0});
        const TensorView versioned = dlpack::import_tensor(dlpack::export_versioned(view));
        const TensorView unversioned = dlpack::import_tensor(dlpack::export_unversioned(view));
        for (const TensorView* back : {&versioned, &unversioned}) {
            CHECK(back->shape() == shape);
            CHECK(back->strides() == view.strides());
            CHECK(back->dtype() == Dtype::f32);
            CHECK_FALSE(back->writable());
            if (view.element_count() > 0) CHECK(back->data() == view.data());
        }
    }
    auto* nothing = dlpack::export_versioned(view_of(floats(2), {{0}, {1}, 0}));
    CHECK(nothing->dl_tensor.data == nullptr);
    nothing->deleter(nothing);
}

TEST_CASE("every dtype passes both ways, or is refused because DLPack has no type for it") {
    const std::vector<std::byte> bytes(64);
    int passed = 0;
    for (int i = 0; i <= static_cast<int>(Dtype::bits4x2); ++i) {
        const auto dtype = static_cast<Dtype>(i);
        CAPTURE(dtype);
        const TensorView view(dtype, {bytes}, {{4}, {1}, 0});
        if (kind(dtype) == DtypeKind::opaque) {
            CHECK_FAULT(dlpack::data_type(dtype), Errc::no_dlpack);
            CHECK_FAULT(dlpack::export_versioned(view), Errc::no_dlpack);
            CHECK_FAULT(dlpack::export_unversioned(view), Errc::no_dlpack);
            continue;
        }
        ++passed;
        CHECK(dlpack::data_type(dtype).bits == bits(dtype));
        const TensorView back = dlpack::import_tensor(dlpack::export_versioned(view));
        CHECK(back.dtype() == dtype);
        CHECK(back.data() == view.data());
        CHECK(back.nbytes() == view.nbytes());
    }
    CHECK(passed == 24);
}

TEST_CASE("the deleter of an imported tensor is called once, with the last view") {
    const auto check = [](auto& producer) {
        std::optional<TensorView> view = dlpack::import_tensor(&producer.managed);
        CHECK(view->template as<float>()[4] == 4);
        CHECK(static_cast<const void*>(view->data()) == producer.values.data());
        std::optional<TensorView> part = view->slice({Slice::at(1)});
        view.reset();
        CHECK(producer.deleted == 0);
        CHECK(part->template at<float>(2) == 5);
        part.reset();
        CHECK(producer.deleted == 1);
    };
    Versioned versioned;
    check(versioned);
    Unversioned unversioned;
    check(unversioned);
    Versioned without;
    without.managed.deleter = nullptr;
    CHECK(dlpack::import_tensor(&without.managed).element_count() == 6);
}

TEST_CASE("an imported tensor is writable if it says so") {
    Versioned open;
    const TensorView view = dlpack::import_tensor(&open.managed);
    view.mutable_as<float>()[5] = 7;
    CHECK(open.values[5] == 7);
    Versioned closed;
    closed.managed.flags = dlpack::flag_read_only | dlpack::flag_copied;
    CHECK_FALSE(dlpack::import_tensor(&closed.managed).writable());
    Unversioned silent;
    CHECK_FALSE(dlpack::import_tensor(&silent.managed).writable());
}

TEST_CASE("offsets, missing strides and strides of either sign are honoured") {
    Versioned producer;
    producer.managed.dl_tensor.byte_offset = 4;
    producer.managed.dl_tensor.ndim = 1;
    producer.shape = {5};
    producer.managed.dl_tensor.strides = nullptr;
    CHECK(dlpack::import_tensor(&producer.managed).at<float>(4) == 5);

    producer.managed.dl_tensor.byte_offset = 20;
    producer.strides = {-2};
    producer.shape = {3};
    producer.managed.dl_tensor.strides = producer.strides.data();
    const TensorView backwards = dlpack::import_tensor(&producer.managed);
    CHECK(backwards.at<float>(0) == 5);
    CHECK(backwards.at<float>(2) == 1);

    producer.strides = {0};
    CHECK(dlpack::import_tensor(&producer.managed).at<float>(2) == 5);
}

TEST_CASE("a tensor that cannot be imported is refused and stays the caller's") {
    using dlpack::DeviceType;
    using dlpack::TypeCode;
    refused(Errc::no_dlpack, [](Versioned& p) { p.managed.version.major = 2; });
    refused(Errc::no_dlpack, [](Versioned& p) { p.managed.dl_tensor.device.type = static_cast<DeviceType>(2); });
    refused(Errc::no_dlpack, [](Versioned& p) { p.managed.dl_tensor.dtype.lanes = 4; });
    refused(Errc::no_dlpack, [](Versioned& p) { p.managed.dl_tensor.dtype.lanes = 0; });
    refused(Errc::no_dlpack, [](Versioned& p) { p.managed.dl_tensor.dtype.bits = 128; });
    refused(Errc::no_dlpack, [](Versioned& p) { p.managed.dl_tensor.dtype.code = static_cast<TypeCode>(3); });
    refused(Errc::no_dlpack, [](Versioned& p) {
        p.managed.dl_tensor.dtype = {TypeCode::float4_e2m1fn, 4, 1};
        p.managed.flags = dlpack::flag_padded;
    });
    refused(Errc::invalid_argument, [](Versioned& p) { p.managed.dl_tensor.ndim = -1; });
    refused(Errc::invalid_argument, [](Versioned& p) { p.managed.dl_tensor.shape = nullptr; });
    refused(Errc::invalid_argument, [](Versioned& p) { p.shape[1] = -3; });
    refused(Errc::invalid_argument, [](Versioned& p) { p.managed.dl_tensor.data = nullptr; });
    refused(Errc::shape_overflow, [](Versioned& p) { p.shape = {INT64_MAX, INT64_MAX}; });
    refused(Errc::shape_overflow, [](Versioned& p) { p.strides = {INT64_MAX, INT64_MAX}; });
    refused(Errc::shape_overflow, [](Versioned& p) { p.strides = {INT64_MIN, 1}; });
    refused(Errc::shape_overflow, [](Versioned& p) { p.strides = {INT64_MAX / 2, -INT64_MAX / 4}; });
    refused(Errc::partial_byte, [](Versioned& p) {
        p.managed.dl_tensor.dtype = {TypeCode::float4_e2m1fn, 4, 1};
        p.shape = {1, 3};
    });
    refused(Errc::partial_byte, [](Versioned& p) {
        p.managed.dl_tensor.dtype = {TypeCode::float4_e2m1fn, 4, 1};
        p.shape = {1, 2};
        p.strides = {2, -1};
    });
    CHECK_FAULT(dlpack::import_tensor(static_cast<dlpack::ManagedTensorVersioned*>(nullptr)), Errc::invalid_argument);
    CHECK_FAULT(dlpack::import_tensor(static_cast<dlpack::ManagedTensor*>(nullptr)), Errc::invalid_argument);
}

TEST_CASE("F4 elements are exported as pairs on request") {
    const std::vector<std::byte> bytes(16);
    const TensorView view(Dtype::f4, {bytes}, {{4, 8}, {8, 1}, 0});
    const auto shape_of_pairs = [](const TensorView& part) {
        auto* tensor = dlpack::export_versioned(part, dlpack::Float4::pairs);
        CHECK(tensor->dl_tensor.dtype == dlpack::DataType{dlpack::TypeCode::float4_e2m1fn, 4, 2});
        const auto [data, device, ndim, dtype, shape, strides, offset] = tensor->dl_tensor;
        const std::vector<std::int64_t> out{shape[0], shape[1], strides[0], strides[1]};
        const TensorView back = dlpack::import_tensor(tensor);
        CHECK(back.shape() == part.shape());
        if (part.element_count() > 0) CHECK(back.data() == part.data());
        return out;
    };
    CHECK(shape_of_pairs(view) == std::vector<std::int64_t>{4, 4, 4, 1});
    CHECK(shape_of_pairs(view.slice({{.step = -2}, {.start = 2, .stop = 6}})) ==
          std::vector<std::int64_t>{2, 2, -8, 1});
    CHECK(shape_of_pairs(view.slice({Slice{}, {.stop = 0}}))[1] == 0);
    CHECK_FAULT(dlpack::export_versioned(TensorView(Dtype::f4, {bytes}, {{2, 1}, {1, 1}, 0}), dlpack::Float4::pairs),
                Errc::no_dlpack);
    auto* floats = dlpack::export_unversioned(TensorView(Dtype::f32, {bytes}, {{4}, {1}, 0}), dlpack::Float4::pairs);
    CHECK(floats->dl_tensor.dtype.lanes == 1);
    floats->deleter(floats);
}

TEST_CASE("PyTorch's pairs of float4 become elements") {
    Versioned producer;
    producer.managed.dl_tensor.dtype = {dlpack::TypeCode::float4_e2m1fn, 4, 2};
    const TensorView view = dlpack::import_tensor(&producer.managed);
    CHECK(view.dtype() == Dtype::f4);
    CHECK(view.shape() == Shape{2, 6});
    CHECK(view.strides() == Strides{6, 1});
    CHECK(view.nbytes() == 6);
    producer.managed.dl_tensor.ndim = 0;
    const TensorView scalar = dlpack::import_tensor(&producer.managed);
    CHECK(scalar.shape() == Shape{2});
    producer.managed.dl_tensor.ndim = 2;
    producer.strides = {1, 2};
    CHECK_FAULT(dlpack::import_tensor(&producer.managed), Errc::no_dlpack);
}

}  // namespace dlpack_test
