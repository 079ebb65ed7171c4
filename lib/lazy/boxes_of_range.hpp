// Turns a range of the row-major elements of a shape into boxes.
#pragma once

#include <safemap/shape.hpp>

#include <algorithm>
#include <cstddef>
#include <cstdint>

namespace safemap::SAFEMAP_ABI {

/// Cuts a range of elements into a few boxes: each has as many whole rows, planes and so on as begin at the next
/// element. Calls visit(box, element count).
template <class Visit>
void each_box_of_range(const Shape& shape, std::uint64_t first, std::uint64_t count, Visit&& visit) {
    while (count > 0) {
        Box box{Shape(shape.size(), 0), Shape(shape.size(), 1)};
        std::uint64_t rest = first;
        std::uint64_t inner = 1;  // elements of one index along dimension d
        std::uint64_t taken = 1;
        for (std::size_t d = shape.size(); d-- > 0;) {
            box.start[d] = rest % shape[d];
            rest /= shape[d];
            if (first % inner == 0 && inner <= count) {
                for (std::size_t e = d + 1; e < shape.size(); ++e) box.extent[e] = shape[e];
                box.extent[d] = std::min(shape[d] - box.start[d], count / inner);
                taken = box.extent[d] * inner;
            }
            inner *= shape[d];
        }
        visit(box, taken);
        first += taken;
        count -= taken;
    }
}

}  // namespace safemap::SAFEMAP_ABI
