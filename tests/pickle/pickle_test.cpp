// Tests the pickle machine. From top to bottom: the result of every opcode, refusals, frames, nesting and memo entries,
// limits and memory, random opcodes.
#include "pickle/pickle.hpp"

#include "doctest_safemap.hpp"
#include "forge/pickle.hpp"
#include "soak.hpp"
#include "torch/fixtures.hpp"

#include <random>
#include <vector>

namespace pickle_test {

using namespace safemap;
using Kind = PickleGraph::Kind;

namespace {

/// A graph with the bytes that it borrows.
struct Read {
    explicit Read(std::string_view pickle, const PickleLimits& limits = {})
        : bytes(pickle.begin(), pickle.end()), graph(read_pickle(bytes, limits)) {}
    std::vector<char> bytes;
    PickleGraph graph;
};

/// Returns the value as Python prints it; shared and cyclic objects are cut at a depth.
std::string shown(const PickleGraph& graph, PickleGraph::Id id, int depth = 6) {
    if (depth == 0) return "...";
    const auto list = [&](std::span<const PickleGraph::Id> items) {
        std::string out;
        for (const auto item : items) out += (out.empty() ? "" : ", ") + shown(graph, item, depth - 1);
        return out;
    };
    switch (graph.kind(id)) {
        case Kind::none: return "None";
        case Kind::boolean: return graph.boolean(id) ? "True" : "False";
        case Kind::integer: return std::to_string(graph.integer(id));
        case Kind::big_integer: return graph.decimal(id);
        case Kind::real: return "f" + std::to_string(graph.real(id));
        case Kind::text: return "'" + std::string(graph.text(id)) + "'";
        case Kind::bytes: return "b'" + std::string(graph.text(id)) + "'";
        case Kind::bytearray: return "bytearray('" + std::string(graph.text(id)) + "')";
        case Kind::list: return "[" + list(graph.items(id)) + "]";
        case Kind::tuple: return "(" + list(graph.items(id)) + ")";
        case Kind::dict: return "{" + list(graph.items(id)) + "}";
        case Kind::set: return "set(" + list(graph.items(id)) + ")";
        case Kind::frozenset: return "frozenset(" + list(graph.items(id)) + ")";
        case Kind::global: return std::string(graph.global(id).module) + "." + std::string(graph.global(id).name);
        case Kind::persistent: return "persistent " + shown(graph, graph.persistent(id), depth - 1);
        case Kind::call: break;
    }
    const auto call = graph.call(id);
    std::string out = shown(graph, call.callee, depth - 1) + shown(graph, call.arguments, depth - 1);
    if (call.keywords != PickleGraph::nothing) out += "**" + shown(graph, call.keywords, depth - 1);
    for (const auto state : call.states) out += " state " + shown(graph, state, depth - 1);
    if (!call.items.empty()) out += " items " + list(call.items);
    if (!call.appends.empty()) out += " appends " + list(call.appends);
    return out;
}

std::string shown(std::string_view pickle) {
    const Read read(pickle);
    return shown(read.graph, read.graph.root());
}

using namespace std::string_literals;

}  // namespace

TEST_CASE("every opcode gives the value that Python gives") {
    const std::pair<std::string, std::string> cases[]{
        {"N.", "None"},
        {"\x88.", "True"},
        {"\x89.", "False"},
        {"I00\n.", "False"},
        {"I01\n.", "True"},
        {"I0\n.", "0"},
        {"I-12\n.", "-12"},
        {"I+7\n.", "7"},
        {"I99999999999999999999\n.", "99999999999999999999"},
        {"L5L\n.", "5"},
        {"L-5\n.", "-5"},
        {"L-99999999999999999999L\n.", "-99999999999999999999"},
        {"J\xff\xff\xff\xff.", "-1"},
        {"K\xff.", "255"},
        {"M\xff\xff.", "65535"},
        {"\x8a\x00."s, "0"},
        {"\x8a\x01\xff.", "-1"},
        {"\x8a\x02\x00\x01."s, "256"},
        {"\x8a\x01\x80.", "-128"},
        {"\x8a\x08\xff\xff\xff\xff\xff\xff\xff\x7f.", "9223372036854775807"},
        {"\x8a\x08\x00\x00\x00\x00\x00\x00\x00\x80."s, "-9223372036854775808"},
        {"\x8a\x09\x00\x00\x00\x00\x00\x00\x00\x80\x00."s, "9223372036854775808"},
        {"\x8a\x09\x00\x00\x00\x00\x00\x00\x00\x00\xff."s, "-18446744073709551616"},
        {"\x8a\x0d\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x01."s, "79228162514264337593543950336"},
        {"\x8b\x02\x00\x00\x00\x39\x30."s, "12345"},
        {"F1.5\n.", "f1.500000"},
        {"F-2e3\n.", "f-2000.000000"},
        {"G\x3f\xf8\x00\x00\x00\x00\x00\x00."s, "f1.500000"},
        {"S'it\\x41\\n\\''\n.", "'itA\n''"},
        {"S\"a\\101\\8\"\n.", "'aA\\8'"},
        {"U\003abc.", "'abc'"},
        {"U\x02\xff\xfe.", "b'\xff\xfe'"},
        {"T\x02\x00\x00\x00hi."s, "'hi'"},
        {"Vab\\u00e9\xe9\n.", "'ab\xc3\xa9\xc3\xa9'"},
        {"Va\\u0041\n.", "'aA'"},
        {"V\\U0001F600\\\\u0041\n.", "'\xf0\x9f\x98\x80\\\\u0041'"},
        {"X\x02\x00\x00\x00\xc3\xa9."s, "'\xc3\xa9'"},
        {"\x8c\x01x.", "'x'"},
        {"\x8d\x01\x00\x00\x00\x00\x00\x00\x00y."s, "'y'"},
        {"X\x03\x00\x00\x00\xed\xa0\x80."s, "'\xed\xa0\x80'"},
        {"C\x01\xff.", "b'\xff'"},
        {"B\x01\x00\x00\x00z."s, "b'z'"},
        {"\x8e\x01\x00\x00\x00\x00\x00\x00\x00z."s, "b'z'"},
        {"\x96\x01\x00\x00\x00\x00\x00\x00\x00z."s, "bytearray('z')"},
        {").", "()"},
        {"(K\x01K\x02t.", "(1, 2)"},
        {"K\x01\x85.", "(1)"},
        {"K\x01K\x02\x86.", "(1, 2)"},
        {"K\x01K\x02K\x03\x87.", "(1, 2, 3)"},
        {"].", "[]"},
        {"(K\x01K\x02l.", "[1, 2]"},
        {"]K\005a.", "[5]"},
        {"](K\x01K\002e.", "[1, 2]"},
        {"](e.", "[]"},
        {"}.", "{}"},
        {"(K\x01K\002d.", "{1, 2}"},
        {"}K\x01K\x02s.", "{1, 2}"},
        {"}(K\x01K\x02K\x03K\x04u.", "{1, 2, 3, 4}"},
        {"\x8f.", "set()"},
        {"\x8f(K\x01K\x02\x90.", "set(1, 2)"},
        {"(K\x01\x91.", "frozenset(1)"},
        {"K\x01K\0020.", "1"},
        {"K\x01(K\x02K\0031.", "1"},
        {"K\x01(0.", "1"},
        {"K\0012\x86.", "(1, 1)"},
        {"K\x07p0\n0g0\n.", "7"},
        {"K\x07q\0050h\x05.", "7"},
        {"K\x07r\x05\x00\x00\0000j\x05\x00\x00\x00."s, "7"},
        {"K\x07\2240h\x00."s, "7"},
        {"K\x07\x94K\x08\22400h\x01.", "8"},
        // Memo entries far above the pickle's length, and how MEMOIZE counts them.
        {"K\x07r\xff\xff\xff\0010j\xff\xff\xff\x01.", "7"},
        {"K\x07r\xfc\x2e\x00\x00"
         "K\x08\22400h\x01."s,
         "8"},
        {"cmod\nName\n.", "mod.Name"},
        {"\x8c\x03mod\x8c\003A.B\x93.", "mod.A.B"},
        {"c__builtin__\nxrange\n.", "builtins.range"},
        {"c__builtin__\nset\n.", "builtins.set"},
        {"ccopy_reg\n_reconstructor\n.", "copyreg._reconstructor"},
        {"ccPickle\nloads\n.", "pickle.loads"},
        {"\x80\003ccPickle\nloads\n.", "cPickle.loads"},
        {"\x80\x04\x80\002ccPickle\nloads\n.", "pickle.loads"},
        {"ctorch.tensor\nx\n.", "torch._tensor.x"},
        {"cm\nf\nK\x01\x85R.", "m.f(1)"},
        {"cm\nC\n)\x81.", "m.C()"},
        {"cm\nC\n)}\x92.", "m.C()**{}"},
        {"(K\x01im\nC\n.", "m.C(1)"},
        {"(cm\nC\nK\x01o.", "m.C(1)"},
        {"cm\nC\n)\x81}b.", "m.C() state {}"},
        {"cm\nC\nNb.", "m.C() state None"},
        {"cm\nC\n)\x81K\x01K\x02s.", "m.C() items 1, 2"},
        {"cm\nC\n)\x81(K\001e.", "m.C() appends 1"},
        {"K\x01Q.", "persistent 1"},
        {"\x80\x05N.", "None"},
        {"\x95\x02\x00\x00\x00\x00\x00\x00\x00N."s, "None"},
        {"c__builtin__\ngetattr\ncm\nOuter\nX\x05\x00\x00\x00Inner\x86R."s, "m.Outer.Inner"},
        {"cbuiltins\ngetattr\ncm\nC\nX\x08\x00\x00\x00__init__\x86R."s, "builtins.getattr(m.C, '__init__')"},
    };
    for (const auto& row : cases) {
        const auto& pickle = row.first;  // not a structured binding: Clang 14 cannot capture those
        const auto& wanted = row.second;
        CAPTURE(wanted);
        std::string found;
        CHECK_OK(found = shown(pickle));
        CHECK(found == wanted);
    }
}

TEST_CASE("every opcode is refused if its operands are missing") {
    // Opcodes that need n values on the stack.
    const std::pair<std::string, int> needs[]{
        {"0", 1},    {"2", 1}, {"\x85", 1}, {"\x86", 2}, {"\x87", 3},  {"a", 2},    {"s", 3},    {"R", 2}, {"\x81", 2},
        {"\x92", 3}, {"b", 2}, {"Q", 1},    {"\x93", 2}, {"q\x01", 1}, {"p1\n", 1}, {"\x94", 1}, {".", 1},
    };
    for (const auto& row : needs) {
        const auto& opcode = row.first;  // not a structured binding: Clang 14 cannot capture those
        const auto& count = row.second;
        for (int have = 0; have < count; ++have) {
            CAPTURE(opcode);
            CAPTURE(have);
            const std::string stack(static_cast<std::size_t>(have), 'N');
            CHECK_FAULT(Read(stack + opcode + "N."), Errc::pickle_bad_stack);
            // Values below a mark cannot be reached. A POP removes the mark itself.
            if (opcode == "0" && have == 0) continue;
            CHECK_FAULT(Read("NNNN(" + stack + opcode + "N."), Errc::pickle_bad_stack);
        }
    }
    for (const char* opcode : {"t", "l", "d", "e", "u", "1", "\x90", "\x91", "o", "im\nC\n"}) {
        CAPTURE(opcode);
        CHECK_FAULT(Read("NN"s + opcode + "."), Errc::pickle_bad_stack);
    }
    CHECK_FAULT(Read("(e."), Errc::pickle_bad_stack);
    CHECK_FAULT(Read("(o."), Errc::pickle_bad_stack);
}

TEST_CASE("operands of the wrong kind are refused") {
    for (const char* pickle : {"NNa.", "N(Ne.", "NNNs.", "N(NNu.", "](NNu.", "}(Ne.", "N(N\x90.",
                               "}(NNN"
                               "u.",
                               "(Nd.", "N)R.", "cm\nf\nNR.", "cm\nf\n]R.", "cm\nC\nN\x81.", "cm\nC\n)N\x92.", "]}b.",
                               "K\x01}b.", "NN\x93.", "NQ}b.", "(NNo."}) {
        CAPTURE(pickle);
        CHECK_FAULT(Read(pickle), Errc::pickle_bad_stack);
    }
    for (const char* pickle :
         {"}]Ns.", "}}Ns.", "}\x8fNs.", "\x8f(]\x90.", "(]\x91.", "(]Nd.", "}]\x85Ns.", "}]\x85\x85Ns."}) {
        CAPTURE(pickle);
        CHECK_FAULT(Read(pickle), Errc::pickle_bad_key);
    }
    for (const char* pickle : {"}N\x85Ns.", "}(N\x91Ns.", "}cm\nC\nNs.", "}cm\nf\n)RNs."}) {
        CAPTURE(pickle);
        CHECK_OK(Read(pickle));
    }
}

TEST_CASE("lengths, texts and numbers are checked") {
    const std::pair<std::string, Errc> cases[]{
        {"", Errc::pickle_truncated},
        {"N", Errc::pickle_truncated},
        {"J\x01", Errc::pickle_truncated},
        {"I12", Errc::pickle_truncated},
        {"cm\nf", Errc::pickle_truncated},
        {"G\x01", Errc::pickle_truncated},
        {"X\xff\xff\xff\xff", Errc::pickle_bad_count},
        {"U\005abc.", Errc::pickle_bad_count},
        {"\x8b\xff\xff\xff\xff.", Errc::pickle_bad_count},
        {"T\xff\xff\xff\xff.", Errc::pickle_bad_count},
        {"\x8d\xff\xff\xff\xff\xff\xff\xff\xff.", Errc::pickle_bad_count},
        {"\x95\xff\xff\xff\xff\xff\xff\xff\xffN.", Errc::pickle_bad_count},
        {"I1 2\n.", Errc::pickle_bad_text},
        {"I\n.", Errc::pickle_bad_text},
        {"I-\n.", Errc::pickle_bad_text},
        {"Lx\n.", Errc::pickle_bad_text},
        {"Fx\n.", Errc::pickle_bad_text},
        {"F\n.", Errc::pickle_bad_text},
        {"F1.5x\n.", Errc::pickle_bad_text},
        {"Sabc\n.", Errc::pickle_bad_text},
        {"S'\n.", Errc::pickle_bad_text},
        {"S'a\\'\n.", Errc::pickle_bad_text},
        {"S'\\xZ1'\n.", Errc::pickle_bad_text},
        {"V\\u12\n.", Errc::pickle_bad_text},
        {"V\\U00110000\n.", Errc::pickle_bad_text},
        {"X\x01\x00\x00\x00\xff."s, Errc::pickle_bad_text},
        {"c\xff\nf\n.", Errc::pickle_bad_text},
        {"X\x02\x00\x00\x00\xed\xa0."s, Errc::pickle_bad_text},
        {"g1\n.", Errc::pickle_bad_memo},
        {"gx\n.", Errc::pickle_bad_memo},
        {"g-1\n.", Errc::pickle_bad_memo},
        {"h\x01.", Errc::pickle_bad_memo},
        {"Nr\xff\xff\xff\xff.", Errc::pickle_bad_memo},
        {"I010\n.", Errc::pickle_bad_text},
        {"I-00\n.", Errc::pickle_bad_text},
        {"I+-7\n.", Errc::pickle_bad_text},
        {"L010L\n.", Errc::pickle_bad_text},
        {"Np99999999999999999999\n.", Errc::pickle_bad_memo},
        {"\x80\x06N.", Errc::pickle_bad_opcode},
        {"\xffN.", Errc::pickle_bad_opcode},
        {"\x00N."s, Errc::pickle_bad_opcode},
        {"Pid\n.", Errc::pickle_unsupported},
        {"\x82\x01.", Errc::pickle_unsupported},
        {"\x83\x01\x00."s, Errc::pickle_unsupported},
        {"\x84\x01\x00\x00\x00."s, Errc::pickle_unsupported},
        {"\x97.", Errc::pickle_unsupported},
        {"\x98.", Errc::pickle_unsupported},
    };
    for (const auto& row : cases) {
        const auto& pickle = row.first;  // not a structured binding: Clang 14 cannot capture those
        const auto& code = row.second;
        CAPTURE(pickle);
        CHECK_FAULT(Read(pickle), code);
    }
}

TEST_CASE("frames are accepted where picklers write them") {
    const auto frame = [](const std::string& inside) { return "\x95" + forge::little(inside.size(), 8) + inside; };
    const std::string bytes = "B" + forge::little(4, 4) + "data";
    // A frame after the protocol, values of 64 KiB and more between frames, and parts too small to be framed.
    CHECK_OK(Read("\x80\x04" + frame("N.")));
    CHECK_OK(Read("\x80\x04" + frame("]\x94(") + bytes + frame("\x94K\001e.")));
    CHECK_OK(Read("\x80\x04" + frame("]\x94(") + bytes + "\x94" + "e."));
    CHECK_OK(Read("\x80\x04" + frame("]") + frame("]a") + frame("") + frame(".")));
    CHECK_OK(Read(frame("N.") + "what follows"));
}

TEST_CASE("frames that Python's readers interpret differently are refused") {
    const auto frame = [](std::uint64_t size) { return "\x95" + forge::little(size, 8); };
    const std::string bytes = "C\004data";
    const std::string pickle = "K\x07" + bytes + forge::text("text") + "cm\nf\n00I12\n0.";
    const auto is_boundary = [](std::size_t size) {
        for (const std::size_t at : {0U, 2U, 8U, 17U, 22U, 23U, 24U, 28U, 29U})
            if (size == at) return true;
        return false;
    };
    REQUIRE(pickle.size() == 30);
    for (std::size_t size = 0; size < pickle.size(); ++size) {
        CAPTURE(size);
        const std::string framed = frame(size) + pickle;
        if (is_boundary(size)) CHECK_OK(Read(framed));
        else CHECK_FAULT(Read(framed), Errc::pickle_bad_count);
    }
    CHECK_OK(Read(frame(pickle.size()) + pickle));
    CHECK_FAULT(Read(frame(pickle.size() + 1) + pickle), Errc::pickle_bad_count);
    // STOP before the end of the frame: readers disagree on where the next pickle begins.
    CHECK_FAULT(Read(frame(pickle.size() + 1) + pickle + "N."), Errc::pickle_bad_count);
    // A frame inside a frame, also at its end.
    CHECK_FAULT(Read(frame(12) + "N" + frame(1) + "0N."), Errc::pickle_bad_count);
    CHECK_FAULT(Read(frame(10) + "N" + frame(1) + "."), Errc::pickle_bad_count);
}

TEST_CASE("every byte is a known opcode or refused") {
    const std::string known = "(.0123]NIJKMLFGSTUVXBC)tldaesu}pqrghjcRbioPQ"s +
                              "\x80\x81\x82\x83\x84\x85\x86\x87\x88\x89\x8a\x8b\x8c\x8d\x8e\x8f"s +
                              "\x90\x91\x92\x93\x94\x95\x96\x97\x98"s;
    for (int byte = 0; byte < 256; ++byte) {
        CAPTURE(byte);
        const std::string pickle = std::string("NNNN") + static_cast<char>(byte);
        const auto error = error_of([&] { Read{pickle}; });
        if (byte == '.') continue;
        REQUIRE(error.has_value());
        const bool is_known = known.find(static_cast<char>(byte)) != known.npos && byte != '3';
        CHECK((error->code() == Errc::pickle_bad_opcode) == !is_known);
    }
}

TEST_CASE("nesting, marks and sharing cost no more than their bytes in the pickle") {
    CHECK_OK(Read(std::string(100'000, ']') + std::string(99'999, 'a') + "."));
    CHECK_OK(Read(")" + std::string(1'000'000, '\x85') + "."));
    CHECK_OK(Read("N" + std::string(100'000, '(') + "N."));
    CHECK_OK(Read(std::string(100'000, '(') + std::string(100'000, 't') + "."));
    std::string doubling = "]q\x00"s;
    for (int i = 1; i < 200; ++i) doubling += "22\x87q"s + static_cast<char>(i);
    CHECK_OK(Read(doubling + "."));
    // A chain of getattr: names whose length would grow quadratically stay calls.
    std::string chain = "cm\nC\n";
    std::string folds;
    for (int i = 0; i < 5000; ++i) folds += "X\x0a\x00\x00\000abcdefghij\x86R"s;
    std::string gets;
    for (int i = 0; i < 5000; ++i) gets += "cbuiltins\ngetattr\n";
    CHECK_OK(Read(gets + chain + folds + "."));
}

TEST_CASE("memo entries just above the pickle's length are found when lower ones come later") {
    std::string filler;
    for (int i = 0; i < 35; ++i) filler += "N0";
    // Stores 7 at 150, 8 at 75, 9 at 80.
    const std::string puts = filler + "K\x07r\x96"s + "\0\0\0"s + "0K\x08q\x4b" + "0K\x09q\x50" + "0";
    const auto read = [&](const std::string& rest) {
        const Read made(puts + rest);
        return shown(made.graph, made.graph.root());
    };
    CHECK(read("j\x96"s + "\0\0\0."s) == "7");
    CHECK(read("h\x4b.") == "8");
    CHECK(read("h\x50.") == "9");
    // Stores at 150 again: MEMOIZE counts three entries, and stores the next at 3.
    CHECK(read("K\x05r\x96"s + "\0\0\0"s + "0K\x06\x94" + "0h\x03.") == "6");
}

TEST_CASE("limits are enforced") {
    CHECK_FAULT(Read("NNN.", {.max_bytes = 3}), Errc::pickle_too_large);
    CHECK_OK(Read("c" + std::string(1000, 'm') + "\n" + std::string(24, 'n') + "\n."));
    CHECK_FAULT(Read("c" + std::string(1000, 'm') + "\n" + std::string(25, 'n') + "\n."), Errc::pickle_too_large);
    CHECK_FAULT(Read("\x8a\x09" + std::string(9, 'x') + ".", {.max_long_bytes = 8}), Errc::pickle_too_large);
}

TEST_CASE("memory is charged for values, slots, marks and memo entries") {
    constexpr PickleLimits limits{.max_memory = 1 << 20};
    const auto times = [](std::size_t count, std::string_view what) {
        std::string out;
        for (std::size_t i = 0; i < count; ++i) out += what;
        return out;
    };
    CHECK_OK(Read(times(10'000, "N") + ".", limits));
    CHECK_FAULT(Read(times(100'000, "N") + ".", limits), Errc::pickle_too_large);
    CHECK_FAULT(Read("N" + times(100'000, "2") + ".", limits), Errc::pickle_too_large);
    CHECK_FAULT(Read(times(100'000, "("), limits), Errc::pickle_too_large);
    CHECK_FAULT(Read(times(10'000, "]") + ".", limits), Errc::pickle_too_large);
    CHECK_FAULT(Read("Nr" + forge::little(200'000, 4) + std::string(200'000, '0') + ".", limits),
                Errc::pickle_too_large);
    CHECK_FAULT(Read("X" + forge::little(2 << 20, 4) + std::string(2 << 20, 'x') + ".", limits),
                Errc::pickle_too_large);
}

TEST_CASE("the memory limit of a pickle depends on its size in the file") {
    CHECK(PickleLimits::of_packed(0).max_bytes == PickleLimits::least_bytes);
    CHECK(PickleLimits::of_packed(0).max_memory == PickleLimits::least_memory);
    CHECK(PickleLimits::of_packed(4 << 20).max_bytes == 128 << 20);
    CHECK(PickleLimits::of_packed(16 << 20).max_memory == std::uint64_t{1} << 30);
    CHECK(PickleLimits::of_packed(~std::uint64_t{0}).max_bytes == PickleLimits::most_bytes);
    CHECK(PickleLimits::of_packed(~std::uint64_t{0}).max_memory == PickleLimits::most_bytes * 64);
}

TEST_CASE("values that are single objects in Python are single nodes") {
    const Read read("(NN\x88\x88\x89\x89))K\x07J" + forge::little(7, 4) + "K\x08t.");
    const auto items = read.graph.items(read.graph.root());
    CHECK(shown(read.graph, read.graph.root()) == "(None, None, True, True, False, False, (), (), 7, 7, 8)");
    CHECK(read.graph.size() == 7);
    CHECK(items[8] == items[9]);
    CHECK(items[9] != items[10]);
}

TEST_CASE("bytes after STOP are not consumed") {
    const Read read("N.junk");
    CHECK(read.graph.consumed() == 2);
}

TEST_CASE("random opcodes are read or refused, and nothing worse") {
    const unsigned seed = soak::seed(7);
    CAPTURE(seed);
    std::mt19937 random(seed);
    const std::string opcodes =
        "(.012NKUX)tldaesu]}qhcRbiogpQ\x85\x86\x87\x88\x8f\x90\x91\x92\x93\x94\x81\x8a\x8c\n\x01m";
    for (int round = 0; round < soak::rounds(20'000); ++round) {
        std::string pickle;
        for (std::size_t i = random() % 40; i > 0; --i) pickle += opcodes[random() % opcodes.size()];
        const auto error = error_of([&] { shown(pickle + "."); });
        if (error) CHECK(remedy(error->code()) == Remedy::reject_data);
    }
}

}  // namespace pickle_test
