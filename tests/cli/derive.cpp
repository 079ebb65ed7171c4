// Does with the library what convert does with --exclude and --rename: derive IN OUT GLOB PREFIX.
#include <safemap/safemap.hpp>

#include <string>

int main(int argc, char** argv) {
    if (argc != 5) return 2;
    const auto model = safemap::Checkpoint::open(argv[1]);
    const auto part = model.select(safemap::Selection().exclude(argv[3]));
    const auto named = part.renamed([&](std::string_view name) { return argv[4] + std::string(name); });
    safemap::save(argv[2], named);
}
