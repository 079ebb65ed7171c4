// Implements the readers of header_canonical.hpp, which has the overview.
#include "safetensors/header_canonical.hpp"

#include <safemap/advanced/dtypes.hpp>

#include "base/checked.hpp"
#include "base/text.hpp"
#include "safetensors/format.hpp"

#include <bit>

namespace safemap::SAFEMAP_ABI::safetensors {
namespace {

/// Returns the first byte from `at` on that is a quote, a backslash, a control character or not ASCII. Checks eight
/// bytes at a time. The subtractions may mark wrong bytes in a word, but the lowest marked byte is correct, and it is
/// the first one in the text.
const char* end_of_plain(const char* at) {
    constexpr std::uint64_t ones = 0x0101'0101'0101'0101U;
    constexpr std::uint64_t tops = 0x8080'8080'8080'8080U;
    const auto below = [](std::uint64_t word, std::uint64_t limit) { return (word - ones * limit) & ~word; };
    for (std::uint64_t word;; at += sizeof word) {
        std::memcpy(&word, at, sizeof word);
        const std::uint64_t found =
            (below(word ^ ones * '"', 1) | below(word ^ ones * '\\', 1) | below(word, ' ') | word) & tops;
        if (found != 0) return at + std::countr_zero(found) / 8;
    }
}

}  // namespace

std::optional<std::string_view> Characters::take_string() {
    if (!take("\"")) return std::nullopt;
    const char* const first = at_;
    at_ = end_of_plain(first);
    const bool ascii = static_cast<unsigned char>(*at_) < 0x80;
    while (static_cast<unsigned char>(*at_) >= 0x80) at_ = end_of_plain(at_ + 1);
    const std::string_view text(first, static_cast<std::size_t>(at_ - first));
    if (!take("\"") || !(ascii || is_utf8(text))) return std::nullopt;
    return text;
}

void CanonicalTensor::expect(Dtype dtype) {
    dtype_ = dtype;
    opening_ = R"({"dtype":")" + std::string(name(dtype)) + R"(","shape":)";
}

bool CanonicalTensor::take(Characters& at, const char* text, Row& row) {
    if (!at.take(opening_) && !take_dtype(at)) return false;
    row.dtype = dtype_;
    row.shape = static_cast<std::uint32_t>(at.position() - text);
    std::optional<std::uint64_t> elements = 1;
    if (!take_shape(at, elements)) return false;
    if (!at.take(R"(,"data_offsets":[)") || !at.take_number(row.begin) || !at.take(",") || !at.take_number(row.end) ||
        !at.take("]}"))
        return false;
    row.set_sized(elements);
    return true;
}

/// Takes a dtype other than the last one, and expects it from then on.
bool CanonicalTensor::take_dtype(Characters& at) {
    if (!at.take(R"({"dtype":)")) return false;
    const auto word = at.take_string();
    const auto dtype = word ? dtype_from_safetensors(*word) : std::nullopt;
    if (!dtype) return false;
    expect(*dtype);
    return at.take(R"(,"shape":)");
}

bool CanonicalTensor::take_shape(Characters& at, std::optional<std::uint64_t>& elements) {
    if (!at.take("[")) return false;
    if (at.take("]")) return true;
    do {
        std::uint64_t dimension = 0;
        if (!at.take_number(dimension)) return false;
        if (elements) elements = checked_mul(*elements, dimension);
    } while (at.take(","));
    return at.take("]");
}

bool CanonicalHeader::read() {
    if (!at_.take("{")) return false;
    if (at_.take(R"("__metadata__":{)")) {
        if (!read_metadata()) return false;
        if (at_.take("}")) return rest_is_spaces();
        if (!at_.take(",")) return false;
    }
    return read_tensors() && rest_is_spaces();
}

bool CanonicalHeader::read_metadata() {
    has_metadata_ = true;
    if (at_.take("}")) return true;
    do {
        const auto key = at_.take_string();
        if (!key || !at_.take(":")) return false;
        const auto value = at_.take_string();
        if (!value) return false;
        metadata_.push_back({place(*key), static_cast<std::uint32_t>(key->size()), place(*value),
                             static_cast<std::uint32_t>(value->size())});
    } while (at_.take(","));
    return at_.take("}");
}

bool CanonicalHeader::read_tensors() {
    const char* const first = at_.position();
    if (!read_tensor()) return false;
    // Most tensors take about as many bytes as the first one.
    const auto bytes_each = static_cast<std::size_t>(at_.position() - first) + 1;
    rows_.reserve(text_.size() / bytes_each + 1);
    while (at_.take(","))
        if (!read_tensor()) return false;
    return at_.take("}");
}

bool CanonicalHeader::read_tensor() {
    const auto name = at_.take_string();
    // Only the first member may be the metadata.
    if (!name || *name == reserved_name || !at_.take(":")) return false;
    Row row;
    row.name = place(*name);
    row.name_size = static_cast<std::uint32_t>(name->size());
    if (!tensor_.take(at_, text_.data(), row)) return false;
    rows_.push_back(row);
    return true;
}

bool CanonicalHeader::rest_is_spaces() const {
    return text_.find_first_not_of(' ', static_cast<std::size_t>(at_.position() - text_.data())) ==
           std::string_view::npos;
}

}  // namespace safemap::SAFEMAP_ABI::safetensors
