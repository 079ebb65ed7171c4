// Disjoint boxes that fill a shape, of every kind: grids, interleaved shards, and recursive cuts, which form no grid.
#pragma once

#include <safemap/lazy_tensor.hpp>

#include <random>
#include <vector>

namespace reference {

using Places = std::vector<safemap::Box>;

/// Cuts every dimension at random places, sometimes twice at the same place: then boxes are empty.
Places random_grid(std::mt19937& random, const safemap::Shape& shape);

/// Cuts boxes in two repeatedly, each along a random dimension and at a random place.
Places random_cuts(std::mt19937& random, const safemap::Shape& shape);

Places random_places(std::mt19937& random, const safemap::Shape& shape);

}  // namespace reference
