// Tests zstd streams: reads in any order, several frames, damaged streams, and sizes that are too large.
#include "base/zstd.hpp"
#include "base/stream_source.hpp"
#include "check_error.hpp"
#include "doctest_safemap.hpp"
#include "forge/files.hpp"
#include "forge/zstd.hpp"

#include <algorithm>
#include <atomic>
#include <memory>
#include <random>
#include <string>
#include <thread>
#include <vector>

namespace zstd_test {

using namespace safemap;

namespace {

std::string random_text(std::size_t size, unsigned seed) {
    std::mt19937 random(seed);
    std::string out(size, '\0');
    for (char& byte : out) byte = static_cast<char>(random() % 5);
    return out;
}

std::string read(const Source& source, std::uint64_t offset, std::size_t size) {
    std::string out(size, '\0');
    source.read_at(offset, std::as_writable_bytes(std::span(out)));
    return out;
}

/// A stream in the middle of a file.
struct Packed {
    std::shared_ptr<const Source> file;
    Extent place;

    explicit Packed(const std::string& stream)
        : file(forge::source("before" + stream + "after", "file")), place{6, stream.size()} {}
    ZstdContent scan(std::uint64_t most = 1U << 30) const { return scan_zstd("item", *file, place, most); }
    std::shared_ptr<const Source> open(std::uint64_t size) const { return zstd_source("item", file, place, size); }
};

}  // namespace

TEST_CASE("a build without libzstd says so" * doctest::skip(has_zstd())) {
    const Packed packed(forge::zstd_frame("text"));
    const auto error = error_of([&] { packed.scan(); });
    check_error(error, {Errc::unknown_transform}, {});
    CHECK(error->hint().find("libzstd") != std::string::npos);
}

TEST_CASE("a zstd source reads any range in any order" * doctest::skip(!has_zstd())) {
    const std::string data = random_text(300'000, 1) + std::string(200'000, 'r');
    const Packed packed(forge::zstd_frame(data));
    const ZstdContent content = packed.scan();
    CHECK(content.size == data.size());
    CHECK(content.head.size() <= ZstdContent::most_kept);
    CHECK(std::equal(content.head.begin(), content.head.end(), std::as_bytes(std::span(data)).begin()));
    CHECK(std::equal(content.tail.rbegin(), content.tail.rend(), std::as_bytes(std::span(data)).rbegin()));
    CHECK_FALSE(content.tail.empty());
    const auto source = packed.open(content.size);
    CHECK(source->size() == data.size());
    CHECK(source->name() == "file");
    CHECK(read(*source, 0, data.size()) == data);
    std::mt19937 random(2);
    for (int i = 0; i < 40; ++i) {
        const std::size_t offset = random() % data.size();
        const std::size_t size = random() % (data.size() - offset + 1);
        CHECK(read(*source, offset, size) == data.substr(offset, size));
    }
    CHECK_FALSE(source->map({0, 1}));
    CHECK_FAULT(read(*source, data.size(), 1), Errc::file_truncated);
}

TEST_CASE("frames that follow each other are one stream" * doctest::skip(!has_zstd())) {
    const std::string a = random_text(100'000, 3);
    const std::string b = random_text(7, 4);
    const Packed packed(forge::zstd_frame(a, 1000) + forge::zstd_skippable("note") + forge::zstd_frame("") +
                        forge::zstd_frame(b));
    CHECK(packed.scan().size == a.size() + b.size());
    const auto source = packed.open(a.size() + b.size());
    CHECK(read(*source, 0, a.size() + b.size()) == a + b);
    CHECK(read(*source, a.size(), b.size()) == b);
    const Packed nothing(forge::zstd_frame(""));
    CHECK(nothing.scan().size == 0);
}

TEST_CASE("slices further and further back decode a stream of one frame a few times, and of many frames about twice" *
          doctest::skip(!has_zstd())) {
    const std::string data = random_text((9U << 20) + 77, 9);
    for (const bool one : {true, false}) {
        CAPTURE(one);
        std::string stream;
        if (one) stream = forge::zstd_frame(data);
        else
            for (std::size_t at = 0; at < data.size(); at += 600'000)
                stream += forge::zstd_frame(data.substr(at, 600'000));
        std::uint64_t count = 0;
        const auto file = callback_source("file", stream.size(), [&](std::uint64_t offset, std::span<std::byte> into) {
            count += into.size();
            std::copy_n(std::as_bytes(std::span(stream)).begin() + static_cast<std::ptrdiff_t>(offset), into.size(),
                        into.begin());
        });
        const auto source = zstd_source("item", file, {0, stream.size()}, data.size());
        constexpr std::size_t slices = 500;
        const std::size_t each = data.size() / slices;
        for (std::size_t i = slices; i-- > 0;) REQUIRE(read(*source, i * each, each) == data.substr(i * each, each));
        // A pass for the first slice. Of one frame: a pass to each of three blocks of 4 MiB. Of many: a pass, and some
        // frames to the beginning of a block.
        const std::size_t decoded = 2 * data.size() + (one ? 12U << 20 : 5U << 20);
        CHECK(count <= decoded + (1U << 20));
        CHECK((dynamic_cast<const StreamSource&>(*source).states() > 0) == !one);
    }
}

TEST_CASE("every stream that is cut short or changed is a fault or has other bytes" * doctest::skip(!has_zstd())) {
    const std::string data = random_text(3000, 5);
    const std::string whole = forge::zstd_frame(data, 1000);
    for (std::size_t cut = 0; cut < whole.size(); cut += 1 + cut / 50) {
        CAPTURE(cut);
        CHECK_FAULT(Packed(whole.substr(0, cut)).scan(), Errc::inflate_failed);
        CHECK_FAULT(read(*Packed(whole.substr(0, cut)).open(data.size()), 0, data.size()), Errc::inflate_failed);
    }
    CHECK_FAULT(Packed(whole + "x").scan(), Errc::inflate_failed);
    CHECK_FAULT(Packed(std::string(1000, '\xFF')).scan(), Errc::inflate_failed);
    std::mt19937 random(6);
    for (int i = 0; i < 3000; ++i) {
        std::string changed = whole;
        changed[i % 2 == 0 ? random() % 12 : random() % whole.size()] = static_cast<char>(random());
        const auto error = error_of([&] { Packed(changed).scan(1U << 20); });
        if (error) CHECK(error->code() == Errc::inflate_failed);
    }
}

TEST_CASE("a stream of more bytes than are allowed is refused before they are made" * doctest::skip(!has_zstd())) {
    const std::string bomb = forge::zstd_frame(std::string(1U << 20, 'b'), 128U << 10);
    CHECK(bomb.size() < 100);
    CHECK(Packed(bomb).scan(1U << 20).size == 1U << 20);
    CHECK_FAULT(Packed(bomb).scan((1U << 20) - 1), Errc::inflate_failed);
    // A window of more than the format's usual limit: 2^41 bytes.
    std::string wide = forge::zstd_frame("text");
    wide[5] = '\xF8';
    CHECK_FAULT(Packed(wide).scan(), Errc::inflate_failed);
}

TEST_CASE("more streams than passes are kept read from several threads" * doctest::skip(!has_zstd())) {
    std::vector<std::string> data;
    std::vector<std::shared_ptr<const Source>> sources;
    for (unsigned i = 0; i < 40; ++i) {
        data.push_back(random_text(50'000, i));
        sources.push_back(Packed(forge::zstd_frame(data.back())).open(data.back().size()));
    }
    std::vector<std::thread> threads;
    std::atomic<int> wrong = 0;
    for (unsigned t = 0; t < 4; ++t)
        threads.emplace_back([&, t] {
            std::mt19937 random(t);
            for (int i = 0; i < 200; ++i) {
                const std::size_t which = random() % sources.size();
                const std::size_t offset = random() % 49'000;
                if (read(*sources[which], offset, 1000) != data[which].substr(offset, 1000)) ++wrong;
            }
        });
    for (std::thread& thread : threads) thread.join();
    CHECK(wrong == 0);
}

}  // namespace zstd_test
