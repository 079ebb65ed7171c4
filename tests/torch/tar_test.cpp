// Tests the tar archives of torch 0.1, forged: their content and their faults.
#include "torch/tar.hpp"

#include <safemap/advanced/flatten.hpp>

#include "doctest_safemap.hpp"
#include "fixtures.hpp"
#include "forge/pickle.hpp"
#include "inspect.hpp"

#include <string>

namespace tar_test {

using namespace safemap;

namespace {

std::string padded(std::string bytes, std::size_t to) {
    bytes.resize((bytes.size() + to - 1) / to * to, '\0');
    return bytes;
}
std::string octal(std::uint64_t value, std::size_t digits) {
    std::string text(digits, '0');
    for (std::size_t i = digits; i-- > 0; value /= 8) text[i] = static_cast<char>('0' + value % 8);
    return text + '\0';
}
std::string member(const std::string& name, const std::string& data, const std::string& size = {}) {
    std::string header = padded(name, 100) + octal(0644, 7) + octal(0, 7) + octal(0, 7) +
                         (size.empty() ? octal(data.size(), 11) : size) + octal(0, 11) + std::string(8, ' ') + "0";
    header = padded(header, 257) + std::string(
                                       "ustar\0"
                                       "00",
                                       8);
    header = padded(header, 512);
    std::uint64_t sum = 0;
    for (const char c : header) sum += static_cast<unsigned char>(c);
    header.replace(148, 8, octal(sum, 6) + ' ');
    return header + padded(data, 512);
}

std::string number(std::int64_t value) { return forge::little(static_cast<std::uint64_t>(value), 8); }
std::string storage(std::int64_t key, const std::string& type, std::int64_t count, const std::string& bytes) {
    return forge::pickle(forge::tuple({forge::integer(key), forge::text("cpu"), forge::global("torch", type)})) +
           number(count) + bytes;
}
std::string tensor(std::int64_t key, std::int64_t storage, const std::vector<std::int64_t>& sizes,
                   const std::vector<std::int64_t>& strides, std::int64_t offset) {
    std::string out = forge::pickle(
        forge::tuple({forge::integer(key), forge::integer(storage), forge::global("torch", "ByteTensor")}));
    out += forge::little(sizes.size(), 4) + "junk";
    for (const auto size : sizes) out += number(size);
    for (const auto stride : strides) out += number(stride);
    return out + number(offset);
}
std::string view(std::int64_t key, std::int64_t storage, std::int64_t first, std::int64_t count) {
    return forge::tuple({forge::integer(key), forge::integer(storage), forge::integer(first), forge::integer(count)});
}
std::string stored_at(std::int64_t key) { return forge::integer(key) + "Q"; }

/// An archive with eight bytes in storage 1, tensor 10 of all of them, and a dictionary as the object.
struct Tar {
    std::string storages = forge::pickle(forge::integer(1)) + storage(1, "ByteStorage", 8, "01234567");
    std::string views = "]";
    std::string tensors = forge::pickle(forge::integer(1)) + tensor(10, 1, {8}, {1}, 0);
    std::string object = forge::dict({forge::text("x"), stored_at(10)});

    std::string join() const {
        return member("sys_info", "{}") + member("pickle", forge::pickle(object)) + member("tensors", tensors) +
               member("storages", storages + forge::pickle(views)) + std::string(1024, '\0');
    }
};

torch::Archive open(const std::string& bytes) {
    ThrowFirst faults;
    return torch::read_tar(fixtures::source(bytes), faults);
}
FlatState flat(const Tar& file) { return flatten(open(file.join()).tree); }

}  // namespace

TEST_CASE("tensors, views of storages and storages of a tar are read") {
    CHECK(bytes_of(flat({}).tensors.at(0)) == "01234567");

    Tar file;
    file.views = "](" + view(2, 1, 2, 5) + view(3, 2, 1, 3) + "e";
    file.tensors = forge::pickle(forge::integer(2)) + tensor(10, 2, {2, 2}, {1, 2}, 1) + tensor(11, 3, {}, {}, 2);
    file.object = forge::dict({forge::text("x"), stored_at(10), forge::text("y"), stored_at(11), forge::text("again"),
                               stored_at(10), forge::text("s"), stored_at(1)});
    const auto found = flat(file);
    REQUIRE(found.tensors.size() == 2);
    CHECK(bytes_of(found.tensors[0]) == "3546");
    CHECK(bytes_of(found.tensors[1]) == "5");
    REQUIRE(found.aliases.size() == 1);
    CHECK(found.aliases[0] == AliasGroup{"x", "again"});
    REQUIRE(found.skipped.size() == 1);
    CHECK(found.skipped[0].type == "torch.Storage");
}

TEST_CASE("members that Python's tarfile would name differently are refused") {
    const auto changed = [](std::size_t at, const std::string& bytes) {
        std::string file = member("pickle", forge::pickle("}"));
        file.replace(at, bytes.size(), bytes).replace(148, 8, 8, ' ');
        std::uint64_t sum = 0;
        for (std::size_t i = 0; i < 512; ++i) sum += static_cast<unsigned char>(file[i]);
        return file.replace(148, 8, octal(sum, 6) + ' ') + Tar().join();
    };
    CHECK_OK(open(changed(156, std::string(1, '\0'))));
    // A hard link, a pax header and a GNU header: a different name or content for the next member.
    for (const char* type : {"1", "x", "g", "L"}) CHECK_FAULT(open(changed(156, type)), Errc::unknown_format);
    CHECK_FAULT(open(changed(345, "folder")), Errc::unknown_format);
    // A member without a name does not end an archive, and many do not either.
    CHECK_OK(open(member(std::string(1, '\0'), "") + Tar().join()));
    CHECK_OK(open(member("other", "") + Tar().join()));
    std::string many;
    for (int i = 0; i < 64; ++i) many += member("other", "");
    CHECK_FAULT(open(many + Tar().join()), Errc::unknown_format);
}

TEST_CASE("parameters and modules of a tar are read") {
    Tar file;
    const std::string net = forge::tuple({forge::global("my.net", "Net"), forge::text("f"), forge::text("s")}) + "Q";
    const std::string parameter = forge::call("torch.nn.parameter", "Parameter", {stored_at(10), "\x88"});
    file.object = net + ")\x81" + forge::dict({forge::text("w"), parameter}) + "b";
    const auto found = flat(file);
    REQUIRE(found.tensors.size() == 1);
    CHECK(found.tensors[0].name() == "w");
    REQUIRE(found.skipped.size() == 1);
    CHECK(found.skipped[0].type == "my.net.Net");
}

TEST_CASE("missing and truncated parts of a tar are named") {
    const Tar file;
    for (const char* name : {"storages", "tensors", "pickle"}) {
        CAPTURE(name);
        std::string bytes = file.join();
        const auto at = bytes.find(std::string(name) + std::string(20, '\0'));
        bytes.replace(at, 1, "X");
        CHECK_FAULT(open(bytes), Errc::unknown_format);  // the checksum is wrong
    }
    CHECK_FAULT(open(member("storages", file.storages + forge::pickle("]")) + member("tensors", file.tensors)),
                Errc::unknown_format);
    CHECK_FAULT(open(member("pickle", "") + std::string(512, 'x')), Errc::unknown_format);
    CHECK_FAULT(open(member("storages", "", octal(5000, 11))), Errc::file_truncated);
    CHECK_FAULT(open(member("storages", "", octal(~std::uint64_t{0} >> 31, 11))), Errc::file_truncated);
    CHECK_FAULT(open(member("storages", "", std::string(12, 'x'))), Errc::file_truncated);
    for (std::size_t size = 512; size < file.join().size() - 1024; size += 512) {
        CAPTURE(size);
        CHECK(error_of([&] { open(file.join().substr(0, size)); }).has_value());
    }
}

TEST_CASE("numbers in a tar are checked") {
    const auto with_storages = [](const std::string& storages) {
        Tar file;
        file.storages = storages;
        return error_of([&] { flat(file); })->code();
    };
    const std::string one = forge::pickle(forge::integer(1));
    CHECK(with_storages(one + storage(1, "ByteStorage", 5000, "01234567")) == Errc::file_truncated);
    CHECK(with_storages(one + storage(1, "ByteStorage", -8, "01234567")) == Errc::bad_tensor);
    CHECK(with_storages(one + storage(1, "DoubleStorage", std::int64_t{1} << 62, "01234567")) == Errc::bad_tensor);
    CHECK(with_storages(one + storage(1, "OddStorage", 8, "01234567")) == Errc::bad_tensor);
    CHECK(with_storages(one + storage(2, "ByteStorage", 8, "01234567")) == Errc::bad_tensor);
    CHECK(with_storages(one + forge::pickle("]")) == Errc::bad_tensor);
    CHECK(with_storages(forge::pickle(forge::integer(-1))) == Errc::bad_tensor);
    CHECK(with_storages(forge::pickle(forge::integer(std::int64_t{1} << 40))) == Errc::bad_tensor);
    CHECK(with_storages(forge::pickle("N")) == Errc::bad_tensor);
    const std::string eight = storage(1, "ByteStorage", 8, "01234567");
    CHECK(with_storages(forge::pickle(forge::integer(2)) + eight + eight) == Errc::bad_tensor);

    const auto with_view = [](const std::string& view) {
        Tar file;
        file.views = "](" + view + "e";
        return error_of([&] { flat(file); })->code();
    };
    CHECK(with_view(view(2, 1, 4, 5)) == Errc::storage_too_short);
    CHECK(with_view(view(2, 1, -1, 5)) == Errc::storage_too_short);
    CHECK(with_view(view(2, 1, std::numeric_limits<std::int64_t>::max(), 5)) == Errc::storage_too_short);
    CHECK(with_view(view(2, 7, 0, 1)) == Errc::bad_tensor);
    CHECK(with_view(view(1, 1, 0, 1)) == Errc::bad_tensor);
    CHECK(with_view("N") == Errc::bad_tensor);

    const auto with_tensor = [](const std::string& tensor) {
        Tar file;
        file.tensors = forge::pickle(forge::integer(1)) + tensor;
        const auto error = error_of([&] { flat(file); });
        REQUIRE(error.has_value());
        return std::pair(error->code(), error->tensor());
    };
    CHECK(with_tensor(tensor(10, 1, {9}, {1}, 0)) == std::pair(Errc::storage_too_short, std::string("x")));
    CHECK(with_tensor(tensor(10, 1, {2}, {1}, 7)).first == Errc::storage_too_short);
    CHECK(with_tensor(tensor(10, 1, {-2}, {1}, 0)) == std::pair(Errc::bad_tensor, std::string("x")));
    CHECK(with_tensor(tensor(10, 1, {2}, {-1}, 1)).first == Errc::bad_tensor);
    CHECK(with_tensor(tensor(10, 1, {2}, {1}, -1)).first == Errc::bad_tensor);
    CHECK(with_tensor(tensor(10, 1, {3}, {std::numeric_limits<std::int64_t>::max()}, 0)).first == Errc::shape_overflow);
    CHECK(with_tensor(tensor(10, 2, {3}, {1}, 0)).first == Errc::bad_tensor);
    CHECK(with_tensor(tensor(11, 1, {3}, {1}, 0)).first == Errc::bad_tensor);
    CHECK(with_tensor(tensor(10, 1, std::vector<std::int64_t>(65, 1), std::vector<std::int64_t>(65, 1), 0)).first ==
          Errc::bad_tensor);
    CHECK(with_tensor(tensor(10, 1, {8}, {1}, 0).substr(0, 70)).first == Errc::file_truncated);
}

}  // namespace tar_test
