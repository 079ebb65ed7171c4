// Writes headers byte for byte as the reference implementation does.
#include <safemap/advanced/dtypes.hpp>

#include "base/checked.hpp"
#include "base/faults.hpp"
#include "safetensors/header.hpp"

#include "base/json.hpp"
#include "base/name_index.hpp"
#include "base/text.hpp"
#include "safetensors/digests.hpp"
#include "safetensors/format.hpp"

#include <algorithm>
#include <cstring>
#include <numeric>

namespace safemap::SAFEMAP_ABI::safetensors {

std::vector<std::uint32_t> file_order(std::span<const TensorSpec> tensors) {
    std::vector<std::uint32_t> order(tensors.size());
    std::iota(order.begin(), order.end(), 0U);
    std::stable_sort(order.begin(), order.end(), [&](std::uint32_t a, std::uint32_t b) {
        return sorts_before(tensors[a].dtype, tensors[a].name, tensors[b].dtype, tensors[b].name);
    });
    return order;
}

namespace {

void append_text(std::string& json, std::string_view text) {
    if (!is_utf8(text))
        throw Error(Errc::invalid_argument, safemap::quoted(text) + " is not UTF-8, as a header must be");
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

/// Appends a tensor that begins at byte `begin` of the data. Returns its end.
std::uint64_t append_tensor(std::string& json, const TensorSpec& tensor, std::uint64_t begin) {
    if (!in_safetensors(tensor.dtype))
        throw Error(Errc::unnamed_dtype, "safetensors has no name for " + std::string(name(tensor.dtype)));
    const auto end = checked_add(begin, value_bytes(tensor.dtype, *tensor.shape));
    if (!end) throw Error(Errc::shape_overflow, "the total size of all tensors does not fit in 64 bits");

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
    for (const TensorSpec& tensor : tensors)
        if (tensor.name == reserved_name) throw Error(Errc::name_collision, "the name '__metadata__' is reserved");
    NameIndex().add_all(NamesOf(tensors), [&](std::uint32_t, std::uint32_t again) {
        throw Error(Errc::name_collision, "two tensors have the name " + safemap::quoted(tensors[again].name));
    });
}

/// Returns about the size of the JSON, so that the text is not copied while it grows.
std::size_t expected_size(std::span<const TensorSpec> tensors,
                          std::span<const std::pair<std::string, std::string>> metadata) {
    constexpr std::size_t around = 76;  // "":{"dtype":"BF16","shape":[],"data_offsets":[1234567890,1234567890]},
    std::size_t size = length_bytes + 256;
    for (const auto& [key, value] : metadata)  // an entry in a list of digests has at least four quotes to escape
        size += key.size() + value.size() + value.size() / 8;
    for (const TensorSpec& tensor : tensors) size += around + tensor.name.size() + 6 * tensor.shape->size();
    return size;
}

}  // namespace

std::string write_header(std::span<const TensorSpec> tensors,
                         std::span<const std::pair<std::string, std::string>> metadata, bool with_metadata,
                         std::uint32_t alignment, std::uint64_t max_header_bytes) {
    if (alignment != 8 && alignment != 64 && alignment != 256 && alignment != 4096)
        throw Error(Errc::invalid_argument,
                    "invalid alignment " + std::to_string(alignment) + "; expected 8, 64, 256 or 4096");
    refuse_collisions(tensors);

    std::string file;
    file.reserve(expected_size(tensors, metadata));
    file.append(length_bytes, '\0');
    file += '{';
    if (with_metadata) append_metadata(file, metadata);
    std::uint64_t end = 0;
    for (const TensorSpec& tensor : tensors) {
        if (file.back() != '{') file += ',';
        about_tensor(tensor.name, [&] { end = append_tensor(file, tensor, end); });
    }
    file += '}';
    file.append((alignment - file.size() % alignment) % alignment, ' ');

    const std::uint64_t size = file.size() - length_bytes;
    const std::uint64_t limit = std::min(max_header_bytes, longest_header);
    if (size > limit)
        throw Error(Errc::header_too_large,
                    "the header would have " + bytes_text(size) + ", the limit is " + std::to_string(limit));
    std::memcpy(file.data(), &size, length_bytes);
    return file;
}

std::uint64_t bytes_in_header(const TensorSpec& tensor, std::uint64_t data_bytes, bool digest, std::string& buffer) {
    return about_tensor(tensor.name, [&] {
        // Where the tensor is last in the file, its offsets have the most digits.
        const std::uint64_t own = value_bytes(tensor.dtype, *tensor.shape);
        buffer.clear();
        append_tensor(buffer, tensor, data_bytes - std::min(own, data_bytes));
        buffer += ',';
        if (!digest) return std::uint64_t{buffer.size()};
        const std::pair<std::string_view, Digest> entry(tensor.name, Digest());
        json::append_string(buffer, write_digests({&entry, 1}), json::Charset::utf8);  // braces are as long as a comma
        return std::uint64_t{buffer.size()};
    });
}

std::uint64_t bytes_around_tensors(std::span<const std::pair<std::string, std::string>> metadata,
                                   std::uint32_t alignment) {
    std::string json;
    append_metadata(json, metadata);
    constexpr std::uint64_t digests = 256;  // names of the lists of digests, and the digest of all of them
    return json.size() + digests + alignment;
}

}  // namespace safemap::SAFEMAP_ABI::safetensors
