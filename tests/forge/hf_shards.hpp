// Writes Hugging Face shards as torch writes them, and as newer writers may, without code of safemap.
#pragma once

#include "forge/files.hpp"

#include <safemap/shape.hpp>

#include <map>
#include <string>
#include <vector>

namespace hf_forge {

using safemap::Shape;

/// A part of a tensor in one file.
struct Part {
    std::string name = {};  ///< name of the whole tensor
    std::string dtype = "U32";
    Shape start = {};
    Shape shape = {};
    std::string bytes = {};
    std::string stored = {};        ///< the name in the file, if it is another
    std::string global_shape = {};  ///< as JSON; empty if the file does not say it
    std::string info = {};          ///< in place of the members that say the place
};

std::string list(const Shape& numbers);

/// Returns a file of these parts, in this order. `metadata` has further pairs, which may replace those of DCP.
std::string file(const std::vector<Part>& parts, std::map<std::string, std::string> metadata = {});

std::string shard_name(int rank, int number = 1, int files = 1);

}  // namespace hf_forge
