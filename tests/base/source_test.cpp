// Tests sources over memory and over a callback.
#include "doctest_safemap.hpp"

#include <safemap/source.hpp>

#include <memory>
#include <vector>

using namespace safemap;

namespace {
std::vector<std::byte> counting(std::size_t n) {
    std::vector<std::byte> out(n);
    for (std::size_t i = 0; i < n; ++i) out[i] = static_cast<std::byte>(i);
    return out;
}
}  // namespace

TEST_CASE("a memory source reads and maps its bytes, and its views outlive it") {
    auto source = memory_source("here", counting(10));
    CHECK(source->size() == 10);
    CHECK(source->name() == "here");
    CHECK_FALSE(source->is_file());
    std::vector<std::byte> out(3);
    source->read_at(4, out);
    CHECK(out[0] == std::byte{4});
    const auto mapped = source->map({8, 2});
    source.reset();
    REQUIRE(mapped);
    CHECK(mapped->bytes[1] == std::byte{9});
}

TEST_CASE("ranges outside a source are refused, even if their end overflows") {
    const auto called = std::make_shared<int>(0);
    for (const auto& source :
         {memory_source("m", counting(10)), callback_source("c", 10, [called](auto, auto) { ++*called; })}) {
        std::vector<std::byte> out(3);
        CHECK_FAULT(source->read_at(8, out), Errc::file_truncated);
        CHECK_FAULT(source->read_at(11, std::span(out).first(0)), Errc::file_truncated);
        CHECK_FAULT(source->read_at(UINT64_MAX, out), Errc::file_truncated);
        CHECK_FAULT(source->read_at(UINT64_MAX - 1, out), Errc::file_truncated);
        CHECK_OK(source->read_at(10, std::span(out).first(0)));
    }
    CHECK(*called == 0);
    CHECK_FAULT(memory_source("m", counting(10))->map({10, 1}), Errc::file_truncated);
}

TEST_CASE("a callback source calls its function and cannot be mapped") {
    const auto source =
        callback_source("numbers", 1'000'000'000'000, [](std::uint64_t offset, std::span<std::byte> into) {
            for (std::size_t i = 0; i < into.size(); ++i) into[i] = static_cast<std::byte>((offset + i) % 251);
        });
    std::vector<std::byte> out(2);
    source->read_at(999'999'999'990, out);
    CHECK(out[1] == static_cast<std::byte>(999'999'999'991 % 251));
    CHECK_FALSE(source->map({0, 1}));
    CHECK_FAULT(callback_source("nobody", 1, nullptr), Errc::invalid_argument);
}
