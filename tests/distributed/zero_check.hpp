// Compares an opened checkpoint with what a forged one holds.
#pragma once

#include "distributed/zero_forge.hpp"
#include "doctest_safemap.hpp"

#include <safemap/checkpoint.hpp>
#include <safemap/tensor_view.hpp>

#include <string>

namespace zero_forge {

inline std::string bytes_of(const safemap::LazyTensor& tensor) {
    const safemap::TensorView view = tensor.load();
    return {reinterpret_cast<const char*>(view.bytes().data()), view.bytes().size()};
}

/// Checks one tensor, to the bit.
inline void check_tensor(const safemap::Checkpoint& checkpoint, const std::string& name, const Expected& wanted) {
    const safemap::LazyTensor* const tensor = checkpoint.find(name);
    INFO(name);
    REQUIRE(tensor != nullptr);
    CHECK(tensor->dtype() == wanted.dtype);
    CHECK(tensor->shape() == wanted.shape);
    CHECK((bytes_of(*tensor) == wanted.bytes));
}

/// Checks that a checkpoint has these tensors, and no other.
inline void check_tensors(const safemap::Checkpoint& checkpoint, const Tensors& wanted) {
    for (const auto& [name, tensor] : wanted) check_tensor(checkpoint, name, tensor);
    std::size_t names = checkpoint.size();
    for (const safemap::AliasGroup& group : checkpoint.aliases()) names += group.size() - 1;
    CHECK(names == wanted.size());
    for (const safemap::LazyTensor& tensor : checkpoint) {
        INFO(tensor.name());
        CHECK(wanted.contains(tensor.name()));
    }
}

}  // namespace zero_forge
