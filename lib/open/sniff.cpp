// Tells formats by content: what we read, and what people hand us by mistake.
#include "open/sniff.hpp"

#include "base/text.hpp"
#include "pickle/pickle.hpp"
#include "pickle/zip.hpp"
#include "torch/legacy.hpp"

#include <algorithm>
#include <charconv>
#include <cstdint>
#include <cstring>
#include <optional>
#include <string_view>

namespace safemap::SAFEMAP_ABI::open {

namespace {

using namespace std::string_view_literals;

constexpr std::string_view json_space = " \t\n\r";

std::string read_range(const Source& source, std::uint64_t offset, std::uint64_t size) {
    if (offset >= source.size()) return {};
    std::string bytes(std::min(size, source.size() - offset), '\0');
    source.read_at(offset, std::as_writable_bytes(std::span(bytes.data(), bytes.size())));
    return bytes;
}

/// The first byte at or behind `offset` that is no JSON whitespace. The reference pads headers with up to a page of it.
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

bool is_safetensors(const Source& source, std::string_view head) {
    if (head.size() < 9) return false;
    return header_length(head) <= source.size() - 8 && header_length(head) > 0 && first_text(source, 8) == '{';
}

/// Case does not matter; `lower` is in lower case.
bool starts_with_text(std::string_view text, std::string_view lower) {
    return text.size() >= lower.size() && std::equal(lower.begin(), lower.end(), text.begin(), [](char a, char b) {
               return a == (b >= 'A' && b <= 'Z' ? static_cast<char>(b - 'A' + 'a') : b);
           });
}

std::string_view without_space(std::string_view text) {
    const std::size_t begin = text.find_first_not_of(json_space);
    return begin == std::string_view::npos ? std::string_view() : text.substr(begin);
}

struct Signature {
    std::size_t offset;
    std::string_view bytes;
    std::string_view looks_like;
    std::string_view hint;
};

constexpr std::string_view resave =
    "torch.save(torch.load(FILE, weights_only=True), NEW) with torch 1.6 or later writes a file that can be read";

// In the order of trying: what is more special comes first.
constexpr Signature signatures[] = {
    {0, "version https://git-lfs.github.com/spec/"sv, "a git-lfs pointer, not the file itself",
     "git lfs pull fetches the file"},
    {0, "GGUF"sv, "a GGUF file of llama.cpp", ""},
    {0, "\x89HDF\r\n\x1a\n"sv, "an HDF5 file (Keras saves such)", ""},
    {0, "\x1f\x8b"sv, "a gzip file", "gunzip it first"},
    {0, "\x28\xb5\x2f\xfd"sv, "a zstd file", "unzstd it first"},
    {0,
     "\xfd"
     "7zXZ\0"sv,
     "an xz file", "unxz it first"},
    {0, "\x93NUMPY"sv, "a NumPy array", ""},
    {4, "PTMF"sv, "a TorchScript file in the flatbuffer format (.ptl of torch mobile)",
     "torch.save(torch.jit.jit_module_from_flatbuffer(FILE).state_dict(), NEW) writes its weights"},
    {0, "PYTORCH1"sv, "a PyTorch 1.0 stream file", resave},
};

/// The name in the first local header.
std::string_view first_record(std::string_view head) {
    std::uint16_t size = 0;
    if (head.size() < 30) return {};
    std::memcpy(&size, head.data() + 26, sizeof size);
    return head.substr(30, size);
}

Sniffed sniff_zip(std::string_view head) {
    if (first_record(head).ends_with(".npy")) return {Content::unknown, "a NumPy archive (.npz)"};
    return {Content::zip};
}

/// Protocols 2 to 5 begin with a byte 0x80 and their number. Older ones do not, but dictionaries can be told.
bool is_pickle(std::string_view head) {
    if (head.size() >= 2 && head[0] == '\x80' && head[1] >= 2 && head[1] <= 5) return true;
    return head.starts_with("(dp") || head.starts_with("}q\0"sv) || head.starts_with("ccollections\nOrderedDict\n");
}

/// Protocol buffers without a signature: ir_version, a small number, and a field that may come next in a ModelProto.
bool is_onnx(std::string_view head) {
    constexpr std::string_view next_fields = "\x12\x1a\x22\x3a\x42";  // names, domain, graph, opset_import
    return head.size() > 4 && head[0] == '\x08' && head[1] > 0 && head[1] < 32 &&
           next_fields.find(head[2]) != next_fields.npos;
}

/// Whether the first 512 bytes have a tar header's checksum, which is all that torch.load asks for before it takes a
/// file for a tar.
bool begins_tar(std::string_view head) {
    if (head.size() < 512) return false;
    std::string_view field = head.substr(148, 8);
    field.remove_prefix(std::min(field.find_first_not_of(' '), field.size()));
    std::int64_t checksum = 0;
    if (std::from_chars(field.data(), field.data() + field.size(), checksum, 8).ec != std::errc()) return false;
    std::int64_t bytes = 0;
    std::int64_t chars = 0;
    for (std::size_t i = 0; i < 512; ++i) {
        const char c = i >= 148 && i < 156 ? ' ' : head[i];
        bytes += static_cast<unsigned char>(c);
        chars += static_cast<signed char>(c);
    }
    return checksum == bytes || checksum == chars;
}

std::optional<Sniffed> sniff_tar(std::string_view head) {
    if (head.size() < 262 || head.substr(257, 5) != "ustar") return std::nullopt;
    const std::string_view first = head.substr(0, std::min<std::size_t>(head.find('\0'), 100));
    for (const std::string_view member : {"sys_info"sv, "pickle"sv, "storages"sv, "tensors"sv})
        if (first == member) return Sniffed{Content::tar, "a tar archive of torch 0.1"};
    return Sniffed{Content::unknown, "a tar archive", "unpack it first"};
}

Sniffed sniff_text(std::string_view head) {
    const std::string_view text = without_space(head);
    if (starts_with_text(text, "<!doctype html") || starts_with_text(text, "<html"))
        return {Content::unknown, "a web page",
                "a download gave an error page or asked for a login: download the file again"};
    if (!text.empty() && (text.front() == '{' || text.front() == '[')) return {Content::json, "JSON text"};
    return {Content::unknown, ""};
}

using MaybeSniffed = std::optional<Sniffed>;

MaybeSniffed empty_file(const Source&, std::string_view head) {
    if (!head.empty()) return std::nullopt;
    return Sniffed{Content::unknown, "an empty file", "a download or a copy may not have finished"};
}

MaybeSniffed safetensors(const Source& source, std::string_view head) {
    if (!is_safetensors(source, head)) return std::nullopt;
    return Sniffed{Content::safetensors};
}

MaybeSniffed zip(const Source&, std::string_view head) {
    if (head.starts_with("PK\x03\x04")) return sniff_zip(head);
    if (head.starts_with("PK\x05\x06")) return Sniffed{Content::zip};  // without records
    return std::nullopt;
}

MaybeSniffed foreign(const Source&, std::string_view head) {
    for (const Signature& signature : signatures)
        if (head.substr(std::min(signature.offset, head.size())).starts_with(signature.bytes))
            return Sniffed{Content::unknown, std::string(signature.looks_like), std::string(signature.hint)};
    return std::nullopt;
}

MaybeSniffed tar_and_pickle(const Source&, std::string_view head) {
    if (!(torch::is_legacy(head) || is_pickle(head)) || !begins_tar(head)) return std::nullopt;
    return Sniffed{Content::unknown, "a tar archive and a pickle in one"};
}

MaybeSniffed legacy(const Source&, std::string_view head) {
    if (!torch::is_legacy(head)) return std::nullopt;
    return Sniffed{Content::legacy, "a file of torch.save before 1.6"};
}

MaybeSniffed pickle(const Source&, std::string_view head) {
    if (!is_pickle(head)) return std::nullopt;
    return Sniffed{Content::pickle, "a pickle"};
}

MaybeSniffed tar(const Source&, std::string_view head) { return sniff_tar(head); }

MaybeSniffed onnx(const Source&, std::string_view head) {
    if (!is_onnx(head)) return std::nullopt;
    return Sniffed{Content::unknown, "an ONNX model"};
}

MaybeSniffed zeros(const Source& source, std::string_view head) {
    if (head.find_first_not_of('\0') != head.npos) return std::nullopt;
    return Sniffed{Content::unknown, head.size() == source.size() ? "zeros" : "zeros at its beginning",
                   "a download or a copy may not have finished"};
}

MaybeSniffed cut_safetensors(const Source&, std::string_view head) {
    if (head.size() <= 8 || header_length(head) >= 100'000'000 || head[8] != '{') return std::nullopt;
    return Sniffed{Content::unknown, "a safetensors file that ends inside its header",
                   "a download or a copy may not have finished"};
}

MaybeSniffed text(const Source&, std::string_view head) {
    Sniffed found = sniff_text(head);
    if (found.looks_like.empty()) return std::nullopt;
    return found;
}

MaybeSniffed zip_at_end(const Source& source, std::string_view) {
    if (!ends_as_zip(source)) return std::nullopt;
    return Sniffed{Content::zip};
}

/// In the order of trying: the first that recognises the file decides.
constexpr MaybeSniffed (*recognisers[])(const Source&, std::string_view) = {
    empty_file, safetensors, zip,   foreign,         tar_and_pickle, legacy,    pickle,
    tar,        onnx,        zeros, cut_safetensors, text,           zip_at_end};

}  // namespace

Sniffed sniff(const Source& source) {
    const std::string head = read_range(source, 0, 512);
    for (const auto recognise : recognisers)
        if (auto found = recognise(source, head)) return std::move(*found);
    if (source.size() < 8) return {Content::unknown, "a file of " + bytes_text(source.size())};
    return {Content::unknown, ""};
}

std::string_view torch_takes_for(const Source& source) {
    const std::string head = read_range(source, 0, 512);
    if (head.starts_with("PK\x03\x04")) return "a zip";
    if (begins_tar(head)) return "a tar archive";
    // Headers are seldom a pickle for more than a few bytes.
    constexpr std::uint64_t most = 16 << 20;
    for (std::uint64_t window = 512; window <= most; window *= 32) {
        const std::string bytes = read_range(source, 0, window);
        const PickleTrial trial = try_pickle(bytes, source.size() - bytes.size());
        if (trial.names_global) return "a pickle";
        if (!trial.goes_on || bytes.size() == source.size()) return {};
    }
    return "a pickle";
}

}  // namespace safemap::SAFEMAP_ABI::open
