// Replaces the fuzzing engine in ordinary builds: runs each target on each file of its corpus and on all prefixes of
// small files.
#include "fuzz_target.hpp"

#include <algorithm>
#include <cstdio>
#include <exception>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <map>
#include <stdexcept>
#include <string>
#include <vector>

namespace {

namespace fs = std::filesystem;
using Bytes = std::vector<std::uint8_t>;
using Targets = std::map<std::string, replay::Run>;

/// Prefixes of larger files take too long for what they find.
constexpr std::size_t small = 512;

Targets& targets() {
    static Targets all;
    return all;
}

Bytes read(const fs::path& file) {
    std::ifstream in(file, std::ios::binary);
    return {std::istreambuf_iterator<char>(in), {}};
}

/// Copies the input to memory of exactly its size, so that a sanitizer sees an access past the end.
void run_on(replay::Run run, const Bytes& input, std::size_t size) {
    const Bytes exact(input.begin(), input.begin() + static_cast<std::ptrdiff_t>(size));
    run(exact.data(), exact.size());
}

std::vector<fs::path> files_of(const fs::path& folder) {
    std::vector<fs::path> files;
    for (const auto& entry : fs::directory_iterator(folder)) {
        if (entry.is_regular_file()) files.push_back(entry.path());
    }
    if (files.empty()) throw std::runtime_error("an empty corpus tests nothing");
    std::sort(files.begin(), files.end());
    return files;
}

void run_on_corpus(replay::Run run, const fs::path& folder) {
    for (const auto& file : files_of(folder)) {
        // If the target crashes, the last line names the input.
        std::printf("%s\n", file.c_str());
        std::fflush(stdout);
        const Bytes input = read(file);
        run_on(run, input, input.size());
        for (std::size_t n = 0; n < std::min(input.size(), small); ++n) run_on(run, input, n);
    }
}

/// Returns true if the target can run on its corpus. A target that finds a fault aborts.
bool passes(const std::string& name, replay::Run run, const fs::path& corpora) {
    try {
        run_on_corpus(run, corpora / name);
        return true;
    } catch (const std::exception& error) {
        std::fprintf(stderr, "%s: %s\n", name.c_str(), error.what());
        return false;
    }
}

/// Returns how many corpora have no target, which would never be replayed.
int without_target(const fs::path& corpora) {
    int count = 0;
    for (const auto& entry : fs::directory_iterator(corpora)) {
        const std::string name = entry.path().filename();
        if (!entry.is_directory() || targets().contains(name)) continue;
        std::fprintf(stderr, "%s: a corpus without a target\n", name.c_str());
        ++count;
    }
    return count;
}

}  // namespace

replay::Registered::Registered(const char* name, Run run) { targets().emplace(name, run); }

int main(int argc, char** argv) {
    if (argc != 2) {
        std::fprintf(stderr, "usage: %s FOLDER_OF_CORPORA\n", argv[0]);
        return 2;
    }
    int passed = 0;
    int failed = 0;
    for (const auto& [name, run] : targets()) ++(passes(name, run, argv[1]) ? passed : failed);
    failed += without_target(argv[1]);
    std::printf("%d passed, %d failed\n", passed, failed);
    return passed > 0 && failed == 0 ? 0 : 1;
}
