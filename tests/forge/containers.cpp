// Writes the containers byte by byte with the forges, and makes samples of random values.
#include "containers.hpp"

#include <algorithm>
#include <cstdint>
#include <utility>

namespace containers {

std::string random_bytes(std::mt19937& random, std::size_t size) {
    std::string bytes(size, '\0');
    for (char& byte : bytes) byte = static_cast<char>(random());
    return bytes;
}

std::string shape_text(const Shape& shape) {
    std::string text;
    for (const std::uint64_t dimension : shape) text += (text.empty() ? "" : ",") + std::to_string(dimension);
    return text;
}

std::string safetensors(const std::vector<Sample>& samples, std::string_view more) {
    std::string header = "{" + std::string(more);
    std::string data;
    for (const Sample& sample : samples) {
        if (header.back() == '}') header += ',';
        header += '"' + sample.name + R"(":{"dtype":")" + std::string(name(sample.dtype)) + R"(","shape":[)" +
                  shape_text(sample.shape) + R"(],"data_offsets":[)" + std::to_string(data.size()) + ',' +
                  std::to_string(data.size() + sample.bytes.size()) + "]}";
        data += sample.bytes;
    }
    return forge::safetensors(header + '}', data);
}

std::filesystem::path write_shards(const TempDir& dir, const std::vector<Sample>& samples) {
    std::map<std::string, std::vector<Sample>> shards;
    std::string weight_map;
    for (std::size_t i = 0; i < samples.size(); ++i) {
        const std::string file = "shard" + std::to_string(i % 3) + ".safetensors";
        shards[file].push_back(samples[i]);
        weight_map += (i > 0 ? ",\"" : "\"") + samples[i].name + "\":\"" + file + '"';
    }
    for (const auto& [file, held] : shards) dir.write(file, safetensors(held));
    return dir.write("model.safetensors.index.json", R"({"weight_map":{)" + weight_map + "}}");
}

std::string transposed(const Sample& sample) {
    const std::size_t size = element_size(sample.dtype);
    std::string out(sample.bytes.size(), '\0');
    for (std::size_t i = 0; i * size < sample.bytes.size(); ++i) {
        std::size_t rest = i;
        std::size_t to = 0;
        std::size_t stride = out.size() / size;  // stride of the last dimension, which is the first in the storage
        for (std::size_t d = sample.shape.size(); d-- > 0;) {
            stride /= sample.shape[d];
            to += rest % sample.shape[d] * stride;
            rest /= sample.shape[d];
        }
        std::copy_n(sample.bytes.data() + i * size, size, out.data() + to * size);
    }
    return out;
}

std::string pt(const std::vector<Sample>& samples, const std::map<std::string, std::string>& ties) {
    static const std::map<Dtype, std::string> types = {{Dtype::f32, "FloatStorage"},  {Dtype::bf16, "BFloat16Storage"},
                                                       {Dtype::f64, "DoubleStorage"}, {Dtype::i64, "LongStorage"},
                                                       {Dtype::u8, "ByteStorage"},    {Dtype::boolean, "BoolStorage"}};
    const auto numbers = [](const Shape& values) {
        std::string text = "(";
        for (const std::uint64_t value : values) text += forge::integer(static_cast<std::int64_t>(value));
        return text + "t";
    };
    const auto tensor = [&](const Sample& sample, const std::string& key) {
        Shape strides(sample.shape.size(), 1);
        for (std::size_t d = 1; d < strides.size(); ++d) strides[d] = strides[d - 1] * sample.shape[d - 1];
        const auto count = static_cast<std::int64_t>(sample.bytes.size() / element_size(sample.dtype));
        return forge::call(
            "torch._utils", "_rebuild_tensor_v2",
            {forge::storage(types.at(sample.dtype), key, count), forge::integer(0), numbers(sample.shape),
             numbers(strides), "\x89", forge::call("collections", "OrderedDict", {})});
    };
    std::string dict = "}(";
    std::vector<std::pair<std::string, std::string>> storages;
    for (std::size_t i = 0; i < samples.size(); ++i) {
        const std::string key = std::to_string(i);
        dict += forge::text(samples[i].name) + tensor(samples[i], key);
        for (const auto& [alias, name] : ties)
            if (name == samples[i].name) dict += forge::text(alias) + tensor(samples[i], key);
        storages.emplace_back(key, transposed(samples[i]));
    }
    return forge::archive(dict + "u", storages);
}

Checkpoint checkpoint_of(const std::string& content, std::string name) {
    return Checkpoint::open(forge::source(content, std::move(name)));
}

std::vector<Sample> random_samples(std::mt19937& random, const std::vector<Dtype>& dtypes) {
    std::vector<Sample> samples;
    for (std::size_t i = 0; i < 20; ++i) {
        const Dtype dtype = dtypes[random() % dtypes.size()];
        Shape shape;
        for (std::size_t d = random() % 4; d > 0; --d) shape.push_back(random() % 5 + (random() % 8 != 0 ? 1 : 0));
        if (!whole_bytes(dtype)) shape.push_back(4 * (random() % 3));
        std::string bytes = random_bytes(random, *byte_size(dtype, *element_count(shape)));
        if (dtype == Dtype::boolean)
            for (char& byte : bytes) byte &= 1;
        samples.push_back({std::string(1 + i / 2, 'w') + (i % 2 != 0 ? ".b" : ""), dtype, shape, std::move(bytes)});
    }
    std::shuffle(samples.begin(), samples.end(), random);
    return samples;
}

}  // namespace containers
