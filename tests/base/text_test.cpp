// Tests UTF-8 validation and printable names.
#include <safemap/advanced/text.hpp>

#include "base/text.hpp"
#include "doctest_safemap.hpp"

#include <cstdint>

namespace text_test {

using namespace safemap;

namespace {

// Checks by decoding, as RFC 3629 describes it: slow and obvious.
bool is_utf8_twin(std::string_view text) {
    std::size_t i = 0;
    while (i < text.size()) {
        const auto first = static_cast<unsigned char>(text[i]);
        const std::size_t more = first < 0x80   ? 0
                                 : first < 0xC0 ? 9
                                 : first < 0xE0 ? 1
                                 : first < 0xF0 ? 2
                                 : first < 0xF8 ? 3
                                                : 9;
        if (more == 9 || i + more >= text.size()) return false;
        std::uint32_t point = more == 0 ? first : first & (0x3FU >> more);
        for (std::size_t k = 1; k <= more; ++k) {
            const auto next = static_cast<unsigned char>(text[i + k]);
            if ((next & 0xC0) != 0x80) return false;
            point = (point << 6) | (next & 0x3F);
        }
        constexpr std::uint32_t least[] = {0, 0x80, 0x800, 0x10000};
        if (point < least[more] || point > 0x10FFFF || (point >= 0xD800 && point < 0xE000)) return false;
        i += more + 1;
    }
    return true;
}

}  // namespace

TEST_CASE("is_utf8 finds a wrong byte at every position in a text") {
    for (std::size_t size = 1; size <= 40; ++size) {
        CHECK(is_utf8(std::string(size, 'a')));
        for (std::size_t at = 0; at < size; ++at) {
            std::string text(size, 'a');
            text[at] = '\x80';
            CHECK_FALSE(is_utf8(text));
            text.replace(at, 1, "\xC3\xA9");
            CHECK(is_utf8(text));
            CHECK_FALSE(is_utf8(text.substr(0, at + 1)));
        }
    }
}

TEST_CASE("is_utf8 agrees with decoding for all texts of one, two and three bytes, and for the limits of four") {
    for (unsigned v = 0; v < 0x1000000; v += v < 0x10000 ? 1 : 7) {
        const char bytes[] = {static_cast<char>(v), static_cast<char>(v >> 8), static_cast<char>(v >> 16)};
        for (std::size_t n = v < 0x100 ? 1 : v < 0x10000 ? 2 : 3; n <= 3; ++n)
            if (is_utf8({bytes, n}) != is_utf8_twin({bytes, n})) FAIL("bytes ", v, " length ", n);
    }
    for (unsigned first = 0xED; first < 0x100; ++first)
        for (unsigned second = 0x7F; second < 0xC2; ++second)
            for (const unsigned third : {0x7FU, 0x80U, 0xBFU, 0xC0U})
                for (const unsigned fourth : {0x7FU, 0x80U, 0xBFU, 0xC0U}) {
                    const char bytes[] = {static_cast<char>(first), static_cast<char>(second), static_cast<char>(third),
                                          static_cast<char>(fourth)};
                    if (is_utf8({bytes, 4}) != is_utf8_twin({bytes, 4})) FAIL("four bytes from ", first, " ", second);
                }
}

TEST_CASE("a path with .. or an absolute path does not stay below its folder") {
    for (const char* path : {"..", "../x", "a/..", "a/../b", "a/b/..", "./..", "/", "/x", "//x", "..//x"}) {
        CAPTURE(path);
        CHECK_FALSE(stays_below(path));
    }
    for (const char* path : {"", ".", "x", "a/b", "a//b", "./x", "a/", "..x", "x..", "...", "a..b/c", "a/..b"}) {
        CAPTURE(path);
        CHECK(stays_below(path));
    }
}

TEST_CASE("names in messages are printable and limited in length") {
    CHECK(quoted("model.weight") == "'model.weight'");
    CHECK(quoted("grün") == "'grün'");
    CHECK(safemap::quoted(std::string("a\0b\n\x7F\xFF", 6)) == "'a\\x00b\\x0a\\x7f\\xff'");
    CHECK(printable(std::string(1000, 'x'), 10) == "xxxxxxxxxx…");
    CHECK(excerpt(std::string(201, 'x')) == std::string(200, 'x') + "…");
    CHECK(printable(std::string(1000, 'x')) == std::string(1000, 'x'));
    CHECK(quoted("w\xE2\x80\xAEx") == "'w\\xe2\\x80\\xaex'");
    CHECK(bytes_text(1) == "1 byte");
    CHECK(bytes_text(24) == "24 bytes");
}

TEST_CASE("a list of names ends with how many more there are") {
    const std::string names[] = {"a", "b\n", "c"};
    CHECK(names_text(names, 3) == "a, b\\x0a, c");
    CHECK(names_text(names, 2) == "a, b\\x0a and 1 more");
    CHECK(names_text({}, 2).empty());
}

TEST_CASE("error messages are printable, wherever their words come from") {
    const std::string evil = "a\x1b[2J\xC2\x9B\xE2\x80\xAE\xD8\x9C";
    const std::string shown = "a\\x1b[2J\\xc2\\x9b\\xe2\\x80\\xae\\xd8\\x9c";
    const Error error =
        Error(Errc::io_error, "m" + evil).with_path("p" + evil).with_tensor("t" + evil).during("o" + evil);
    CHECK(std::string(error.what()) == "o" + shown + ": p" + shown + ": tensor 't" + shown + "': m" + shown);
    CHECK(error.path() == "p" + evil);
}

TEST_CASE(
    "every character beyond ASCII that Unicode calls a control or a mark of direction is escaped, in text and JSON") {
    const auto is_bidi = [](std::uint32_t code) {  // Bidi_Control of Unicode 15
        return code == 0x61C || code == 0x200E || code == 0x200F || (code >= 0x202A && code <= 0x202E) ||
               (code >= 0x2066 && code <= 0x2069);
    };
    for (std::uint32_t code = 1; code < 0x3000; ++code) {
        std::string text;
        append_utf8(text, code);
        CAPTURE(code);
        const bool control = code < 0x20 || (code >= 0x7F && code < 0xA0) || is_bidi(code);
        const std::string said = Error(Errc::io_error, text).what();
        if (control) CHECK(said.find(text) == std::string::npos);
        const std::string json = json_quoted(text);
        if (control) CHECK(json.find(text) == std::string::npos);
        const bool spelled = text == "\"" || text == "\\";  // JSON escapes these too
        if (!spelled) CHECK((said == text) == (json == '"' + text + '"'));
    }
    CHECK(json_quoted("a\xC2\x9B\b\xFF\xF0\x9F\xA6\x99") == "\"a\\u009b\\b\xEF\xBF\xBD\xF0\x9F\xA6\x99\"");
}

}  // namespace text_test
