// Tensors to save, and readers of files that share no code with the writer.
#pragma once

#include "base/faults.hpp"
#include "safetensors/header.hpp"
#include "temp_dir.hpp"

#include <safemap/advanced/file.hpp>
#include <safemap/dtype.hpp>
#include <safemap/lazy_tensor.hpp>
#include <safemap/save.hpp>
#include <safemap/shape.hpp>

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <map>
#include <span>
#include <string>
#include <vector>

namespace samples {

namespace fs = std::filesystem;
using namespace safemap;

std::vector<std::byte> random_bytes(std::size_t size, std::uint64_t seed);

/// Returns a tensor of random bytes in memory.
LazyTensor tensor(std::string name, Dtype dtype, Shape shape, std::uint64_t seed = 1);

/// Returns a view of a random matrix as its transpose.
LazyTensor transposed(std::string name, Dtype dtype, std::uint64_t rows, std::uint64_t columns, std::uint64_t seed = 1);

/// A tensor of a file, with the bytes that are stored.
struct Stored {
    Dtype dtype;
    Shape shape;
    std::vector<std::byte> bytes;
};
std::map<std::string, Stored> read_file(const fs::path& path);
std::map<std::string, std::string> metadata_of(const fs::path& path);

/// Returns the value, element by element through the view: slow and simple. For whole bytes without decoding.
std::vector<std::byte> value_of(const LazyTensor& tensor, std::span<const std::byte> base);

std::vector<std::string> names_in(const fs::path& folder);

/// Returns every file of a folder with its bytes.
std::map<std::string, std::string> contents_of(const fs::path& folder);

}  // namespace samples
