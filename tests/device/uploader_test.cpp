// Tests the public Uploader: leases, selections, slices, prefetch, and lifetimes.
#include "base/checksum.hpp"
#include "doctest_safemap.hpp"
#include "forge.hpp"
#include "temp_dir.hpp"

#include <safemap/checkpoint.hpp>
#include <safemap/uploader.hpp>

#include <chrono>
#include <cstring>
#include <filesystem>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

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
    const auto bytes = tensor.memory->host_bytes();
    return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

}  // namespace

static_assert(!std::is_copy_constructible_v<Lease> && std::is_nothrow_move_constructible_v<Lease>);

TEST_CASE("tensors are acquired by name, by selection and as slices") {
    Uploader uploader(Device::open("host"), three(), {.device_budget = 20});
    const Lease one = uploader.acquire("layers.1.w");
    CHECK(one.tensors().size() == 1);
    CHECK(text_of(one["layers.1.w"]) == "one");
    CHECK_FAULT(one["layers.2.w"], Errc::tensor_not_found);

    const Lease layers = uploader.acquire(Selection::prefix("layers.1"));
    CHECK(layers.tensors().size() == 1);
    const Lease all = uploader.acquire(Selection());
    REQUIRE(all.tensors().size() == 3);
    CHECK(all.tensors()[1].name == "layers.10.w");
    CHECK(text_of(all["layers.2.w"]) == "second");
    CHECK(one["layers.1.w"].memory == all["layers.1.w"].memory);
    CHECK(uploader.stats().uploaded_bytes == 13);

    const Checkpoint again = three();
    const Lease part = uploader.acquire(again["layers.2.w"].slice({{.start = 1, .stop = 4}}));
    CHECK(text_of(part["layers.2.w"]) == "eco");
    CHECK_FAULT(uploader.acquire("layers.3.w"), Errc::tensor_not_found);
    CHECK_FAULT(uploader.acquire(again["layers.2.w"].renamed("x")), Errc::budget_exceeded);
}

TEST_CASE("a tensor of the checkpoint is kept, however it was acquired; other tensors are not") {
    const Checkpoint checkpoint = three();
    Uploader uploader(Device::open("host"), checkpoint, {.device_budget = 20});
    uploader.acquire(checkpoint["layers.1.w"]);
    CHECK(uploader.stats().resident_bytes == 3);
    uploader.acquire(checkpoint["layers.2.w"].slice({{.start = 1, .stop = 4}}));
    CHECK(uploader.stats().resident_bytes == 3);
    uploader.evict(Selection());
    CHECK(uploader.stats().resident_bytes == 0);
    CHECK(uploader.stats().evictions == 1);
}

TEST_CASE("a lease ends by release, by assignment, and by its destructor") {
    Uploader uploader(Device::open("host"), three(), {.device_budget = 6});
    Lease lease = uploader.acquire("layers.2.w");
    CHECK_FAULT(uploader.acquire("layers.1.w"), Errc::budget_exceeded);
    lease.release();
    CHECK(lease.tensors().empty());
    CHECK_FAULT(lease["layers.2.w"], Errc::tensor_not_found);
    lease.release();
    lease = uploader.acquire("layers.10.w");
    CHECK_FAULT(uploader.acquire("layers.2.w"), Errc::budget_exceeded);
    lease = Lease();
    { const Lease brief = uploader.acquire("layers.2.w"); }
    CHECK_OK(uploader.acquire("layers.1.w"));
}

TEST_CASE("a prefetched tensor is resident or on its way when it is acquired, and is read once") {
    Uploader uploader(Device::open("host"), three(), {.device_budget = 13});
    uploader.prefetch(Selection());
    const Lease all = uploader.acquire(Selection());
    CHECK(text_of(all["layers.10.w"]) == "ten!");
    CHECK(uploader.stats().uploaded_bytes == 13);
    CHECK(uploader.stats().bytes_pread == 13);
}

TEST_CASE("prefetched slices are read once, and evicted like other tensors") {
    const Checkpoint checkpoint = three();
    Uploader uploader(Device::open("host"), checkpoint, {.device_budget = 6});
    const LazyTensor part = checkpoint["layers.2.w"].slice({{.start = 0, .stop = 3}});
    uploader.prefetch(std::span(&part, 1));
    {
        const Lease lease = uploader.acquire(part);
        CHECK(text_of(lease.tensors()[0]) == "sec");
    }
    CHECK(uploader.stats().uploaded_bytes == 3);
    const Lease other = uploader.acquire("layers.2.w");  // needs the memory
    CHECK(uploader.stats().evictions == 1);
    CHECK(uploader.stats().peak_device_bytes <= 6);
}

TEST_CASE("a lease and its tensors outlive the uploader, the checkpoint and the device") {
    Lease lease;
    {
        Uploader uploader(Device::open("host"), three(), {.device_budget = 20});
        uploader.prefetch(Selection());
        lease = uploader.acquire("layers.2.w");
    }
    CHECK(text_of(lease["layers.2.w"]) == "second");
}

TEST_CASE("the digest of a device tensor is that of its bytes") {
    const auto host = Device::open("host");
    Uploader uploader(host, three(), {.device_budget = 20});
    const Lease lease = uploader.acquire("layers.2.w");
    Xxh3 expected;
    expected.update(lease["layers.2.w"].memory->host_bytes());
    CHECK(digest(*host, lease["layers.2.w"]) == expected.hex());
}

TEST_CASE("a tensor whose file was written to since open is not uploaded") {
    const TempDir dir;
    const auto file = dir.write("m.safetensors", forge::u8_file({{"a", 1'000}, {"b", 20'000'000}}));
    const auto model = Checkpoint::open(file);
    Uploader uploader(Device::open("host"), model, {.device_budget = 30'000'000});
    const Lease before = uploader.acquire("a");
    std::filesystem::last_write_time(file, std::filesystem::last_write_time(file) + std::chrono::seconds(1));
    const auto error = error_of([&] { static_cast<void>(uploader.acquire("b")); });
    REQUIRE(error);
    CHECK(error->code() == Errc::file_changed);
    CHECK(error->path() == file.native());
    CHECK(error->tensor() == "b");
    CHECK(before["a"].memory->host_bytes()[999] == std::byte{999 % 251});
    CHECK(uploader.stats().resident_bytes == 1'000);
}
