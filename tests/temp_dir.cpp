// Makes the folder with mkdtemp(), on disk or in /dev/shm, and reads and writes its files.
#include "temp_dir.hpp"

#include <unistd.h>

#include <cstdlib>
#include <fstream>
#include <sstream>
#include <stdexcept>
#include <system_error>
#include <utility>

TempDir::TempDir() : TempDir(std::filesystem::temp_directory_path()) {}

TempDir TempDir::in_memory() {
    const std::filesystem::path memory = "/dev/shm";
    return ::access(memory.c_str(), W_OK | X_OK) == 0 ? TempDir(memory) : TempDir();
}

TempDir::~TempDir() {
    std::error_code ignored;
    std::filesystem::remove_all(path_, ignored);
}

std::filesystem::path TempDir::write(std::string_view name, std::string_view content) const {
    const auto file = path_ / name;
    std::ofstream(file, std::ios::binary) << content;
    return file;
}

std::string TempDir::read(const std::filesystem::path& file) {
    std::ifstream in(file, std::ios::binary);
    std::ostringstream content;  // not by size: files of /proc report 0
    content << in.rdbuf();
    return std::move(content).str();
}

TempDir::TempDir(const std::filesystem::path& parent) {
    std::string pattern = (parent / "safemap-test-XXXXXX").string();
    if (::mkdtemp(pattern.data()) == nullptr) throw std::runtime_error("mkdtemp failed");
    path_ = pattern;
}
