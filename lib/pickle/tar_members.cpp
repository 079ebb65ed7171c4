// Reads the headers of a tar archive, which are POSIX ustar. Tested by tests/torch/tar_test.cpp.
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
        if (text(257, 5) != "ustar" || octal(148, 8) != sum()) {
            throw Error(Errc::unknown_format, "no tar header at byte " + std::to_string(at));
        }
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
    /// Returns the sum of all bytes. The bytes of the stored sum count as spaces.
    std::uint64_t sum() const {
        std::uint64_t sum = std::uint64_t{8} * ' ';
        for (std::size_t i = 0; i < bytes_.size(); ++i) {
            if (i < 148 || i >= 156) sum += static_cast<unsigned char>(bytes_[i]);
        }
        return sum;
    }

    std::array<char, block> bytes_;
};

/// Returns true if there is a block of zeros at `at`, as after the last member.
bool is_end(const Source& source, std::uint64_t at) {
    std::array<char, block> bytes;
    source.read_at(at, std::as_writable_bytes(std::span(bytes)));
    return std::all_of(bytes.begin(), bytes.end(), [](char byte) { return byte == 0; });
}

}  // namespace

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
