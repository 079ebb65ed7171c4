// Writes random DeepSpeed checkpoints: forge_zero SEED COUNT OUT. Each is a folder of OUT that DeepSpeed's own script
// can read, or one that it must refuse. tests/interop/like_deepspeed.py compares what the script and safemap give.
#include "forge/zero.hpp"

#include <cstdlib>
#include <exception>
#include <filesystem>
#include <iostream>
#include <random>
#include <string>

namespace {

/// Removes what the script cannot read although it is sound: it fails on parameters without elements between
/// sub-groups.
void suit_the_script(zero_forge::Spec& spec) {
    for (auto& group : spec.groups)
        for (zero_forge::Param& param : group)
            for (std::uint64_t& dimension : param.shape)
                if (dimension == 0) dimension = 1;
}

}  // namespace

int main(int count, char** arguments) {
    try {
        if (count != 4) throw std::runtime_error("usage: forge_zero SEED COUNT OUT");
        std::mt19937 random(static_cast<std::mt19937::result_type>(std::stoul(arguments[1])));
        const std::filesystem::path out = arguments[3];
        for (int i = 0; i < std::atoi(arguments[2]); ++i) {
            const int stage = 1 + i % 3;
            zero_forge::Spec spec = zero_forge::random_spec(random, stage, 1 + random() % 9);
            suit_the_script(spec);
            zero_forge::Forge::run(spec).write(out / std::to_string(i));
        }
    } catch (const std::exception& error) {
        std::cerr << error.what() << '\n';
        return 1;
    }
}
