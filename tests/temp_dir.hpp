// A temporary folder that is removed at the end of its scope.
#pragma once

#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <stdexcept>
#include <string>
#include <string_view>
#include <utility>

class TempDir {
public:
    TempDir() : TempDir(std::filesystem::temp_directory_path()) {}
    /// Returns a folder in memory if possible, for tests that save thousands of times and would wait for the disk.
    static TempDir in_memory() {
        const std::filesystem::path memory = "/dev/shm";
        return ::access(memory.c_str(), W_OK | X_OK) == 0 ? TempDir(memory) : TempDir();
    }
    ~TempDir() {
        std::error_code ignored;
        std::filesystem::remove_all(path_, ignored);
    }
    TempDir(const TempDir&) = delete;
    TempDir& operator=(const TempDir&) = delete;

    const std::filesystem::path& path() const noexcept { return path_; }
    std::filesystem::path operator/(std::string_view name) const { return path_ / name; }

    /// Writes a file in the folder and returns its path.
    std::filesystem::path write(std::string_view name, std::string_view content) const {
        const auto file = path_ / name;
        std::ofstream(file, std::ios::binary) << content;
        return file;
    }
    static std::string read(const std::filesystem::path& file) {
        std::ifstream in(file, std::ios::binary);
        std::ostringstream content;  // not by size: files of /proc report 0
        content << in.rdbuf();
        return std::move(content).str();
    }

private:
    explicit TempDir(const std::filesystem::path& parent) {
        std::string pattern = (parent / "safemap-test-XXXXXX").string();
        if (::mkdtemp(pattern.data()) == nullptr) throw std::runtime_error("mkdtemp failed");
        path_ = pattern;
    }

    std::filesystem::path path_;
};
