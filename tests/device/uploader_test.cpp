// Tests the public Uploader: bundles, leases, selections, slices, prefetch, and lifetimes.
#include "base/checksum.hpp"
#include "check_error.hpp"
#include "child_process.hpp"
#include "device/fake_device.hpp"
#include "doctest_safemap.hpp"
#include "forge/files.hpp"
#include "temp_dir.hpp"

#include <safemap/advanced/stored_tensor.hpp>
#include <safemap/checkpoint.hpp>
#include <safemap/uploader.hpp>

#include <atomic>
#include <chrono>
#include <cstdint>
#include <cstring>
#include <filesystem>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <thread>
#include <type_traits>
#include <utility>
#include <vector>

namespace uploader_test {

using namespace safemap;

namespace {

/// Returns a checkpoint of U8 tensors, in memory.
Checkpoint checkpoint_of(const std::vector<std::pair<std::string, std::string>>& tensors) {
    std::string header = "{";
    std::string data;
    for (const auto& [name, bytes] : tensors) {
        if (header.size() > 1) header += ',';
        header += '"' + name + R"(":{"dtype":"U8","shape":[)" + std::to_string(bytes.size()) + R"(],"data_offsets":[)" +
                  std::to_string(data.size()) + ',' + std::to_string(data.size() + bytes.size()) + "]}";
        data += bytes;
    }
    header += '}';
    const std::uint64_t length = header.size();
    std::vector<std::byte> file(8 + header.size() + data.size());
    std::memcpy(file.data(), &length, 8);
    std::memcpy(file.data() + 8, header.data(), header.size());
    std::memcpy(file.data() + 8 + header.size(), data.data(), data.size());
    return Checkpoint::open(memory_source("model.safetensors", std::move(file)));
}

Checkpoint three() { return checkpoint_of({{"layers.1.w", "one"}, {"layers.10.w", "ten!"}, {"layers.2.w", "second"}}); }

std::string text_of(const DeviceTensor& tensor) {
    const auto bytes = tensor.host_bytes();
    return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

/// Returns a source of `bytes` that fails while `broken`.
std::shared_ptr<const Source> fragile_source(std::string bytes, std::shared_ptr<std::atomic<bool>> broken) {
    const std::uint64_t size = bytes.size();
    return callback_source("fragile", size,
                           [bytes = std::move(bytes), broken](std::uint64_t offset, std::span<std::byte> into) {
                               if (*broken) throw Error(Errc::io_error, "the disk is gone");
                               std::memcpy(into.data(), bytes.data() + offset, into.size());
                           });
}

/// Waits until `condition` is true, for effects of other threads.
template <class Condition> bool soon(Condition&& condition) {
    for (int i = 0; i < 60'000; ++i) {
        if (condition()) return true;
        std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
    return false;
}

}  // namespace

static_assert(!std::is_copy_constructible_v<Lease> && std::is_nothrow_move_constructible_v<Lease>);

TEST_CASE("tensors are acquired by name, by selection and as slices") {
    Uploader uploader(Device::open("host"), three(), {.device_budget = 17});
    const Lease one = uploader.acquire(uploader.bundle("layers.1.w"));
    CHECK(one.tensors().size() == 1);
    CHECK(text_of(one["layers.1.w"]) == "one");
    CHECK_FAULT(one["layers.2.w"], Errc::tensor_not_found);

    const Lease layers = uploader.acquire(uploader.bundle(Selection::prefix("layers.1")));
    CHECK(layers.tensors().size() == 1);
    const Lease two = uploader.acquire(uploader.bundle("layers.2.w"));
    const Lease ten = uploader.acquire(uploader.bundle("layers.10.w"));
    const Lease all = uploader.acquire(uploader.bundle(Selection()));
    REQUIRE(all.tensors().size() == 3);
    CHECK(all.tensors()[1].name() == "layers.10.w");
    CHECK(text_of(all["layers.2.w"]) == "second");
    CHECK(one["layers.1.w"].memory() == all["layers.1.w"].memory());
    CHECK(uploader.stats().uploaded_bytes == 13);

    const Checkpoint again = three();
    const LazyTensor part = again["layers.2.w"].slice({{.start = 1, .stop = 4}});
    const Lease slice = uploader.acquire(uploader.bundle(std::span(&part, 1)));
    CHECK(text_of(slice["layers.2.w"]) == "eco");
    CHECK_FAULT(uploader.acquire(uploader.bundle("layers.3.w")), Errc::tensor_not_found);
    const Lease none = uploader.acquire(uploader.bundle(Selection::prefix("layers.3")));
    CHECK(none.tensors().empty());
    const LazyTensor foreign = again["layers.2.w"].renamed("x");
    CHECK_FAULT(uploader.acquire(uploader.bundle(std::span(&foreign, 1))), Errc::budget_exceeded);
}

TEST_CASE("a bundle of a selection has one layout, and its size is known before anything is read") {
    Uploader uploader(Device::open("host"), three(), {.device_budget = 1000});
    const Bundle all = uploader.bundle(Selection());
    CHECK(all.size() == 3);
    CHECK(all.device_bytes() == 2 * 256 + 6);
    CHECK(uploader.stats().bytes_pread == 0);
    const Lease lease = uploader.acquire(all);
    for (const DeviceTensor& tensor : lease.tensors()) {
        CHECK(tensor.memory() == lease.tensors()[0].memory());
        CHECK(tensor.offset() % 256 == 0);
        CHECK(reinterpret_cast<std::uintptr_t>(tensor.memory()->handle()) % 256 == 0);
    }
    CHECK(text_of(lease["layers.1.w"]) + text_of(lease["layers.10.w"]) + text_of(lease["layers.2.w"]) ==
          "oneten!second");
    CHECK(uploader.stats().resident_bytes == all.device_bytes());
    CHECK(uploader.bundle(Selection::prefix("none")).size() == 0);
    CHECK(Bundle().size() == 0);
    CHECK(Bundle().device_bytes() == 0);
}

TEST_CASE("a bundle says where its tensors will be, before anything is uploaded") {
    Uploader uploader(Device::open("host"), three(), {.device_budget = 2000});
    const Bundle own = uploader.bundle("layers.2.w");
    const Bundle all = uploader.bundle(Selection());  // one tensor is of the other bundle
    const std::vector<BundleTensor> told = all.tensors();
    CHECK(uploader.stats().bytes_pread == 0);
    CHECK(Bundle().tensors().empty());
    const Lease lease = uploader.acquire(all);
    REQUIRE(told.size() == lease.tensors().size());
    std::vector<std::byte*> begins(2, nullptr);  // where the memory of each owner begins
    for (std::size_t i = 0; i < told.size(); ++i) {
        const DeviceTensor& tensor = lease.tensors()[i];
        CHECK(told[i].name == tensor.name());
        CHECK(told[i].dtype == tensor.dtype());
        CHECK(told[i].shape == tensor.shape());
        CHECK(told[i].nbytes == tensor.nbytes());
        REQUIRE(told[i].owner < 2);
        std::byte* const begin = static_cast<std::byte*>(tensor.address()) - told[i].offset;
        std::byte*& known = begins[told[i].owner];
        CHECK((known == nullptr || known == begin));
        known = begin;
    }
    CHECK(begins[0] != begins[1]);
}

TEST_CASE("tied names are one tensor, and a lease has it under the name that was asked for") {
    const Checkpoint checkpoint = three();
    Uploader uploader(Device::open("host"), checkpoint, {.device_budget = 6});
    const LazyTensor names[] = {checkpoint["layers.2.w"], checkpoint["layers.2.w"].renamed("tied")};
    const Bundle both = uploader.bundle(names);
    CHECK(both.size() == 2);
    CHECK(both.device_bytes() == 6);
    const Lease lease = uploader.acquire(both);
    CHECK(text_of(lease["tied"]) == "second");
    CHECK(text_of(lease["layers.2.w"]) == "second");
    CHECK(lease["tied"].host_bytes().data() == lease["layers.2.w"].host_bytes().data());
    const Bundle other = uploader.bundle(std::span(&names[1], 1));
    const std::optional<Lease> also = uploader.try_acquire(other);
    REQUIRE(also);
    CHECK(also->tensors()[0].name() == "tied");
    CHECK_FAULT((*also)["layers.2.w"], Errc::tensor_not_found);
    CHECK(uploader.stats().uploaded_bytes == 6);
}

TEST_CASE("tensors in memory are uploaded with their strides, and under the other names that the caller gives them") {
    const auto bytes = std::make_shared<const std::string>("abcdef");
    const SharedBytes memory{std::as_bytes(std::span(*bytes)), bytes, false};
    const std::vector<LazyTensor> tensors{{"w", TensorView(Dtype::u8, memory, {{3, 2}, {1, 3}, 0})},
                                          {"v", TensorView(Dtype::u8, memory, {{3}, {-2}, 5})}};
    const std::vector<AliasGroup> ties{{"w", "tied"}};
    Uploader uploader(Device::open("host"), Checkpoint::of(tensors, {}, ties), {.device_budget = 4096});
    const Lease lease = uploader.acquire(uploader.bundle(Selection()));
    CHECK(text_of(lease["w"]) == "adbecf");
    CHECK(text_of(lease["v"]) == "fdb");
    const Lease tied = uploader.acquire(uploader.bundle("tied"));
    CHECK(text_of(tied["tied"]) == "adbecf");
}

TEST_CASE("try_acquire leases what is on the device, and starts no upload") {
    Uploader uploader(Device::open("host"), three(), {.device_budget = 20});
    const Bundle bundle = uploader.bundle(Selection::prefix("layers.2"));
    CHECK_FALSE(uploader.try_acquire(bundle));
    CHECK(uploader.stats().bytes_pread == 0);
    { const Lease lease = uploader.acquire(bundle); }
    {
        const std::optional<Lease> lease = uploader.try_acquire(bundle);
        REQUIRE(lease);
        CHECK(text_of((*lease)["layers.2.w"]) == "second");
        uploader.evict(bundle);  // leased
        CHECK(uploader.stats().resident_bytes == 6);
    }
    uploader.evict(bundle);
    CHECK(uploader.stats().resident_bytes == 0);
    CHECK_FALSE(uploader.try_acquire(bundle));
    CHECK(uploader.stats().uploaded_bytes == 6);
}

TEST_CASE("a bundle of another uploader, or of none, is refused") {
    const Checkpoint checkpoint = three();
    Uploader uploader(Device::open("host"), checkpoint, {.device_budget = 20});
    Uploader other(Device::open("host"), checkpoint, {.device_budget = 20});
    const Bundle bundles[] = {uploader.bundle(Selection()), other.bundle(Selection())};
    CHECK_FAULT(uploader.acquire(bundles[1]), Errc::invalid_argument);
    CHECK_FAULT(uploader.try_acquire(bundles[1]), Errc::invalid_argument);
    CHECK_FAULT(uploader.prefetch(bundles), Errc::invalid_argument);
    CHECK_FAULT(uploader.evict(bundles[1]), Errc::invalid_argument);
    CHECK_FAULT(uploader.acquire(Bundle()), Errc::invalid_argument);
    CHECK_FAULT(uploader.try_acquire(Bundle()), Errc::invalid_argument);
    CHECK_FAULT(uploader.prefetch(Bundle()), Errc::invalid_argument);
    CHECK_FAULT(uploader.evict(Bundle()), Errc::invalid_argument);
    CHECK(uploader.stats().bytes_pread == 0);
}

TEST_CASE("a tensor that was asked for by name is kept; other bundles are gone with their handles and leases") {
    const Checkpoint checkpoint = three();
    Uploader uploader(Device::open("host"), checkpoint, {.device_budget = 20});
    static_cast<void>(uploader.acquire(uploader.bundle("layers.1.w")));
    CHECK(uploader.stats().resident_bytes == 3);
    static_cast<void>(uploader.acquire(uploader.bundle(Selection::prefix("layers.10"))));
    CHECK(uploader.stats().resident_bytes == 3);
    static_cast<void>(uploader.acquire(uploader.bundle("layers.10.w")));
    CHECK(uploader.stats().resident_bytes == 7);
    {
        const LazyTensor part = checkpoint["layers.2.w"].slice({{.start = 1, .stop = 4}});
        Lease lease;
        {
            Bundle bundle = uploader.bundle(std::span(&part, 1));
            static_cast<void>(uploader.acquire(bundle));
            CHECK(uploader.stats().resident_bytes == 10);
            const Bundle copy = bundle;
            bundle = Bundle();
            lease = uploader.acquire(copy);
        }
        CHECK(uploader.stats().resident_bytes == 10);
        CHECK(text_of(lease["layers.2.w"]) == "eco");
    }
    CHECK(uploader.stats().resident_bytes == 7);
    CHECK(uploader.stats().uploaded_bytes == 14);
    uploader.evict(Selection());
    CHECK(uploader.stats().resident_bytes == 0);
    CHECK(uploader.stats().evictions == 2);
}

TEST_CASE("a lease ends by release, by assignment, and by its destructor") {
    Uploader uploader(Device::open("host"), three(), {.device_budget = 6});
    Lease lease = uploader.acquire(uploader.bundle("layers.2.w"));
    CHECK_FAULT(uploader.acquire(uploader.bundle("layers.1.w")), Errc::budget_exceeded);
    lease.release();
    CHECK(lease.tensors().empty());
    CHECK_FAULT(lease["layers.2.w"], Errc::tensor_not_found);
    lease.release();
    lease = uploader.acquire(uploader.bundle("layers.10.w"));
    CHECK_FAULT(uploader.acquire(uploader.bundle("layers.2.w")), Errc::budget_exceeded);
    Lease moved = std::move(lease);
    CHECK_FAULT(uploader.acquire(uploader.bundle("layers.2.w")), Errc::budget_exceeded);
    moved = Lease();
    { const Lease brief = uploader.acquire(uploader.bundle("layers.2.w")); }
    CHECK_OK(uploader.acquire(uploader.bundle("layers.1.w")));
}

TEST_CASE("a prefetched tensor is resident or on its way when it is acquired, and is read once") {
    Uploader uploader(Device::open("host"), three(), {.device_budget = 13});
    const Bundle bundles[] = {uploader.bundle("layers.1.w"), uploader.bundle("layers.10.w"),
                              uploader.bundle("layers.2.w")};
    uploader.prefetch(bundles);
    const Lease all = uploader.acquire(uploader.bundle(Selection()));
    CHECK(text_of(all["layers.10.w"]) == "ten!");
    CHECK(uploader.stats().uploaded_bytes == 13);
    CHECK(uploader.stats().bytes_pread == 13);
}

TEST_CASE("a list of bundles is prefetched as far as it fits") {
    Uploader uploader(Device::open("host"), three(), {.device_budget = 9});
    const Bundle bundles[] = {uploader.bundle(Selection::prefix("layers.1")),    // 3 bytes
                              uploader.bundle(Selection::prefix("layers.2")),    // 6 bytes
                              uploader.bundle(Selection::prefix("layers.10"))};  // 4 bytes
    uploader.prefetch(bundles);
    REQUIRE(soon([&] { return uploader.stats().resident_bytes == 9; }));
    CHECK(uploader.try_acquire(bundles[0]));
    CHECK(uploader.try_acquire(bundles[1]));
    CHECK_FALSE(uploader.try_acquire(bundles[2]));
    CHECK(uploader.stats().stalled.count() == 0);
    CHECK(uploader.stats().uploaded_bytes == 9);
    uploader.prefetch(bundles[2]);
    REQUIRE(soon([&] { return uploader.stats().uploaded_bytes == 13; }));
    const std::optional<Lease> lease = uploader.try_acquire(bundles[2]);
    REQUIRE(lease);
    CHECK(text_of((*lease)["layers.10.w"]) == "ten!");
}

TEST_CASE("prefetched slices are read once, and evicted like other tensors") {
    const Checkpoint checkpoint = three();
    Uploader uploader(Device::open("host"), checkpoint, {.device_budget = 6});
    const LazyTensor part = checkpoint["layers.2.w"].slice({{.start = 0, .stop = 3}});
    const Bundle bundle = uploader.bundle(std::span(&part, 1));
    uploader.prefetch(bundle);
    {
        const Lease lease = uploader.acquire(bundle);
        CHECK(text_of(lease.tensors()[0]) == "sec");
    }
    CHECK(uploader.stats().uploaded_bytes == 3);
    const Lease other = uploader.acquire(uploader.bundle("layers.2.w"));  // needs the memory
    CHECK(uploader.stats().evictions == 1);
    CHECK(uploader.stats().peak_device_bytes <= 6);
}

TEST_CASE("a fault of reading is thrown by acquire, also that of a prefetch, and leaves no lease") {
    const auto broken = std::make_shared<std::atomic<bool>>(true);
    const LazyTensor tensor("fragile", stored_run(Dtype::u8, {7}, fragile_source("resists", broken), 0));
    Uploader uploader(Device::open("host"), three(), {.device_budget = 10});
    const Bundle bundle = uploader.bundle(std::span(&tensor, 1));
    CHECK_FAULT(uploader.acquire(bundle), Errc::io_error);
    CHECK(uploader.stats().resident_bytes == 0);
    CHECK_FALSE(uploader.try_acquire(bundle));
    uploader.prefetch(bundle);
    *broken = false;
    static_cast<void>(
        error_of([&] { return uploader.acquire(bundle); }));  // the prefetch may have read before or after
    const Lease lease = uploader.acquire(bundle);
    CHECK(text_of(lease["fragile"]) == "resists");
}

TEST_CASE("a lease and its tensors outlive the uploader, the checkpoint and the device") {
    Lease lease;
    Lease second;
    {
        Uploader uploader(Device::open("host"), three(), {.device_budget = 20});
        uploader.prefetch(uploader.bundle(Selection()));
        lease = uploader.acquire(uploader.bundle("layers.2.w"));
        second = uploader.acquire(uploader.bundle(Selection::prefix("layers.1")));
    }
    CHECK(text_of(lease["layers.2.w"]) == "second");
    lease.release();
    CHECK(text_of(second["layers.1.w"]) == "one");
}

TEST_CASE("an uploader frees all memory but that of leases, and a bundle may outlive it") {
    const auto fake = std::make_shared<FakeDevice>();
    Bundle bundle;
    Lease lease;
    {
        Uploader uploader(fake, three(), {.device_budget = 20});
        bundle = uploader.bundle(Selection::prefix("layers.10"));
        static_cast<void>(uploader.acquire(bundle));
        lease = uploader.acquire(uploader.bundle("layers.2.w"));
        static_cast<void>(uploader.acquire(uploader.bundle("layers.1.w")));
        CHECK(fake->allocated == 13);
    }
    CHECK(fake->allocated == 6);
    CHECK(bundle.size() == 1);
    lease.release();
    CHECK(fake->allocated == 0);
    CHECK(fake->was_used_well());
}

TEST_CASE("the digest of a device tensor is that of its bytes") {
    const auto host = Device::open("host");
    Uploader uploader(host, three(), {.device_budget = 1000});
    const Lease lease = uploader.acquire(uploader.bundle(Selection()));
    Xxh3 expected;
    expected.update(lease["layers.2.w"].host_bytes());
    CHECK(digest(*host, lease["layers.2.w"]) == expected.hex());
    CHECK(digest(*host, lease["layers.10.w"]) != expected.hex());
}

TEST_CASE("a tensor whose file was written to since open is not uploaded") {
    const TempDir dir;
    const auto file = dir.write("m.safetensors", forge::u8_file({{"a", 1'000}, {"b", 20'000'000}}));
    const auto model = Checkpoint::open(file);
    Uploader uploader(Device::open("host"), model, {.device_budget = 30'000'000});
    const Lease before = uploader.acquire(uploader.bundle("a"));
    std::filesystem::last_write_time(file, std::filesystem::last_write_time(file) + std::chrono::seconds(1));
    check_error(error_of([&] { static_cast<void>(uploader.acquire(uploader.bundle("b"))); }), {Errc::file_changed}, {},
                {.tensor = "b", .path = file.native()});
    CHECK(before["a"].host_bytes()[999] == std::byte{999 % 251});
    CHECK(uploader.stats().resident_bytes == 1'000);
}

TEST_CASE("a device tensor is empty when its lease has ended and it was evicted") {
    Uploader uploader(Device::open("host"), three(), {.device_budget = 1000});
    Lease lease = uploader.acquire(uploader.bundle("layers.1.w"));
    const DeviceTensor tensor = lease["layers.1.w"];
    const Bundle handle = uploader.bundle(Selection::prefix("layers.1."));
    lease.release();
    uploader.evict(handle);
    CHECK(tensor.host_bytes().empty());
}

TEST_CASE("before the first upload, a process may fork, and its child has the uploader") {
    Uploader weights(Device::open("host"), three(), {.readers = 3});
    const Bundle all = weights.bundle(Selection::prefix("layers."));
    const auto works = [&] {
        weights.prefetch(all);
        const Lease lease = weights.acquire(all);
        return text_of(lease["layers.1.w"]) == "one" && text_of(lease["layers.10.w"]) == "ten!" &&
               text_of(lease["layers.2.w"]) == "second";
    };
    CHECK(true_in_child(works));
    CHECK(works());
}

TEST_CASE("in a process that is forked later, what is there stays, calls that need threads say so, and nothing hangs") {
    auto weights = std::make_unique<Uploader>(Device::open("host"), three(), UploadOptions{.readers = 3});
    Uploader unused(Device::open("host"), three(), {.readers = 2});  // it shares the readers
    const Bundle there = weights->bundle(Selection::prefix("layers.1."));
    const Bundle absent = weights->bundle(Selection::prefix("layers.2."));
    Lease held = weights->acquire(there);
    Lease ticket = weights->request(absent);
    const auto refused = [](auto&& call) {
        const auto error = error_of(call);
        return error && error->code() == Errc::invalid_argument && error->message().find("forked") != std::string::npos;
    };
    CHECK(true_in_child([&] {
        bool good = text_of(held["layers.1.w"]) == "one" && ticket.ready();
        good = good && weights->try_acquire(there).has_value();
        Lease asked = std::move(ticket);
        good = good && refused([&] { asked.wait(); });
        const Bundle made_here = unused.bundle(Selection::prefix("layers.10"));
        const Lease own = unused.acquire(made_here);
        good = good && text_of(own["layers.10.w"]) == "ten!";
        good = good && refused([&] { return weights->bundle(Selection()); }) &&
               refused([&] { return weights->bundle("layers.1.w"); }) && refused([&] { weights->prefetch(absent); }) &&
               refused([&] { static_cast<void>(weights->follow(std::span(&absent, 1))); }) &&
               refused([&] { weights->sleep(); }) && refused([&] { weights->wake(); }) &&
               refused([&] { weights->evict(there); }) && refused([&] { return weights->fill({}); }) &&
               refused([&] { static_cast<void>(weights->stats()); });
        held.release();
        weights.reset();
        Uploader anew(Device::open("host"), three(), {.readers = 1});
        const auto soon = std::chrono::steady_clock::now() + std::chrono::seconds(60);
        const Lease lease = anew.acquire(anew.bundle(Selection()), {}, {.deadline = soon});
        return good && text_of(lease["layers.2.w"]) == "second";
    }));
    ticket.wait();
    CHECK(text_of(ticket["layers.2.w"]) == "second");
    CHECK(text_of(held["layers.1.w"]) == "one");
}

TEST_CASE("a hook changes tensors where they arrive, each time") {
    const Checkpoint checkpoint = three();
    std::atomic<int> calls = 0;
    const auto invert = [&](NativeStream stream, std::span<const FillTarget> tensors) {
        CHECK_FALSE(stream);
        for (const FillTarget& one : tensors) {
            CHECK(one.size == one.tensor.nbytes());
            for (std::uint64_t i = 0; i < one.size; ++i) static_cast<char*>(one.address)[i] ^= 1;
        }
        ++calls;
    };
    Uploader uploader(Device::open("host"), checkpoint, {.device_budget = 1000, .on_arrival = invert});
    const Bundle bundle = uploader.bundle(Selection());
    for (int i = 1; i <= 2; ++i) {
        {
            const Lease lease = uploader.acquire(bundle);
            CHECK(text_of(lease["layers.1.w"]) == "nod");
            CHECK(text_of(lease["layers.2.w"]) == "rdbnoe");
        }
        static_cast<void>(uploader.acquire(bundle));  // it is there
        CHECK(calls == i);
        uploader.evict(bundle);
    }
}

TEST_CASE("in a process that is forked while copies are in progress, nobody waits for them") {
    for (const bool fails : {false, true}) {
        CAPTURE(fails);
        const auto fake = std::make_shared<FakeDevice>();
        FakeDevice::Stream stream;
        Uploader weights(fake, three());
        const Bundle one = weights.bundle(Selection::prefix("layers.1."));
        const Bundle other = weights.bundle(Selection::prefix("layers.2."));
        fake->pause(true);
        Lease lease = weights.acquire(one, stream.native());
        Lease ticket = weights.request(other);
        if (fails) {  // found by the other process alone
            fake->fail_device = 0;
            fake->pause(false);
            CHECK_FAULT(weights.acquire(weights.bundle("layers.10.w")), Errc::device_failed);
        }
        CHECK(true_in_child([&] {
            ::alarm(60);
            const auto refused = [](auto&& call) {
                const auto error = error_of(call);
                return error && error->code() == Errc::invalid_argument;
            };
            const auto wait = [](Lease& late) {
                late.wait();
                return 0;
            };
            return lease.ready() && ticket.ready() && refused([&] { return wait(lease); }) &&
                   refused([&] { return wait(ticket); }) &&
                   refused([&] { return weights.try_acquire(one).has_value(); });
        }));
        fake->pause(false);
        lease.release();
        stream.finish();
    }
}

}  // namespace uploader_test
