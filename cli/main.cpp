// The program: hands the words of the shell to run().
#include "run.hpp"

#include <span>
#include <string>
#include <vector>

int main(int argc, char** argv) {
    const std::vector<std::string> call(argv, argv + argc);
    const std::size_t program = call.empty() ? 0 : 1;
    return safemap::cli::run(std::span(call).first(program), std::span(call).subspan(program));
}
