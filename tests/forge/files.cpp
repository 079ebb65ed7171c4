// Builds safetensors, and sources and folders in memory.
#include "forge/files.hpp"

#include <fstream>
#include <set>

namespace forge {

std::vector<std::byte> to_bytes(std::string_view text) {
    const auto bytes = std::as_bytes(std::span(text.data(), text.size()));
    return {bytes.begin(), bytes.end()};
}

std::string random_bytes(std::mt19937& random, std::size_t size) {
    std::string bytes(size, '\0');
    for (char& byte : bytes) byte = static_cast<char>(random());
    return bytes;
}

std::string u8_header(std::span<const std::pair<std::string, std::uint64_t>> tensors) {
    std::string header = "{";
    std::uint64_t begin = 0;
    for (const auto& [name, size] : tensors) {
        if (begin != 0 || header.size() > 1) header += ',';
        header += '"' + name + R"(":{"dtype":"U8","shape":[)" + std::to_string(size) + R"(],"data_offsets":[)" +
                  std::to_string(begin) + ',' + std::to_string(begin + size) + "]}";
        begin += size;
    }
    return header + '}';
}

std::string u8_file(std::initializer_list<std::pair<std::string, std::uint64_t>> tensors) {
    std::uint64_t size = 0;
    for (const auto& tensor : tensors) size += tensor.second;
    std::string data(size, '\0');
    for (std::size_t i = 0; i < data.size(); ++i) data[i] = static_cast<char>(i % 251);
    return safetensors(u8_header(tensors), data);
}

std::map<std::string, std::string> files_of(const std::vector<std::string>& names) {
    std::map<std::string, std::string> files;
    for (const std::string& name : names) {
        const auto equals = name.find('=');
        files.emplace(name.substr(0, equals), equals == name.npos ? "x" : name.substr(equals + 1));
    }
    return files;
}

void write_files(const std::filesystem::path& root, const std::map<std::string, std::string>& files) {
    for (const auto& [name, bytes] : files) {
        std::filesystem::create_directories((root / name).parent_path());
        std::ofstream(root / name, std::ios::binary) << bytes;
    }
}

std::vector<std::string> Folder::list() const {
    std::vector<std::string> names;
    for (const auto& file : files_)
        if (file.first.find('/') == std::string::npos) names.push_back(file.first);
    return names;
}

std::vector<std::string> Folder::folders() const {
    std::set<std::string> names;
    for (const auto& file : files_)
        if (const auto slash = file.first.find('/'); slash != std::string::npos)
            names.insert(file.first.substr(0, slash));
    return {names.begin(), names.end()};
}

std::shared_ptr<const safemap::Folder> Folder::folder(std::string_view name) const {
    const std::string prefix = std::string(name) + '/';
    std::map<std::string, std::string> below;
    for (const auto& file : files_)
        if (file.first.starts_with(prefix)) below.emplace(file.first.substr(prefix.size()), file.second);
    return below.empty() ? nullptr : std::make_shared<Folder>(std::move(below), name_ + '/' + std::string(name));
}

std::shared_ptr<const safemap::Source> Folder::open(std::string_view file) const {
    const auto found = files_.find(std::string(file));
    return found == files_.end() ? nullptr : source(found->second, name_ + "/" + found->first);
}

}  // namespace forge
