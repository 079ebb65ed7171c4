// Recognises the format of a file. A table has one row for each kind of file, in the order in which the rows are tried:
// safetensors, files of torch, and files that are often passed by mistake. A row says how to recognise the kind (by a
// function, or by bytes at an offset) and what such a file looks like. If safemap reads the kind, the row has its
// format and its reader, too.
//
//   read_range, first_text      read bytes of the file
//   is_...                      recognise a kind, from the first bytes in most cases
//   Row, rows                   the table
//   sniff(), recognise()        the first row that fits; for recognise(), ".safetensors" in a name has precedence
//   torch_takes_for()           the format that torch.load would see in a file of safetensors
//
// To add a format, add a row here and a value of Format. Tested by tests/open/formats_test.cpp.
#include "open/formats.hpp"

#include "base/text.hpp"
#include "open/read_torch.hpp"
#include "pickle/pickle.hpp"
#include "pickle/tar_members.hpp"
#include "pickle/zip.hpp"
#include "safetensors/header.hpp"
#include "safetensors/index.hpp"
#include "torch/legacy.hpp"
#include "torch/plain.hpp"
#include "torch/tar.hpp"

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <iterator>
#include <optional>
#include <span>

namespace safemap::SAFEMAP_ABI::open {

namespace {

using namespace std::string_view_literals;

constexpr std::uint64_t first_bytes = 512;
constexpr std::string_view json_space = " \t\n\r";

std::string read_range(const Source& source, std::uint64_t offset, std::uint64_t size) {
    if (offset >= source.size()) return {};
    std::string bytes(std::min(size, source.size() - offset), '\0');
    source.read_at(offset, std::as_writable_bytes(std::span(bytes.data(), bytes.size())));
    return bytes;
}

/// Returns the first byte at or behind `offset` that is not JSON whitespace. The reference pads headers with up to a
/// page of whitespace.
std::optional<char> first_text(const Source& source, std::uint64_t offset) {
    constexpr std::uint64_t block = 4096;
    constexpr std::uint64_t most = 1 << 20;
    for (std::uint64_t done = 0; done < most; done += block) {
        const std::string bytes = read_range(source, offset + done, block);
        const std::size_t found = bytes.find_first_not_of(json_space);
        if (found != std::string::npos) return bytes[found];
        if (bytes.size() < block) break;
    }
    return std::nullopt;
}

std::uint64_t header_length(std::string_view head) {
    std::uint64_t length = 0;
    std::memcpy(&length, head.data(), sizeof length);
    return length;
}

/// Returns true if `text` starts with `lower`, which is in lower case. The case of `text` does not matter.
bool starts_with_text(std::string_view text, std::string_view lower) {
    return text.size() >= lower.size() && std::equal(lower.begin(), lower.end(), text.begin(), [](char a, char b) {
               return a == (b >= 'A' && b <= 'Z' ? static_cast<char>(b - 'A' + 'a') : b);
           });
}

std::string_view without_space(std::string_view text) {
    const std::size_t begin = text.find_first_not_of(json_space);
    return begin == std::string_view::npos ? std::string_view() : text.substr(begin);
}

/// Returns the name in the first local header.
std::string_view first_record(std::string_view head) {
    std::uint16_t size = 0;
    if (head.size() < 30) return {};
    std::memcpy(&size, head.data() + 26, sizeof size);
    return head.substr(30, size);
}

/// Returns the name of the first member if the file is a tar.
std::optional<std::string_view> first_member(std::string_view head) {
    if (head.size() < 262 || head.substr(257, 5) != "ustar") return std::nullopt;
    return head.substr(0, std::min<std::size_t>(head.find('\0'), 100));
}

bool is_empty(const Source&, std::string_view head) { return head.empty(); }

bool is_safetensors(const Source& source, std::string_view head) {
    if (head.size() < 9) return false;
    return header_length(head) <= source.size() - 8 && header_length(head) > 0 && first_text(source, 8) == '{';
}

bool is_cut_safetensors(const Source&, std::string_view head) {
    return head.size() > 8 && header_length(head) <= safetensors::longest_header && head[8] == '{';
}

bool is_numpy_archive(const Source&, std::string_view head) {
    return head.starts_with("PK\x03\x04") && first_record(head).ends_with(".npy");
}

bool is_zip(const Source&, std::string_view head) {
    return head.starts_with("PK\x03\x04") || head.starts_with("PK\x05\x06");  // the second: a zip without records
}

bool is_zip_at_end(const Source& source, std::string_view) { return ends_as_zip(source); }

bool is_legacy(const Source&, std::string_view head) { return torch::is_legacy(head); }

/// Recognises protocols 2 to 5 by their first bytes, 0x80 and the protocol's number. Pickles of older protocols have no
/// such bytes; they are recognised only if they are dictionaries.
bool is_pickle(const Source&, std::string_view head) {
    if (head.size() >= 2 && head[0] == '\x80' && head[1] >= 2 && head[1] <= 5) return true;
    return head.starts_with("(dp") || head.starts_with("}q\0"sv) || head.starts_with("ccollections\nOrderedDict\n");
}

bool is_tar(const Source&, std::string_view head) { return first_member(head).has_value(); }

bool is_tar_of_torch(const Source&, std::string_view head) {
    const auto first = first_member(head);
    return first == "sys_info"sv || first == "pickle"sv || first == "storages"sv || first == "tensors"sv;
}

bool is_tar_and_pickle(const Source& source, std::string_view head) {
    return (is_legacy(source, head) || is_pickle(source, head)) && begins_tar(head);
}

/// Recognises protocol buffers, which have no signature, by ir_version, a small number, and by a field that may come
/// next in a ModelProto.
bool is_onnx(const Source&, std::string_view head) {
    constexpr std::string_view next_fields = "\x12\x1a\x22\x3a\x42";  // names, domain, graph, opset_import
    return head.size() > 4 && head[0] == '\x08' && head[1] > 0 && head[1] < 32 &&
           next_fields.find(head[2]) != next_fields.npos;
}

bool begins_with_zeros(const Source&, std::string_view head) { return head.find_first_not_of('\0') == head.npos; }

bool is_zeros(const Source& source, std::string_view head) {
    return head.size() == source.size() && begins_with_zeros(source, head);
}

bool is_html(const Source&, std::string_view head) {
    constexpr std::string_view byte_order_mark = "\xef\xbb\xbf";
    constexpr std::string_view beginnings[] = {"<!doctype html", "<html", "<head", "<!--"};
    if (head.starts_with(byte_order_mark)) head.remove_prefix(byte_order_mark.size());
    const std::string_view text = without_space(head);
    return std::any_of(std::begin(beginnings), std::end(beginnings),
                       [text](std::string_view beginning) { return starts_with_text(text, beginning); });
}

/// Recognises text by its first bytes: characters that are printed, in UTF-8. The last one may be cut off.
bool is_plain_text(const Source&, std::string_view head) {
    while (!head.empty()) {
        const std::string_view left = head;
        const auto character = take_character(head);
        if (!character) return left.size() < 4 && static_cast<unsigned char>(left.front()) >= 0xC0;
        const bool is_space = *character == '\t' || *character == '\n' || *character == '\r' || *character == '\f';
        if (is_control(*character) && *character < 0xA0 && !is_space) return false;
    }
    return true;
}

bool is_json(const Source&, std::string_view head) {
    const std::string_view text = without_space(head);
    return text.starts_with('{') || text.starts_with('[');
}

using Fits = bool(const Source& source, std::string_view head);

struct Row {
    Fits* fits = nullptr;  ///< null: recognised by `bytes`
    std::string_view bytes = {};
    std::size_t at = 0;  ///< offset of `bytes`
    std::string_view looks_like = {};
    std::string_view hint = {};
    Content content = Content::unknown;
    // Only for formats that safemap reads:
    Format format = {};
    std::string_view name = {};  ///< name of the format
    FileReader read = nullptr;
};

constexpr Row foreign(std::string_view bytes, std::string_view looks_like, std::string_view hint = {},
                      std::size_t at = 0) {
    return {.bytes = bytes, .at = at, .looks_like = looks_like, .hint = hint};
}
constexpr Row foreign(Fits& fits, std::string_view looks_like, std::string_view hint = {}) {
    return {.fits = fits, .looks_like = looks_like, .hint = hint};
}
constexpr Row torch_file(Fits& fits, Content content, FileReader read, std::string_view looks_like = {}) {
    return {fits, {}, 0, looks_like, {}, content, Format::torch, "torch", read};
}

constexpr std::string_view cut_safetensors = "a safetensors file that ends inside its header";

constexpr Row rows[] = {
    foreign(is_empty, "an empty file", interrupted),
    {is_safetensors, {}, 0, {}, {}, Content::safetensors, Format::safetensors, "safetensors", read_safetensors},
    foreign(is_numpy_archive, "a NumPy archive (.npz)"),
    torch_file(is_zip, Content::zip, read_torch<torch::read_archive>),
    foreign("version https://git-lfs.github.com/spec/"sv, "a git-lfs pointer, not the file itself",
            "git lfs pull fetches the file"),
    foreign("GGUF"sv, "a GGUF file of llama.cpp"),
    foreign("\x89HDF\r\n\x1a\n"sv, "an HDF5 file, as Keras saves"),
    foreign("\x1f\x8b"sv, "a gzip file", "gunzip it first"),
    foreign("\x28\xb5\x2f\xfd"sv, "a zstd file", "unzstd it first"),
    foreign("\xfd\x37zXZ\0"sv, "an xz file", "unxz it first"),
    foreign("\x93NUMPY"sv, "a NumPy array"),
    foreign("PTMF"sv, "a TorchScript file in the flatbuffer format (.ptl of torch mobile)",
            "torch.save(torch.jit.jit_module_from_flatbuffer(FILE).state_dict(), NEW) writes its weights", 4),
    foreign("PYTORCH1"sv, "a PyTorch 1.0 stream file",
            "torch.save(torch.load(FILE, weights_only=True), NEW) with torch 1.6 or later writes a file that safemap "
            "reads"),
    foreign(is_tar_and_pickle, "a tar archive and a pickle in one"),
    torch_file(is_legacy, Content::legacy, read_torch<torch::read_legacy>, "a file of torch.save before 1.6"),
    torch_file(is_pickle, Content::pickle, read_torch<torch::read_plain>, "a pickle"),
    torch_file(is_tar_of_torch, Content::tar, read_torch<torch::read_tar>, "a tar archive of torch 0.1"),
    foreign(is_tar, "a tar archive", "unpack it first"),
    foreign(is_onnx, "an ONNX model"),
    foreign(is_zeros, "a file of zeros", interrupted),
    foreign(begins_with_zeros, "a file that begins with zeros", interrupted),
    foreign(is_cut_safetensors, cut_safetensors, interrupted),
    foreign(is_html, "a web page", "a download gave an error page or asked for a login: download the file again"),
    foreign("<?xml"sv, "XML text", "a download may have given the error message of a server: download the file again"),
    {.fits = is_json,
     .looks_like = "JSON text",
     .hint = "give a file of weights or its folder; a download may also have given the error message of a server",
     .content = Content::json},
    torch_file(is_zip_at_end, Content::zip, read_torch<torch::read_archive>),
    foreign("BZh"sv, "a bzip2 file", "bunzip2 it first"),
    foreign("\x04\x22\x4d\x18"sv, "an lz4 file", "unlz4 it first"),
    foreign("7z\xbc\xaf\x27\x1c"sv, "a 7z archive", "unpack it first"),
    foreign("Rar!\x1a\x07"sv, "a RAR archive", "unpack it first"),
    foreign("\x89PNG\r\n\x1a\n"sv, "an image (PNG)"),
    foreign("\xff\xd8\xff"sv, "an image (JPEG)"),
    foreign("GIF8"sv, "an image (GIF)"),
    foreign("RIFF"sv, "a RIFF file: an image, sound or film"),
    foreign("%PDF-"sv, "a PDF document"),
    foreign("\x7f"
            "ELF"sv,
            "a program or library (ELF)"),
    foreign("TFL3"sv, "a TensorFlow Lite model", {}, 4),
    foreign("PAR1"sv, "a Parquet file"),
    foreign("SQLite format 3\0"sv, "an SQLite database"),
    foreign(is_plain_text, "a text file",
            "a download may have given a message in place of the file: look into it, and download the file again"),
};

bool fits(const Row& row, const Source& source, std::string_view head) {
    if (row.fits != nullptr) return row.fits(source, head);
    return head.substr(std::min(row.at, head.size())).starts_with(row.bytes);
}

template <class Wanted> const Row* first_row(Wanted&& wanted) {
    const Row* const found = std::find_if(std::begin(rows), std::end(rows), wanted);
    return found == std::end(rows) ? nullptr : found;
}

Sniffed as_told(const Row& row) { return {row.content, std::string(row.looks_like), row.hint, row.format, row.read}; }

}  // namespace

Sniffed sniff(const Source& source) {
    const std::string head = read_range(source, 0, first_bytes);
    if (const Row* const row = first_row([&](const Row& each) { return fits(each, source, head); }))
        return as_told(*row);
    if (source.size() < 8) return {.looks_like = "a file of " + bytes_text(source.size())};
    return {};
}

Error described(const Error& error, const Source& source, Content wanted, std::string_view expected) {
    const Sniffed sniffed = sniff(source);
    constexpr Errc shows_content[] = {Errc::header_too_large, Errc::header_past_end, Errc::pickle_bad_opcode};
    const bool is_shown =
        std::find(std::begin(shows_content), std::end(shows_content), error.code()) != std::end(shows_content);
    std::string is = sniffed.looks_like;
    if (sniffed.content == Content::zip) is = "a zip, as torch.save writes";
    if (sniffed.content == Content::safetensors) is = "a safetensors file";
    if (sniffed.content == wanted || (is.empty() && !is_shown)) return error;
    if (is.empty()) is = "a file of no known format";
    std::string message = "this is " + is + "; expected " + std::string(expected);
    if (is == cut_safetensors) message = error.message() + "; this is " + is;
    if (sniffed.read != nullptr && sniffed.content != Content::safetensors)
        message += "; under a name that ends in .pt it opens as what it is";
    Error known(error.code(), std::move(message));
    return std::move(known.with_path(error.path()).with_hint(sniffed.hint).with_hint(error.hint()));
}

Sniffed recognise(const Source& source) {
    if (!source.name().ends_with(".safetensors")) return sniff(source);
    return as_told(*first_row([](const Row& row) { return row.content == Content::safetensors; }));
}

bool is_index(const Source& source) {
    return source.name().ends_with(".index.json") ||
           (recognise(source).content == Content::json && safetensors::is_index(source));
}

std::string_view name_of(Format format) noexcept {
    // Folders and sets of files, which no row recognises.
    if (format == Format::zero) return "zero";
    if (format == Format::dcp) return "dcp";
    if (format == Format::fsdp) return "fsdp";
    const Row* const row = first_row([=](const Row& each) { return each.read != nullptr && each.format == format; });
    return row == nullptr ? "unknown" : row->name;
}

std::string_view torch_takes_for(const Source& source) {
    const std::string head = read_range(source, 0, first_bytes);
    if (head.starts_with("PK\x03\x04")) return "a zip";
    if (begins_tar(head)) return "a tar archive";
    // Headers seldom parse as a pickle for more than a few bytes.
    constexpr std::uint64_t most = 16 << 20;
    for (std::uint64_t window = 512; window <= most; window *= 32) {
        const std::string bytes = read_range(source, 0, window);
        const PickleTrial trial = try_pickle(bytes, source.size() - bytes.size());
        if (trial.names_global || trial.too_large) return "a pickle";
        if (!trial.goes_on || bytes.size() == source.size()) return {};
    }
    return "a pickle";
}

}  // namespace safemap::SAFEMAP_ABI::open
