// Saves a file again with exact metadata: exact_save IN OUT none|given [KEY VALUE]...
// Prints whether OUT has metadata. tests/interop/like_safetensors.py compares the bytes with the reference's.
#include <safemap/safemap.hpp>

#include <iostream>
#include <string_view>

int main(int count, char** arguments) {
    try {
        if (count < 4 || count % 2 != 0) throw safemap::Error(safemap::Errc::invalid_argument, "wrong arguments");
        safemap::SaveOptions options{.one_file = true,
                                     .exact_metadata = true,
                                     .empty_metadata = std::string_view(arguments[3]) == "given",
                                     .overwrite = true};
        for (int i = 4; i < count; i += 2) options.metadata.emplace(arguments[i], arguments[i + 1]);
        safemap::save(arguments[2], safemap::Checkpoint::open(arguments[1]), options);
        std::cout << safemap::Checkpoint::open(arguments[2]).has_metadata() << '\n';
    } catch (const safemap::Error& error) {
        std::cerr << error.what() << '\n';
        return 1;
    }
}
