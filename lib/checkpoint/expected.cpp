// Reads the tensors that a model expects, from a checkpoint or from JSON.
#include "checkpoint/load_plan.hpp"

#include "base/checked.hpp"
#include "base/faults.hpp"
#include "base/json.hpp"
#include "base/name_index.hpp"
#include "base/text.hpp"
#include "open/formats.hpp"
#include "safetensors/format.hpp"

#include <safemap/advanced/dtypes.hpp>
#include <safemap/advanced/file.hpp>
#include <safemap/advanced/names.hpp>

#include <utility>

namespace safemap::SAFEMAP_ABI {

namespace {

constexpr std::uint64_t max_json_bytes = 32_MiB;

Error bad_field(std::string what) { return Error(Errc::expectation_bad_field, std::move(what)); }

const std::string& read_string(const json::Value& value, std::string_view key) {
    if (const std::string* const text = value.string()) return *text;
    throw bad_field(safemap::quoted(key) + " is not a string");
}

Dtype read_dtype(const json::Value& value) {
    const std::string& text = read_string(value, "dtype");
    if (const auto dtype = parse_dtype(text)) return *dtype;
    throw Error(Errc::unknown_dtype,
                "unknown dtype " + safemap::quoted(text) + "; expected a name such as BF16, bf16 or bfloat16");
}

Shape read_shape(const json::Value& value) {
    const json::Value::Array* const dimensions = value.array();
    if (dimensions == nullptr) throw bad_field("'shape' is not an array");
    return json::unsigned_integers<Shape>(*dimensions, [](std::size_t d, const json::Value&) {
        throw bad_field("dimension " + std::to_string(d) + " is not an integer of 0 or more");
    });
}

const json::Value& required(const json::Value& tensor, std::string_view key) {
    if (const json::Value* const value = tensor.find(key)) return *value;
    throw bad_field(safemap::quoted(key) + " is missing");
}

ExpectedTensor read_tensor(const json::Member& member) {
    return about_tensor(member.key, [&] {
        if (member.value.object() == nullptr) throw bad_field("expected an object with dtype and shape");
        ExpectedTensor tensor{.name = member.key,
                              .dtype = read_dtype(required(member.value, "dtype")),
                              .shape = read_shape(required(member.value, "shape"))};
        if (const json::Value* const alias = member.value.find("alias_of"))
            tensor.alias_of = read_string(*alias, "alias_of");
        return tensor;
    });
}

void require_size(const ExpectedTensor& tensor) {
    const auto refuse = [&](Errc code, const char* why) {
        throw Error(code, "shape " + to_string(tensor.shape) + " of " + std::string(name(tensor.dtype)) + why)
            .with_tensor(tensor.name);
    };
    const auto elements = element_count(tensor.shape);
    if (!elements || !checked_mul(*elements, bits(tensor.dtype)))
        refuse(Errc::shape_overflow, " has a size that does not fit in 64 bits");
    if (!byte_size(tensor.dtype, *elements)) refuse(Errc::partial_byte, " does not fill whole bytes");
}

}  // namespace

std::vector<std::uint32_t> checkpoint::checked_roots(std::span<const ExpectedTensor> expected) {
    NameIndex numbers;
    numbers.add_all(NamesOf(expected), [&](std::uint32_t first, std::uint32_t) {
        throw bad_field("duplicate name").with_tensor(expected[first].name);
    });

    std::vector<std::uint32_t> roots;
    roots.reserve(expected.size());
    for (const ExpectedTensor& tensor : expected) {
        require_size(tensor);
        const auto own = static_cast<std::uint32_t>(roots.size());
        const auto root = tensor.alias_of.empty() ? own : numbers.find(tensor.alias_of, NamesOf(expected));
        if (!root || (*root != own && !expected[*root].alias_of.empty()))
            throw bad_field("it is an alias of " + safemap::quoted(tensor.alias_of) + ", which is " +
                            (root ? "itself an alias" : "not an expected tensor"))
                .with_tensor(tensor.name);
        roots.push_back(*root);
    }
    return roots;
}

std::vector<ExpectedTensor> expected_tensors(const Checkpoint& checkpoint, const Selection& selection) {
    const std::vector<NamedTensor> names = all_names(checkpoint, selection);
    std::vector<ExpectedTensor> expected;
    expected.reserve(names.size());
    for (std::size_t i = 0, first = 0; i < names.size(); ++i) {
        if (names[i].tensor != names[first].tensor) first = i;
        const LazyTensor& tensor = checkpoint.tensor(names[i].tensor);
        expected.push_back({std::string(names[i].name), tensor.dtype(), tensor.shape(),
                            std::string(i == first ? std::string_view() : names[first].name)});
    }
    return expected;
}

std::vector<ExpectedTensor> parse_expected(std::string_view text) {
    const json::Value root = json::parse(text, Errc::expectation_not_json);
    if (root.object() == nullptr) throw Error(Errc::expectation_not_json, "the JSON is not an object");
    std::vector<ExpectedTensor> expected;
    expected.reserve(root.object()->size());
    for (const json::Member& member : *root.object())
        if (member.key != safetensors::reserved_name) expected.push_back(read_tensor(member));
    checkpoint::checked_roots(expected);
    return expected;
}

std::vector<ExpectedTensor> read_expected(const std::filesystem::path& path, const OpenOptions& options) {
    std::error_code ignored;
    if (std::filesystem::is_directory(path, ignored)) return expected_tensors(Checkpoint::open(path, options));
    const auto source = open_file(path, open::mapping_of(options.access));
    const open::Sniffed sniffed = open::recognise(*source);
    const bool is_expectation = sniffed.content == open::Content::json && !open::is_index(*source);
    if (!is_expectation && sniffed.read == nullptr && !open::is_index(*source))
        throw Error(Errc::unknown_format,
                    "this is " + (sniffed.looks_like.empty() ? "a file of no known format" : sniffed.looks_like) +
                        R"(; expected JSON such as {"w": {"dtype": "F32", "shape": [2, 3]}}, or a checkpoint)")
            .with_path(source->name());
    if (!is_expectation) return expected_tensors(Checkpoint::open(path, options));
    return about_file(source->name(), [&] {
        return parse_expected(
            json::read_text(*source, max_json_bytes, Errc::expectation_not_json, "a list of expected tensors"));
    });
}

}  // namespace safemap::SAFEMAP_ABI
