// The same tensors in every kind of container: one safetensors file, shards with an index, a .pt of transposed views,
// memory.
#pragma once

#include "doctest_safemap.hpp"
#include "forge/files.hpp"
#include "forge/pickle.hpp"
#include "temp_dir.hpp"

#include <safemap/advanced/dtypes.hpp>
#include <safemap/checkpoint.hpp>
#include <safemap/dtype.hpp>
#include <safemap/shape.hpp>

#include <filesystem>
#include <map>
#include <random>
#include <string>
#include <string_view>
#include <vector>

namespace containers {

using namespace safemap;
using forge::random_bytes;

/// A tensor as a test describes it, with its row-major bytes.
struct Sample {
    std::string name;
    Dtype dtype;
    Shape shape;
    std::string bytes;
};

std::string shape_text(const Shape& shape);

/// Returns a file of these tensors; `more` is put in front of the header's members: R"("__metadata__":{},)".
std::string safetensors(const std::vector<Sample>& samples, std::string_view more = {});

/// Writes three shards, to which the tensors go in turn. Returns the path of the index.
std::filesystem::path write_shards(const TempDir& dir, const std::vector<Sample>& samples);

/// Returns the elements in the order of the reversed shape: the storage of a transposed tensor.
std::string transposed(const Sample& sample);

/// Returns a file of torch.save in which every tensor is transposed; `ties` maps other names to stored names.
std::string pt(const std::vector<Sample>& samples, const std::map<std::string, std::string>& ties = {});

Checkpoint checkpoint_of(const std::string& content, std::string name = "forged");

/// Returns a checkpoint over memory, in which every tensor of whole bytes is transposed.
Checkpoint in_memory(const std::vector<Sample>& samples);

/// Returns tensors of these dtypes, with names that are prefixes of each other; some are 0-d or empty.
std::vector<Sample> random_samples(std::mt19937& random, const std::vector<Dtype>& dtypes);

}  // namespace containers
