// Tests archives of one tensor each: equal pickles share a form, and everything about an archive that is not in its
// pickle is looked at each time.
#include "torch/one_tensor.hpp"

#include "doctest_safemap.hpp"
#include "forge/pickle.hpp"
#include "forge/zip.hpp"
#include "torch/fixtures.hpp"

#include <safemap/tensor_view.hpp>

#include <atomic>
#include <string>
#include <thread>
#include <vector>

namespace one_tensor_test {

using namespace safemap;
using torch::PlacedTensor;
using torch::TensorForms;

namespace {

std::string vector_of(std::string_view type, std::int64_t size, std::string_view key = "0", std::int64_t offset = 0) {
    return forge::view(forge::storage(type, key, size + offset), offset, {size}, {1});
}

std::string archive(const std::string& opcodes, const std::string& storage, const std::string& byteorder = "little",
                    const std::string& key = "0") {
    forge::Zip zip;
    zip.add("a/data.pkl", forge::pickle(opcodes));
    zip.add("a/byteorder", byteorder);
    zip.add("a/data/" + key, storage);
    return zip.join();
}

PlacedTensor read(TensorForms& forms, const std::shared_ptr<const Source>& source, std::uint64_t order = 0) {
    ThrowFirst faults;
    torch::ArchiveRecords records(source, {0, source->size()}, *source, faults);
    return forms.read(records, order);
}
PlacedTensor read(TensorForms& forms, const std::string& bytes, std::uint64_t order = 0) {
    return read(forms, fixtures::source(bytes), order);
}

std::string value(const TensorForms& forms, const PlacedTensor& placed) {
    const LazyTensor tensor = forms.form(placed.form).at(placed.source, placed.offset);
    const TensorView view = tensor.load();
    return {reinterpret_cast<const char*>(view.bytes().data()), view.bytes().size()};
}

}  // namespace

TEST_CASE("equal pickles share a form and have values of their own") {
    TensorForms forms(false);
    const PlacedTensor a = read(forms, archive(vector_of("ByteStorage", 4), "aaaa"));
    const PlacedTensor b = read(forms, archive(vector_of("ByteStorage", 4), "bbbb"));
    CHECK(a.form == b.form);
    CHECK(value(forms, a) == "aaaa");
    CHECK(value(forms, b) == "bbbb");
    // Another shape, a view of a larger storage, another key.
    CHECK(value(forms, read(forms, archive(vector_of("ByteStorage", 3), "ccc"))) == "ccc");
    CHECK(value(forms, read(forms, archive(vector_of("ByteStorage", 2, "0", 1), "xyz"))) == "yz");
    CHECK(value(forms, read(forms, archive(vector_of("ByteStorage", 4, "7"), "dddd", "little", "7"))) == "dddd");
}

TEST_CASE("the byte order is no part of the pickle, and is looked at") {
    TensorForms forms(false);
    const std::string bytes = {1, 0, 2, 0};
    const PlacedTensor little = read(forms, archive(vector_of("ShortStorage", 2), bytes));
    const PlacedTensor big = read(forms, archive(vector_of("ShortStorage", 2), bytes, "big"));
    CHECK(value(forms, little) == bytes);
    CHECK(value(forms, big) == std::string({0, 1, 0, 2}));
}

TEST_CASE("a storage that is missing or too short is a fault, after others with the same pickle") {
    TensorForms forms(false);
    const std::string opcodes = vector_of("ByteStorage", 4);
    CHECK_OK(read(forms, archive(opcodes, "aaaa")));
    CHECK_FAULT(read(forms, archive(opcodes, "aaa")), Errc::storage_too_short);
    CHECK_FAULT(read(forms, archive(opcodes, "aaaa", "little", "1")), Errc::zip_missing_record);
    CHECK_FAULT(read(forms, archive(opcodes, "aaaa", "middle")), Errc::zip_bad_record);
    CHECK_OK(read(forms, archive(opcodes, "aaaa more")));
}

TEST_CASE("deflated storages are opened each time") {
    TensorForms forms(false);
    for (const char* const data : {"aaaaaaaa", "bbbbbbbb"}) {
        forge::Zip zip;
        zip.add_deflated("a/data.pkl", forge::pickle(vector_of("ByteStorage", 8)));
        zip.add_deflated("a/data/0", data);
        const std::string bytes = zip.join();
        CHECK(value(forms, read(forms, bytes)) == data);
    }
}

TEST_CASE("tensors without elements, and scalars") {
    TensorForms forms(false);
    CHECK(value(forms, read(forms, archive(vector_of("ByteStorage", 0), ""))).empty());
    CHECK(value(forms, read(forms, archive(vector_of("ByteStorage", 0), ""))).empty());
    const std::string scalar = forge::view(forge::storage("ByteStorage", "0", 1), 0, {}, {});
    CHECK(value(forms, read(forms, archive(scalar, "s"))) == "s");
}

TEST_CASE("globals are listed once for each set of them, with the first archive that names them") {
    TensorForms forms(false);
    read(forms, archive(vector_of("FloatStorage", 1), "ffff"), 7);
    read(forms, archive(vector_of("ByteStorage", 4), "aaaa"), 5);
    read(forms, archive(vector_of("ByteStorage", 4), "aaaa"), 3);
    read(forms, archive(vector_of("ByteStorage", 3), "aaa"), 4);
    std::vector<std::uint64_t> orders;
    forms.each_globals([&](std::uint64_t order, const torch::NamedGlobals&) { orders.push_back(order); });
    CHECK(orders == std::vector<std::uint64_t>{7, 3});
    const std::string with = forge::call(
        "torch._tensor", "_rebuild_from_type_v2",
        {forge::global("torch._utils", "_rebuild_tensor_v2"), forge::global("my.module", "MyTensor"),
         forge::tuple({forge::storage("ByteStorage", "0", 1), forge::integer(0), forge::tuple({forge::integer(1)}),
                       forge::tuple({forge::integer(1)}), "\x89", forge::ordered()}),
         "}"});
    CHECK(value(forms, read(forms, archive(with, "x"))) == "x");
    TensorForms strict(true);
    CHECK_FAULT(read(strict, archive(with, "x")), Errc::unknown_global);
    CHECK_OK(read(strict, archive(vector_of("ByteStorage", 1), "x")));
}

TEST_CASE("threads that read equal and different archives agree") {
    TensorForms forms(false);
    std::atomic<int> wrong = 0;
    std::vector<std::thread> threads;
    for (unsigned t = 0; t < 4; ++t)
        threads.emplace_back([&, t] {
            for (std::int64_t i = 0; i < 300; ++i) {
                const std::string data(static_cast<std::size_t>(1 + i % 10), static_cast<char>('a' + t));
                if (value(forms, read(forms, archive(vector_of("ByteStorage", 1 + i % 10), data))) != data) ++wrong;
            }
        });
    for (std::thread& thread : threads) thread.join();
    CHECK(wrong == 0);
}

}  // namespace one_tensor_test
