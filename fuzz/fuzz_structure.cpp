// Fuzzes structure documents. Property: an accepted document gives a tree whose own document reads as the same tree.
#include "fuzz_target.hpp"
#include "state/structure.hpp"

#include <safemap/advanced/stored_tensor.hpp>
#include <safemap/advanced/structure.hpp>
#include <safemap/error.hpp>

#include <cstdint>
#include <cstdlib>
#include <deque>
#include <string>
#include <string_view>
#include <vector>

namespace fuzz_structure {

namespace {

using namespace safemap;

/// Has a tensor for every name; those with names of even length are tied.
class Tensors {
public:
    const LazyTensor* find(const std::string& name) {
        return &found_.emplace_back(name, name.size() % 2 == 0 ? tied_ : store());
    }

private:
    static std::shared_ptr<const StoredTensor> store() {
        return stored_run(Dtype::u8, {1}, memory_source("one", std::vector<std::byte>(1)), 0);
    }
    std::shared_ptr<const StoredTensor> tied_ = store();
    std::deque<LazyTensor> found_;
};

std::string again(std::string_view document) {
    Tensors tensors;
    const StateTree tree = state::unflatten(document, [&](const std::string& name) { return tensors.find(name); });
    return state::structure_of(tree, [](const std::string& name) { return name; });
}

}  // namespace

FUZZ_TARGET(structure, bytes, size) {
    try {
        const std::string once = again({reinterpret_cast<const char*>(bytes), size});
        if (again(once) != once) std::abort();
    } catch (const Error& error) {
        if (exit_code(error.code()) != 1) std::abort();
    }
    return 0;
}

}  // namespace fuzz_structure
