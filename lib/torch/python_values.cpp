// Reads calls that make plain values, by a table of their functions. Tested by tests/torch/rebuild_test.cpp.
#include "torch/python_values.hpp"

#include "torch/globals.hpp"

#include <utility>

namespace safemap::SAFEMAP_ABI::torch {

namespace {

using Id = PickleGraph::Id;
using Kind = PickleGraph::Kind;
using Node = StateTree::Node;
using Constant = StateTree::Constant;

/// Converts UTF-8 text to Latin-1 bytes. Returns nothing if a character is not in Latin-1.
std::optional<std::string> latin1(std::string_view text) {
    std::string bytes;
    bytes.reserve(text.size());
    for (std::size_t i = 0; i < text.size(); ++i) {
        const auto first = static_cast<unsigned char>(text[i]);
        if (first < 0x80) {
            bytes += text[i];
        } else if ((first == 0xC2 || first == 0xC3) && i + 1 < text.size()) {
            const auto second = static_cast<unsigned char>(text[++i]);
            bytes += static_cast<char>(static_cast<unsigned char>((first & 0x03) << 6 | (second & 0x3F)));
        } else {
            return std::nullopt;
        }
    }
    return bytes;
}

std::optional<double> number(const PickleGraph& pickle, Id id) {
    if (pickle.kind(id) == Kind::real) return pickle.real(id);
    if (pickle.kind(id) == Kind::integer) return static_cast<double>(pickle.integer(id));
    return std::nullopt;
}

std::optional<Node> complex(const PickleGraph& pickle, std::span<const Id> arguments, Allowance&) {
    if (arguments.size() != 2) return std::nullopt;
    const auto real = number(pickle, arguments[0]);
    const auto imaginary = number(pickle, arguments[1]);
    if (!real || !imaginary) return std::nullopt;
    return StateTree::Complex{*real, *imaginary};
}

std::optional<Node> device(const PickleGraph& pickle, std::span<const Id> arguments, Allowance&) {
    if (arguments.empty() || arguments.size() > 2 || pickle.kind(arguments[0]) != Kind::text) return std::nullopt;
    std::string text(pickle.text(arguments[0]));
    if (arguments.size() == 2) {
        if (pickle.kind(arguments[1]) != Kind::integer) return std::nullopt;
        text += ':' + std::to_string(pickle.integer(arguments[1]));
    }
    return Constant{.kind = Constant::Kind::device, .text = std::move(text)};
}

std::optional<Node> layout(const PickleGraph& pickle, std::span<const Id> arguments, Allowance&) {
    if (arguments.size() != 1 || pickle.kind(arguments[0]) != Kind::text) return std::nullopt;
    std::string_view text = pickle.text(arguments[0]);
    if (text.starts_with("torch.")) text.remove_prefix(6);
    return Constant{.kind = Constant::Kind::layout, .text = std::string(text)};
}

std::optional<Node> bytes_node(std::optional<std::string> content, bool mutable_array) {
    if (!content) return std::nullopt;
    return StateTree::Bytes{.bytes = std::move(*content), .mutable_array = mutable_array};
}

std::optional<Node> encoded(const PickleGraph& pickle, std::span<const Id> arguments, Allowance& allowance) {
    return bytes_node(encoded_text(pickle, arguments, allowance), false);
}

/// Reads calls of bytes() and bytearray(): without arguments, with bytes in either spelling, or with a text and its
/// encoding.
template <bool mutable_array>
std::optional<Node> made_bytes(const PickleGraph& pickle, std::span<const Id> arguments, Allowance& allowance) {
    if (arguments.empty()) return bytes_node(std::string(), mutable_array);
    if (arguments.size() == 2) return bytes_node(encoded_text(pickle, arguments, allowance), mutable_array);
    if (arguments.size() > 2) return std::nullopt;
    return bytes_node(bytes_of(pickle, arguments[0], allowance), mutable_array);
}

struct Function {
    std::string_view name;
    std::optional<Node> (*make)(const PickleGraph&, std::span<const Id>, Allowance&);
};
constexpr Function functions[]{
    {"_codecs.encode", encoded},
    {"builtins.bytearray", made_bytes<true>},
    {"builtins.bytes", made_bytes<false>},
    {"builtins.complex", complex},
    {"torch.device", device},
    {"torch.serialization._get_layout", layout},
};

}  // namespace

std::optional<std::string> encoded_text(const PickleGraph& pickle, std::span<const Id> arguments,
                                        Allowance& allowance) {
    if (arguments.size() != 2 || pickle.kind(arguments[0]) != Kind::text) return std::nullopt;
    if (pickle.kind(arguments[1]) != Kind::text) return std::nullopt;
    const std::string_view encoding = pickle.text(arguments[1]);
    if (encoding != "latin1" && encoding != "latin-1") return std::nullopt;
    allowance.spend(pickle.text(arguments[0]).size());
    return latin1(pickle.text(arguments[0]));
}

std::optional<std::string> bytes_of(const PickleGraph& pickle, Id id, Allowance& allowance) {
    const Kind kind = pickle.kind(id);
    if (kind == Kind::bytes || kind == Kind::bytearray) return std::string(pickle.text(id));
    if (!is_call_of(pickle, id, "_codecs.encode")) return std::nullopt;
    return encoded_text(pickle, pickle.items(pickle.call(id).arguments), allowance);
}

std::optional<Node> python_value(const PickleGraph& pickle, std::string_view function, std::span<const Id> arguments,
                                 Allowance& allowance) {
    const Function* const row = row_of(functions, function);
    return row == nullptr ? std::nullopt : row->make(pickle, arguments, allowance);
}

bool is_value_function(std::string_view function) noexcept { return row_of(functions, function) != nullptr; }

}  // namespace safemap::SAFEMAP_ABI::torch
