// Tests null pointers, empty handles and handles that were moved from, as arguments of every public function of
// devices: an error or a harmless value, never a signal. tests/write/empty_arguments_test.cpp has the other functions.
#include "check_error.hpp"
#include "device/cache_fixture.hpp"

#include <safemap/advanced/device_dlpack.hpp>
#include <safemap/advanced/stored_tensor.hpp>
#include <safemap/uploader.hpp>

#include <doctest/doctest.h>

#include <cstddef>
#include <memory>
#include <optional>
#include <span>
#include <utility>
#include <vector>

namespace empty_handles_test {

using namespace safemap;

const char* const no_text = nullptr;

LazyTensor six_floats() {
    return {"w", stored_run(Dtype::f32, {2, 3}, memory_source("memory", std::vector<std::byte>(24)), 0)};
}

TEST_CASE("null and empty arguments of devices and uploaders are invalid") {
    const std::shared_ptr<Device> host = Device::open("host");
    Uploader uploader(host, no_tensors(), {.device_budget = 1_MiB});
    const Bundle bundle = uploader.bundle(std::vector{six_floats()});
    Bundle whole = uploader.bundle(std::vector{six_floats()});
    const Bundle taken = std::move(whole);
    const std::vector<Bundle> none(1);
    const Lease lease = uploader.acquire(bundle);
    const DeviceTensor& tensor = lease["w"];
    const auto ended = std::make_shared<Lease>();
    check_bad_calls({
        BAD_CALL(invalid_argument, Device::open(no_text)),
        BAD_CALL(invalid_argument, Device::open(nullptr)),
        BAD_CALL(no_such_device, Device::open("")),
        BAD_CALL(invalid_argument, host->borrow(nullptr, 8)),
        BAD_CALL(invalid_argument, host->record({})),
        BAD_CALL(invalid_argument, host->is_capturing(NativeStream::cuda(nullptr))),
        BAD_CALL(invalid_argument, DeviceBudget(nullptr)),
        BAD_CALL(invalid_argument, Uploader(nullptr, no_tensors())),
        BAD_CALL(invalid_argument, uploader.bundle(no_text)),
        BAD_CALL(tensor_not_found, uploader.bundle("")),
        BAD_CALL(invalid_argument, lease[no_text]),
        BAD_CALL(tensor_not_found, lease[""]),
        BAD_CALL(invalid_argument, uploader.acquire(Bundle())),
        BAD_CALL(invalid_argument, uploader.acquire(whole)),
        BAD_CALL(invalid_argument, uploader.try_acquire(Bundle())),
        BAD_CALL(invalid_argument, uploader.request(Bundle())),
        BAD_CALL(invalid_argument, uploader.prefetch(Bundle())),
        BAD_CALL(invalid_argument, uploader.prefetch(none)),
        BAD_CALL(invalid_argument, uploader.evict(Bundle())),
        BAD_CALL(invalid_argument, uploader.fill(std::vector<FillTarget>{{six_floats(), nullptr, 24}})),
        BAD_CALL(invalid_argument, uploader.follow({})),
        BAD_CALL(invalid_argument, uploader.follow(none)),
        BAD_CALL(invalid_argument, uploader.follow_once(none)),
        BAD_CALL(invalid_argument, UploadOrder().next()),
        BAD_CALL(invalid_argument, UploadOrder().reset()),
        BAD_CALL(invalid_argument, dlpack::export_versioned(nullptr, tensor)),
        BAD_CALL(invalid_argument, dlpack::export_unversioned(nullptr, tensor)),
        BAD_CALL(invalid_argument, dlpack::export_versioned(ended, tensor)),
        BAD_CALL(invalid_argument, Lease().wait()),
    });
    CHECK_OK(uploader.prefetch(std::span<const Bundle>()));
    CHECK_OK(uploader.fill({})->wait());
    CHECK_OK(uploader.acquire(uploader.bundle(std::span<const LazyTensor>())));
    CHECK(taken.size() == 1);
}

TEST_CASE("a handle that was moved from is empty, and harmless") {
    Uploader uploader(Device::open("host"), no_tensors(), {.device_budget = 1_MiB});
    Bundle bundle = uploader.bundle(std::vector{six_floats()});
    Lease lease = uploader.acquire(bundle);
    const Lease held = std::move(lease);
    CHECK(held.tensors().size() == 1);
    CHECK(lease.tensors().empty());  // NOLINT(bugprone-use-after-move)
    CHECK_FAULT(lease["w"], Errc::tensor_not_found);
    CHECK_FAULT(lease.wait(), Errc::invalid_argument);
    CHECK(lease.ready());
    CHECK_OK(lease.release({}));
    lease.release();
    lease = Lease();

    Lease ticket = uploader.request(bundle);
    Lease kept = std::move(ticket);
    CHECK(ticket.ready());  // NOLINT(bugprone-use-after-move)
    CHECK_FAULT(ticket.wait(), Errc::invalid_argument);
    ticket.release();
    kept.wait();
    CHECK(kept.tensors().size() == 1);

    UploadOrder order = uploader.follow(std::span(&bundle, 1));
    UploadOrder moved = std::move(order);
    CHECK(order.size() == 0);  // NOLINT(bugprone-use-after-move)
    CHECK_FAULT(order.next(), Errc::invalid_argument);
    order.end();
    const Lease step = moved.next();
    CHECK(step.tensors().size() == 1);

    const Bundle same = std::move(bundle);
    CHECK(bundle.size() == 0);  // NOLINT(bugprone-use-after-move)
    CHECK(bundle.device_bytes() == 0);
    CHECK_OK(uploader.acquire(same));

    DeviceBudget budget(Device::open("host"), {.device_bytes = 1_MiB});
    const DeviceBudget shared = std::move(budget);
    CHECK(budget.device_bytes() == shared.device_bytes());  // NOLINT(bugprone-use-after-move)
    CHECK(budget.device() == shared.device());
}

}  // namespace empty_handles_test
