// Reads the headers of a tar archive, of any kind of tar. Tested by tests/torch/tar_test.cpp.
#include "pickle/tar_members.hpp"

#include "base/text.hpp"

#include <algorithm>
#include <array>
#include <optional>
#include <span>
#include <string_view>

namespace safemap::SAFEMAP_ABI {

namespace {

constexpr std::uint64_t block = 512;
/// Most members; torch 0.1 writes four.
constexpr int max_members = 64;

/// The header of a member.
class Header {
public:
    Header(const Source& source, std::uint64_t at) {
        source.read_at(at, std::as_writable_bytes(std::span(bytes_)));
        if (!begins_tar({bytes_.data(), bytes_.size()}))
            throw Error(Errc::unknown_format, "no tar header at byte " + std::to_string(at));
        // Links, and headers of pax and GNU, give members other names and contents than this header does.
        const char type = bytes_[156];
        if ((type != '0' && type != '\0') || !text(345, 155).empty())
            throw Error(Errc::unknown_format, "a member of the tar archive is not a plain file: " + quoted(name()));
    }

    std::string_view name() const { return text(0, 100); }
    std::optional<std::uint64_t> size() const { return octal(124, 12); }

private:
    /// Returns a field up to the first NUL.
    std::string_view text(std::size_t at, std::size_t size) const {
        const std::string_view field(bytes_.data() + at, size);
        return field.substr(0, field.find('\0'));
    }
    std::optional<std::uint64_t> octal(std::size_t at, std::size_t size) const {
        std::string_view digits = text(at, size);
        while (digits.ends_with(' ')) digits.remove_suffix(1);
        while (digits.starts_with(' ')) digits.remove_prefix(1);
        if (digits.empty()) return std::nullopt;
        std::uint64_t value = 0;  // twelve digits at most, so it cannot overflow
        for (const char digit : digits) {
            if (digit < '0' || digit > '7') return std::nullopt;
            value = value * 8 + static_cast<std::uint64_t>(digit - '0');
        }
        return value;
    }
    std::array<char, block> bytes_;
};

/// Returns true if there is a block of zeros at `at`, as after the last member.
bool is_end(const Source& source, std::uint64_t at) {
    std::array<char, block> bytes;
    source.read_at(at, std::as_writable_bytes(std::span(bytes)));
    return std::all_of(bytes.begin(), bytes.end(), [](char byte) { return byte == 0; });
}

/// Returns the number in a field as Python reads it: octal, with signs and underscores, or bytes of a binary number.
std::optional<std::int64_t> python_number(std::string_view field) {
    if (field.starts_with('\x80') || field.starts_with('\xff')) {
        std::uint64_t value = field[0] == '\x80' ? 0 : ~std::uint64_t{0};
        for (const char byte : field.substr(1)) value = value << 8 | static_cast<unsigned char>(byte);
        return static_cast<std::int64_t>(value);
    }
    constexpr std::string_view space = " \t\n\v\f\r";
    field = field.substr(0, field.find('\0'));
    field.remove_prefix(std::min(field.find_first_not_of(space), field.size()));
    field = field.substr(0, field.find_last_not_of(space) + 1);
    if (field.starts_with('+')) field.remove_prefix(1);
    if (field.starts_with("0o") || field.starts_with("0O")) field.remove_prefix(2);
    std::int64_t value = 0;
    for (const char digit : field) {
        if (digit == '_') continue;
        if (digit < '0' || digit > '7') return std::nullopt;
        value = value * 8 + (digit - '0');
    }
    return value;
}

}  // namespace

bool begins_tar(std::string_view head) {
    if (head.size() < block) return false;
    const auto checksum = python_number(head.substr(148, 8));
    if (!checksum || *checksum == 0) return false;
    std::int64_t bytes = 0;
    std::int64_t chars = 0;
    for (std::size_t i = 0; i < block; ++i) {
        const char c = i >= 148 && i < 156 ? ' ' : head[i];
        bytes += static_cast<unsigned char>(c);
        chars += static_cast<signed char>(c);
    }
    return *checksum == bytes || *checksum == chars;
}

std::vector<TarPlace> tar_places(const Source& source, std::uint64_t searched) {
    constexpr std::size_t most_places = 4096;
    std::vector<TarPlace> places;
    std::array<char, block> bytes;
    std::uint64_t next = 0;  // to which the size of the last header leads
    for (std::uint64_t at = 0; Extent{at, block}.inside(source.size()) && places.size() < most_places;) {
        source.read_at(at, std::as_writable_bytes(std::span(bytes)));
        const std::string_view head(bytes.data(), bytes.size());
        const bool is_header = begins_tar(head);
        if (is_header) {
            const std::int64_t size = python_number(head.substr(124, 12)).value_or(0);
            const std::uint64_t left = source.size() - at - block;
            const std::uint64_t data = std::min(size < 0 ? 0 : static_cast<std::uint64_t>(size), left);
            places.push_back({{at + block, data},
                              std::string(head.substr(0, std::min<std::size_t>(head.find('\0'), 100))),
                              head[156]});
            if (at >= next) next = at + block + (data + block - 1) / block * block;
        }
        at = at + block < searched ? at + block : std::max(next, at + block);
        if (!is_header && at > searched && at > next) break;
    }
    return places;
}

TarMembers tar_members(const Source& source) {
    TarMembers members;
    std::uint64_t at = 0;
    for (int i = 0; Extent{at, block}.inside(source.size()) && !is_end(source, at); ++i) {
        if (i == max_members)
            throw Error(Errc::unknown_format,
                        "the tar archive has more than " + std::to_string(max_members) + " members");
        const Header header(source, at);
        const auto size = header.size();
        if (!size || !Extent{at + block, *size}.inside(source.size())) {
            throw Error(Errc::file_truncated, "member " + safemap::quoted(header.name()) + ": " +
                                                  (size ? bytes_text(*size) : "unreadable size") +
                                                  ", but the file ends after " +
                                                  bytes_text(source.size() - at - block));
        }
        members.insert_or_assign(std::string(header.name()), Extent{at + block, *size});
        at += block + (*size + block - 1) / block * block;
    }
    return members;
}

}  // namespace safemap::SAFEMAP_ABI
