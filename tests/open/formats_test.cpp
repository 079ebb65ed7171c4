// Tests format detection by content, and the messages for files that are not checkpoints.
#include "open/formats.hpp"

#include <safemap/checkpoint.hpp>

#include "doctest_safemap.hpp"
#include "forge/files.hpp"
#include "forge/pickle.hpp"
#include "pickle/memory_share.hpp"

#include <iomanip>
#include <sstream>

namespace formats_test {

using namespace safemap;
using open::Content;
using open::sniff;

using namespace std::string_literals;

namespace {

std::string tar(std::string_view first) {
    std::string block(1024, '\0');
    block.replace(0, first.size(), first);
    block.replace(257, 5, "ustar");
    return block;
}

}  // namespace

TEST_CASE("a header length inside the file and a following brace mean safetensors, whatever else the file looks like") {
    CHECK(sniff(*forge::source(forge::safetensors("{}"))).content == Content::safetensors);
    CHECK(sniff(*forge::source(forge::safetensors(std::string(9000, ' ') + "\n\t\r{}"))).content ==
          Content::safetensors);
    // 0x8b1f and 0x4b50 are lengths whose bytes are the signatures of gzip and zip.
    CHECK(sniff(*forge::source(forge::safetensors("{}" + std::string(0x8b1f - 2, ' ')))).content ==
          Content::safetensors);
    CHECK(sniff(*forge::source(forge::safetensors("{}" + std::string(0x04034b50 - 2, ' ')))).content ==
          Content::safetensors);
    CHECK(sniff(*forge::source(forge::safetensors("[]"))).content != Content::safetensors);
    CHECK(sniff(*forge::source(forge::safetensors_claiming(3, "{}"))).content != Content::safetensors);
}

TEST_CASE("a zip is an archive of torch.save unless it says otherwise") {
    CHECK(sniff(*forge::source(forge::pt({{"w", {1}, {1.0F}}}))).content == Content::zip);
    const std::vector<forge::Zip::Record> numpy = {{"w.npy", "data"}};
    CHECK(sniff(*forge::source(forge::zip(numpy))).looks_like == "a NumPy archive (.npz)");
    CHECK_FAULT(Checkpoint::open(forge::source("PK\x05\x06" + std::string(18, '\0'))), Errc::zip_missing_record);
}

TEST_CASE("a zip after other bytes counts as a zip only if nothing else identifies the file") {
    const std::string zip = forge::pt({{"w", {1}, {1.0F}}});
    for (const std::string& prefix : {"#!/bin/sh\nexit 1\n"s, std::string(100'000, 'x')}) {
        const auto model = Checkpoint::open(forge::source(prefix + zip));
        REQUIRE(model.size() == 1);
        const auto value = model.tensor(0).load();
        CHECK(value.as<float>()[0] == 1.0F);
    }
    CHECK(sniff(*forge::source("<html>" + zip)).looks_like == "a web page");
    CHECK(sniff(*forge::source(std::string(40, 'x') + "PK\x05\x06" + std::string(17, '\0'))).content ==
          Content::unknown);
}

TEST_CASE("legacy files are recognised by their magic number, other pickles by their protocol") {
    const auto magic = "\x8a\x0a\x6c\xfc\x9c\x46\xf9\x20\x6a\xa8\x50\x19.\x80\x02M\xe9\x03."s;
    const auto frame = "\x95\x0d"s + std::string(7, '\0');
    for (const std::string& head : {"\x80\x02"s, "\x80\x03"s, "\x80\x04" + frame, "\x80\x05" + frame})
        CHECK(sniff(*forge::source(head + magic)).content == Content::legacy);
    CHECK(sniff(*forge::source("L119547037146038801333356L\n.I1001\n.")).content == Content::legacy);
    // A pickle of 512 bytes with a valid tar header checksum at the usual place: torch would read a tar.
    const auto tar_too = [](std::string both) {
        both.resize(512, 'x');
        unsigned sum = 0;
        for (std::size_t i = 0; i < both.size(); ++i)
            sum += i >= 148 && i < 156 ? ' ' : static_cast<unsigned char>(both[i]);
        std::ostringstream octal;
        octal << std::oct << std::setw(6) << std::setfill('0') << sum << '\0' << ' ';
        return both.replace(148, 8, octal.str());
    };
    const std::string legacy = "\x80\x02" + magic + "\x80\x02U\xff";
    CHECK(sniff(*forge::source(legacy)).content == Content::legacy);
    CHECK(sniff(*forge::source(tar_too(legacy))).content == Content::unknown);
    CHECK(sniff(*forge::source(tar_too("\x80\x02U\xff"))).content == Content::unknown);
    CHECK(sniff(*forge::source("\x80\x02}.")).content == Content::pickle);
    CHECK(sniff(*forge::source("}q\0(U\1a"s)).content == Content::pickle);
    CHECK(sniff(*forge::source("(dp0\nVa\n")).content == Content::pickle);
    CHECK(sniff(*forge::source("ccollections\nOrderedDict\n)R.")).content == Content::pickle);
    CHECK(sniff(*forge::source("\x80\x06}.")).content == Content::unknown);
    CHECK_FAULT(Checkpoint::open(forge::source("\x80\x04\x95 a pickle")), Errc::file_truncated);
}

TEST_CASE("common wrong files are named, with a hint if there is one") {
    struct Row {
        std::string content;
        const char* words;
        bool hint;
    };
    const Row rows[] = {
        {"version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 1\n", "git-lfs pointer", true},
        {"<!DOCTYPE html><html>", "web page", true},
        {"\n <HTML><head>", "web page", true},
        {"\xef\xbb\xbf<!-- a login --><html>", "web page", true},
        {"GGUF\x03" + std::string(40, '\0'), "GGUF", false},
        {"\x89HDF\r\n\x1a\n" + std::string(40, '\0'), "HDF5", false},
        {"\x1f\x8b\x08 and so on", "gzip", true},
        {"\x28\xb5\x2f\xfd and so on", "zstd", true},
        {"\3757zXZ"s + std::string(8, '\0'), "xz", true},
        {"\x93NUMPY\x01"s, "NumPy array", false},
        {"\x18\0\0\0PTMF"s + std::string(40, '\0'), "TorchScript file in the flatbuffer format", true},
        {"PYTORCH1"s + std::string(20, '\0'), "PyTorch 1.0 stream", true},
        {"\x08\x07\x12\x07pytorch\x1a\0032.1:", "ONNX", false},
        {"\x08\x03:\x05" + std::string(30, 'x'), "ONNX", false},
        {tar("README"), "a tar archive", true},
        {"{\"a\": 1}", "JSON", true},
        {" [1, 2, 3, 4]", "JSON", true},
        {"", "empty file", true},
        {"x", "a text file", true},
        {"\x01"s, "1 byte", false},
        {"<?xml version='1.0'?><Error/>", "XML text", true},
        {"\x89PNG\r\n\x1a\n", "PNG", false},
        {"\x7f"
         "ELF\2",
         "ELF", false},
        {"BZh91AY&SY", "bzip2", true},
        {std::string(4, '\0'), "zeros", true},
        {std::string(4096, '\0'), "a file that begins with zeros", true},
        {forge::u8_file({{"a", 100}}).substr(0, 40), "ends inside its header", true},
        {"some text that is nothing in particular", "a text file", true},
        {"some text" + std::string(1, '\0') + "that is none", "no known format", false},
    };
    for (const Row& row : rows) {
        CAPTURE(row.words);
        const auto error =
            error_of([&] { static_cast<void>(Checkpoint::open(forge::source(row.content, "model.bin"))); });
        REQUIRE(error.has_value());
        CHECK(error->code() == Errc::unknown_format);
        CHECK(error->path() == "model.bin");
        CAPTURE(error->message());
        CHECK(error->message().find(row.words) != std::string::npos);
        CHECK(error->hint().empty() != row.hint);
    }
}

TEST_CASE("a file named .safetensors is read as safetensors, whatever its content") {
    const auto refused = [](std::string_view content, Errc code, std::string_view words, bool hint) {
        CAPTURE(words);
        const auto error =
            error_of([&] { static_cast<void>(Checkpoint::open(forge::source(content, "a.safetensors"))); });
        REQUIRE(error.has_value());
        CHECK(error->code() == code);
        CHECK(error->path() == "a.safetensors");
        CHECK(error->message().find(words) != std::string::npos);
        CHECK(error->hint().empty() != hint);
    };
    refused("", Errc::header_too_short, "this is an empty file", true);
    refused("version https://git-lfs.github.com/spec/v1", Errc::header_too_large, "this is a git-lfs pointer", true);
    refused("<!DOCTYPE html><html>", Errc::header_too_large, "this is a web page", true);
    refused(forge::pt({}), Errc::header_too_large, "this is a zip, as torch.save writes", false);
    refused(forge::u8_file({{"a", 100}}).substr(0, 40), Errc::header_past_end, "ends inside its header", true);
    refused("nothing in particular", Errc::header_too_large, "this is a text file", true);
    refused("var x = {}", Errc::header_too_large, "this is a text file", true);
    refused(std::string(64, '\0'), Errc::header_not_json, "zeros", true);
    refused("\3\0\0\0\0\0\0\0abcd"s, Errc::header_not_json, "", false);
    refused("\x93\xfe" + std::string(20, '\x90'), Errc::header_too_large, "no known format", false);
    // The length is shown where there is a header.
    refused(forge::safetensors_claiming(200'000'000, "{}"), Errc::header_too_large, "ends inside its header", true);
}

TEST_CASE("text is what begins with printed characters of UTF-8") {
    const auto is_text = [](std::string_view content) {
        return sniff(*forge::source(content)).looks_like == "a text file";
    };
    CHECK(is_text("a\tb\r\n"));
    CHECK(is_text(std::string(511, 'a') + "\u00e9"));  // the first 512 bytes end inside a character
    CHECK_FALSE(is_text(std::string(511, 'a') + "\x80"));
    CHECK_FALSE(is_text("a\x1b[2J"));
    CHECK_FALSE(is_text("caf\xe9 au lait"));
}

TEST_CASE("safetensors that torch.load would take for another format are refused under strict globals") {
    // The header length begins with X, a text of 25 bytes, which ends inside a string of the metadata. There, U after U
    // is a short text; the last one ends in the data.
    std::string header = R"({"__metadata__":{"a":")";
    for (int i = 0; i < 50; ++i) header += "U~" + std::string(126, 'x');
    const std::string data = "xcos\nsystem\n.";
    header += R"(UA"},"w":{"dtype":"U8","shape":[13],"data_offsets":[0,13]}})";
    header.resize(0x58 + 256 * 25, ' ');
    const std::string hidden = forge::safetensors(header, data);
    const auto zip = forge::safetensors("{}" + std::string(0x04034b50 - 2, ' '));
    const auto honest = forge::safetensors(R"({"w":{"dtype":"U8","shape":[13],"data_offsets":[0,13]}})", data);
    CHECK(open::torch_takes_for(*forge::source(hidden)) == "a pickle");
    CHECK(open::torch_takes_for(*forge::source(zip)) == "a zip");
    CHECK(open::torch_takes_for(*forge::source(honest)).empty());

    // Lists before the name, which take more memory than there is.
    constexpr std::size_t length = 0x58 + 256 * 100;
    std::string long_header = R"({"__metadata__":{"a":")" + std::string(100 - 25, 'x') + std::string(20'000, ']');
    long_header += R"(UA"},"w":{"dtype":"U8","shape":[13],"data_offsets":[0,13]}})";
    long_header.resize(length, ' ');
    const std::string long_hidden = forge::safetensors(long_header, data);
    {
        const MemoryShare limit(1 << 20, 1 << 20);
        CHECK(open::torch_takes_for(*forge::source(long_hidden)) == "a pickle");
        CHECK(MemoryShare::was_too_small());
    }

    const OpenOptions strict{.strict_globals = true};
    CHECK(Checkpoint::open(forge::source(hidden, "a.pt")).size() == 1);
    CHECK(Checkpoint::open(forge::source(hidden, "a.pt")).verdict() == Verdict::runs_code);
    CHECK(Checkpoint::open(forge::source(zip, "a.pt")).verdict() == Verdict::unknown);
    CHECK(Checkpoint::open(forge::source(honest, "a.pt")).verdict() == Verdict::ok);
    CHECK(Checkpoint::open(forge::source(hidden, "a.safetensors")).verdict() == Verdict::ok);
    CHECK_FAULT(Checkpoint::open(forge::source(hidden, "a.pt"), strict), Errc::unknown_global);
    CHECK_FAULT(Checkpoint::open(forge::source(zip, "a.pt"), strict), Errc::unknown_global);
    CHECK(Checkpoint::open(forge::source(honest, "a.pt"), strict).size() == 1);
}

TEST_CASE("a header length alone never makes a file a pickle that names something") {
    for (std::size_t length = 56; length < 4096; ++length) {
        CAPTURE(length);
        std::string header = R"({"w":{"dtype":"U8","shape":[1],"data_offsets":[0,1]}})";
        header.resize(length, ' ');
        CHECK(open::torch_takes_for(*forge::source(forge::safetensors(header, "x"))).empty());
    }
}

TEST_CASE("every prefix of these files is at most refused") {
    for (const std::string& whole : {forge::pt({{"w", {2}, {1, 2}}}), tar("pickle"), forge::u8_file({{"a", 3}})}) {
        for (std::size_t n = 0; n < std::min<std::size_t>(whole.size(), 700); ++n) {
            CAPTURE(n);
            CHECK_NOTHROW(sniff(*forge::source(std::string_view(whole).substr(0, n))));
        }
    }
}

}  // namespace formats_test
