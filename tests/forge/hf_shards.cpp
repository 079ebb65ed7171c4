// Writes Hugging Face shards.
#include "forge/hf_shards.hpp"

#include <cstdint>
#include <cstdio>

namespace hf_forge {

std::string list(const Shape& numbers) {
    std::string text = "[";
    for (const std::uint64_t number : numbers) text += (text.size() > 1 ? ", " : "") + std::to_string(number);
    return text + ']';
}

namespace {

std::string escaped(const std::string& text) {
    std::string out;
    for (const char c : text) {
        if (c == '"' || c == '\\') out += '\\';
        out += c;
    }
    return out;
}

std::string info_of(const std::vector<Part>& parts) {
    std::string info = "{";
    for (const Part& part : parts) {
        if (info.size() > 1) info += ", ";
        info += '"' + (part.stored.empty() ? part.name : part.stored) + "\": {";
        info += part.info.empty() ? "\"saved_offsets\": " + list(part.start) : part.info;
        if (!part.stored.empty()) info += ", \"logical_fqn\": \"" + part.name + '"';
        if (!part.global_shape.empty()) info += ", \"global_shape\": " + part.global_shape;
        info += '}';
    }
    return info + '}';
}

}  // namespace

std::string file(const std::vector<Part>& parts, std::map<std::string, std::string> metadata) {
    metadata.emplace("DCP_SHARDING_INFO", info_of(parts));
    metadata.emplace("DCP_VERSION", "1.0");
    metadata.emplace("format", "pt");
    std::string header = "{\"__metadata__\":{";
    for (const auto& [key, value] : metadata) {
        if (header.back() != '{') header += ',';
        header += '"' + escaped(key) + "\":\"" + escaped(value) + '"';
    }
    header += '}';
    std::string data;
    for (const Part& part : parts) {
        header += ",\"" + (part.stored.empty() ? part.name : part.stored) + R"(":{"dtype":")" + part.dtype +
                  R"(","shape":)" + list(part.shape) + R"(,"data_offsets":[)" + std::to_string(data.size()) + ',' +
                  std::to_string(data.size() + part.bytes.size()) + "]}";
        data += part.bytes;
    }
    return forge::safetensors(header + '}', data);
}

std::string shard_name(int rank, int number, int files) {
    char text[64];
    std::snprintf(text, sizeof text, "shard-%05d-model-%05d-of-%05d.safetensors", rank, number, files);
    return text;
}

}  // namespace hf_forge
