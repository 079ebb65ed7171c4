// Reads and writes headers. Reading is one pass with simdjson's On-Demand over an owned, padded buffer.
//
// On-Demand checks only what is looked at, and the reference refuses a header for any fault in it. So every value is
// visited, those of unknown fields too, under the rules of the reference's JSON reader (serde_json).
#include "safetensors/header.hpp"

#include "base/json.hpp"
#include "base/name_index.hpp"
#include "base/text.hpp"
#include "safetensors/metadata.hpp"

#include <simdjson.h>

#include <algorithm>
#include <cstring>
#include <memory>
#include <new>
#include <numeric>
#include <optional>
#include <tuple>

namespace safemap::safetensors {

namespace {

namespace ondemand = simdjson::ondemand;

constexpr std::string_view reserved_name = "__metadata__";
constexpr std::uint64_t length_bytes = 8;
/// The reference refuses longer ones, on writing too.
constexpr std::uint64_t max_written_header = 100'000'000;

[[noreturn]] void not_json(std::string message) { throw Error(Errc::header_not_json, std::move(message)); }
[[noreturn]] void bad_field(std::string message) { throw Error(Errc::header_bad_field, std::move(message)); }

/// A tensor as the header describes it; [begin, end) counts from the start of the data.
struct Entry {
    TensorInfo info;
    std::uint64_t begin = 0;
    std::uint64_t end = 0;
};

/// Where the reference's sort puts tensors: dtype descending, then name ascending.
bool before(Dtype dtype_a, std::string_view name_a, Dtype dtype_b, std::string_view name_b) {
    return dtype_a != dtype_b ? dtype_a > dtype_b : name_a < name_b;
}

// ---- JSON values ----

bool is_null(ondemand::value& value) {
    bool null = false;
    return !value.is_null().get(null) && null;
}

std::string_view checked_text(std::string_view text) {
    // A lone surrogate in an escape becomes bytes from ED on, which are no UTF-8.
    if (text.find('\xed') != std::string_view::npos && !is_utf8(text)) not_json("a lone surrogate in a string");
    return text;
}

std::string_view key_of(ondemand::field& field) { return checked_text(field.unescaped_key()); }

/// Looks at all of a value that means nothing to us. `depth` counts the containers it stands in.
void visit(ondemand::value value, unsigned depth) {
    switch (value.type()) {
        case ondemand::json_type::object:
        case ondemand::json_type::array: break;
        case ondemand::json_type::string: checked_text(value.get_string()); return;
        case ondemand::json_type::number: static_cast<void>(value.get_double().value()); return;
        case ondemand::json_type::boolean: static_cast<void>(value.get_bool().value()); return;
        case ondemand::json_type::null:
            if (!is_null(value)) not_json("a word that is none of true, false and null");
            return;
    }
    if (depth >= json::max_depth) not_json("more than 127 arrays and objects within each other");
    if (value.type() == ondemand::json_type::array) {
        for (ondemand::value item : value.get_array()) visit(item, depth + 1);
        return;
    }
    for (ondemand::field field : value.get_object()) {
        key_of(field);
        visit(field.value(), depth + 1);
    }
}

/// An unsigned integer written as digits only: not 4.0, not -0.
std::uint64_t whole_number(ondemand::value value, const char* where) {
    std::uint64_t number = 0;
    if (!value.get_uint64().get(number)) return number;
    if (value.type() != ondemand::json_type::number)
        bad_field(std::string(where) + " holds something other than numbers");
    static_cast<void>(value.get_double().value());  // no number at all is a worse fault
    bad_field(std::string(where) + " holds a number that is not an integer of 0 to 2^64 - 1");
}

// ---- one tensor ----

constexpr unsigned tensor_depth = 2;  // the header's object, the tensor's

Dtype dtype_named(std::string_view name) {
    if (const auto dtype = dtype_from_safetensors(name)) return *dtype;
    throw Error(Errc::unknown_dtype, "dtype " + safemap::quoted(name) + " is none that safetensors has");
}

/// A name, or {"F32": null}, which serde takes for an enumerator too.
Dtype read_dtype(ondemand::value value) {
    if (value.type() == ondemand::json_type::string) return dtype_named(checked_text(value.get_string()));
    if (value.type() != ondemand::json_type::object) bad_field("dtype is not a string");

    std::optional<Dtype> dtype;
    for (ondemand::field field : value.get_object()) {
        const std::string_view name = key_of(field);
        if (dtype) bad_field("dtype is an object of more than one member");
        dtype = dtype_named(name);
        ondemand::value content = field.value();
        if (!is_null(content)) bad_field("dtype is an object whose value is not null");
    }
    if (!dtype) bad_field("dtype is an empty object");
    return *dtype;
}

Shape read_shape(ondemand::value value) {
    if (value.type() != ondemand::json_type::array) bad_field("shape is not an array");
    Shape shape;
    for (ondemand::value dimension : value.get_array()) shape.push_back(whole_number(dimension, "shape"));
    return shape;
}

void read_offsets(ondemand::value value, Entry& entry) {
    if (value.type() != ondemand::json_type::array) bad_field("data_offsets is not an array");
    std::size_t count = 0;
    for (ondemand::value offset : value.get_array()) {
        if (count == 2) bad_field("data_offsets has more than two numbers");
        (count++ == 0 ? entry.begin : entry.end) = whole_number(offset, "data_offsets");
    }
    if (count != 2) bad_field("data_offsets has fewer than two numbers");
}

/// The fields of a tensor, each of which is there once.
class Fields {
public:
    explicit Fields(Entry& entry) : entry_(entry) {}

    void dtype(ondemand::value value) {
        once(0, "dtype");
        entry_.info.dtype = read_dtype(value);
    }
    void shape(ondemand::value value) {
        once(1, "shape");
        entry_.info.shape = read_shape(value);
    }
    void offsets(ondemand::value value) {
        once(2, "data_offsets");
        read_offsets(value, entry_);
    }
    void require_all() const {
        constexpr const char* names[] = {"dtype", "shape", "data_offsets"};
        for (unsigned i = 0; i < 3; ++i)
            if ((seen_ >> i & 1) == 0) bad_field(std::string(names[i]) + " is missing");
    }

private:
    void once(unsigned field, const char* name) {
        if ((seen_ >> field & 1) != 0) bad_field(std::string(name) + " is there twice");
        seen_ |= 1U << field;
    }

    Entry& entry_;
    unsigned seen_ = 0;
};

/// {"dtype", "shape", "data_offsets"}, or the three in an array, which serde takes for a struct too.
void read_tensor(ondemand::value value, Entry& entry) {
    Fields fields(entry);
    if (value.type() == ondemand::json_type::array) {
        std::size_t count = 0;
        for (ondemand::value item : value.get_array()) {
            switch (count++) {
                case 0: fields.dtype(item); break;
                case 1: fields.shape(item); break;
                case 2: fields.offsets(item); break;
                default: bad_field("the array of a tensor has more than three items");
            }
        }
        return fields.require_all();
    }
    if (value.type() != ondemand::json_type::object) bad_field("a tensor is described by an object");
    for (ondemand::field field : value.get_object()) {
        const std::string_view key = key_of(field);
        if (key == "dtype") fields.dtype(field.value());
        else if (key == "shape") fields.shape(field.value());
        else if (key == "data_offsets") fields.offsets(field.value());
        else visit(field.value(), tensor_depth);
    }
    fields.require_all();
}

// ---- the document ----

Metadata read_metadata(ondemand::value value) {
    if (value.type() != ondemand::json_type::object) throw Error(Errc::header_bad_metadata, "it is not an object");
    Metadata metadata;
    for (ondemand::field field : value.get_object()) {
        std::string key(key_of(field));
        ondemand::value content = field.value();
        if (content.type() != ondemand::json_type::string)
            throw Error(Errc::header_bad_metadata, "the value of " + safemap::quoted(key) + " is not a string");
        metadata.emplace_back(std::move(key), checked_text(content.get_string()));
    }
    sort_metadata(metadata);
    return metadata;
}

/// The JSON of a header, without a look at what its numbers mean together.
class Document {
public:
    explicit Document(FaultSink& faults) : faults_(faults) {}

    /// `json` has SIMDJSON_PADDING bytes behind it.
    void read(std::string_view json) {
        try {
            read_object(json);
        } catch (const simdjson::simdjson_error& error) {
            if (error.error() == simdjson::MEMALLOC) throw std::bad_alloc();
            report(Error(Errc::header_not_json, error.what()));
        } catch (Error& error) {
            report(std::move(error));
        }
    }

    std::vector<Entry> entries;
    Metadata metadata;
    bool has_metadata = false;
    bool complete = true;  ///< false when a fault left something out

private:
    void read_object(std::string_view json) {
        ondemand::parser parser;
        ondemand::document document = parser.iterate(json, json.size() + simdjson::SIMDJSON_PADDING);
        if (document.type() != ondemand::json_type::object) not_json("the header is not an object");
        for (ondemand::field field : document.get_object()) {
            const std::string_view key = key_of(field);
            if (key == reserved_name) member_metadata(field.value());
            else member_tensor(key, field.value());
        }
        if (document.current_location().error() != simdjson::OUT_OF_BOUNDS)
            not_json("something follows the header's object");
    }

    void member_metadata(ondemand::value value) {
        try {
            if (std::exchange(seen_metadata_, true))
                throw Error(Errc::header_bad_metadata, "__metadata__ is there twice");
            if (is_null(value)) return;
            metadata = read_metadata(value);
            has_metadata = true;
        } catch (Error& error) {
            if (error.code() == Errc::header_not_json) throw;
            report(std::move(error));
        }
    }

    void member_tensor(std::string_view name, ondemand::value value) {
        Entry entry;
        try {
            read_tensor(value, entry);
        } catch (Error& error) {
            if (error.code() == Errc::header_not_json) throw;
            return report(std::move(error.with_tensor(name)));
        }
        entry.info.name = name;
        // The last of two tensors of one name counts.
        const auto next = static_cast<std::uint32_t>(entries.size());
        const std::uint32_t number =
            names_.add(name, next, [this](std::uint32_t i) { return std::string_view(entries[i].info.name); });
        if (number == next) entries.push_back(std::move(entry));
        else entries[number] = std::move(entry);
    }

    void report(Error error) {
        complete = false;
        faults_.fault(std::move(error));
    }

    FaultSink& faults_;
    NameIndex names_;
    bool seen_metadata_ = false;
};

// ---- what the numbers mean together ----

void sort_by_offset(std::vector<Entry>& entries) {
    const auto rises = [](const Entry& a, const Entry& b) {
        if (a.begin != b.begin) return a.begin < b.begin;
        if (a.end != b.end) return a.end < b.end;
        return before(a.info.dtype, a.info.name, b.info.dtype, b.info.name);
    };
    // Every known writer writes them in order.
    if (!std::is_sorted(entries.begin(), entries.end(), rises)) std::sort(entries.begin(), entries.end(), rises);
}

std::string range_text(const Entry& entry) {
    return "data_offsets [" + std::to_string(entry.begin) + ", " + std::to_string(entry.end) + "]";
}

std::optional<Error> offset_fault(const Entry& entry, std::uint64_t expected) {
    if (entry.end < entry.begin) return Error(Errc::offsets_reversed, range_text(entry) + " end before they begin");
    if (entry.begin < expected)
        return Error(Errc::offsets_overlap,
                     range_text(entry) + " begin inside the tensor before, which ends at " + std::to_string(expected));
    if (entry.begin > expected)
        return Error(Errc::offsets_leave_gap, range_text(entry) + " leave " + bytes_text(entry.begin - expected) +
                                                  " before them that belong to no tensor");
    return std::nullopt;
}

std::string kind_text(const TensorInfo& info) {
    return "shape " + to_string(info.shape) + " of " + std::string(name(info.dtype));
}

/// Bytes that a tensor of that dtype and shape has.
std::uint64_t wanted_bytes(Dtype dtype, const Shape& shape) {
    const std::string what = "shape " + to_string(shape) + " of " + std::string(name(dtype));
    const auto elements = element_count(shape);
    const auto total_bits = elements ? checked_mul(*elements, bits(dtype)) : std::nullopt;
    if (!total_bits) throw Error(Errc::shape_overflow, what + " has a size that does not fit in 64 bits");
    if (*total_bits % 8 != 0)
        throw Error(Errc::partial_byte,
                    what + " has " + std::to_string(*total_bits) + " bits, which are no whole bytes");
    return *total_bits / 8;
}

std::optional<Error> size_fault(const Entry& entry) {
    try {
        const std::uint64_t wanted = wanted_bytes(entry.info.dtype, entry.info.shape);
        const std::uint64_t found = entry.end - entry.begin;
        if (found == wanted) return std::nullopt;
        return Error(Errc::size_mismatch,
                     bytes_text(found) + ", but " + kind_text(entry.info) + " wants " + std::to_string(wanted));
    } catch (Error& error) {
        return std::move(error);
    }
}

/// Checks that sound tensors lie one behind the other and fill the data; moves them to `header`.
class Layout {
public:
    Layout(std::uint64_t data_offset, std::uint64_t data_size, FaultSink& faults)
        : data_offset_(data_offset), data_size_(data_size), faults_(faults) {}

    /// `complete`: no tensor is missing whose place would look like a gap.
    void check(std::vector<Entry>& entries, bool complete, Header& header) {
        header.tensors.reserve(entries.size());
        for (Entry& entry : entries) {
            if (!sound(entry, complete)) continue;
            if (entry.end > data_size_) continue;  // reported for the file as a whole
            entry.info.data = {data_offset_ + entry.begin, entry.end - entry.begin};
            header.tensors.push_back(std::move(entry.info));
        }
        if (covered_ > data_size_)
            faults_.fault(Error(Errc::file_truncated, "the tensors want " + bytes_text(covered_) +
                                                          " of data, the file has " + std::to_string(data_size_)));
        if (covered_ < data_size_ && complete)
            faults_.fault(Error(Errc::trailing_bytes, bytes_text(data_size_ - covered_) + " after the last tensor"));
    }

private:
    bool sound(const Entry& entry, bool complete) {
        auto fault = offset_fault(entry, covered_);
        if (entry.end >= entry.begin) covered_ = std::max(covered_, entry.end);
        if (fault && fault->code() == Errc::offsets_leave_gap && !complete) fault.reset();
        if (!fault) fault = size_fault(entry);
        if (!fault) return true;
        faults_.fault(std::move(fault->with_tensor(entry.info.name)));
        return false;
    }

    std::uint64_t data_offset_;
    std::uint64_t data_size_;
    std::uint64_t covered_ = 0;
    FaultSink& faults_;
};

/// The header's bytes, with room behind them for simdjson to read over.
struct Buffer {
    std::unique_ptr<char[]> bytes;
    std::uint64_t size = 0;

    std::string_view text() const { return {bytes.get(), static_cast<std::size_t>(size)}; }
};

Buffer read_buffer(const Source& source, std::uint64_t max_header_bytes) {
    const std::uint64_t file_size = source.size();
    if (file_size < length_bytes)
        throw Error(Errc::header_too_short,
                    "the file has " + bytes_text(file_size) + ", a header length alone takes 8");
    std::uint64_t size = 0;
    source.read_at(0, std::as_writable_bytes(std::span(&size, 1)));
    if (size > max_header_bytes)
        throw Error(Errc::header_too_large, "the header length is " + std::to_string(size) + ", the limit is " +
                                                std::to_string(max_header_bytes));
    if (size > file_size - length_bytes)
        throw Error(Errc::header_past_end, "the header length is " + std::to_string(size) + ", but only " +
                                               bytes_text(file_size - length_bytes) + " follow it");
    Buffer buffer{std::make_unique<char[]>(size + simdjson::SIMDJSON_PADDING), size};
    source.read_at(length_bytes, std::as_writable_bytes(std::span(buffer.bytes.get(), size)));
    if (!simdjson::validate_utf8(buffer.bytes.get(), size))
        throw Error(Errc::header_not_utf8, "the header holds bytes that are not UTF-8");
    return buffer;
}

}  // namespace

Header read_header(const Source& source, Rules rules, std::uint64_t max_header_bytes, FaultSink& faults) {
    if (rules != Rules::compatible) throw Error(Errc::invalid_argument, "only the policy 'compatible' is there yet");

    Header header;
    Document document(faults);
    try {
        const Buffer buffer = read_buffer(source, max_header_bytes);
        header.data_offset = length_bytes + buffer.size;
        document.read(buffer.text());
    } catch (Error& error) {
        if (exit_code(error.code()) != 1 || header.data_offset != 0) throw;
        faults.fault(std::move(error));
        return header;
    }
    header.metadata = std::move(document.metadata);
    header.has_metadata = document.has_metadata;
    sort_by_offset(document.entries);
    Layout(header.data_offset, source.size() - header.data_offset, faults)
        .check(document.entries, document.complete, header);
    return header;
}

std::vector<std::uint32_t> file_order(std::span<const TensorSpec> tensors) {
    std::vector<std::uint32_t> order(tensors.size());
    std::iota(order.begin(), order.end(), 0U);
    std::stable_sort(order.begin(), order.end(), [&](std::uint32_t a, std::uint32_t b) {
        return before(tensors[a].dtype, tensors[a].name, tensors[b].dtype, tensors[b].name);
    });
    return order;
}

namespace {

void append_text(std::string& json, std::string_view text) {
    if (!is_utf8(text))
        throw Error(Errc::invalid_argument, safemap::quoted(text) + " is not UTF-8, which a header has to be");
    json::append_string(json, text, json::Charset::utf8);
}

void append_metadata(std::string& json, std::span<const std::pair<std::string, std::string>> metadata) {
    append_text(json, reserved_name);
    json += ":{";
    for (const auto& [key, value] : metadata) {
        if (json.back() != '{') json += ',';
        append_text(json, key);
        json += ':';
        append_text(json, value);
    }
    json += '}';
}

/// Appends a tensor that begins at `begin` of the data; gives where it ends.
std::uint64_t append_tensor(std::string& json, const TensorSpec& tensor, std::uint64_t begin) {
    if (!in_safetensors(tensor.dtype))
        throw Error(Errc::unnamed_dtype, "safetensors has no name for " + std::string(name(tensor.dtype)));
    const auto end = checked_add(begin, wanted_bytes(tensor.dtype, *tensor.shape));
    if (!end) throw Error(Errc::shape_overflow, "the size of all tensors together does not fit in 64 bits");

    append_text(json, tensor.name);
    json += R"(:{"dtype":")";
    json += name(tensor.dtype);
    json += R"(","shape":[)";
    for (const std::uint64_t dimension : *tensor.shape) {
        if (json.back() != '[') json += ',';
        json::append_number(json, dimension);
    }
    json += R"(],"data_offsets":[)";
    json::append_number(json, begin);
    json += ',';
    json::append_number(json, *end);
    json += "]}";
    return *end;
}

void refuse_collisions(std::span<const TensorSpec> tensors) {
    NameIndex names;
    names.reserve(tensors.size());
    for (std::uint32_t i = 0; i < tensors.size(); ++i) {
        const std::string_view name = tensors[i].name;
        if (name == reserved_name) throw Error(Errc::name_collision, "the name '__metadata__' is reserved");
        if (names.add(name, i, [&](std::uint32_t other) { return tensors[other].name; }) != i)
            throw Error(Errc::name_collision, "two tensors have the name " + safemap::quoted(name));
    }
}

}  // namespace

std::string write_header(std::span<const TensorSpec> tensors,
                         std::span<const std::pair<std::string, std::string>> metadata, bool with_metadata,
                         std::uint32_t alignment) {
    if (alignment != 8 && alignment != 64 && alignment != 256 && alignment != 4096)
        throw Error(Errc::invalid_argument,
                    "alignment " + std::to_string(alignment) + " is none of 8, 64, 256 and 4096");
    refuse_collisions(tensors);

    std::string file(length_bytes, '\0');
    file += '{';
    if (with_metadata) append_metadata(file, metadata);
    std::uint64_t end = 0;
    for (const TensorSpec& tensor : tensors) {
        if (file.back() != '{') file += ',';
        try {
            end = append_tensor(file, tensor, end);
        } catch (Error& error) {
            throw std::move(error.with_tensor(tensor.name));
        }
    }
    file += '}';
    file.append((alignment - file.size() % alignment) % alignment, ' ');

    const std::uint64_t size = file.size() - length_bytes;
    if (size > max_written_header)
        throw Error(Errc::header_too_large, "the header would have " + bytes_text(size) + ", the limit is " +
                                                std::to_string(max_written_header));
    std::memcpy(file.data(), &size, length_bytes);
    return file;
}

}  // namespace safemap::safetensors
