// Reads headers in one pass over an owned, padded buffer, without a tree. Names and shapes stay in the buffer.
// header_canonical.hpp reads a header with the exact layout of the reference implementation; simdjson's On-Demand
// parser reads all others.
//
// On-Demand checks only the values that it is asked for, but the reference refuses a header for any fault. So every
// value is visited, even in unknown fields, under the rules of the reference's JSON reader (serde_json). From top to
// bottom:
//   1. read_text(): reads the length and the bytes of a header.
//   2. Allowances: reports everything that only the strict policy refuses.
//   3. JSON values: check each value as serde_json does: numbers, strings, depth.
//   4. HeaderReader: reads the document and its fields into rows; then checks duplicate names, order and layout.
//   5. TensorList: returns rows as tensors.
#include "safetensors/header.hpp"

#include <safemap/advanced/dtypes.hpp>

#include "base/checked.hpp"
#include "base/json.hpp"
#include "base/name_index.hpp"
#include "base/text.hpp"
#include "safetensors/format.hpp"
#include "safetensors/header_canonical.hpp"
#include "safetensors/metadata.hpp"

#include <simdjson.h>

#include <algorithm>
#include <cstring>
#include <new>
#include <optional>
#include <utility>

namespace safemap::SAFEMAP_ABI::safetensors {

namespace {

namespace ondemand = simdjson::ondemand;

[[noreturn]] void not_json(std::string message) { throw Error(Errc::header_not_json, std::move(message)); }
[[noreturn]] void bad_field(std::string message) { throw Error(Errc::header_bad_field, std::move(message)); }

/// The bytes of a header, with the padding that simdjson may read beyond the end.
struct Text {
    std::unique_ptr<char[]> bytes;
    std::uint64_t size = 0;

    std::string_view view() const { return {bytes.get(), static_cast<std::size_t>(size)}; }
};

/// Returns true if the file seems to have a header of `size` bytes. The bytes of other files are not shown in messages,
/// not even as numbers: the file may be a link to somebody's secret.
bool has_header(const Source& source, std::uint64_t size) {
    if (size > longest_header) return false;
    std::string head(std::min<std::uint64_t>(source.size() - length_bytes, 4096), '\0');
    source.read_at(length_bytes, std::as_writable_bytes(std::span(head)));
    const std::size_t first = head.find_first_not_of(" \t\n\r");
    return first != head.npos && head[first] == '{';
}

Text read_text(const Source& source, std::uint64_t max_header_bytes) {
    const std::uint64_t file_size = source.size();
    if (file_size < length_bytes)
        throw Error(Errc::header_too_short, "the file has " + bytes_text(file_size) + ", but a header length takes 8");
    std::uint64_t size = 0;
    source.read_at(0, std::as_writable_bytes(std::span(&size, 1)));
    static_assert(longest_header <= simdjson::SIMDJSON_MAXSIZE_BYTES);
    const std::uint64_t limit = std::min(max_header_bytes, longest_header);
    const bool too_large = size > limit;
    if ((too_large || size > file_size - length_bytes) && !has_header(source, size))
        throw Error(too_large ? Errc::header_too_large : Errc::header_past_end,
                    "expected the length of a header in the first eight bytes, and a '{' after it");
    if (too_large) {
        Error error(Errc::header_too_large,
                    "the header length is " + std::to_string(size) + ", the limit is " + std::to_string(limit));
        if (size <= file_size - length_bytes)  // otherwise the file is truncated
            error.with_hint("--max-header-size " + std::to_string(size) +
                            " (OpenOptions::max_header_bytes) reads it, if you trust the file");
        throw std::move(error);
    }
    if (size > file_size - length_bytes)
        throw Error(Errc::header_past_end, "the header length is " + std::to_string(size) + ", but only " +
                                               bytes_text(file_size - length_bytes) + " follow it");
    // Not make_unique(), which writes zeros first.
    Text text{std::unique_ptr<char[]>(new char[size + simdjson::SIMDJSON_PADDING]), size};
    source.read_at(length_bytes, std::as_writable_bytes(std::span(text.bytes.get(), size)));
    std::memset(text.bytes.get() + size, 0, simdjson::SIMDJSON_PADDING);
    return text;
}

/// Handles faults that only the strict policy refuses. Other policies record them as tolerated, the first 100 in full.
class Allowances {
public:
    Allowances(Rules rules, FaultSink& faults, std::vector<Error>& tolerated)
        : strict_(rules == Rules::strict), faults_(faults), tolerated_(tolerated) {}

    /// Reports a fault. `name`, if given, ends the sentence. Costs almost nothing after the first 100.
    void meet(Errc code, std::string_view what, std::string_view tensor = {}, std::string_view name = {}) {
        ++met_;
        last_ = code;
        if (!strict_ && met_ > most_told) return;
        Error error(code, std::string(what) + (name.data() == nullptr ? "" : ' ' + safemap::quoted(name)));
        if (!tensor.empty()) error.with_tensor(tensor);
        if (strict_) return faults_.fault(std::move(error));
        tolerated_.push_back(std::move(error));
    }
    void finish() {
        if (!strict_ && met_ > most_told)
            tolerated_.emplace_back(last_, std::to_string(met_ - most_told) + " more faults like it");
    }

private:
    static constexpr std::size_t most_told = 100;

    bool strict_;
    FaultSink& faults_;
    std::vector<Error>& tolerated_;
    std::size_t met_ = 0;
    Errc last_ = {};
};

// ---- JSON values ----

bool is_null(ondemand::value& value) {
    bool null = false;
    return !value.is_null().get(null) && null;
}

std::string_view checked_text(std::string_view text) {
    // A lone surrogate in an escape becomes bytes that begin with ED and are not UTF-8.
    if (text.find('\xed') != std::string_view::npos && !is_utf8(text)) not_json("a lone surrogate in a string");
    return text;
}

/// Returns the string at `text`, which is behind its opening quote; nothing if it has escapes. On-Demand's first stage
/// has checked that every string ends before `end` and has no control characters.
std::optional<std::string_view> plain_string(const char* text, const char* end) {
    const auto room = static_cast<std::size_t>(end - text);
    const auto* quote = static_cast<const char*>(std::memchr(text, '"', room));
    const auto size = static_cast<std::size_t>(quote - text);
    if (std::memchr(text, '\\', size) != nullptr) return std::nullopt;
    return std::string_view(text, size);
}

/// Returns true if the string at `text` is exactly `word`, without escapes. `word` is shorter than the padding.
bool spells(const char* text, std::string_view word) {
    return std::memcmp(text, word.data(), word.size()) == 0 && text[word.size()] == '"';
}

std::string_view text_of(ondemand::value& value) { return checked_text(value.get_string()); }
std::string_view text_of(ondemand::field& field) { return checked_text(field.unescaped_key()); }

/// Returns the number without leading zeros in its exponent. Shortens an exponent that is beyond all doubles: simdjson
/// accepts at most 19 digits of an exponent, the reference any number.
std::string with_short_exponent(std::string_view number) {
    number = number.substr(0, number.find_last_not_of(" \t\n\r") + 1);
    const std::size_t e = std::min(number.find_first_of("eE"), number.size());
    const std::size_t digits = std::min(number.find_first_not_of("eE+-", e), number.size());
    const std::string_view exponent = number.substr(digits);
    if (exponent.empty() || exponent.find_first_not_of("0123456789") != std::string_view::npos)
        return std::string(number);
    const std::string_view significant = exponent.substr(std::min(exponent.find_first_not_of('0'), exponent.size()));
    return std::string(number.substr(0, digits)) +
           (significant.empty() ? "0" : std::string(significant.size() > 9 ? "999999999" : significant));
}

/// Checks that a number fits into a double.
void visit_number(ondemand::value value) {
    if (!value.get_double().error()) return;
    const json::Value again = json::parse(with_short_exponent(value.raw_json_token()), Errc::header_not_json);
    if (!again.number()) not_json("invalid number");
}

/// Checks all of a value that is not used. `depth` is the number of containers around it.
void visit(ondemand::value value, unsigned depth) {
    switch (value.type()) {
        case ondemand::json_type::object:
        case ondemand::json_type::array: break;
        case ondemand::json_type::string: text_of(value); return;
        case ondemand::json_type::number: visit_number(value); return;
        case ondemand::json_type::boolean: static_cast<void>(value.get_bool().value()); return;
        case ondemand::json_type::null:
            if (!is_null(value)) not_json("invalid word; expected true, false or null");
            return;
    }
    if (depth >= json::max_depth) not_json("arrays and objects are nested more than 127 deep");
    if (value.type() == ondemand::json_type::array) {
        for (ondemand::value item : value.get_array()) visit(item, depth + 1);
        return;
    }
    for (ondemand::field field : value.get_object()) {
        text_of(field);
        visit(field.value(), depth + 1);
    }
}

/// Refuses a number that is not an unsigned integer in plain digits: 4.0, -0.
[[noreturn]] void refuse_number(ondemand::value value, const char* where) {
    if (value.type() != ondemand::json_type::number)
        bad_field(std::string(where) + " holds something other than numbers");
    visit_number(value);  // an invalid number is the worse fault
    bad_field(std::string(where) + " holds a number that is not an integer of 0 to 2^64 - 1");
}

inline std::uint64_t whole_number(ondemand::value value, const char* where) {
    std::uint64_t number = 0;
    if (value.get_uint64().get(number)) refuse_number(value, where);
    return number;
}

/// Calls dimension(number) for each item of an array of unsigned integers that was checked before.
template <class Dimension> void for_each_dimension(const char* array, Dimension&& dimension) {
    for (const char* at = array + 1; *at != ']'; ++at) {
        if (*at < '0' || *at > '9') continue;
        std::uint64_t number = 0;
        for (; *at >= '0' && *at <= '9'; ++at) number = number * 10 + static_cast<unsigned>(*at - '0');
        --at;
        dimension(number);
    }
}

}  // namespace

/// Reads one header: from the buffer to the checked list of tensors.
class HeaderReader {
public:
    using Row = TensorList::Row;

    HeaderReader(Rules rules, FaultSink& faults, Header& header)
        : rules_(rules), faults_(faults), header_(header), allowed_(rules, faults, header.tolerated) {}

    void read(Text text, std::uint64_t file_size) {
        text_ = text.view();
        list().text_ = std::move(text.bytes);
        list().data_offset_ = header_.data_offset = length_bytes + text_.size();
        data_size_ = file_size - header_.data_offset;
        read_document();
        spell_metadata();
        drop_repeated();
        sort_by_offset();
        check_layout();
        allowed_.finish();
    }

private:
    TensorList& list() { return header_.tensors; }
    std::vector<Row>& rows() { return list().rows_; }

    void report(Error error) {
        complete_ = false;
        faults_.fault(std::move(error));
    }

    std::uint32_t place(const char* in_text) const { return static_cast<std::uint32_t>(in_text - text_.data()); }
    static std::uint32_t size32(std::string_view text) { return static_cast<std::uint32_t>(text.size()); }

    // ---- the document ----

    void read_document() {
        try {
            if (read_canonical()) return;
            // A tensor takes about a hundred bytes; less with a short name and an empty shape.
            rows().reserve(text_.size() / 96 + 1);
            read_object();
        } catch (const simdjson::simdjson_error& error) {
            if (error.error() == simdjson::MEMALLOC) throw std::bad_alloc();
            report_unread(error.what());
        } catch (Error& error) {
            report(std::move(error));
        }
    }

    /// Reads a header that has the layout of the reference implementation. For any other layout, returns false and
    /// leaves nothing behind.
    bool read_canonical() {
        CanonicalHeader canonical(text_, rows(), metadata_);
        if (!canonical.read()) {
            rows() = {};
            metadata_ = {};
            return false;
        }
        if (canonical.has_metadata()) sort_metadata();
        return true;
    }

    /// Reports that simdjson's first stage refused the text. The reference checks the encoding first, so this does too.
    void report_unread(std::string message) {
        if (!is_utf8(text_)) report(Error(Errc::header_not_utf8, "the header holds bytes that are not UTF-8"));
        else report(Error(Errc::header_not_json, std::move(message)));
    }

    void read_object() {
        if (text_.empty()) not_json("the header is empty");
        ondemand::parser parser;
        ondemand::document document =
            parser.iterate(text_.data(), text_.size(), text_.size() + simdjson::SIMDJSON_PADDING);
        try {
            read_members(document);
        } catch (const simdjson::simdjson_error& error) {
            if (error.error() == simdjson::MEMALLOC) throw;
            not_json(error.what() + near(document));
        } catch (const Error& error) {
            if (error.code() != Errc::header_not_json) throw;
            not_json(error.message() + near(document));
        }
        check_padding();
    }

    /// Returns the position that On-Demand has reached: at the fault, or a little after it.
    std::string near(ondemand::document& document) const {
        const char* at = nullptr;
        if (document.current_location().get(at)) return {};
        return "; near byte " + std::to_string(at - text_.data()) + " of the header";
    }

    void read_members(ondemand::document& document) {
        if (document.type() != ondemand::json_type::object) not_json("the header is not an object");
        for (ondemand::field field : document.get_object()) {
            const std::string_view key = kept_key(field);
            if (key == reserved_name) member_metadata(field.value());
            else member_tensor(key, field.value());
        }
        if (document.current_location().error() != simdjson::OUT_OF_BOUNDS)
            not_json("data follows the header's object");
    }

    /// Returns a string as a part of the text. A string with escapes is decoded in its own place: it never gets longer,
    /// and no code reads that place again.
    std::string_view kept(const char* raw, std::string_view unescaped) {
        char* const to = list().text_.get() + place(raw);
        std::memcpy(to, unescaped.data(), unescaped.size());
        return {to, unescaped.size()};
    }

    std::string_view kept_key(ondemand::field& field) {
        const char* raw = field.key().raw();
        const auto plain = plain_string(raw, text_.data() + text_.size());
        escaped_ = !plain;
        return plain ? *plain : kept(raw, text_of(field));
    }

    std::string_view kept_text(ondemand::value& value) {
        const char* raw = value.raw_json_token().data() + 1;
        const std::string_view text = text_of(value);
        if (const auto plain = plain_string(raw, text_.data() + text_.size())) return *plain;
        return kept(raw, text);
    }

    void check_padding() {
        if (text_.front() != '{')
            allowed_.meet(Errc::header_not_canonical, "the header begins with whitespace, not with '{'");
        if (text_.find_last_not_of(' ') != text_.rfind('}'))
            allowed_.meet(Errc::header_not_canonical, "the header is padded with bytes other than spaces");
    }

    void member_metadata(ondemand::value value) {
        try {
            if (std::exchange(seen_metadata_, true))
                throw Error(Errc::header_bad_metadata, "duplicate name: the header has '__metadata__' twice");
            if (is_null(value)) {
                allowed_.meet(Errc::header_not_canonical, "__metadata__ is null, not an object");
                return;
            }
            read_metadata(value);
        } catch (Error& error) {
            if (error.code() != Errc::header_bad_metadata) throw;
            report(std::move(error));
        }
    }

    void read_metadata(ondemand::value value) {
        if (value.type() != ondemand::json_type::object)
            throw Error(Errc::header_bad_metadata, "__metadata__ is not an object");
        for (ondemand::field field : value.get_object()) {
            const std::string_view key = kept_key(field);
            ondemand::value content = field.value();
            if (content.type() != ondemand::json_type::string)
                throw Error(Errc::header_bad_metadata, "the value of " + safemap::quoted(key) + " is not a string");
            const std::string_view text = kept_text(content);
            metadata_.push_back({place(key.data()), size32(key), place(text.data()), size32(text)});
        }
        sort_metadata();
    }

    void sort_metadata() {
        const auto repeated = sort_by_key(metadata_, [this](const MetadataPlace& pair) { return key_of(pair); });
        if (repeated)
            allowed_.meet(Errc::duplicate_name, "__metadata__ has a duplicate key, of which readers take the last:", {},
                          key_of(*repeated));
        header_.has_metadata = true;
    }

    /// Copies metadata into strings, for remaining keys only and after the parser's memory is free: a hostile map has
    /// millions.
    void spell_metadata() {
        if (!header_.has_metadata) return;
        header_.metadata.reserve(metadata_.size());
        for (const MetadataPlace& pair : metadata_)
            header_.metadata.emplace_back(key_of(pair), text_.substr(pair.value, pair.value_size));
    }

    std::string_view key_of(const MetadataPlace& pair) const { return text_.substr(pair.key, pair.key_size); }

    // ---- one tensor ----

    static constexpr unsigned tensor_depth = 2;  // the header's object and the tensor's object
    enum : unsigned { has_dtype = 1, has_shape = 2, has_offsets = 4, has_all = 7 };

    void member_tensor(std::string_view name, ondemand::value value) {
        Row row;
        row.name = place(name.data());
        row.name_size = static_cast<std::uint32_t>(name.size());
        name_ = name;
        seen_ = 0;
        unknown_dtype_.reset();
        try {
            read_tensor(value, row);
        } catch (Error& error) {
            if (error.code() != Errc::header_bad_field) throw;
            if (unknown_dtype_) error = dtype_fault();  // the reference reads the dtype first
            return report(std::move(error.with_tensor(name)));
        }
        if (unknown_dtype_) return leave_out(row);
        // JSON can only write a NUL as an escape.
        if (escaped_ && name.find('\0') != std::string_view::npos) {
            has_nul_ = true;
            allowed_.meet(Errc::bad_name, "the name has a NUL byte", name);
        }
        rows().push_back(row);
    }

    Error dtype_fault() const {
        return {Errc::unknown_dtype,
                "unknown dtype " + safemap::quoted(*unknown_dtype_) + "; expected one of safetensors, such as F32"};
    }

    /// Reports a tensor of unknown dtype. Without it nothing is lost if it has no bytes: repair() does so.
    void leave_out(const Row& row) {
        if (row.begin != row.end) return report(std::move(dtype_fault().with_tensor(name_)));
        if (rules_ == Rules::repair) {
            allowed_.meet(Errc::unknown_dtype, "it has no bytes, and is left out: unknown dtype", name_,
                          *unknown_dtype_);
            return;
        }
        Error error = dtype_fault();
        error.with_tensor(name_).with_hint("safemap repair IN OUT leaves out this tensor, which has no bytes");
        faults_.fault(std::move(error));
    }

    /// Reads {"dtype", "shape", "data_offsets"}, or an array of the three, which serde accepts for a struct too.
    void read_tensor(ondemand::value value, Row& row) {
        // Reading the reference's layout character by character is twice as fast. On-Demand skips a value that is not
        // asked for.
        if (Characters at(value.raw_json_token().data()); canonical_tensor_.take(at, text_.data(), row)) return;
        ondemand::object fields;
        if (value.get_object().get(fields)) return read_tensor_array(value, row);
        for (ondemand::field field : fields) {
            const char* key = field.key().raw();
            if (spells(key, "dtype")) read_dtype(field.value(), row);
            else if (spells(key, "shape")) read_shape(field.value(), row);
            else if (spells(key, "data_offsets")) read_offsets(field.value(), row);
            else read_field(field, row);
        }
        finish(row);
    }

    /// Reads a field that is unknown, or whose name has escapes.
    void read_field(ondemand::field& field, Row& row) {
        const std::string_view key = text_of(field);
        if (key == "dtype") return read_dtype(field.value(), row);
        if (key == "shape") return read_shape(field.value(), row);
        if (key == "data_offsets") return read_offsets(field.value(), row);
        allowed_.meet(Errc::header_not_canonical, "unknown field", name_, key);
        visit(field.value(), tensor_depth);
    }

    void read_tensor_array(ondemand::value& value, Row& row) {
        if (value.type() != ondemand::json_type::array) bad_field("expected an object that describes a tensor");
        allowed_.meet(Errc::header_not_canonical, "the tensor is described by an array, not by an object", name_);
        unsigned count = 0;
        for (ondemand::value item : value.get_array()) {
            switch (count++) {
                case 0: read_dtype(item, row); break;
                case 1: read_shape(item, row); break;
                case 2: read_offsets(item, row); break;
                default: bad_field("the array of a tensor has more than three items");
            }
        }
        finish(row);
    }

    void finish(Row& row) const {
        require_all();
        row.set_sized(elements_);
    }

    void once(unsigned field, const char* field_name) {
        if ((seen_ & field) != 0)
            bad_field("duplicate name: the description has '" + std::string(field_name) + "' twice");
        seen_ |= field;
    }

    void require_all() const {
        if (seen_ == has_all) return;
        const unsigned missing = has_all & ~seen_;
        bad_field(std::string((missing & has_dtype) != 0   ? "dtype"
                              : (missing & has_shape) != 0 ? "shape"
                                                           : "data_offsets") +
                  " is missing");
    }

    /// Reads a name, or {"F32": null}, which serde accepts for an enumerator too.
    void read_dtype(ondemand::value value, Row& row) {
        once(has_dtype, "dtype");
        if (value.type() == ondemand::json_type::string) {
            row.dtype = read_dtype_name(value);
            return;
        }
        if (value.type() != ondemand::json_type::object) bad_field("dtype is not a string");
        allowed_.meet(Errc::header_not_canonical, "dtype is an object, not a string", name_);
        bool found = false;
        for (ondemand::field field : value.get_object()) {
            const std::string_view key = text_of(field);
            if (std::exchange(found, true)) bad_field("dtype is an object with more than one member");
            row.dtype = dtype_named(key);
            ondemand::value content = field.value();
            if (!is_null(content)) bad_field("dtype is an object whose value is not null");
        }
        if (!found) bad_field("dtype is an empty object");
    }

    /// Reads the name of a dtype. Most tensors have the dtype of the one before.
    Dtype read_dtype_name(ondemand::value& value) {
        if (spells(value.raw_json_token().data() + 1, name(last_dtype_))) {
            // On-Demand checks what follows a value only if the value was taken.
            static_cast<void>(value.get_raw_json_string().value());
            return last_dtype_;
        }
        return last_dtype_ = dtype_named(text_of(value));
    }

    /// Returns the dtype of that name. Keeps an unknown name, and returns any dtype.
    Dtype dtype_named(std::string_view dtype_name) {
        if (const auto dtype = dtype_from_safetensors(dtype_name)) return *dtype;
        unknown_dtype_ = dtype_name;
        return Dtype::f32;
    }

    void read_shape(ondemand::value value, Row& row) {
        once(has_shape, "shape");
        row.shape = place(value.raw_json_token().data());
        ondemand::array dimensions;
        if (value.get_array().get(dimensions)) bad_field("shape is not an array");
        elements_ = 1;
        for (ondemand::value dimension : dimensions) {
            const std::uint64_t number = whole_number(dimension, "shape");
            if (elements_) elements_ = checked_mul(*elements_, number);
        }
    }

    void read_offsets(ondemand::value value, Row& row) {
        once(has_offsets, "data_offsets");
        ondemand::array offsets;
        if (value.get_array().get(offsets)) bad_field("data_offsets is not an array");
        unsigned count = 0;
        for (ondemand::value offset : offsets) {
            if (count == 2) bad_field("data_offsets has more than two numbers");
            (count++ == 0 ? row.begin : row.end) = whole_number(offset, "data_offsets");
        }
        if (count != 2) bad_field("data_offsets has fewer than two numbers");
    }

    // ---- checks of all rows ----

    /// Drops repeated names. The last tensor of a name counts, in the place of the first.
    void drop_repeated() {
        if (names_rise()) return;
        NameIndex names;
        std::vector<std::uint32_t> repeated;
        names.add_all(
            static_cast<std::uint32_t>(rows().size()), [this](std::uint32_t i) { return list().name(rows()[i]); },
            [&](std::uint32_t first, std::uint32_t again) {
                dropped_.push_back(rows()[first]);
                rows()[first] = rows()[again];
                repeated.push_back(again);
            });
        if (repeated.empty()) return;
        std::sort(dropped_.begin(), dropped_.end(), begins_before);
        for (const std::uint32_t again : repeated)
            allowed_.meet(Errc::duplicate_name, "duplicate name; readers take the last one",
                          list().name(rows()[again]));
        std::size_t kept = 0;
        auto next = repeated.begin();
        for (std::uint32_t i = 0; i < rows().size(); ++i) {
            if (next != repeated.end() && *next == i) ++next;
            else rows()[kept++] = rows()[i];
        }
        rows().resize(kept);
    }

    /// Returns true if the names are in rising order. Many writers sort them; then there is no duplicate.
    bool names_rise() {
        return std::adjacent_find(rows().begin(), rows().end(), [this](const Row& a, const Row& b) {
                   return list().name(a) >= list().name(b);
               }) == rows().end();
    }

    static bool begins_before(const Row& a, const Row& b) { return a.begin < b.begin; }

    /// Returns the fault of bytes that belong to no tensor because of a duplicate name: they are those of the first
    /// tensor of that name. The strict policy and repair() have reported the name.
    std::optional<Error> duplicate_fault(std::uint64_t begin, std::uint64_t end) {
        if (rules_ == Rules::strict || rules_ == Rules::repair) return std::nullopt;
        const auto dropped = std::lower_bound(dropped_.begin(), dropped_.end(), Row{.begin = begin}, begins_before);
        if (dropped == dropped_.end() || dropped->begin >= end) return std::nullopt;
        Error error(Errc::duplicate_name, "duplicate name; readers take the last one, and " + bytes_text(end - begin) +
                                              " of the first one belong to no tensor");
        return std::move(error.with_tensor(list().name(*dropped)));
    }

    void sort_by_offset() {
        const auto rises = [this](const Row& a, const Row& b) {
            if (a.begin != b.begin) return a.begin < b.begin;
            if (a.end != b.end) return a.end < b.end;
            return sorts_before(a.dtype, list().name(a), b.dtype, list().name(b));
        };
        // Every known writer writes tensors in order.
        if (!std::is_sorted(rows().begin(), rows().end(), rises)) std::sort(rows().begin(), rows().end(), rises);
    }

    /// Checks that tensors follow each other and fill the data; keeps only valid ones. If an earlier fault left a
    /// tensor out, its bytes do not count as a gap.
    void check_layout() {
        std::size_t kept = 0;
        for (std::size_t i = 0; i < rows().size(); ++i) {
            const Row row = rows()[i];
            if (!sound(row, i) || row.end > data_size_) continue;  // past the end: reported once for the whole file
            rows()[kept++] = row;
        }
        rows().resize(kept);
        if (rows().capacity() > kept + kept / 4) rows().shrink_to_fit();
        if (covered_ > data_size_)
            faults_.fault(Error(Errc::file_truncated, "the tensors need " + bytes_text(covered_) +
                                                          " of data, but the file has " + std::to_string(data_size_)));
        if (covered_ < data_size_ && complete_) trailing();
    }

    void trailing() {
        Error error(Errc::trailing_bytes, bytes_text(data_size_ - covered_) + " after the last tensor");
        if (rules_ == Rules::lenient || rules_ == Rules::repair) return header_.tolerated.push_back(std::move(error));
        if (auto duplicate = duplicate_fault(covered_, data_size_)) error = std::move(*duplicate);
        hint_at_repair(error, rows().size());
        faults_.fault(std::move(error));
    }

    /// Adds the command that writes the file without the fault, if repair() can read the file. `i`: the row that is
    /// checked; those before it are checked already.
    void hint_at_repair(Error& error, std::size_t i) {
        const auto is_readable = [this](const Row& row) {
            return row.begin <= row.end && row.end <= data_size_ && row.sized;
        };
        if (!repairable_)
            repairable_ = complete_ && !unreadable_ && !has_nul_ &&
                          std::all_of(rows().begin() + static_cast<std::ptrdiff_t>(i), rows().end(), is_readable);
        if (*repairable_) error.with_hint("safemap repair IN OUT writes a copy without this fault");
    }

    bool sound(const Row& row, std::size_t i) {
        const bool in_place = row.begin == covered_ && row.end >= row.begin;
        auto fault = in_place ? std::nullopt : offset_fault(row);
        if (fault && rules_ == Rules::repair && fault->code() != Errc::offsets_reversed) {
            allowed_.meet(fault->code(), fault->message(), list().name(row));
            fault.reset();
        }
        if (fault && fault->code() != Errc::offsets_reversed) hint_at_repair(*fault, i);
        if (row.end >= row.begin) covered_ = std::max(covered_, row.end);
        unreadable_ = unreadable_ || row.end < row.begin || row.end > data_size_ || !row.sized;
        if (!fault && !row.sized) fault = size_fault(row);
        if (!fault) return true;
        faults_.fault(std::move(fault->with_tensor(list().name(row))));
        return false;
    }

    std::optional<Error> offset_fault(const Row& row) {
        const std::string range = "data_offsets [" + std::to_string(row.begin) + ", " + std::to_string(row.end) + "]";
        if (row.end < row.begin) return Error(Errc::offsets_reversed, range + " end before they begin");
        if (row.begin < covered_)
            return Error(Errc::offsets_overlap,
                         range + " overlap the previous tensor, which ends at " + std::to_string(covered_));
        if (row.begin == covered_ || !complete_) return std::nullopt;
        if (auto duplicate = duplicate_fault(covered_, row.begin)) return duplicate;
        return Error(Errc::offsets_leave_gap,
                     range + " leave a gap of " + bytes_text(row.begin - covered_) + " before them");
    }

    std::optional<Error> size_fault(const Row& row) {
        const Shape shape = list().shape(row);
        try {
            const std::uint64_t wanted = value_bytes(row.dtype, shape);
            return Error(Errc::size_mismatch, bytes_text(row.end - row.begin) + ", but " + kind_text(row.dtype, shape) +
                                                  " needs " + std::to_string(wanted));
        } catch (Error& error) {
            return std::move(error);
        }
    }

    Rules rules_;
    FaultSink& faults_;
    Header& header_;
    Allowances allowed_;
    std::string_view text_;
    std::uint64_t data_size_ = 0;
    std::uint64_t covered_ = 0;
    bool complete_ = true;     // false if a fault left something out
    bool unreadable_ = false;  // true if a tensor that was checked has a fault for which repair() refuses the file
    bool has_nul_ = false;     // true if a name has a NUL, which repair() does not write
    std::optional<bool> repairable_ = {};
    std::vector<Row> dropped_ = {};  // tensors with the name of a later one, by offset
    CanonicalTensor canonical_tensor_;
    bool seen_metadata_ = false;
    std::vector<MetadataPlace> metadata_;
    std::string_view name_;  // name of the current tensor
    bool escaped_ = false;   // name_ was written with escapes
    unsigned seen_ = 0;      // bits of the fields it has so far
    std::optional<std::string> unknown_dtype_ = {};
    std::optional<std::uint64_t> elements_;
    Dtype last_dtype_ = Dtype::f32;
};

Shape TensorList::shape(const Row& row) const {
    Shape shape;
    for_each_dimension(text_.get() + row.shape, [&](std::uint64_t dimension) { shape.push_back(dimension); });
    return shape;
}

TensorInfo TensorList::operator[](std::size_t i) const {
    const Row& row = rows_[i];
    return {name(row), row.dtype, shape(row), {data_offset_ + row.begin, row.end - row.begin}};
}

Header read_header(const Source& source, Rules rules, std::uint64_t max_header_bytes, FaultSink& faults) {
    Header header;
    Text text;
    try {
        text = read_text(source, max_header_bytes);
    } catch (Error& error) {
        if (exit_code(error.code()) != 1) throw;
        faults.fault(std::move(error));
        return header;
    }
    HeaderReader(rules, faults, header).read(std::move(text), source.size());
    return header;
}

}  // namespace safemap::SAFEMAP_ABI::safetensors
