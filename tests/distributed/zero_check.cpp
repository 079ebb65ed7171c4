// Reads tensors whole, and compares dtype, shape and bytes.
#include "distributed/zero_check.hpp"

#include <safemap/tensor_view.hpp>

#include <cstddef>

namespace zero_forge {

std::string bytes_of(const safemap::LazyTensor& tensor) {
    const safemap::TensorView view = tensor.load();
    return {reinterpret_cast<const char*>(view.bytes().data()), view.bytes().size()};
}

void check_tensor(const safemap::Checkpoint& checkpoint, const std::string& name, const Expected& wanted) {
    const safemap::LazyTensor* const tensor = checkpoint.find(name);
    INFO(name);
    REQUIRE(tensor != nullptr);
    CHECK(tensor->dtype() == wanted.dtype);
    CHECK(tensor->shape() == wanted.shape);
    CHECK((bytes_of(*tensor) == wanted.bytes));
}

void check_tensors(const safemap::Checkpoint& checkpoint, const Tensors& wanted) {
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
