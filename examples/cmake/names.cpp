// Prints the names of a checkpoint's tensors.
#include <safemap/checkpoint.hpp>
#include <safemap/error.hpp>

#include <iostream>

int main(int argc, char** argv) {
    if (argc != 2) return 2;
    try {
        const auto model = safemap::Checkpoint::open(argv[1]);
        for (const auto& tensor : model) std::cout << tensor.name() << '\n';
    } catch (const safemap::Error& error) {
        std::cerr << error.what() << '\n';
        return safemap::exit_code(error.code());
    }
}
