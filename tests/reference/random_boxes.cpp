// Cuts a shape along random grids, or again and again at random places.
#include "reference/random_boxes.hpp"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <utility>

namespace reference {

Places random_grid(std::mt19937& random, const safemap::Shape& shape) {
    Places cells = {{safemap::Shape(shape.size(), 0), shape}};
    for (std::size_t d = 0; d < shape.size(); ++d) {
        std::vector<std::uint64_t> cuts = {0, shape[d]};
        for (std::size_t i = random() % 4; i > 0; --i) cuts.push_back(random() % (shape[d] + 1));
        std::sort(cuts.begin(), cuts.end());
        Places finer;
        for (const safemap::Box& cell : cells)
            for (std::size_t i = 0; i + 1 < cuts.size(); ++i) {
                finer.push_back(cell);
                finer.back().start[d] = cuts[i];
                finer.back().extent[d] = cuts[i + 1] - cuts[i];
            }
        cells = std::move(finer);
    }
    return cells;
}

Places random_cuts(std::mt19937& random, const safemap::Shape& shape) {
    Places boxes = {{safemap::Shape(shape.size(), 0), shape}};
    if (shape.empty()) return boxes;
    for (std::size_t cuts = random() % 40; cuts > 0; --cuts) {
        const std::size_t which = random() % boxes.size();
        const std::size_t d = random() % shape.size();
        if (boxes[which].extent[d] < 2) continue;
        safemap::Box rest = boxes[which];
        const std::uint64_t at = 1 + random() % (rest.extent[d] - 1);
        boxes[which].extent[d] = at;
        rest.start[d] += at;
        rest.extent[d] -= at;
        boxes.push_back(rest);
    }
    return boxes;
}

Places random_places(std::mt19937& random, const safemap::Shape& shape) {
    return random() % 2 == 0 ? random_grid(random, shape) : random_cuts(random, shape);
}

}  // namespace reference
