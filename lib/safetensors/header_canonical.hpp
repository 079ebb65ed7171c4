// Reads headers in the layout of the reference implementation, without a JSON parser.
//
// The reference writes one layout, without blanks and with the fields in one order:
//     {"__metadata__":{"key":"value"},"name":{"dtype":"F32","shape":[2,3],"data_offsets":[0,24]},...}
// followed by spaces. CanonicalHeader reads this layout byte by byte and rejects any other text, valid or not:
// header.cpp then reads the whole text again with simdjson and finds the faults. From top to bottom:
//   - Characters: takes expected words, numbers and strings from a padded text.
//   - MetadataPlace: the place of an entry of `__metadata__` in the text.
//   - CanonicalTensor: reads the value of one tensor; header.cpp also uses it for single tensors.
//   - CanonicalHeader: reads the whole text.
#pragma once

#include "safetensors/header.hpp"

#include <cstdint>
#include <cstring>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace safemap::SAFEMAP_ABI::safetensors {

/// A reader that takes expected characters from a text. At least 64 zero bytes follow the text, more than any word has.
class Characters {
public:
    explicit Characters(const char* at) : at_(at) {}

    const char* position() const { return at_; }

    bool take(std::string_view word) {
        if (std::memcmp(at_, word.data(), word.size()) != 0) return false;
        at_ += word.size();
        return true;
    }
    /// Takes digits of a JSON number below 10^19.
    bool take_number(std::uint64_t& number) {
        const char* const first = at_;
        const char* at = first;  // local, so that the compiler keeps it in a register
        std::uint64_t value = 0;
        for (; *at >= '0' && *at <= '9'; ++at) value = value * 10 + static_cast<unsigned>(*at - '0');
        const auto digits = at - first;
        at_ = at;
        number = value;
        return digits == 1 || (digits > 1 && digits < 20 && *first != '0');
    }
    /// Takes a string with its quotes. Rejects escapes, control characters and bytes that are not UTF-8.
    std::optional<std::string_view> take_string();

private:
    const char* at_;
};

/// The places of a key of `__metadata__` and of its value in the text.
struct MetadataPlace {
    std::uint32_t key;
    std::uint32_t key_size;
    std::uint32_t value;
    std::uint32_t value_size;
};

/// A reader of tensor values: {"dtype":"F32","shape":[2,3],"data_offsets":[0,24]}.
class CanonicalTensor {
public:
    using Row = TensorList::Row;

    CanonicalTensor() { expect(Dtype::f32); }

    /// Fills all of `row` except its name; offsets are relative to `text`. Returns false for any other layout.
    bool take(Characters& at, const char* text, Row& row);

private:
    void expect(Dtype dtype);
    bool take_dtype(Characters& at);
    static bool take_shape(Characters& at, std::optional<std::uint64_t>& elements);

    Dtype dtype_ = {};     // dtype of the previous tensor: most have the same
    std::string opening_;  // a value with that dtype, up to its shape
};

/// A reader of a whole header. It fills two lists, which are invalid if read() returns false.
class CanonicalHeader {
public:
    using Row = TensorList::Row;

    CanonicalHeader(std::string_view text, std::vector<Row>& rows, std::vector<MetadataPlace>& metadata)
        : text_(text), rows_(rows), metadata_(metadata), at_(text.data()) {}

    /// Returns true if the text has the reference's layout to its end. The caller checks duplicate names and keys.
    bool read();
    bool has_metadata() const { return has_metadata_; }

private:
    bool read_metadata();
    bool read_tensors();
    bool read_tensor();
    bool rest_is_spaces() const;

    std::uint32_t place(std::string_view part) const { return static_cast<std::uint32_t>(part.data() - text_.data()); }

    std::string_view text_;
    std::vector<Row>& rows_;
    std::vector<MetadataPlace>& metadata_;
    Characters at_;
    CanonicalTensor tensor_;
    bool has_metadata_ = false;
};

}  // namespace safemap::SAFEMAP_ABI::safetensors
