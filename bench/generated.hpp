// Generated models for benchmarks: F32 tensors of [1024, 1024], with the names of a language model.
#pragma once

#include "safetensors/header.hpp"

#include <safemap/bytes.hpp>

#include <cstddef>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

namespace generated {

inline constexpr std::uint64_t tensor_bytes = safemap::operator""_MiB(4);

inline std::string name_of(std::size_t tensor) {
    return "model.layers." + std::to_string(tensor / 9) + ".mlp.proj_" + std::to_string(tensor % 9) + ".weight";
}

/// Returns the bytes before the data in a file with the tensors [first, first + count).
inline std::string header_of(std::size_t first, std::size_t count) {
    std::vector<std::string> names;
    for (std::size_t i = first; i < first + count; ++i) names.push_back(name_of(i));
    const safemap::Shape shape = {1024, 1024};
    std::vector<safemap::safetensors::TensorSpec> specs;
    for (const std::string& name : names)
        specs.push_back({.name = name, .dtype = safemap::Dtype::f32, .shape = &shape});
    const std::pair<std::string, std::string> metadata[] = {{"format", "pt"}};
    return safemap::safetensors::write_header(specs, metadata, true, 8);
}

}  // namespace generated
