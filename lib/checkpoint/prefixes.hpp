// Finds a prefix such as "module." that the names of one side have and the names of the other side lack.
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

/// Returns the only prefix with which all names of `bare` are in `full`, or all names of `full` come from `bare`, with
/// the same shapes. Returns an empty string if there is no such prefix, or more than one.
std::string certain_prefix(const std::vector<NamedShape>& bare, const std::vector<NamedShape>& full);

}  // namespace safemap::SAFEMAP_ABI::checkpoint
