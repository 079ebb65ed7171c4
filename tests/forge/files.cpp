// Writes headers, zips and pickles byte by byte, and a Folder whose files are in memory.
#include "forge.hpp"

#include "base/checksum.hpp"

#include <set>

namespace forge {

std::vector<std::byte> to_bytes(std::string_view text) {
    const auto bytes = std::as_bytes(std::span(text.data(), text.size()));
    return {bytes.begin(), bytes.end()};
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

std::string zip(std::span<const ZipRecord> records, std::size_t alignment) {
    std::string file;
    std::string directory;
    for (const ZipRecord& record : records) {
        std::uint32_t crc = safemap::crc32(0, std::as_bytes(std::span(record.bytes.data(), record.bytes.size())));
        if (record.wrong_crc) crc ^= 0xdeadbeef;
        if (record.zero_crc) crc = 0;
        const auto size = static_cast<std::uint32_t>(record.bytes.size());
        const auto name_size = static_cast<std::uint16_t>(record.name.size());
        const auto offset = static_cast<std::uint32_t>(file.size());

        const std::size_t before_data = file.size() + 30 + record.name.size() + 4;
        const auto padding = static_cast<std::uint16_t>((alignment - before_data % alignment) % alignment);
        const std::string common = little_endian(std::uint16_t{0}) /* flags */ +
                                   little_endian(std::uint16_t{0}) /* stored */ +
                                   little_endian(std::uint32_t{0}) /* time */ + little_endian(crc) +
                                   little_endian(size) + little_endian(size) + little_endian(name_size);
        file += "PK\x03\x04" + little_endian(std::uint16_t{20}) + common +
                little_endian(static_cast<std::uint16_t>(padding + 4)) + record.name + "FB" + little_endian(padding) +
                std::string(padding, 'Z') + record.bytes;
        directory += "PK\x01\x02" + little_endian(std::uint16_t{20}) + little_endian(std::uint16_t{20}) + common +
                     std::string(12, '\0') + little_endian(offset) + record.name;
    }
    const auto count = static_cast<std::uint16_t>(records.size());
    const auto directory_offset = static_cast<std::uint32_t>(file.size());
    return file + directory + "PK\x05\x06" + std::string(4, '\0') + little_endian(count) + little_endian(count) +
           little_endian(static_cast<std::uint32_t>(directory.size())) + little_endian(directory_offset) +
           little_endian(std::uint16_t{0});
}

namespace {

std::string pickle_text(std::string_view text) {
    return 'X' + little_endian(static_cast<std::uint32_t>(text.size())) + std::string(text);
}

std::string pickle_int(std::uint32_t number) { return 'J' + little_endian(number); }

std::string pickle_tuple(std::span<const std::uint32_t> numbers) {
    std::string text = "(";
    for (const std::uint32_t number : numbers) text += pickle_int(number);
    return text + 't';
}

/// Returns data.pkl of a plain dict of tensors, as torch.save pickles it; storage i has the key "i".
std::string state_dict_pickle(std::span<const PtTensor> tensors) {
    std::string pickle = "\x80\x02}(";
    std::size_t key = 0;
    for (const PtTensor& tensor : tensors) {
        std::vector<std::uint32_t> strides(tensor.shape.size(), 1);
        for (std::size_t d = strides.size(); d-- > 1;) strides[d - 1] = strides[d] * tensor.shape[d];
        pickle += pickle_text(tensor.name) + "ctorch._utils\n_rebuild_tensor_v2\n((" + pickle_text("storage") +
                  "ctorch\nFloatStorage\n" + pickle_text(std::to_string(key++)) + pickle_text("cpu") +
                  pickle_int(static_cast<std::uint32_t>(tensor.values.size())) + "tQ" + pickle_int(0) +
                  pickle_tuple(tensor.shape) + pickle_tuple(strides) +
                  "\x89"
                  "ccollections\nOrderedDict\n)RtR";
    }
    return pickle + "u.";
}

}  // namespace

std::vector<ZipRecord> pt_records(std::span<const PtTensor> tensors) {
    std::vector<ZipRecord> records;
    records.push_back({"archive/data.pkl", state_dict_pickle(tensors)});
    records.push_back({"archive/byteorder", "little"});
    std::size_t key = 0;
    for (const PtTensor& tensor : tensors) {
        const auto bytes = std::as_bytes(std::span(tensor.values));
        records.push_back({"archive/data/" + std::to_string(key++),
                           std::string(reinterpret_cast<const char*>(bytes.data()), bytes.size())});
    }
    records.push_back({"archive/version", "3\n"});
    return records;
}

std::map<std::string, std::string> files_of(const std::vector<std::string>& names) {
    std::map<std::string, std::string> files;
    for (const std::string& name : names) {
        const auto equals = name.find('=');
        files.emplace(name.substr(0, equals), equals == name.npos ? "x" : name.substr(equals + 1));
    }
    return files;
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
