// A function for each kind of value. Sizes have units of 1000 and of 1024.
#include "parse.hpp"

#include "output.hpp"

#include <safemap/advanced/stored_tensor.hpp>
#include <safemap/advanced/text.hpp>
#include <safemap/bytes.hpp>
#include <safemap/error.hpp>

#include <fmt/core.h>

#include <algorithm>
#include <array>
#include <cctype>
#include <charconv>
#include <cmath>
#include <limits>
#include <optional>
#include <string>
#include <system_error>
#include <utility>

namespace safemap::cli {
namespace {

struct Unit {
    std::string_view name;
    std::uint64_t bytes;
};

constexpr std::array units{
    Unit{"", 1},
    Unit{"b", 1},
    Unit{"k", 1'000},
    Unit{"kb", 1'000},
    Unit{"m", 1'000'000},
    Unit{"mb", 1'000'000},
    Unit{"g", 1'000'000'000},
    Unit{"gb", 1'000'000'000},
    Unit{"t", 1'000'000'000'000},
    Unit{"tb", 1'000'000'000'000},
    Unit{"kib", 1ULL << 10},
    Unit{"mib", 1ULL << 20},
    Unit{"gib", 1ULL << 30},
    Unit{"tib", 1ULL << 40},
};

std::string lower(std::string_view text) {
    std::string result(text);
    std::transform(result.begin(), result.end(), result.begin(),
                   [](unsigned char c) { return static_cast<char>(std::tolower(c)); });
    return result;
}

/// Removes a number from the beginning of `text` and returns it; empty if there is no number or it is too large.
std::optional<std::uint64_t> take_number(std::string_view& text) {
    std::uint64_t number = 0;
    const auto [end, failed] = std::from_chars(text.data(), text.data() + text.size(), number);
    if (failed != std::errc()) return std::nullopt;
    text.remove_prefix(static_cast<std::size_t>(end - text.data()));
    return number;
}

[[noreturn]] void refuse(std::string_view text, std::string_view wanted, std::string_view hint = {}) {
    throw Error(Errc::invalid_argument, fmt::format("'{}' is not {}", printable(text), wanted)).with_hint(hint);
}

/// A decimal number without a sign: digits / 10^decimals.
struct Decimal {
    std::uint64_t digits = 0;
    unsigned decimals = 0;
};

/// Removes a number from the beginning of `text` and returns it: "5", "0.5". Empty without a number, or if it has too
/// many digits.
std::optional<Decimal> take_decimal(std::string_view& text) {
    constexpr std::string_view decimal_digits = "0123456789";
    constexpr std::size_t most_decimals = 18;
    std::string digits(text.substr(0, text.find_first_not_of(decimal_digits)));
    std::string_view rest = text.substr(digits.size());
    std::string_view fraction;
    if (rest.starts_with('.')) {
        fraction = rest.substr(1, rest.find_first_not_of(decimal_digits, 1) - 1);
        rest.remove_prefix(1 + fraction.size());
        if (fraction.empty() || fraction.size() > most_decimals) return std::nullopt;
    }
    if (digits.empty()) return std::nullopt;
    digits += fraction;
    std::string_view all = digits;
    const auto number = take_number(all);
    if (!number) return std::nullopt;
    text = rest;
    return Decimal{*number, static_cast<unsigned>(fraction.size())};
}

}  // namespace

std::uint64_t parse_size(std::string_view text) {
    constexpr std::string_view wanted = "a size: 5GB or 5G (10^9), 5GiB (2^30), 0.5GB or a number of bytes, at least 1";
    std::string_view rest = text;
    const auto number = take_decimal(rest);
    if (!number) refuse(text, wanted);
    if (!rest.empty() && rest.front() == ' ') rest.remove_prefix(1);
    const std::string suffix = lower(rest);
    const auto unit = std::find_if(units.begin(), units.end(), [&](const Unit& u) { return u.name == suffix; });
    if (unit == units.end()) refuse(text, wanted);
    // There are no parts of bytes.
    if (number->decimals > 0 && unit->bytes == 1) refuse(text, wanted);
    __extension__ using Wide = unsigned __int128;
    Wide size = Wide{number->digits} * unit->bytes;
    for (unsigned i = 0; i < number->decimals; ++i) size /= 10;
    if (size == 0 || size > std::numeric_limits<std::uint64_t>::max()) refuse(text, wanted);
    return static_cast<std::uint64_t>(size);
}

std::uint64_t parse_header_size(std::string_view text) {
    constexpr std::uint64_t longest = 4'294'967'295;  // the most that max_header_bytes of the library counts
    const std::uint64_t size = parse_size(text);
    if (size > longest) refuse(text, "a length of a header: at most 4294967295 bytes");
    return size;
}

std::string castable() {
    std::string names;
    for (auto dtype = Dtype::boolean; dtype <= Dtype::u64; dtype = static_cast<Dtype>(static_cast<int>(dtype) + 1))
        if (can_cast(Dtype::f32, dtype)) names += (names.empty() ? "" : ", ") + std::string(name(dtype));
    return fmt::format("floating-point tensors can be cast to {}; others keep their dtype", names);
}

Dtype parse_dtype_name(std::string_view text) {
    constexpr std::array<std::pair<std::string_view, Dtype>, 3> of_c{
        {{"half", Dtype::f16}, {"float", Dtype::f32}, {"double", Dtype::f64}}};
    const std::string name = lower(text);
    for (const auto& [alias, dtype] : of_c)
        if (name == alias) return dtype;
    for (const std::string_view bits : {"f8", "fp8", "float8"})
        if (name == bits) refuse(text, "one dtype: F8_E4M3 has more precision, F8_E5M2 more range");
    if (const auto dtype = parse_dtype(name)) return *dtype;
    // fp16 is F16, fp8_e4m3fn is torch's float8_e4m3fn, float8_e4m3 is F8_E4M3.
    for (const std::string_view prefix : {"fp", "float"})
        if (name.starts_with(prefix))
            for (const std::string_view known : {"f", "float"})
                if (const auto dtype = parse_dtype(std::string(known).append(name.substr(prefix.size()))))
                    return *dtype;
    refuse(text, "a dtype such as bf16, BF16 or bfloat16", castable());
}

Policy parse_policy(std::string_view text) {
    if (text == "compatible") return Policy::compatible;
    if (text == "strict") return Policy::strict;
    if (text == "lenient") return Policy::lenient;
    refuse(text, "a policy: compatible, strict or lenient");
}

ListFormat parse_list_format(std::string_view text) {
    if (text == "text") return ListFormat::text;
    if (text == "md") return ListFormat::markdown;
    if (text == "csv") return ListFormat::csv;
    if (text == "json") return ListFormat::json;
    refuse(text, "a format: text, md, csv or json");
}

Access parse_access(std::string_view text) {
    if (text == "auto") return Access::automatic;
    if (text == "mapped") return Access::mapped;
    if (text == "copied") return Access::copied;
    refuse(text, "an access mode: auto, mapped or copied");
}

Weights parse_weights(std::string_view text) {
    if (text == "fp32") return Weights::fp32;
    if (text == "module") return Weights::module;
    refuse(text, "a kind of weights: fp32 or module");
}

ShardStrategy parse_strategy(std::string_view text) {
    if (text == "greedy") return ShardStrategy::greedy;
    if (text == "balanced") return ShardStrategy::balanced;
    if (text == "by_prefix") return ShardStrategy::by_prefix;
    refuse(text, "a strategy: greedy, balanced or by_prefix");
}

IndexStyle parse_index_style(std::string_view text) {
    if (text == "hub") return IndexStyle::hub;
    if (text == "transformers") return IndexStyle::transformers;
    refuse(text, "an index style: hub or transformers");
}

StructurePolicy parse_structure(std::string_view text) {
    if (text == "auto") return StructurePolicy::automatic;
    if (text == "keep") return StructurePolicy::keep;
    if (text == "drop") return StructurePolicy::drop;
    refuse(text, "a structure policy: auto, keep or drop");
}

unsigned parse_count(std::string_view text, unsigned most) {
    std::string_view rest = text;
    const auto number = take_number(rest);
    if (!number || !rest.empty() || *number == 0 || *number > most)
        refuse(text, fmt::format("a whole number from 1 to {}", most));
    return static_cast<unsigned>(*number);
}

double parse_tolerance(std::string_view text) {
    double number = 0;
    const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
    if (error != std::errc() || end != text.data() + text.size() || !std::isfinite(number) || number < 0)
        refuse(text, "a tolerance: a number that is not negative, such as 1e-5");
    return number;
}

bool is_one_file(std::string_view out) { return out.ends_with(".safetensors") || out.ends_with(".sft"); }

void require_out(std::string_view out) {
    if (out == "-")
        throw Error(Errc::invalid_argument, "OUT is '-', but safemap does not write to stdout")
            .with_hint("give a file or a folder; ./- is a folder of that name");
    const std::string name = lower(out);
    for (const std::string_view ending : {".pt", ".pth", ".bin", ".ckpt", ".gguf"})
        if (name.ends_with(ending))
            throw Error(Errc::invalid_argument, fmt::format("OUT ends in {}, but safemap writes safetensors", ending))
                .with_path(out)
                .with_hint("end OUT in .safetensors for one file, or in a slash for a folder");
}

DigestAlgorithm parse_digest_algorithm(std::string_view text) {
    for (const DigestAlgorithm algorithm : {DigestAlgorithm::xxh3_128, DigestAlgorithm::sha256})
        if (text == name(algorithm)) return algorithm;
    refuse(text, "a digest algorithm: xxh3-128 or sha256");
}

Rank parse_rank(std::string_view text) {
    constexpr std::string_view wanted = "a rank: r/N with r from 0 to N-1, such as 0/8";
    std::string_view rest = text;
    const auto rank = take_number(rest);
    if (!rank || rest.empty() || rest.front() != '/') refuse(text, wanted);
    rest.remove_prefix(1);
    const auto of = take_number(rest);
    if (!of || !rest.empty() || *rank >= *of) refuse(text, wanted);
    return {*rank, *of};
}

}  // namespace safemap::cli
