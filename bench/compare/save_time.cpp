// Times saving from memory, for saving.py. Copies the tensors of a checkpoint into memory, saves them, and prints the
// seconds that the save took.
//
//     save_time IN OUT
#include <safemap/safemap.hpp>

#include <safemap/advanced/stored_tensor.hpp>

#include <chrono>
#include <cstdio>
#include <exception>
#include <vector>

int main(int argc, char** argv) try {
    if (argc != 3) {
        std::fputs("save_time IN OUT\n", stderr);
        return 2;
    }
    std::vector<safemap::LazyTensor> tensors;
    for (const safemap::LazyTensor& tensor : safemap::Checkpoint::open(argv[1])) {
        const safemap::TensorView view = tensor.load();
        tensors.emplace_back(
            tensor.name(),
            safemap::stored_run(tensor.dtype(), tensor.shape(),
                                safemap::memory_source(tensor.name(), {.bytes = view.bytes(), .owner = view.owner()}),
                                0));
    }
    const auto start = std::chrono::steady_clock::now();
    safemap::save(argv[2], tensors);
    const std::chrono::duration<double> seconds = std::chrono::steady_clock::now() - start;
    std::printf("{\"seconds\": %.4f}\n", seconds.count());
    return 0;
} catch (const std::exception& error) {
    std::fprintf(stderr, "%s\n", error.what());
    return 1;
}
