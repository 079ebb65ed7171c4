// Reads safetensors files from stdin, each after its length (64 bits), and prints the library's verdict on each as a
// line of JSON. tests/interop/headers.py writes the files and compares with the safetensors package.
#include "base/json.hpp"
#include "safetensors/header.hpp"

#include <cstdio>
#include <iostream>

namespace {

using namespace safemap;

std::string verdict(std::vector<std::byte> file) {
    std::string line;
    try {
        ThrowFirst faults;
        const auto source = memory_source("stdin", std::move(file));
        const auto header = safetensors::read_header(*source, safetensors::Rules::compatible, 100'000'000, faults);
        line = R"({"tensors":[)";
        for (const auto& tensor : header.tensors) {
            if (line.back() != '[') line += ',';
            line += '[';
            json::append_string(line, tensor.name, json::Charset::ascii);
            line += ",\"" + std::string(name(tensor.dtype)) + "\"," + to_string(tensor.shape) + ',';
            line += std::to_string(tensor.data.offset) + ',' + std::to_string(tensor.data.size) + ']';
        }
        line += R"(],"metadata":)";
        line += header.has_metadata ? "{" : "null";
        for (const auto& [key, value] : header.metadata) {
            if (line.back() != '{') line += ',';
            json::append_string(line, key, json::Charset::ascii);
            line += ':';
            json::append_string(line, value, json::Charset::ascii);
        }
        line += header.has_metadata ? "}}" : "}";
    } catch (const Error& error) {
        line = R"({"error":")" + std::string(name(error.code())) + R"(","text":)";
        json::append_string(line, error.what(), json::Charset::ascii);
        line += '}';
    }
    return line;
}

}  // namespace

int main() {
    std::uint64_t size = 0;
    while (std::cin.read(reinterpret_cast<char*>(&size), sizeof size)) {
        std::vector<std::byte> file(size);
        std::cin.read(reinterpret_cast<char*>(file.data()), static_cast<std::streamsize>(size));
        std::cout << verdict(std::move(file)) << '\n';
    }
}
