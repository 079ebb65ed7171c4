// Makes tensors of random bytes, and reads written files by their headers alone.
#include "write/samples.hpp"

#include <safemap/advanced/stored_tensor.hpp>
#include <safemap/advanced/strides.hpp>

#include <algorithm>
#include <random>
#include <utility>

namespace samples {

std::vector<std::byte> random_bytes(std::size_t size, std::uint64_t seed) {
    std::mt19937_64 random(seed);
    std::vector<std::byte> bytes(size);
    std::size_t i = 0;
    for (; i + 8 <= size; i += 8) {
        const std::uint64_t word = random();
        for (std::size_t b = 0; b < 8; ++b) bytes[i + b] = static_cast<std::byte>(word >> (8 * b));
    }
    for (; i < size; ++i) bytes[i] = static_cast<std::byte>(random());
    return bytes;
}

LazyTensor tensor(std::string name, Dtype dtype, Shape shape, std::uint64_t seed) {
    const std::uint64_t size = byte_size(dtype, element_count(shape).value()).value();
    auto source = memory_source(name, random_bytes(static_cast<std::size_t>(size), seed));
    return {std::move(name), stored_run(dtype, std::move(shape), std::move(source), 0)};
}

LazyTensor transposed(std::string name, Dtype dtype, std::uint64_t rows, std::uint64_t columns, std::uint64_t seed) {
    const LazyTensor whole = tensor(name, dtype, {columns, rows}, seed);
    return {std::move(name), whole.stored(),
            StridedView{.shape = {rows, columns}, .strides = {1, static_cast<std::int64_t>(rows)}}};
}

std::map<std::string, Stored> read_file(const fs::path& path) {
    const auto source = open_file(path, Mapping::never);
    ThrowFirst faults;
    const auto header = safetensors::read_header(*source, safetensors::Rules::compatible, 100'000'000, faults);
    std::map<std::string, Stored> tensors;
    for (const auto& info : header.tensors) {
        Stored stored{info.dtype, info.shape, std::vector<std::byte>(static_cast<std::size_t>(info.data.size))};
        source->read_at(info.data.offset, stored.bytes);
        tensors.emplace(info.name, std::move(stored));
    }
    return tensors;
}

std::map<std::string, std::string> metadata_of(const fs::path& path) {
    ThrowFirst faults;
    const auto header = safetensors::read_header(*open_file(path), safetensors::Rules::compatible, 100'000'000, faults);
    return {header.metadata.begin(), header.metadata.end()};
}

std::vector<std::byte> value_of(const LazyTensor& tensor, std::span<const std::byte> base) {
    const StridedView view = tensor.strided_view();
    const std::size_t size = element_size(tensor.dtype());
    std::vector<std::byte> value;
    Shape at(view.shape.size(), 0);
    for (std::uint64_t i = 0; i < tensor.element_count(); ++i) {
        std::int64_t element = view.offset;
        for (std::size_t d = 0; d < at.size(); ++d) element += static_cast<std::int64_t>(at[d]) * view.strides[d];
        const auto bytes = base.subspan(static_cast<std::size_t>(element) * size, size);
        value.insert(value.end(), bytes.begin(), bytes.end());
        for (std::size_t d = at.size(); d-- > 0;) {
            if (++at[d] < view.shape[d]) break;
            at[d] = 0;
        }
    }
    return value;
}

std::vector<std::string> names_in(const fs::path& folder) {
    std::vector<std::string> names;
    for (const auto& entry : fs::directory_iterator(folder)) names.push_back(entry.path().filename().native());
    std::sort(names.begin(), names.end());
    return names;
}

std::map<std::string, std::string> contents_of(const fs::path& folder) {
    std::map<std::string, std::string> contents;
    for (const auto& name : names_in(folder)) contents.emplace(name, TempDir::read(folder / name));
    return contents;
}

}  // namespace samples
