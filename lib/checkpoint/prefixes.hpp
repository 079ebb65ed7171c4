// A prefix such as "module.", which names of one side have before those of the other.
#pragma once

#include <safemap/shape.hpp>

#include <string>
#include <string_view>
#include <vector>

namespace safemap::SAFEMAP_ABI::checkpoint {

struct NamedShape {
    std::string_view name;
    const Shape* shape;
};

/// The one prefix with which all of `bare` are in `full`, or all of `full` come from `bare`; empty where there is none,
/// or another.
std::string certain_prefix(const std::vector<NamedShape>& bare, const std::vector<NamedShape>& full);

}  // namespace safemap::SAFEMAP_ABI::checkpoint
