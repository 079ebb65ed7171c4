// Tests DLPack tensors on devices: what they say, and that they share the lease.
#include <safemap/advanced/device_dlpack.hpp>

#include "check_error.hpp"
#include "device/cache_fixture.hpp"
#include "device/counted.hpp"
#include "device/fake_device.hpp"
#include "doctest_safemap.hpp"

#include <safemap/uploader.hpp>

#include <algorithm>
#include <memory>
#include <span>
#include <vector>

namespace device_dlpack_test {

using namespace safemap;
namespace dlpack = safemap::dlpack;

namespace {

struct World {
    explicit World(std::shared_ptr<Device> device = Device::open("host"))
        : uploader(std::move(device), no_tensors(), {.device_budget = 100'000, .readers = 1}) {}

    std::shared_ptr<Lease> lease(const std::vector<LazyTensor>& tensors) {
        return std::make_shared<Lease>(uploader.acquire(uploader.bundle(tensors)));
    }
    Uploader uploader;
};

}  // namespace

TEST_CASE("an exported tensor has the values, the shape and the type of the tensor") {
    World world;
    const Counted source(1, 100'000);
    const auto lease =
        world.lease({source.tensor("first", Dtype::u8, {700}), source.tensor("w", Dtype::bf16, {3, 4, 5})});
    const DeviceTensor& tensor = (*lease)["w"];
    auto* const out = dlpack::export_versioned(lease, tensor);
    CHECK(out->version.major == 1);
    CHECK(out->flags == dlpack::flag_read_only);
    const dlpack::Tensor& told = out->dl_tensor;
    CHECK(told.device.type == dlpack::DeviceType::cpu);
    CHECK(told.device.id == 0);
    CHECK(told.dtype == dlpack::DataType{dlpack::TypeCode::bfloat, 16, 1});
    CHECK(std::ranges::equal(std::span(told.shape, 3), std::vector<std::int64_t>{3, 4, 5}));
    CHECK(std::ranges::equal(std::span(told.strides, 3), std::vector<std::int64_t>{20, 5, 1}));
    CHECK(told.byte_offset == 0);
    CHECK(told.data == tensor.host_bytes().data());
    const auto view = dlpack::import_tensor(out);  // owns it now
    CHECK_FALSE(view.writable());

    auto* const old = dlpack::export_unversioned(lease, tensor);
    CHECK(old->dl_tensor.data == told.data);
    old->deleter(old);
}

TEST_CASE("tensors without elements and scalars, and pairs of float4, are exported") {
    World world;
    const Counted source(1, 100'000);
    const auto lease = world.lease({source.tensor("none", Dtype::f32, {0, 3}), source.tensor("scalar", Dtype::i64, {}),
                                    source.tensor("f4", Dtype::f4, {3, 8}), source.tensor("odd", Dtype::f4, {2, 3})});
    auto* out = dlpack::export_versioned(lease, (*lease)["none"]);
    CHECK(out->dl_tensor.data == nullptr);
    CHECK(out->dl_tensor.ndim == 2);
    out->deleter(out);
    out = dlpack::export_versioned(lease, (*lease)["scalar"]);
    CHECK(out->dl_tensor.ndim == 0);
    CHECK(out->dl_tensor.data == (*lease)["scalar"].host_bytes().data());
    out->deleter(out);
    out = dlpack::export_versioned(lease, (*lease)["f4"], {}, dlpack::Float4::pairs);
    CHECK(out->dl_tensor.dtype == dlpack::DataType{dlpack::TypeCode::float4_e2m1fn, 4, 2});
    CHECK(std::ranges::equal(std::span(out->dl_tensor.shape, 2), std::vector<std::int64_t>{3, 4}));
    CHECK(std::ranges::equal(std::span(out->dl_tensor.strides, 2), std::vector<std::int64_t>{4, 1}));
    out->deleter(out);
    CHECK_FAULT(dlpack::export_versioned(lease, (*lease)["odd"], {}, dlpack::Float4::pairs), Errc::no_dlpack);
    CHECK(lease.use_count() == 1);
}

TEST_CASE("an exported tensor is a lease") {
    World world;
    const Bytes bytes("t", 100'000);
    const Bytes other("other", 100'000);
    auto lease = world.lease({bytes.tensor});
    auto* const out = dlpack::export_versioned(lease, lease->tensors()[0]);
    auto* const again = dlpack::export_versioned(lease, lease->tensors()[0]);
    lease.reset();
    CHECK_FAULT(world.lease({other.tensor}), Errc::budget_exceeded);
    const auto value = value_of(bytes.tensor);
    CHECK(std::ranges::equal(std::span(static_cast<const std::byte*>(out->dl_tensor.data), 100'000), value));
    out->deleter(out);
    CHECK_FAULT(world.lease({other.tensor}), Errc::budget_exceeded);
    again->deleter(again);
    CHECK_OK(world.lease({other.tensor}));
}

TEST_CASE("tensors of other leases, and what DLPack cannot express, are refused") {
    World world;
    const Bytes bytes("t", 1'000);
    const Bytes other("other", 1'000);
    const auto lease = world.lease({bytes.tensor});
    const auto second = world.lease({other.tensor});
    CHECK_FAULT(dlpack::export_versioned(lease, second->tensors()[0]), Errc::invalid_argument);
    CHECK_FAULT(dlpack::export_versioned(nullptr, second->tensors()[0]), Errc::invalid_argument);
    CHECK_FAULT(dlpack::export_versioned(lease, lease->tensors()[0], NativeStream::cuda(nullptr)),
                Errc::invalid_argument);
    CHECK(lease.use_count() == 1);

    World fake(std::make_shared<FakeDevice>());
    const auto far = fake.lease({bytes.tensor});
    check_error(error_of([&] { return dlpack::export_versioned(far, far->tensors()[0]); }), {Errc::no_dlpack}, {},
                {.message = "DLPack has no number for the device 'fake'"});
}

}  // namespace device_dlpack_test
