// Tested by tests/checkpoint/twin_test.cpp.
#include "checkpoint/twin.hpp"

#include "base/checksum.hpp"
#include "base/text.hpp"
#include "safetensors/header.hpp"

#include <algorithm>
#include <array>
#include <bit>
#include <optional>
#include <system_error>
#include <vector>

namespace safemap::SAFEMAP_ABI::checkpoint {

namespace {

namespace fs = std::filesystem;

constexpr std::uint64_t first_bytes = 64 << 10;
constexpr std::uint64_t last_bytes = 1 << 20;
constexpr std::uint64_t block = 4 << 10;
constexpr std::uint64_t blocks = 64;
constexpr std::array endings{".pt", ".pth", ".bin", ".ckpt"};

using Metadata = std::vector<std::pair<std::string, std::string>>;

const std::string* stored_in(const Metadata& metadata) {
    const auto entry =
        std::find_if(metadata.begin(), metadata.end(), [](const auto& pair) { return pair.first == source_key; });
    return entry == metadata.end() ? nullptr : &entry->second;
}

/// The file that it was converted from may lie there under any of the endings.
void note_of_safetensors(const fs::path& path, Contents& contents) {
    const std::string* const stored = stored_in(contents.metadata);
    if (stored == nullptr) return;
    std::optional<fs::path> stale;
    for (const char* ending : endings) {
        fs::path other = path;
        other.replace_extension(ending);
        std::error_code ignored;
        if (!fs::is_regular_file(other, ignored)) continue;
        if (fingerprint(*open_file(other, Mapping::never)) == *stored) return;
        if (!stale) stale = std::move(other);
    }
    if (!stale) return;
    contents.notes.push_back(
        safemap::quoted(stale->filename().native()) +
        " beside it is not the file that it was converted from, or has changed since: one of the two "
        "is stale");
}

void note_of_torch(const fs::path& path, Contents& contents) {
    fs::path other = path;
    other.replace_extension(".safetensors");
    std::error_code ignored;
    if (other == path || !fs::is_regular_file(other, ignored)) return;
    ThrowFirst faults;
    const auto header = read_header(*open_file(other, Mapping::never), safetensors::Rules::lenient,
                                    OpenOptions().max_header_bytes, faults);
    const std::string* const stored = stored_in(header.metadata);
    if (stored == nullptr || *stored == fingerprint(*contents.sources.front())) return;
    contents.notes.push_back(
        safemap::quoted(other.filename().native()) +
        " beside it was converted from another file, or before this one changed: one of the two is "
        "stale");
}

}  // namespace

std::string fingerprint(const Source& source) {
    const std::uint64_t size = source.size();
    std::vector<std::byte> buffer(last_bytes);
    Xxh3 hash;
    std::array<std::byte, 8> length{};
    for (std::size_t i = 0; i < length.size(); ++i) length[i] = static_cast<std::byte>(size >> (8 * i) & 0xFF);
    hash.update(length);
    const auto update = [&](std::uint64_t offset, std::uint64_t bytes) {
        const std::span part(buffer.data(), bytes);
        source.read_at(offset, part);
        hash.update(part);
    };
    if (size <= first_bytes + blocks * block + last_bytes) {
        for (std::uint64_t at = 0; at < size; at += last_bytes) update(at, std::min(last_bytes, size - at));
        return hash.hex();
    }
    update(0, first_bytes);
    const std::uint64_t between = size - first_bytes - last_bytes - block;
    for (std::uint64_t i = 0; i < blocks; ++i) update(first_bytes + between / (blocks - 1) * i, block);
    update(size - last_bytes, last_bytes);
    return hash.hex();
}

void note_twin(const fs::path& path, Contents& contents) {
    try {
        if (contents.format == Format::safetensors) note_of_safetensors(path, contents);
        else note_of_torch(path, contents);
    } catch (const Error&) {  // of the other file, or of a file that somebody writes to
    }
}

}  // namespace safemap::SAFEMAP_ABI::checkpoint
