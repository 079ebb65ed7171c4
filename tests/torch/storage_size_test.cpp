// Tests the size of a storage in the pickle against the size of its record.
#include "doctest_safemap.hpp"
#include "fixtures.hpp"
#include "forge/pickle.hpp"
#include "inspect.hpp"

#include <string>
#include <utility>
#include <vector>

namespace storage_size_test {

using namespace safemap;

namespace {

/// Opens a tensor of the first element of storage "0", which has `stated` elements in the pickle and a record of 16
/// bytes.
torch::Archive open(const char* type, std::int64_t stated) {
    const std::string tensor = forge::view(forge::storage(type, "0", stated), 0, {1}, {1});
    return fixtures::open(forge::archive(forge::dict({forge::text("x"), tensor}), {{"0", "0123456789abcdef"}}));
}

/// The same for an untyped storage, which torch writes for new dtypes.
torch::Archive open_untyped(std::int64_t stated, const std::string& record) {
    const std::string tensor = forge::call(
        "torch._utils", "_rebuild_tensor_v3",
        {forge::storage("UntypedStorage", "0", stated), forge::integer(0), forge::tuple({forge::integer(1)}),
         forge::tuple({forge::integer(1)}), "\x89", forge::ordered(), forge::global("torch", "float32")});
    return fixtures::open(forge::archive(forge::dict({forge::text("x"), tensor}), {{"0", record}}));
}

}  // namespace

TEST_CASE("a storage that states more than its record holds is refused, whatever part a tensor uses") {
    CHECK(open("FloatStorage", 4).notes.empty());
    CHECK(open("ByteStorage", 16).notes.empty());
    CHECK_FAULT(open("FloatStorage", 5), Errc::storage_too_short);
    CHECK_FAULT(open("ByteStorage", 17), Errc::storage_too_short);
    CHECK(open_untyped(9, "012345678").notes.empty());
    CHECK_FAULT(open_untyped(9, "01234567"), Errc::storage_too_short);
}

TEST_CASE("a storage that states less than its record holds is noted") {
    const auto archive = open("FloatStorage", 3);
    CHECK(only_of(archive.notes) == "storage '0' has 16 bytes, but the pickle says 12 bytes; the rest is not read");
    CHECK(open_untyped(9, "0123456789").notes.size() == 1);
}

TEST_CASE("many storages shorter than their records give one note") {
    std::string items = "}(";
    std::vector<std::pair<std::string, std::string>> storages;
    for (const char* key : {"0", "1", "2"}) {
        for (const char* name : {"x", "y"})
            items +=
                forge::text(std::string(name) + key) + forge::view(forge::storage("ByteStorage", key, 3), 0, {1}, {1});
        storages.emplace_back(key, "0123");
    }
    const auto archive = fixtures::open(forge::archive(items + "u", storages));
    CHECK(only_of(archive.notes).find("(3 storages are longer than the pickle says)") != std::string::npos);
}

}  // namespace storage_size_test
