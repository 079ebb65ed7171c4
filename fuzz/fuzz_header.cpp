// Fuzzes headers. Properties: extents are inside the file; a header that is written and read again is the same; the
// fast path without a JSON parser gives the same header as the JSON parser.
#include "fuzz_target.hpp"
#include "safetensors/header.hpp"

#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <optional>
#include <span>
#include <string>
#include <vector>

namespace fuzz_header {

namespace {

using namespace safemap;
using safetensors::Rules;

constexpr std::uint64_t limit = 100'000'000;

void require(bool holds) {
    if (!holds) std::abort();
}

safetensors::Header read(std::vector<std::byte> file, FaultSink& faults, Rules rules = Rules::compatible) {
    return safetensors::read_header(*memory_source("fuzzed", std::move(file)), rules, limit, faults);
}

bool accepted(const std::vector<std::byte>& file, Rules rules) {
    CollectFaults faults;
    static_cast<void>(read(file, faults, rules));
    return faults.faults().empty();
}

/// Returns a file with `header`, and zeros as data.
std::vector<std::byte> written(const safetensors::Header& header) {
    std::vector<safetensors::TensorSpec> specs;
    std::deque<Shape> shapes;
    std::uint64_t data = 0;
    for (const auto& tensor : header.tensors) {
        specs.push_back({tensor.name, tensor.dtype, &shapes.emplace_back(tensor.shape)});
        data += tensor.data.size;
    }
    const std::string text = safetensors::write_header(specs, header.metadata, header.has_metadata, 8);
    const auto bytes = std::as_bytes(std::span(text));
    std::vector<std::byte> file(bytes.size() + data);
    std::ranges::copy(bytes, file.begin());
    return file;
}

void require_same(const safetensors::Header& a, const safetensors::Header& b) {
    require(a.has_metadata == b.has_metadata && a.metadata == b.metadata && a.tensors.size() == b.tensors.size());
    for (std::size_t i = 0; i < a.tensors.size(); ++i) {
        const auto& [name, dtype, shape, data] = a.tensors[i];
        const safetensors::TensorInfo other = b.tensors[i];
        require(name == other.name && dtype == other.dtype && shape == other.shape);
        require(data.offset - a.data_offset == other.data.offset - b.data_offset && data.size == other.data.size);
    }
}

/// Returns the file with a space after the `{` of its header, which forces the JSON parser; nothing if there is no `{`.
std::optional<std::vector<std::byte>> spaced(std::vector<std::byte> file) {
    std::uint64_t size = 0;
    if (file.size() <= sizeof size || file[sizeof size] != std::byte{'{'}) return std::nullopt;
    std::memcpy(&size, file.data(), sizeof size);
    if (size == 0 || size > file.size() - sizeof size) return std::nullopt;
    ++size;
    std::memcpy(file.data(), &size, sizeof size);
    file.insert(file.begin() + sizeof size + 1, std::byte{' '});
    return file;
}

void require_same_both_ways(const std::vector<std::byte>& file, const safetensors::Header& header,
                            const std::vector<Error>& faults) {
    const auto other = spaced(file);
    if (!other) return;
    CollectFaults collected;
    require_same(header, read(*other, collected));
    require(std::ranges::equal(faults, collected.faults(), {}, &Error::code, &Error::code));
}

}  // namespace

FUZZ_TARGET(header, bytes, size) {
    const auto input = std::as_bytes(std::span(bytes, size));
    const std::vector<std::byte> file(input.begin(), input.end());

    // A validator that collects faults keeps only valid tensors.
    CollectFaults collected;
    const auto loose = read(file, collected);
    for (const auto& tensor : loose.tensors) require(tensor.data.inside(size));
    require_same_both_ways(file, loose, collected.faults());
    // A fault that says that repair() helps is one of a file that repair() reads.
    for (const Error& fault : collected.faults())
        if (fault.hint().starts_with("safemap repair IN OUT writes")) require(accepted(file, Rules::repair));

    ThrowFirst throwing;
    try {
        const auto header = read(file, throwing);
        require(collected.faults().empty());
        require_same(header, loose);
        require_same(header, read(written(header), throwing));
        // The strict rules refuse exactly the headers for which the compatible rules report a tolerated form; the
        // lenient rules accept at least as many.
        require(accepted(file, Rules::strict) == header.tolerated.empty());
        require(accepted(file, Rules::lenient));
    } catch (const Error& error) {
        require(exit_code(error.code()) == 1);
        require(!collected.faults().empty());
        require(!accepted(file, Rules::strict));
    }
    return 0;
}

}  // namespace fuzz_header
