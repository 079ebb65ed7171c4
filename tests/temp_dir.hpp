// A temporary folder that is removed at the end of its scope.
#pragma once

#include <filesystem>
#include <string>
#include <string_view>

class TempDir {
public:
    TempDir();
    /// Returns a folder in memory if possible, for tests that save thousands of times and would wait for the disk.
    static TempDir in_memory();
    ~TempDir();
    TempDir(const TempDir&) = delete;
    TempDir& operator=(const TempDir&) = delete;

    const std::filesystem::path& path() const noexcept { return path_; }
    std::filesystem::path operator/(std::string_view name) const { return path_ / name; }

    /// Writes a file in the folder and returns its path.
    std::filesystem::path write(std::string_view name, std::string_view content) const;
    static std::string read(const std::filesystem::path& file);

private:
    explicit TempDir(const std::filesystem::path& parent);

    std::filesystem::path path_;
};
