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
/// Adds a note on a prefix that the names of `has` have and the names of `lacks` lack; none for an empty one.
void note_prefix(const std::string& prefix, std::string_view has, std::string_view lacks,
                 std::vector<std::string>& notes);

}  // namespace safemap::SAFEMAP_ABI::checkpoint
