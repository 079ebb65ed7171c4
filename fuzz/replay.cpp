// Replaces the fuzzing engine in ordinary builds: runs a target on each file of its corpus and on all prefixes of small
// files.
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <exception>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <stdexcept>
#include <vector>

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size);

namespace {

using Bytes = std::vector<std::uint8_t>;

/// Prefixes of larger files take too long for what they find.
constexpr std::size_t small = 512;

Bytes read(const std::filesystem::path& file) {
    std::ifstream in(file, std::ios::binary);
    return {std::istreambuf_iterator<char>(in), {}};
}

/// Copies the input to memory of exactly its size, so that a sanitizer sees an access past the end.
void replay(const Bytes& input, std::size_t size) {
    const Bytes exact(input.begin(), input.begin() + static_cast<std::ptrdiff_t>(size));
    LLVMFuzzerTestOneInput(exact.data(), exact.size());
}

std::vector<std::filesystem::path> files_of(const char* folder) {
    std::vector<std::filesystem::path> files;
    for (const auto& entry : std::filesystem::directory_iterator(folder)) {
        if (entry.is_regular_file()) files.push_back(entry.path());
    }
    std::sort(files.begin(), files.end());
    return files;
}

}  // namespace

int main(int argc, char** argv) {
    if (argc != 2) {
        std::fprintf(stderr, "usage: %s FOLDER\n", argv[0]);
        return 2;
    }
    try {
        const auto files = files_of(argv[1]);
        if (files.empty()) throw std::runtime_error("an empty corpus tests nothing");
        for (const auto& file : files) {
            // If the target crashes, the last line names the input.
            std::printf("%s\n", file.filename().c_str());
            std::fflush(stdout);
            const Bytes input = read(file);
            replay(input, input.size());
            for (std::size_t n = 0; n < std::min(input.size(), small); ++n) replay(input, n);
        }
    } catch (const std::exception& error) {
        std::fprintf(stderr, "%s: %s\n", argv[1], error.what());
        return 1;
    }
    return 0;
}
