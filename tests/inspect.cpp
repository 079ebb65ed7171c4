// Tells bytes and notes as texts.
#include "inspect.hpp"

#include <safemap/tensor_view.hpp>

std::string text_of(std::span<const std::byte> bytes) {
    return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

std::string bytes_of(const safemap::LazyTensor& tensor) {
    const safemap::TensorView view = tensor.load();
    return text_of(view.bytes());
}

std::string only_of(const std::vector<std::string>& texts) {
    return texts.size() == 1 ? texts.front() : std::to_string(texts.size()) + " texts";
}
