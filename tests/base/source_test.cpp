// Tests sources over memory and over a callback.
#include "doctest_safemap.hpp"

#include <safemap/source.hpp>

#include <memory>
#include <vector>

namespace source_test {

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

TEST_CASE("spans are filled one after the other with consecutive bytes, by one read each") {
    const auto reads = std::make_shared<std::vector<Extent>>();
    const auto called = callback_source("c", 10, [reads](std::uint64_t offset, std::span<std::byte> into) {
        reads->push_back({offset, into.size()});
        for (std::size_t i = 0; i < into.size(); ++i) into[i] = static_cast<std::byte>(offset + i);
    });
    for (const auto& source : {memory_source("m", counting(10)), called}) {
        std::vector<std::byte> out(10, std::byte{99});
        const std::span all(out);
        const std::span<std::byte> spans[] = {all.subspan(7, 3), all.first(0), all.subspan(0, 1), all.subspan(3, 2)};
        source->read_scattered(2, spans);
        const std::vector<int> expected = {5, 99, 99, 6, 7, 99, 99, 2, 3, 4};
        for (std::size_t i = 0; i < 10; ++i) CHECK(out[i] == static_cast<std::byte>(expected[i]));
    }
    CHECK(*reads == std::vector<Extent>{{2, 3}, {5, 1}, {6, 2}});
}

TEST_CASE("spans that reach past the end of a source are refused") {
    const auto called = callback_source("c", 10, [](auto, auto into) { into[0] = std::byte{1}; });
    for (const auto& source : {memory_source("m", counting(10)), called}) {
        std::vector<std::byte> out(3);
        const std::span all(out);
        const std::span<std::byte> spans[] = {all.first(2), all.first(0), all};
        CHECK_OK(source->read_scattered(5, spans));
        CHECK_FAULT(source->read_scattered(6, spans), Errc::file_truncated);
        CHECK_FAULT(source->read_scattered(9, spans), Errc::file_truncated);
        CHECK_FAULT(source->read_scattered(UINT64_MAX, spans), Errc::file_truncated);
        CHECK_OK(source->read_scattered(10, std::span(spans).subspan(1, 1)));
        CHECK_FAULT(source->read_scattered(11, std::span(spans).subspan(1, 1)), Errc::file_truncated);
        CHECK_OK(source->read_scattered(10, {}));
        CHECK_FAULT(source->read_scattered(11, {}), Errc::file_truncated);
    }
}

}  // namespace source_test
