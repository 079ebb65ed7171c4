// Tests terminal output: the progress bar makes room for results, tables and texts fit the width, wide characters
// count.
#include "terminal.hpp"
#include "output.hpp"
#include "progress.hpp"

#include "doctest_safemap.hpp"

#include <cstdlib>
#include <string>
#include <vector>

#include <fcntl.h>
#include <sys/ioctl.h>
#include <unistd.h>

namespace terminal_test {

using namespace safemap;
using namespace safemap::cli;

namespace {

/// Makes stdout and stderr a terminal of `columns` columns, for its lifetime.
class Terminal {
public:
    explicit Terminal(unsigned short columns) {
        ::unsetenv("COLUMNS");
        ours_ = ::posix_openpt(O_RDWR | O_NOCTTY);
        if (ours_ < 0 || ::grantpt(ours_) != 0 || ::unlockpt(ours_) != 0) return;
        const int theirs = ::open(::ptsname(ours_), O_RDWR | O_NOCTTY);
        if (theirs < 0) return;
        const winsize size = {.ws_row = 25, .ws_col = columns, .ws_xpixel = 0, .ws_ypixel = 0};
        ::ioctl(theirs, TIOCSWINSZ, &size);
        for (std::size_t i = 0; i < 2; ++i) {
            kept_[i] = ::dup(static_cast<int>(i) + 1);
            ::dup2(theirs, static_cast<int>(i) + 1);
        }
        ::close(theirs);
        there_ = true;
    }
    ~Terminal() {
        restore();
        if (ours_ >= 0) ::close(ours_);
    }
    Terminal(const Terminal&) = delete;
    Terminal& operator=(const Terminal&) = delete;

    /// True if there is a terminal: a container may have none.
    explicit operator bool() const noexcept { return there_; }

    /// Returns the lines that stay visible: text that was overwritten after a carriage return is removed.
    std::vector<std::string> lines() {
        restore();  // the last output may arrive late, but before the end
        std::string text;
        char block[512];
        for (ssize_t size = 0; (size = ::read(ours_, block, sizeof block)) > 0;)
            text.append(block, static_cast<std::size_t>(size));
        std::vector<std::string> lines = {""};
        std::size_t column = 0;
        for (const char c : text) {
            std::string& line = lines.back();
            if (c == '\n') {
                line.erase(line.find_last_not_of(' ') + 1);
                lines.emplace_back();
            } else if (c == '\r') {
                column = 0;
            } else {
                if (column == line.size()) line += c;
                else line[column] = c;
                ++column;
            }
        }
        return lines;
    }

private:
    void restore() {
        for (std::size_t i = 0; i < 2; ++i) {
            if (kept_[i] < 0) continue;
            ::dup2(kept_[i], static_cast<int>(i) + 1);
            ::close(kept_[i]);
            kept_[i] = -1;
        }
    }

    int ours_ = -1;
    int kept_[2] = {-1, -1};
    bool there_ = false;
};

using Lines = std::vector<std::string>;
using namespace std::chrono_literals;

constexpr Progress half{.stage = "converting", .bytes_done = 500, .bytes_total = 1000};

}  // namespace

TEST_SUITE("terminal") {
    TEST_CASE("the bar is cleared before a result is printed, and can continue") {
        Console console(false);
        Terminal terminal(80);
        if (!terminal) return;
        ProgressBar bar(console, 0ms);
        bar.show(half);
        console.announce("plan\n");
        console.result("out: wrote 1 tensor\n");
        CHECK(terminal.lines() == Lines{"plan", "out: wrote 1 tensor", ""});
    }

    TEST_CASE("the bar is cleared before an error is printed") {
        Console console(false);
        Terminal terminal(80);
        if (!terminal) return;
        ProgressBar bar(console, 0ms);
        bar.show(half);
        ::setenv("NO_COLOR", "1", 1);
        console.error(Error(Errc::no_space, "full"));
        ::unsetenv("NO_COLOR");
        CHECK(terminal.lines() == Lines{"safemap: error: full", ""});
    }

    TEST_CASE("the bar is visible while nothing else is printed") {
        Console console(false);
        Terminal terminal(40);
        if (!terminal) return;
        ProgressBar bar(console, 0ms);
        bar.show(half);
        const Lines lines = terminal.lines();
        REQUIRE(lines.size() == 1);
        CHECK(lines[0].starts_with("converting  50%  500 B of 1.0 kB"));
        CHECK(lines[0].size() < 40);
    }

    TEST_CASE("COLUMNS overrides the width of a terminal, and has no effect elsewhere") {
        Terminal terminal(40);
        if (!terminal) return;
        CHECK(columns_of_terminal(STDOUT_FILENO) == 40);
        ::setenv("COLUMNS", "64", 1);
        CHECK(columns_of_terminal(STDOUT_FILENO) == 64);
        for (const char* text : {"", "0", "x", "64x", "-1"}) {
            ::setenv("COLUMNS", text, 1);
            CHECK(columns_of_terminal(STDOUT_FILENO) == 40);
        }
        ::setenv("COLUMNS", "64", 1);
        int ends[2];
        REQUIRE(::pipe(ends) == 0);
        CHECK(columns_of_terminal(ends[1]) == unlimited_columns);
        ::close(ends[0]);
        ::close(ends[1]);
        ::unsetenv("COLUMNS");
    }
}

TEST_SUITE("width") {
    TEST_CASE("characters have the width that terminals give them") {
        CHECK(display_width("") == 0);
        CHECK(display_width("layers.0") == 8);
        CHECK(display_width("mod\xC3\xA8le") == 6);
        CHECK(display_width("e\xCC\x80") == 1);                                // combining grave accent
        CHECK(display_width("\xE5\xB1\x82.0.\xE6\x9D\x83\xE9\x87\x8D") == 9);  // Chinese
        CHECK(display_width("\xEC\xB8\xB5") == 2);                             // Korean
        CHECK(display_width("\xE3\x83\xAC") == 2);                             // Japanese
        CHECK(display_width("\xEF\xBD\xB1") == 1);                             // the halfwidth form of a kana
        CHECK(display_width("\xEF\xBC\xA1") == 2);                             // the fullwidth form of A
        CHECK(display_width("\xF0\x9F\xA6\x99") == 2);                         // a llama
        CHECK(display_width("\xF0\xA0\x80\x80") == 2);                         // outside the basic multilingual plane
        CHECK(display_width("\xFF\xFE") == 2);                                 // invalid UTF-8
    }

    TEST_CASE("a text that is too wide is shortened in the middle") {
        CHECK(shortened("layers.{0..79}.w", 16) == "layers.{0..79}.w");
        CHECK(shortened("layers.{0..79}.w", 15) == "layers....79}.w");
        CHECK(shortened("abcdefgh", 7) == "ab...gh");
        CHECK(shortened("abcdefgh", 3) == "abc");
        CHECK(shortened("abcdefgh", 0).empty());
        // A wide character is not split.
        const std::string wide = "\xE5\xB1\x82\xE5\xB1\x82\xE5\xB1\x82\xE5\xB1\x82";
        CHECK(shortened(wide, 8) == wide);
        CHECK(shortened(wide, 7) == "\xE5\xB1\x82...\xE5\xB1\x82");
        CHECK(shortened(wide, 6) == "\xE5\xB1\x82...");
        for (std::size_t columns = 0; columns < 20; ++columns)
            CHECK(display_width(shortened(wide + "abc", columns)) <= columns);
    }

    TEST_CASE("words are wrapped into lines") {
        CHECK(wrapped("one two three", 7, 0) == "one two\nthree");
        CHECK(wrapped("one two three", 9, 2) == "one two\n  three");
        CHECK(wrapped("incomprehensible words", 5, 1) == "incomprehensible\n words");
        CHECK(wrapped("one two", unlimited_columns, 4) == "one two");
        CHECK(wrapped("", 10, 2).empty());
    }

    TEST_CASE("columns are aligned after names with wide characters") {
        Table table({Table::Align::left, Table::Align::left});
        table.row({"\xE5\xB1\x82.w", "F32"});
        table.row({"layer.w", "F16"});
        CHECK(table.text(unlimited_columns) == "  \xE5\xB1\x82.w     F32\n  layer.w  F16\n");
    }

    TEST_CASE("a row is fitted to the terminal: the widest text is shortened most, numbers never") {
        Table table({Table::Align::left, Table::Align::left, Table::Align::right});
        const std::string name = "model.layers.{0,3,7,12,15,19,22,28,31,35,39,41,47}.self_attn.q_proj.weight";
        table.row({name, "F32 [1024, 1024]", "12345.6 MB"});
        table.row({"w", "F32 [2]", "8 B"});
        for (const std::size_t columns : {60U, 80U, 100U}) {
            const std::string text = table.text(columns);
            CAPTURE(text);
            for (std::size_t begin = 0; begin < text.size(); begin = text.find('\n', begin) + 1)
                CHECK(text.find('\n', begin) - begin <= columns);
            CHECK(text.find("F32 [1024, 1024]") != text.npos);
            CHECK(text.find("12345.6 MB\n") != text.npos);
            CHECK(text.find("  model.layers.") == 0);
            CHECK(text.find("proj.weight  F32") != text.npos);
        }
        CHECK(table.text(unlimited_columns).find(name) != std::string::npos);
        CHECK(table.text(200) == table.text(unlimited_columns));
        CHECK(table.text(10).find("12345.6 MB") != std::string::npos);  // cannot be shortened further
    }
}

}  // namespace terminal_test
