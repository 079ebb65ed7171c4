// Reads and writes DCP_SHARDING_INFO. Tested by tests/safetensors/sharding_info_test.cpp.
#include "safetensors/sharding_info.hpp"

#include "base/faults.hpp"
#include "base/json.hpp"
#include "base/text.hpp"

#include <safemap/error.hpp>

#include <cstddef>

namespace safemap::SAFEMAP_ABI::safetensors {

namespace {

constexpr std::string_view offsets_member = "saved_offsets";
constexpr std::string_view shape_member = "global_shape";
constexpr std::string_view name_member = "logical_fqn";
constexpr std::string_view stored_member = "storage_key";

[[noreturn]] void fail(std::string_view member, std::string_view expected) {
    throw Error(Errc::header_bad_metadata, std::string(member) + ": expected " + std::string(expected));
}

/// Returns a list of numbers that are not negative.
Shape numbers_of(const json::Value& value, std::string_view member) {
    const json::Value::Array* const items = value.array();
    if (items == nullptr) fail(member, "a list of integers");
    return json::unsigned_integers<Shape>(*items, [&](std::size_t, const json::Value& item) {
        if (!item.integer()) fail(member, "a list of integers");
        throw Error(Errc::piece_outside,
                    std::string(member) + " has the negative offset " + std::to_string(*item.integer()));
    });
}

/// Returns the text of a member, or `fallback` if it is missing.
std::string text_of(const json::Value& place, std::string_view member, std::string_view fallback) {
    const json::Value* const value = place.find(member);
    if (value == nullptr || value->is_null()) return std::string(fallback);
    if (value->string() == nullptr) fail(member, "a text");
    return *value->string();
}

ShardPlace place_of(const json::Value& value, std::string_view key) {
    const json::Value* const offsets = value.find(offsets_member);
    if (offsets == nullptr || offsets->is_null())
        throw Error(Errc::field_missing,
                    quoted(sharding_info_key) + " has no " + std::string(offsets_member) + " for it");
    ShardPlace place{.stored = text_of(value, stored_member, key),
                     .name = text_of(value, name_member, key),
                     .offsets = numbers_of(*offsets, offsets_member)};
    const json::Value* const shape = value.find(shape_member);
    if (shape != nullptr && !shape->is_null()) place.global_shape = numbers_of(*shape, shape_member);
    return place;
}

void append_numbers(std::string& text, const Shape& numbers) {
    text += '[';
    for (std::size_t d = 0; d < numbers.size(); ++d) {
        if (d > 0) text += ", ";
        json::append_number(text, numbers[d]);
    }
    text += ']';
}

}  // namespace

void read_sharding_info(std::string_view text, const std::function<bool(std::string_view)>& is_stored,
                        const std::function<void(const ShardPlace&)>& on_place) {
    const auto read_one = [&](std::string_view key, const json::Value& value) {
        const json::Value* const key_in_file = value.find(stored_member);
        const std::string stored(key_in_file != nullptr && key_in_file->string() != nullptr ? *key_in_file->string()
                                                                                            : std::string(key));
        if (!is_stored(stored)) return;
        about_tensor(stored, [&] {
            if (value.object() == nullptr) fail(sharding_info_key, "an object for each tensor");
            on_place(place_of(value, key));
        });
    };
    const auto read_entry = [&](std::string_view key, const json::Value& value) {
        const json::Value::Array* const places = value.array();
        if (places == nullptr) return read_one(key, value);
        for (const json::Value& place : *places) read_one(key, place);
    };
    const auto add = [](Error& error) { error.during("read " + std::string(sharding_info_key)); };
    adding(add, [&] { json::parse_entries(text, Errc::header_bad_metadata, read_entry); });
}

std::string write_sharding_info(std::span<const ShardPlace> places) {
    std::string text = "{";
    for (const ShardPlace& place : places) {
        if (text.size() > 1) text += ", ";
        json::append_string(text, place.stored, json::Charset::utf8);
        text += ": {\"saved_offsets\": ";
        append_numbers(text, place.offsets);
        if (place.global_shape) {
            text += ", \"global_shape\": ";
            append_numbers(text, *place.global_shape);
        }
        if (place.name != place.stored) {
            text += ", \"logical_fqn\": ";
            json::append_string(text, place.name, json::Charset::utf8);
        }
        text += '}';
    }
    return text + '}';
}

}  // namespace safemap::SAFEMAP_ABI::safetensors
