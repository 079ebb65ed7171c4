// Tests reading headers. From top to bottom: the cases labelled by the reference, content and metadata, JSON faults and
// limits, policies, unknown fields, collecting faults, large and mutated headers.
#include "safetensors/header.hpp"

#include <safemap/advanced/dtypes.hpp>

#include "check_error.hpp"
#include "doctest_safemap.hpp"
#include "forge/files.hpp"
#include "soak.hpp"

#include <algorithm>
#include <fstream>
#include <map>
#include <random>
#include <set>

namespace header_test {

using namespace safemap;
using safetensors::Header;
using safetensors::Rules;

namespace {

constexpr std::uint64_t limit = 100'000'000;

Header read(std::string_view file, std::uint64_t max_header_bytes = limit, Rules rules = Rules::compatible) {
    ThrowFirst faults;
    return safetensors::read_header(*forge::source(file), rules, max_header_bytes, faults);
}

Header read(std::string_view header, std::string_view data) { return read(forge::safetensors(header, data)); }

std::vector<Error> all_faults(std::string_view file) {
    CollectFaults faults;
    static_cast<void>(safetensors::read_header(*forge::source(file), Rules::compatible, limit, faults));
    return faults.take();
}

/// Returns a header of one tensor 'a' with these fields.
std::string one(std::string_view dtype, std::string_view shape, std::string_view offsets) {
    return R"({"a":{"dtype":")" + std::string(dtype) + R"(","shape":)" + std::string(shape) + R"(,"data_offsets":)" +
           std::string(offsets) + "}}";
}

/// Decodes ~hh to one byte.
std::string unescaped(std::string_view text) {
    std::string bytes;
    for (std::size_t i = 0; i < text.size(); ++i) {
        if (text[i] != '~') {
            bytes += text[i];
            continue;
        }
        bytes += static_cast<char>(std::stoi(std::string(text.substr(i + 1, 2)), nullptr, 16));
        i += 2;
    }
    return bytes;
}

struct Case {
    std::string label;
    std::size_t data_bytes = 0;
    bool accepted = false;
    std::string variant;
    std::string header;
};

std::vector<Case> reference_cases() {
    std::ifstream file(SAFEMAP_TEST_DATA "/safetensors/header_cases.tsv");
    std::vector<Case> cases;
    for (std::string line; std::getline(file, line);) {
        if (line.empty() || line.front() == '#') continue;
        std::vector<std::string> columns;
        for (std::size_t begin = 0; begin <= line.size();) {
            const std::size_t end = columns.size() == 4 ? line.size() : std::min(line.find('\t', begin), line.size());
            columns.push_back(line.substr(begin, end - begin));
            begin = end + 1;
        }
        columns.resize(5);
        cases.push_back(
            {columns[0], std::stoul(columns[1]), columns[2] == "accept", columns[3], unescaped(columns[4])});
    }
    return cases;
}

/// The reference's error variants, each with safemap's codes for it.
const std::map<std::string, std::set<Errc>> families = {
    {"InvalidHeader", {Errc::header_not_utf8}},
    {"InvalidHeaderDeserialization",
     {Errc::header_not_json, Errc::header_bad_field, Errc::header_bad_metadata, Errc::unknown_dtype}},
    {"InvalidOffset", {Errc::offsets_reversed, Errc::offsets_overlap, Errc::offsets_leave_gap}},
    {"ValidationOverflow", {Errc::shape_overflow}},
    {"MisalignedSlice", {Errc::partial_byte}},
    {"TensorInvalidInfo", {Errc::size_mismatch}},
    {"MetadataIncompleteBuffer", {Errc::file_truncated, Errc::trailing_bytes}},
};

std::string with_depth(unsigned arrays) {
    return R"({"a":{"dtype":"U8","shape":[],"data_offsets":[0,1],"x":)" + std::string(arrays, '[') +
           std::string(arrays, ']') + "}}";
}

std::string with_unknown(std::string_view value) {
    return R"({"a":{"dtype":"U8","shape":[],"data_offsets":[0,1],"x":)" + std::string(value) + "}}";
}

}  // namespace

TEST_CASE("all labelled cases get the verdict of the reference") {
    const auto cases = reference_cases();
    REQUIRE(cases.size() == 86);
    for (const Case& c : cases) {
        CAPTURE(c.label);
        const std::string file = forge::safetensors(c.header, std::string(c.data_bytes, 'd'));
        const auto error = error_of([&] { static_cast<void>(read(file)); });
        CHECK(c.accepted == !error.has_value());
        if (!error || c.accepted) continue;
        CAPTURE(error->what());
        CHECK(families.at(c.variant).count(error->code()) == 1);
    }
}

TEST_CASE("a header gives dtype, shape and place of every tensor") {
    const std::string json =
        R"({"__metadata__":{"z":"1","a":"2"},"w":{"dtype":"F32","shape":[2,3],"data_offsets":[2,26]},)"
        R"("b":{"dtype":"BF16","shape":[],"data_offsets":[0,2]}})";
    const Header header = read(json, std::string(26, 'd'));
    REQUIRE(header.tensors.size() == 2);
    CHECK(header.data_offset == 8 + json.size());
    CHECK(header.tensors[0].name == "b");
    CHECK(header.tensors[0].dtype == Dtype::bf16);
    CHECK(header.tensors[0].shape == Shape{});
    CHECK(header.tensors[0].data == Extent{header.data_offset, 2});
    CHECK(header.tensors[1].name == "w");
    CHECK(header.tensors[1].shape == Shape{2, 3});
    CHECK(header.tensors[1].data == Extent{header.data_offset + 2, 24});
    CHECK(header.has_metadata);
    CHECK(header.metadata == std::vector<std::pair<std::string, std::string>>{{"a", "2"}, {"z", "1"}});
}

TEST_CASE("every dtype is known by its name") {
    for (int i = 0; i < safetensors_dtypes; ++i) {
        const auto dtype = static_cast<Dtype>(i);
        CAPTURE(dtype);
        const unsigned bytes = bits(dtype);  // bytes of eight elements
        const Header header =
            read(one(name(dtype), "[8]", "[0," + std::to_string(bytes) + "]"), std::string(bytes, 'd'));
        CHECK(header.tensors[0].dtype == dtype);
    }
    CHECK_FAULT(read(one("C128", "[1]", "[0,16]"), std::string(16, 'd')), Errc::unknown_dtype);
}

TEST_CASE("the last of two tensors of one name counts") {
    const Header header = read(R"({"a":{"dtype":"I32","shape":[1],"data_offsets":[0,4]},)"
                               R"("\u0061":{"dtype":"F32","shape":[1],"data_offsets":[0,4]}})",
                               "dddd");
    REQUIRE(header.tensors.size() == 1);
    CHECK(header.tensors[0].dtype == Dtype::f32);
}

TEST_CASE("a fault in a tensor that is later replaced is still a fault") {
    CHECK_FAULT(read(R"({"a":null,"a":{"dtype":"F32","shape":[1],"data_offsets":[0,4]}})", "dddd"),
                Errc::header_bad_field);
}

TEST_CASE("metadata may be absent, null or empty, and its last value counts") {
    CHECK_FALSE(read("{}", "").has_metadata);
    CHECK_FALSE(read(R"({"__metadata__":null})", "").has_metadata);
    const Header empty = read(R"({"__metadata__":{}})", "");
    CHECK(empty.has_metadata);
    CHECK(empty.metadata.empty());
    const Header twice = read(R"({"__metadata__":{"a":"b","c":"d","a":"e"}})", "");
    CHECK(twice.metadata == std::vector<std::pair<std::string, std::string>>{{"a", "e"}, {"c", "d"}});
    CHECK_FAULT(read(R"({"__metadata__":null,"__metadata__":null})", ""), Errc::header_bad_metadata);
    CHECK_FAULT(read(R"({"__metadata__":{"a":1}})", ""), Errc::header_bad_metadata);
    CHECK_FAULT(read(R"({"__metadata__":"a"})", ""), Errc::header_bad_metadata);
    CHECK(read(R"({"\u005f_metadata__":{"a":"b"}})", "").has_metadata);
}

TEST_CASE("metadata is unescaped") {
    const Header header =
        read(R"({"__metadata__":{"a\"":"b\"","":"","\u00e9\n\u00e9":"\\","z":"a\\","c":"\u0041\u00e9\n"},)"
             R"("t":{"dtype":"U8","shape":[1],"data_offsets":[0,1]}})",
             "t");
    using Pairs = std::vector<std::pair<std::string, std::string>>;
    CHECK(header.metadata ==
          Pairs{{"", ""}, {"a\"", "b\""}, {"c", "A\u00e9\n"}, {"z", "a\\"}, {"\u00e9\n\u00e9", "\\"}});
    CHECK(header.tensors[0].name == "t");
    // For a duplicate key, however it is escaped, the last value counts.
    CHECK(read(R"({"__metadata__":{"a":"1","\u0061":"2","b":"3","a":"4"}})", "").metadata ==
          Pairs{{"a", "4"}, {"b", "3"}});
    // Unescaping in place leaves partial characters behind; the following bytes are still not a UTF-8 fault.
    CHECK_FAULT(read("{\"__metadata__\":{\"\\n\u00e9\u00e9\":\"\\n\u00e9\u00e9\"},\"a\":{\"x\":nul}}", ""),
                Errc::header_not_json);
}

TEST_CASE("a JSON fault is reported with its position") {
    const auto message = [](std::string_view json) {
        const auto error = error_of([&] { static_cast<void>(read(json, "")); });
        return error ? error->message() : "";
    };
    CHECK(message("") == "the header is empty");
    CHECK(message(R"({"aaaaaaaaaa":{"dtype":"U8","shape":[1],"data_offsets":[0,1]},"b" 1})").find("near byte 6") !=
          std::string::npos);
    CHECK(message(R"({"a":{"dtype":"U8","shape":[1],"data_offsets":[0,1],"x":truu}})").find("near byte 5") !=
          std::string::npos);
    CHECK(message(R"({"__metadata__":[]})") == "__metadata__ is not an object");
}

TEST_CASE("a shape of very many dimensions does not give a long message") {
    std::string shape = "[2";
    for (int i = 0; i < 10'000; ++i) shape += ",2";
    const auto error = error_of([&] { static_cast<void>(read(one("F32", shape + "]", "[0,4]"), "dddd")); });
    check_error(error, {Errc::shape_overflow}, {});
    CHECK(error->message().size() < 200);
}

TEST_CASE("each rule has its own code") {
    CHECK_FAULT(read(""), Errc::header_too_short);
    CHECK_FAULT(read("1234567"), Errc::header_too_short);
    CHECK_FAULT(read(forge::safetensors_claiming(100'000'001, "{}")), Errc::header_too_large);
    CHECK_FAULT(read(forge::safetensors_claiming(UINT64_MAX, "{}")), Errc::header_too_large);
    CHECK_FAULT(read(forge::safetensors_claiming(100'000'000, "{}")), Errc::header_past_end);
    CHECK_FAULT(read(forge::safetensors_claiming(3, "{}")), Errc::header_past_end);
    CHECK_FAULT(read("{\"\xff\":1}", ""), Errc::header_not_utf8);
    CHECK_FAULT(read("[]", ""), Errc::header_not_json);
    CHECK_FAULT(read("{}{}", ""), Errc::header_not_json);
    CHECK_FAULT(read("", ""), Errc::header_not_json);
    CHECK_FAULT(read(R"({"a":7})", ""), Errc::header_bad_field);
    CHECK_FAULT(read(one("X", "[1]", "[0,4]"), "dddd"), Errc::unknown_dtype);
    CHECK_FAULT(read(one("F32", "[1]", "[4,0]"), "dddd"), Errc::offsets_reversed);
    CHECK_FAULT(read(one("F32", "[1]", "[4,8]"), "dddddddd"), Errc::offsets_leave_gap);
    CHECK_FAULT(read(one("F32", "[4294967296,4294967296]", "[0,4]"), "dddd"), Errc::shape_overflow);
    CHECK_FAULT(read(one("F32", "[1152921504606846976]", "[0,4]"), "dddd"), Errc::shape_overflow);
    CHECK_FAULT(read(one("F4", "[3]", "[0,2]"), "dd"), Errc::partial_byte);
    CHECK_FAULT(read(one("F32", "[2]", "[0,4]"), "dddd"), Errc::size_mismatch);
    CHECK_FAULT(read(one("F32", "[1]", "[0,4]"), "ddd"), Errc::file_truncated);
    CHECK_FAULT(read(one("F32", "[1]", "[0,4]"), "ddddd"), Errc::trailing_bytes);
    CHECK_FAULT(read(R"({"a":{"dtype":"U8","shape":[4],"data_offsets":[0,4]},)"
                     R"("b":{"dtype":"U8","shape":[4],"data_offsets":[3,7]}})",
                     "ddddddd"),
                Errc::offsets_overlap);
}

TEST_CASE("a header of exactly the limit is read, and a longer one is not") {
    const std::string header = R"({"a":{"dtype":"U8","shape":[1],"data_offsets":[0,1]}})";
    CHECK_OK(read(forge::safetensors(header, "d"), header.size()));
    CHECK_FAULT(read(forge::safetensors(header, "d"), header.size() - 1), Errc::header_too_large);
}

TEST_CASE("a header over the limit names the option that reads it, if the file can have such a header") {
    const auto hint_of = [](const std::string& file, std::uint64_t most) {
        const auto error = error_of([&] { read(file, most); });
        check_error(error, {Errc::header_too_large}, {});
        return error->hint();
    };
    const std::string header = R"({"a":{"dtype":"U8","shape":[1],"data_offsets":[0,1]}})";
    CHECK(
        hint_of(forge::safetensors(header, "d"), 20).starts_with("--max-header-size " + std::to_string(header.size())));
    CHECK(hint_of(forge::safetensors_claiming(header.size() + 9, header), 20).empty());
    CHECK(hint_of(forge::safetensors_claiming(UINT64_MAX, "{}"), 20).empty());
    CHECK(hint_of(forge::safetensors_claiming(UINT64_MAX, "{}"), UINT64_MAX).empty());
}

TEST_CASE("forms outside the specification are reported under the compatible policy and refused under the strict one") {
    struct Allowed {
        std::string header;
        Errc code;
        std::string note;
    };
    const std::string a = R"("a":{"dtype":"U8","shape":[1],"data_offsets":[0,1]})";
    const std::string b = R"("b":{"dtype":"U8","shape":[1],"data_offsets":[0,1]})";
    for (const Allowed& allowed : {
             Allowed{" {" + a + "}", Errc::header_not_canonical, "the header begins with whitespace, not with '{'"},
             Allowed{"{" + a + "} \n ", Errc::header_not_canonical,
                     "the header is padded with bytes other than spaces"},
             Allowed{with_unknown("1"), Errc::header_not_canonical, "tensor 'a': unknown field 'x'"},
             Allowed{R"({"a":["U8",[1],[0,1]]})", Errc::header_not_canonical,
                     "tensor 'a': the tensor is described by an array, not by an object"},
             Allowed{R"({"a":{"dtype":{"U8":null},"shape":[1],"data_offsets":[0,1]}})", Errc::header_not_canonical,
                     "tensor 'a': dtype is an object, not a string"},
             Allowed{"{\"__metadata__\":null," + a + "}", Errc::header_not_canonical,
                     "__metadata__ is null, not an object"},
             Allowed{"{" + a + "," + a + "}", Errc::duplicate_name,
                     "tensor 'a': duplicate name; readers take the last one"},
             Allowed{"{" + a + R"(,"\u0061":{"dtype":"I8","shape":[1],"data_offsets":[0,1]}})", Errc::duplicate_name,
                     "tensor 'a': duplicate name; readers take the last one"},
             Allowed{R"({"__metadata__":{"k":"1","k":"2"},)" + a + "}", Errc::duplicate_name,
                     "__metadata__ has a duplicate key, of which readers take the last: 'k'"},
             Allowed{R"({"a\u0000":{"dtype":"U8","shape":[1],"data_offsets":[0,1]}})", Errc::bad_name,
                     "tensor 'a\\x00': the name has a NUL byte"},
         }) {
        CAPTURE(allowed.header);
        const std::string file = forge::safetensors(allowed.header, "d");
        const Header header = read(file);
        CHECK(header.tensors.size() == 1);
        REQUIRE(header.tolerated.size() == 1);
        CHECK(std::string(header.tolerated.front().what()) == allowed.note);
        CHECK(header.tolerated.front().code() == allowed.code);
        CHECK_FAULT(read(file, limit, Rules::strict), allowed.code);
        const Header lenient = read(file, limit, Rules::lenient);
        REQUIRE(lenient.tolerated.size() == 1);
        CHECK(std::string(lenient.tolerated.front().what()) == allowed.note);
    }
    const std::string plain = forge::safetensors(R"({"__metadata__":{"k":"v"},)" + a + "}  ", "d");
    for (const auto rules : {Rules::compatible, Rules::strict, Rules::lenient})
        CHECK(read(plain, limit, rules).tolerated.empty());
    CHECK_FAULT(read(forge::safetensors("{" + a + "," + b + "}", "d"), limit, Rules::strict), Errc::offsets_overlap);
}

TEST_CASE("bytes after the last tensor are reported under the lenient policy and refused under the others") {
    const std::string file =
        forge::safetensors(R"({"a":{"dtype":"U8","shape":[1],"data_offsets":[0,1]}})", "d and more");
    for (const auto rules : {Rules::compatible, Rules::strict})
        CHECK_FAULT(read(file, limit, rules), Errc::trailing_bytes);
    const Header header = read(file, limit, Rules::lenient);
    CHECK(header.tensors.size() == 1);
    REQUIRE(header.tolerated.size() == 1);
    CHECK(std::string(header.tolerated.front().what()) == "9 bytes after the last tensor");
    CHECK(header.tolerated.front().code() == Errc::trailing_bytes);
}

TEST_CASE("of many tolerated faults the first hundred are listed, and the rest are counted") {
    std::string json = "{";
    for (int i = 0; i < 150; ++i)
        json += (i > 0 ? "," : "") + ("\"" + std::to_string(i)) +
                R"(":{"dtype":"U8","shape":[0],"data_offsets":[0,0],"x":0})";
    const Header header = read(json + "}", "");
    CHECK(header.tensors.size() == 150);
    REQUIRE(header.tolerated.size() == 101);
    CHECK(std::string(header.tolerated.back().what()) == "50 more faults like it");

    const Header longer = read(forge::safetensors(json + "}", "behind"), limit, Rules::lenient);
    REQUIRE(longer.tolerated.size() == 102);
    CHECK(longer.tolerated[100].code() == Errc::trailing_bytes);
    CHECK(longer.tolerated[101].code() == longer.tolerated[0].code());
}

TEST_CASE("names and shapes are read with escapes and spaces") {
    const Header header =
        read(R"({"\u0061\"\u00e9\ud83d\ude00":{"d\u0074ype":"U\u0038","shape":[ 2 , 3 ],"data_offsets":[0,6]},)"
             R"("plain":{"dtype":"U8","shape":[18446744073709551615,0],"data_offsets":[6,6]}})",
             "dddddd");
    REQUIRE(header.tensors.size() == 2);
    CHECK(header.tensors[0].name == "a\"\u00e9\U0001f600");
    CHECK(header.tensors[0].shape == Shape{2, 3});
    CHECK(header.tensors[1].shape == Shape{UINT64_MAX, 0});
}

TEST_CASE("faults name their tensor") {
    const auto error = error_of([] { static_cast<void>(read(one("F32", "[2]", "[0,4]"), "dddd")); });
    REQUIRE(error.has_value());
    CHECK(error->tensor() == "a");
    CHECK(error->message() == "4 bytes, but shape [2] of F32 needs 8");
}

TEST_CASE("the content of unknown fields is validated too") {
    for (const char* good :
         {"null", "-1.5e-3", "1e-999", "[1,{\"b\":2}]", "\"\\ud83d\\ude00\"", "123456789012345678901234567890",
          "1e-999123456789012345678901234567890", "1e000000000000000000000000000005", "-0e99999999999999999999999",
          "1E+00000000000000000000000000 "})
        CHECK_OK(read(with_unknown(good), "d"));
    for (const char* bad : {"[1 2]", "tru", "nullx", "01", "1e999", "1e99999999999999999999999",
                            "1e-99999999999999999999x", "1e-999\x0b", "1.e00000000000000000000000", "-", "\"\\ud800\"",
                            "\"\\udc00\"", "\"\\q\"", "[1}", "{\"a\"}", "{\"a\":1,}", "\x0c 1"}) {
        CAPTURE(bad);
        CHECK_FAULT(read(with_unknown(bad), "d"), Errc::header_not_json);
    }
}

TEST_CASE("text after a value is validated too") {
    for (const char* bad : {R"({"a":{"dtype":"U8":null,"shape":[1],"data_offsets":[0,1]}})",
                            R"({"a":{"dtype":"U8","shape":[1]:2,"data_offsets":[0,1]}})",
                            R"({"a":{"dtype":"U8","shape":[1],"data_offsets":[0,1]:"x"}})",
                            R"({"__metadata__":{"a":"b":"c"},"a":{"dtype":"U8","shape":[1],"data_offsets":[0,1]}})",
                            R"({"__metadata__":{"a":"b"}:1,"a":{"dtype":"U8","shape":[1],"data_offsets":[0,1]}})",
                            R"({"a":{"dtype":"U8","shape":[1],"data_offsets":[0,1],"x":"y":"z"}})"}) {
        CAPTURE(bad);
        CHECK_FAULT(read(forge::safetensors(bad, "d")), Errc::header_not_json);
    }
    CHECK_FAULT(read(one("", "[1]", "[0,1]"), "d"), Errc::unknown_dtype);
}

TEST_CASE("125 nested arrays in an unknown field are read and 126 are not") {
    CHECK_OK(read(with_depth(125), "d"));
    CHECK_FAULT(read(with_depth(126), "d"), Errc::header_not_json);
    CHECK_FAULT(read(with_depth(1'000'000), "d"), Errc::header_not_json);
}

TEST_CASE("every truncation of a valid file is refused") {
    const std::string whole = forge::u8_file({{"a", 3}, {"weight", 5}});
    CHECK_OK(read(whole));
    for (std::size_t n = 0; n < whole.size(); ++n) {
        CAPTURE(n);
        const auto error = error_of([&] { static_cast<void>(read(std::string_view(whole).substr(0, n))); });
        REQUIRE(error.has_value());
        CHECK(error->code() == (n < 8                  ? Errc::header_too_short
                                : n < whole.size() - 8 ? Errc::header_past_end
                                                       : Errc::file_truncated));
    }
}

TEST_CASE("a collecting validator finds every fault of a file") {
    const auto faults = all_faults(forge::safetensors(
        R"({"__metadata__":[],"a":{"dtype":"U8","shape":[5],"data_offsets":[0,4]},"b":null,)"
        R"("c":{"dtype":"Q","shape":[1],"data_offsets":[4,5]},"d":{"dtype":"U8","shape":[2],"data_offsets":[3,5]},)"
        R"("e":{"dtype":"U8","shape":[95],"data_offsets":[5,100]}})",
        "dddddd"));
    std::vector<Errc> codes;
    for (const Error& fault : faults) codes.push_back(fault.code());
    CHECK(codes == std::vector<Errc>{Errc::header_bad_metadata, Errc::header_bad_field, Errc::unknown_dtype,
                                     Errc::size_mismatch, Errc::offsets_overlap, Errc::file_truncated});
}

TEST_CASE("a collecting validator keeps the valid tensors") {
    CollectFaults faults;
    const auto file = forge::safetensors(R"({"a":{"dtype":"U8","shape":[5],"data_offsets":[0,4]},)"
                                         R"("b":{"dtype":"U8","shape":[2],"data_offsets":[4,6]}})",
                                         "dddddd");
    const Header header = safetensors::read_header(*forge::source(file), Rules::compatible, limit, faults);
    CHECK(faults.faults().size() == 1);
    REQUIRE(header.tensors.size() == 1);
    CHECK(header.tensors[0].name == "b");
}

TEST_CASE("empty tensors share an offset, and are in the order of the reference's sort") {
    const Header header = read(R"({"b":{"dtype":"U8","shape":[0],"data_offsets":[0,0]},)"
                               R"("a":{"dtype":"U8","shape":[0],"data_offsets":[0,0]},)"
                               R"("c":{"dtype":"I64","shape":[0],"data_offsets":[0,0]}})",
                               "");
    REQUIRE(header.tensors.size() == 3);
    CHECK(header.tensors[0].name == "c");
    CHECK(header.tensors[1].name == "a");
    CHECK(header.tensors[2].name == "b");
}

TEST_CASE("a read error is not reported as an invalid header") {
    const auto source = callback_source(
        "broken", 100, [](std::uint64_t, std::span<std::byte>) { throw Error(Errc::io_error, "broken"); });
    CollectFaults faults;
    CHECK_FAULT(safetensors::read_header(*source, Rules::compatible, limit, faults), Errc::io_error);
}

TEST_CASE("a hundred thousand tensors in reverse order are sorted, and each is found once") {
    std::string json = "{";
    const unsigned count = 100'000;
    for (unsigned i = count; i-- > 0;) {
        if (json.size() > 1) json += ',';
        json += "\"layer." + std::to_string(i) + R"(":{"dtype":"U8","shape":[2],"data_offsets":[)" +
                std::to_string(2 * i) + ',' + std::to_string(2 * i + 2) + "]}";
    }
    const Header header = read(json + "}", std::string(2 * count, 'd'));
    REQUIRE(header.tensors.size() == count);
    for (unsigned i = 0; i < count; ++i) REQUIRE(header.tensors[i].name == "layer." + std::to_string(i));
}

TEST_CASE("a mutated header is read or refused, and accepted tensors are inside the file") {
    const unsigned seed = soak::seed(7);
    CAPTURE(seed);
    std::mt19937 random(seed);
    const std::string valid =
        forge::safetensors(R"({"__metadata__":{"format":"pt"},"a":{"dtype":"F32","shape":[2,3],"data_offsets":[0,24]},)"
                           R"("b":{"dtype":"F4","shape":[8],"data_offsets":[24,28],"x":[1,{"y":null}]}})",
                           std::string(28, 'd'));
    int accepted = 0;
    for (int round = 0; round < soak::rounds(20'000); ++round) {
        std::string file = valid;
        for (auto edits = 1 + random() % 3; edits > 0; --edits) {
            const std::size_t at = random() % file.size();
            switch (random() % 3) {
                case 0: file[at] = static_cast<char>(random()); break;
                case 1: file[at] = R"({}[]",:0129.-eE\u)"[random() % 17]; break;
                default: file.erase(at, 1 + random() % 3); break;
            }
            if (file.empty()) file = "x";
        }
        const auto error = error_of([&] {
            const Header header = read(file);
            for (const auto& tensor : header.tensors) CHECK(tensor.data.inside(file.size()));
            ++accepted;
        });
        if (error) CHECK(exit_code(error->code()) == 1);
    }
    CHECK(accepted > soak::rounds(20'000) / 100);  // otherwise the mutations would test only the first bytes
}

TEST_CASE("repair is the hint of bytes that belong to no tensor, or to two, exactly if it reads the file") {
    const unsigned seed = soak::seed(8);
    CAPTURE(seed);
    std::mt19937 random(seed);
    const auto below = [&](unsigned most) { return static_cast<unsigned>(random() % most); };
    const std::set<Errc> layout_faults = {Errc::offsets_leave_gap, Errc::offsets_overlap, Errc::trailing_bytes,
                                          Errc::duplicate_name};
    int with_hint = 0;
    int without = 0;
    for (int round = 0; round < soak::rounds(4'000); ++round) {
        std::string header = "{";
        for (unsigned count = 1 + below(4), i = 0; i < count; ++i) {
            const unsigned begin = below(5);
            const unsigned size = below(4);
            const char* const dtype = below(8) > 0 ? "U8" : below(2) > 0 ? "Q9" : "F32";
            header += (i > 0 ? ",\"" : "\"") + std::string(1, "abc"[below(3)]) + R"(":{"dtype":")" + dtype +
                      R"(","shape":[)" + std::to_string(size) + R"(],"data_offsets":[)" + std::to_string(begin) + ',' +
                      std::to_string(begin + size) + "]}";
        }
        const std::string file = forge::safetensors(header + '}', std::string(below(9), 'd'));
        CAPTURE(file);
        const bool is_readable = !error_of([&] { static_cast<void>(read(file, limit, Rules::repair)); });
        for (const Error& fault : all_faults(file)) {
            if (!layout_faults.contains(fault.code())) continue;
            CHECK(fault.hint().empty() != is_readable);
            ++(is_readable ? with_hint : without);
        }
    }
    CHECK(with_hint > soak::rounds(4'000) / 10);
    CHECK(without > soak::rounds(4'000) / 10);
}

TEST_CASE("a tensor in the reference's form is read like one with spaces") {
    // The first is read by the fast path if possible, the second never.
    const auto told = [](const std::string& tensor) {
        std::string text;
        const auto error = error_of([&] {
            const std::string header = R"({"a":{"dtype":"F32","shape":[1],"data_offsets":[0,4]},"b":)" + tensor + "}";
            const Header read_back = read(header, std::string(28, 'd'));
            for (const auto& info : read_back.tensors)
                text += std::string(info.name) + ' ' + std::string(name(info.dtype)) + ' ' + to_string(info.shape) +
                        ' ' + std::to_string(info.data.size) + '\n';
        });
        return error ? error->message().substr(0, error->message().find("; near byte")) : text;
    };
    const auto agree = [&](const std::string& tensor) {
        CAPTURE(tensor);
        CHECK(told('{' + tensor) == told("{ " + tensor));
    };

    for (const char* const number : {"0", "00", "01", "-1", "1.0", "1e0", "", " 1", "1 ", "18446744073709551615",
                                     "18446744073709551616", "9999999999999999999", "10000000000000000000", "1,"})
        for (const std::string dimensions : {"*", "2,*", "*,3", "*,*", "0,*,0"}) {
            std::string shape = dimensions;
            for (std::size_t at = 0; (at = shape.find('*')) != std::string::npos;) shape.replace(at, 1, number);
            agree(R"("dtype":"F32","shape":[)" + shape + R"(],"data_offsets":[4,28]})");
            agree(R"("dtype":"F32","shape":[6],"data_offsets":[)" + shape + "]}");
        }

    std::mt19937 random(11);  // NOLINT: the same mutations every time
    const std::string valid = R"("dtype":"F32","shape":[2,3],"data_offsets":[4,28]})";
    for (int round = 0; round < 20'000; ++round) {
        std::string tensor = valid;
        for (auto edits = 1 + random() % 2; edits > 0; --edits) {
            const std::size_t at = random() % tensor.size();
            if (random() % 2 == 0) tensor[at] = R"({}[]",:0123456789.-eEF6 )"[random() % 25];
            else tensor.erase(at, 1);
        }
        agree(tensor);
    }
}

TEST_CASE("a small file with any one byte changed is read or refused, and accepted tensors are inside it") {
    const std::string valid = forge::safetensors(
        R"({"__metadata__":{"k":"v"},"a":{"dtype":"F16","shape":[1,3],"data_offsets":[0,6]}})", "values");
    int accepted = 0;
    for (std::size_t at = 0; at < valid.size(); ++at)
        for (int byte = soak::step(4) - 1; byte < 256; byte += soak::step(4)) {
            CAPTURE(at);
            CAPTURE(byte);
            std::string file = valid;
            file[at] = static_cast<char>(byte);
            const auto error = error_of([&] {
                const Header header = read(file);
                for (const auto& tensor : header.tensors) CHECK(tensor.data.inside(file.size()));
                ++accepted;
            });
            if (error) CHECK(exit_code(error->code()) == 1);
            else if (at >= valid.size() - 6 || byte == static_cast<unsigned char>(valid[at]))
                CHECK(read(file).tensors[0].name == "a");
        }
    CHECK(accepted > (soak::whole() ? 6 * 256 : 256));
}

}  // namespace header_test
