// Tests the parts of the command line that need no file, one test suite for each: sizes and ranks, renaming, JSON,
// tables, the progress line, suggestions.
#include <safemap/advanced/small_floats.hpp>
#include <safemap/advanced/text.hpp>

#include "commands.hpp"
#include "convert_report.hpp"
#include "memory.hpp"
#include "output.hpp"
#include "parse.hpp"
#include "progress.hpp"
#include "rename.hpp"
#include "run.hpp"
#include "suggest.hpp"

#include "doctest_safemap.hpp"

#include <csignal>
#include <cstring>
#include <limits>
#include <memory>
#include <string>
#include <vector>

namespace parts_test {

using namespace safemap;
using namespace safemap::cli;

namespace {

std::string text_of(const JsonWriter& json) {
    std::string text;
    for (const std::string& block : json.blocks()) text += block;
    return text;
}

/// Returns the exit code of one call, as Python makes it.
int run_in_this_process(const std::vector<std::string>& words) {
    return run(std::vector<std::string>{"python3", "-m", "safemap"}, words);
}

using SignalHandler = void (*)(int);

SignalHandler handler_of(int signal) {
    struct sigaction action = {};
    ::sigaction(signal, nullptr, &action);
    return action.sa_handler;
}

}  // namespace

TEST_SUITE("run") {
    TEST_CASE("a process that goes on can call the command line often, and keeps its handlers of signals") {
        const SignalHandler ours = [](int) {};
        const SignalHandler before = std::signal(SIGINT, ours);
        const SignalHandler of_pipe = handler_of(SIGPIPE);
        const std::string file = SAFEMAP_TEST_DATA "/pt/aligned_1.pt";
        CHECK(run_in_this_process({"verify", "--quiet", file}) == 0);
        CHECK(run_in_this_process({"verify", "--quiet", file + ".missing"}) != 0);
        CHECK(run_in_this_process({"verify", "--quiet", file}) == 0);
        CHECK((handler_of(SIGINT) == ours));
        CHECK((handler_of(SIGPIPE) == of_pipe));
        std::signal(SIGINT, before);
    }
}

TEST_SUITE("parse") {
    TEST_CASE("a call is printed so that a shell reads the same words") {
        const auto line = [](std::vector<std::string> words) { return shell_line(words); };
        CHECK(line({"./safemap", "convert", "run/a.pt", "out", "--dtype=bf16"}) ==
              "./safemap convert run/a.pt out --dtype=bf16");
        CHECK(line({"a b", "$x", "*.pt", "~", "", "a\\b", "a;b"}) == R"('a b' '$x' '*.pt' '~' '' 'a\b' 'a;b')");
        CHECK(line({"it's"}) == R"('it'\''s')");
        CHECK(line({"gewicht-ü"}) == "'gewicht-ü'");
        // A message would escape these characters.
        CHECK(line({"a\nb 'c'"}) == R"($'a\012b \047c\047')");
        CHECK(line({"\xff"}) == R"($'\377')");
        CHECK(printable(line({"\x1b[2J\xe2\x80\xae"})) == R"($'\033\1332J\342\200\256')");
    }

    TEST_CASE("sizes have decimal units, binary units with an i, or no unit") {
        CHECK(parse_size("5GB") == 5'000'000'000);
        CHECK(parse_size("5G") == 5'000'000'000);
        CHECK(parse_size("7k") == 7000);
        CHECK(parse_size("5GiB") == 5ULL << 30);
        CHECK(parse_size("5gib") == 5ULL << 30);
        CHECK(parse_size("12 MB") == 12'000'000);
        CHECK(parse_size("1KiB") == 1024);
        CHECK(parse_size("3kB") == 3000);
        CHECK(parse_size("2TB") == 2'000'000'000'000);
        CHECK(parse_header_size("4294967295") == 4'294'967'295);
        CHECK_FAULT(parse_header_size("4294967296"), Errc::invalid_argument);
        CHECK_FAULT(parse_header_size("5GB"), Errc::invalid_argument);
        CHECK(parse_size("2TiB") == 2ULL << 40);
        CHECK(parse_size("17") == 17);
        CHECK(parse_size("0.5GB") == 500'000'000);
        CHECK(parse_size("1.5GiB") == 3ULL << 29);
        CHECK(parse_size("2.50 mb") == 2'500'000);
        CHECK(parse_size("1.9999k") == 1999);  // rounded down
        CHECK(parse_size("18446744073709551.615kB") == std::numeric_limits<std::uint64_t>::max());
        CHECK(parse_size("17B") == 17);
        CHECK(parse_size("18446744073709551615") == std::numeric_limits<std::uint64_t>::max());
    }

    TEST_CASE("an invalid size is refused") {
        for (const char* text : {"",
                                 "GB",
                                 "-1",
                                 "+1",
                                 "0",
                                 "0GB",
                                 "5XB",
                                 "5 GB ",
                                 " 5GB",
                                 "5  GB",
                                 "0x10",
                                 "18446744073709551616",
                                 "18446744073709552KB",
                                 "5GBs",
                                 "5Gi",
                                 "G",
                                 "1.5",
                                 "1.5B",
                                 ".5GB",
                                 "5.GB",
                                 "1,5GB",
                                 "1.5.5GB",
                                 "2.5e9",
                                 "0.0000000001GB",
                                 "0.0000000000000000001TB"}) {
            CAPTURE(text);
            CHECK_FAULT(parse_size(text), Errc::invalid_argument);
        }
    }

    TEST_CASE("dtypes are spelled as safetensors or as torch spells them") {
        for (const char* text : {"bf16", "BF16", "bfloat16"}) CHECK(parse_dtype_name(text) == Dtype::bf16);
        for (const char* text : {"fp16", "FP16", "float16", "half", "f16"}) CHECK(parse_dtype_name(text) == Dtype::f16);
        for (const char* text : {"fp32", "float32", "float"}) CHECK(parse_dtype_name(text) == Dtype::f32);
        for (const char* text : {"fp64", "float64", "double"}) CHECK(parse_dtype_name(text) == Dtype::f64);
        for (const char* text : {"fp8_e4m3", "float8_e4m3", "float8_e4m3fn"})
            CHECK(parse_dtype_name(text) == Dtype::f8_e4m3);
        for (const char* text : {"half-ish", "fp8", "float8", "f8", "fp", "fp17", ""})
            CHECK_FAULT(parse_dtype_name(text), Errc::invalid_argument);
    }

    TEST_CASE("a policy is compatible, strict or lenient") {
        CHECK(parse_policy("compatible") == Policy::compatible);
        CHECK(parse_policy("strict") == Policy::strict);
        CHECK(parse_policy("lenient") == Policy::lenient);
        for (const char* text : {"lax", "", "Strict"}) CHECK_FAULT(parse_policy(text), Errc::invalid_argument);
    }

    TEST_CASE("access is auto, mapped or copied") {
        CHECK(parse_access("auto") == Access::automatic);
        CHECK(parse_access("mapped") == Access::mapped);
        CHECK(parse_access("copied") == Access::copied);
        CHECK_FAULT(parse_access("automatic"), Errc::invalid_argument);
    }

    TEST_CASE("a strategy is greedy, balanced or by_prefix, and an index style is hub or transformers") {
        CHECK(parse_strategy("greedy") == ShardStrategy::greedy);
        CHECK(parse_strategy("balanced") == ShardStrategy::balanced);
        CHECK(parse_strategy("by_prefix") == ShardStrategy::by_prefix);
        CHECK(parse_index_style("hub") == IndexStyle::hub);
        CHECK(parse_index_style("transformers") == IndexStyle::transformers);
        for (const char* text : {"", "by-prefix", "Greedy", "hub "}) {
            CHECK_FAULT(parse_strategy(text), Errc::invalid_argument);
            CHECK_FAULT(parse_index_style(text), Errc::invalid_argument);
        }
    }

    TEST_CASE("a count is a whole number from 1 on") {
        CHECK(parse_count("1", 10) == 1);
        CHECK(parse_count("10", 10) == 10);
        for (const char* text : {"", "0", "11", "1.5", "-1", "+1", " 1", "1 ", "many", "99999999999999999999"}) {
            CAPTURE(text);
            CHECK_FAULT(parse_count(text, 10), Errc::invalid_argument);
        }
    }

    TEST_CASE("a rank is below the number of ranks") {
        CHECK(parse_rank("0/1").of == 1);
        CHECK(parse_rank("7/8").number == 7);
        for (const char* text : {"", "1", "8/8", "0/0", "-1/8", "1/", "/8", "1/8/8", "1 /8"}) {
            CAPTURE(text);
            CHECK_FAULT(parse_rank(text), Errc::invalid_argument);
        }
    }
}

TEST_SUITE("rename") {
    std::string renamed(std::string_view rule, const std::string& name) { return RenameRule(rule).apply(name); }

    TEST_CASE("the first match is replaced, or every match with g") {
        CHECK(renamed("s/layers/h/", "model.layers.0.layers") == "model.h.0.layers");
        CHECK(renamed("s/layers/h/g", "model.layers.0.layers") == "model.h.0.h");
        CHECK(renamed("s/^model\\.//", "model.w") == "w");
        CHECK(renamed("s/x/y/", "none") == "none");
        CHECK(renamed("s/a*/-/g", "baac") == "-b--c-");  // as in ECMAScript: an empty match counts
        CHECK(renamed("s/$/.weight/", "lm_head") == "lm_head.weight");
        CHECK(renamed("s/.*//", "w").empty());
        CHECK(renamed("s/./x/", "") == "");
    }

    TEST_CASE("groups are $1 or \\1, the whole match is $&, and a dollar is $$") {
        CHECK(renamed("s/(\\w+)\\.(\\d+)/$2.$1/", "layers.12.w") == "12.layers.w");
        CHECK(renamed("s/(\\w+)\\.(\\d+)/\\2.\\1/", "layers.12.w") == "12.layers.w");
        CHECK(renamed("s/[0-9]+/<$&>/g", "a.1.b.23") == "a.<1>.b.<23>");
        CHECK(renamed("s/a/$$/", "a") == "$");
        CHECK(renamed("s/a/$x$/", "a") == "$x$");
        CHECK(renamed("s/(a)/$10/", "a") == "a0");
        CHECK(renamed("s/(a)/\\10/", "a") == "a0");
        CHECK(renamed("s/(a)(b)(c)(d)(e)(f)(g)(h)(i)(j)/$10/", "abcdefghij") == "j");
        CHECK(renamed("s/(a)|(b)/[$1$2]/g", "ab") == "[a][b]");
    }

    TEST_CASE("any punctuation can replace the slash, and a backslash escapes it") {
        CHECK(renamed("s|a/b|c/d|", "a/b") == "c/d");
        CHECK(renamed("s/a\\/b/c\\/d/", "a/b") == "c/d");
        CHECK(renamed("s,a,x\\,y,", "a") == "x,y");
        CHECK(renamed("s/a/\\\\/", "a") == "\\");
        CHECK(renamed("s/\\\\/-/", "a\\b") == "a-b");
        CHECK(renamed("s|a\\|b|x|", "a|b") == "x");
    }

    TEST_CASE("an invalid rule is refused") {
        for (const char* rule :
             {"",       "s",        "s/",        "s/a",     "s/a/",       "s/a/b",    "a/b/",   "/a/b/",
              "sxaxbx", "s a b ",   "s\\a\\b\\", "s/a/b/i", "s/a/b/gg",   "s/a/b/ g", "s//b/",  "s/(/b/",
              "s/[/b/", "s/a{2/b/", "s/*/b/",    "s/a/$1/", "s/(a)/\\2/", "s/a/\\n/", "s/a/b\\"}) {
            CAPTURE(std::string(rule));
            CHECK_FAULT(RenameRule(rule), Errc::invalid_argument);
        }
        CHECK_FAULT(RenameRule("s/" + std::string(10'000, '(') + "/b/"), Errc::invalid_argument);
    }

    TEST_CASE("a name too long for the regex engine's stack is refused, with any rule") {
        const std::string longest(1024, 'a');
        for (const char* rule : {"s/((a)|(b))*/x/", "s/.*/x/", "s/((((a|b)+)|c)?)*/x/"})
            CHECK(renamed(rule, longest) == "x");
        CHECK_FAULT(renamed("s/b/x/", longest + 'a'), Errc::invalid_argument);
        CHECK_FAULT(renamed("s/b/x/", std::string(10'000'000, 'a')), Errc::invalid_argument);
        // Replacing a prefix does not use the regex engine.
        CHECK(Renaming({.prefixes = {"a"}}).apply(longest + 'b').size() == 1024);
    }

    TEST_CASE("prefixes are replaced first, then rules are applied in order, each to the result of the one before") {
        Renaming renaming({.prefixes = {"module.", "model."}, .rules = {"s/^a/b/", "s/^b/c/", "s/^model/d/"}});
        CHECK(renaming.apply("module.model.a") == "c");
        CHECK(renaming.apply("model.module.x") == "module.x");
        CHECK(renaming.apply("module") == "module");
        CHECK_FAULT(renaming.apply("model."), Errc::invalid_argument);
        CHECK(renaming.apply("").empty());
    }

    TEST_CASE("a rule that changes no name is noted") {
        Renaming renaming({.prefixes = {"x."}, .rules = {"s/a/a/", "s/a/b/"}});
        CHECK(renaming.notes().size() == 3);
        renaming.apply("a");
        renaming.apply("c");
        CHECK(renaming.notes() == std::vector<std::string>{"--strip-prefix 'x.': no name begins with it",
                                                           "--rename 's/a/a/': it changes no name"});
    }
}

TEST_SUITE("json") {
    TEST_CASE("commas, colons and brackets are in the right places") {
        JsonWriter json;
        json.begin_object();
        json.member("a", 1).member("b", std::vector<std::string>{"x", "y"}).key("c").begin_array();
        json.begin_object().end_object().begin_object().member("d", true).end_object().end_array();
        json.key("e").begin_array().end_array().member("f", std::vector<std::vector<int>>{{1}, {}, {2, 3}});
        json.end_object();
        CHECK(text_of(json) == R"({"a": 1, "b": ["x", "y"], "c": [{}, {"d": true}], "e": [], "f": [[1], [], [2, 3]]})");
    }

    TEST_CASE("a long text is in blocks, none of which is large") {
        JsonWriter json;
        std::string wanted = "[";
        json.begin_array();
        for (int i = 0; i < 400'000; ++i) {
            json.value(i);
            wanted += (i == 0 ? "" : ", ") + std::to_string(i);
        }
        json.end_array();
        CHECK((text_of(json) == wanted + "]"));
        CHECK(json.blocks().size() == wanted.size() / (1 << 20) + 1);
        for (const std::string& block : json.blocks()) CHECK(block.size() <= (1 << 20) + 16);
    }

    TEST_CASE("integers are exact, and other numbers round-trip") {
        JsonWriter json;
        json.begin_array();
        json.value(std::numeric_limits<std::uint64_t>::max()).value(-7).value(0.1).value(1e300);
        json.value(std::numeric_limits<double>::quiet_NaN()).value(std::numeric_limits<double>::infinity());
        json.end_array();
        CHECK(text_of(json) == "[18446744073709551615, -7, 0.1, 1e+300, null, null]");
    }

    TEST_CASE("any bytes become a valid UTF-8 string") {
        const auto text = [](std::string_view bytes) {
            JsonWriter json;
            json.value(bytes);
            return text_of(json);
        };
        CHECK(text("a\"b\\c\n\t\x01\x7f") == R"("a\"b\\c\n\t\u0001\u007f")");
        CHECK(text(std::string_view("a\0b", 3)) == R"("a\u0000b")");
        CHECK(text("gr\xC3\xB6\xC3\x9F\x65 \xF0\x9F\xA6\x99") == "\"gr\xC3\xB6\xC3\x9F\x65 \xF0\x9F\xA6\x99\"");
        // A stray byte, a truncated character, an overlong slash, a surrogate, a code point beyond the last.
        CHECK(text("\xFFx") == "\"\xEF\xBF\xBDx\"");
        CHECK(text("x\xC3") == "\"x\xEF\xBF\xBD\"");
        CHECK(text("\xC0\xAF") == "\"\xEF\xBF\xBD\xEF\xBF\xBD\"");
        CHECK(text("\xED\xA0\x80") == "\"\xEF\xBF\xBD\xEF\xBF\xBD\xEF\xBF\xBD\"");
        CHECK(text("\xF4\x90\x80\x80") == "\"\xEF\xBF\xBD\xEF\xBF\xBD\xEF\xBF\xBD\xEF\xBF\xBD\"");
    }

    TEST_CASE("an error has only the members that apply") {
        const auto text = [](const Error& error) {
            JsonWriter json;
            json.begin_object();
            write_error_members(json, error);
            json.end_object();
            return text_of(json);
        };
        CHECK(text(Error(Errc::no_space, "full")) == R"({"code": "no_space", "message": "full"})");
        CHECK(text(Error(Errc::size_mismatch, "m").with_path("p").with_tensor("t").with_hint("h")) ==
              R"({"code": "size_mismatch", "message": "m", "path": "p", "tensor": "t", "hint": "h"})");
    }
}

TEST_SUITE("text") {
    TEST_CASE("sizes are readable, and below a thousand of their unit") {
        CHECK(bytes_text(0) == "0 B");
        CHECK(bytes_text(999) == "999 B");
        CHECK(bytes_text(1000) == "1.0 kB");
        CHECK(bytes_text(999'949) == "999.9 kB");
        CHECK(bytes_text(999'950) == "1.0 MB");
        CHECK(bytes_text(14'500'000'000) == "14.5 GB");
        CHECK(bytes_text(std::numeric_limits<std::uint64_t>::max()) == "18.4 EB");
    }

    TEST_CASE("durations have as many digits as they need") {
        CHECK(duration_text(0.254) == "0.25 s");
        CHECK(duration_text(9.999) == "10 s");
        CHECK(duration_text(59.6) == "1 min 0 s");
        CHECK(duration_text(200) == "3 min 20 s");
        CHECK(duration_text(7500) == "2 h 5 min");
    }

    TEST_CASE("characters that move a terminal's cursor are escaped") {
        CHECK(printable("a\x1b[2Jb\n") == "a\\x1b[2Jb\\x0a");
        CHECK(printable("\xC2\23331m") == "\\xc2\\x9b31m");
        CHECK(printable("mod\xC3\xA8le \xFF") == "mod\xC3\xA8le \\xff");
    }

    TEST_CASE("invisible characters and characters that change the direction of text are escaped") {
        // The first and the last of each range are escaped, and their neighbours are not.
        const auto escaped = [](const char* text) { return printable(text) != text; };
        for (const char* text : {"\xC2\x80", "\xC2\x9F", "\xE2\x80\x8B", "\xE2\x80\x8F", "\xE2\x80\xA8", "\xE2\x80\xAA",
                                 "\xE2\x80\xAE", "\xE2\x81\xA6", "\xE2\x81\xA9", "\xEF\xBB\xBF"}) {
            CAPTURE(printable(text));
            CHECK(escaped(text));
        }
        for (const char* text : {" ", "~", "\xC2\xA0", "\xE2\x80\x8A", "\xE2\x80\x90", "\xE2\x80\xA7", "\xE2\x80\xAF",
                                 "\xE2\x81\xA5", "\xE2\x81\xAA", "\xEF\xBB\xBE", "\xEF\xBC\x80", "\xF0\x9F\xA6\x99"}) {
            CAPTURE(text);
            CHECK_FALSE(escaped(text));
        }
        CHECK(printable("w\xE2\x80\xAEx") == "w\\xe2\\x80\\xaex");
    }

    TEST_CASE("columns are aligned by characters, not by bytes") {
        Table table({Table::Align::left, Table::Align::right});
        table.row({"mod\xC3\xA8le", "5"});
        table.row({"w", "1234"});
        table.row({"only", ""});
        CHECK(table.text() == "  mod\xC3\xA8le     5\n  w       1234\n  only\n");
    }

    TEST_CASE("a cell that is too long does not widen other rows") {
        const std::string most(80, 'm');
        const std::string more(81, 'n');
        Table table({Table::Align::left, Table::Align::right, Table::Align::right});
        table.row({"w", "1", "5"});
        table.row({more, more, "1234"});
        CHECK(table.text() == "  w  1     5\n  " + more + "  " + more + "  1234\n");
        table.row({most, "2", "6"});
        const std::string gap(79, ' ');
        CHECK(table.text() == "  w" + gap + "  1     5\n  " + more + "  " + more + "  1234\n  " + most + "  2     6\n");
    }
}

TEST_SUITE("progress") {
    TEST_CASE("the line shows bytes, rate and remaining time") {
        const Progress half{
            .stage = "converting", .bytes_done = 500'000'000, .bytes_total = 1'000'000'000, .bytes_per_second = 250e6};
        CHECK(progress_line(half, 200) ==
              "converting  50%  500.0 MB of 1.0 GB  250.0 MB/s  2.00 s left  [############            ]");
    }

    TEST_CASE("a narrow terminal gets a shorter line") {
        const Progress half{
            .stage = "converting", .bytes_done = 500'000'000, .bytes_total = 1'000'000'000, .bytes_per_second = 250e6};
        CHECK(progress_line(half, 40) == "converting  50%  500.0 MB of 1.0 GB");
        CHECK(progress_line(half, 4) == "conv");
        CHECK(progress_line(half, 0).empty());
    }

    TEST_CASE("zero bytes are complete") {
        CHECK(progress_line({.stage = "loading"}, 60) == "loading 100%  0 B of 0 B  0 B/s  [########################]");
    }
}

TEST_CASE("notes that a person can act on are told from those that say how a file was read") {
    for (const char* const note :
         {"read the tag 'global_step500'", "read the checkpoint in model", "a.pt: allowed: tensor 'a': unknown field",
          "1 dictionary has attributes (such as _metadata), for example ~root; only a structure document keeps this",
          "config.json is copied without its quantization_config"})
        CHECK_FALSE(is_actionable(note));
    for (const char* const note :
         {"the checkpoint has the parts model, optimizer; --root PART converts one of them",
          "read the checkpoint in final; not read: other", "read a.safetensors; not read: optimizer.pt",
          "'config.json' is not copied: it is a link out of the folder, to /etc/passwd", "anything new"})
        CHECK(is_actionable(note));
}

TEST_CASE("the memory peak includes memory that was freed") {
    MemoryPeak peak;
    const std::uint64_t before = anonymous_bytes();
    CHECK(before > 0);
    constexpr std::size_t size = 64ULL << 20;
    {
        auto block = std::make_unique<char[]>(size);
        std::memset(block.get(), 1, size);
        CHECK(block[size / 2] == 1);
        CHECK(peak.bytes() >= before + size);
    }
    CHECK(peak.bytes() >= before + size);
}

TEST_SUITE("nearest") {
    TEST_CASE("an added, missing, changed or swapped letter is corrected") {
        const std::vector<std::string> names = {"inspect", "convert", "verify", "diff", "hash", "plan", "load"};
        CHECK(nearest("inspect", names) == "inspect");
        CHECK(nearest("convret", names) == "convert");
        CHECK(nearest("verifyy", names) == "verify");
        CHECK(nearest("hsh", names) == "hash");
        CHECK(nearest("dif", names) == "diff");
        CHECK(nearest("pian", names) == "plan");
        CHECK(nearest("", names).empty());
        CHECK(nearest("x", names).empty());
        CHECK(nearest("frobnicate", names).empty());
        CHECK(nearest("verify", {}).empty());
    }
}

}  // namespace parts_test
