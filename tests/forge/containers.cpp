// Writes the same tensors in every kind of container.
#include "forge/containers.hpp"

#include <safemap/advanced/strides.hpp>
#include <safemap/lazy_tensor.hpp>

#include <algorithm>
#include <cstdint>
#include <memory>
#include <utility>

namespace containers {

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
    const auto tensor = [&](const Sample& sample, const std::string& key) {
        forge::Numbers strides(sample.shape.size(), 1);
        for (std::size_t d = 1; d < strides.size(); ++d)
            strides[d] = strides[d - 1] * static_cast<std::int64_t>(sample.shape[d - 1]);
        const auto count = static_cast<std::int64_t>(sample.bytes.size() / element_size(sample.dtype));
        return forge::view(forge::storage(forge::storage_class(sample.dtype), key, count), 0,
                           {sample.shape.begin(), sample.shape.end()}, strides);
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

Checkpoint in_memory(const std::vector<Sample>& samples) {
    std::vector<LazyTensor> tensors;
    for (const Sample& sample : samples) {
        const bool packed = bits(sample.dtype) % 8 != 0;
        const auto bytes =
            std::make_shared<const std::vector<std::byte>>(forge::to_bytes(packed ? sample.bytes : transposed(sample)));
        StridedView view{sample.shape, row_major(sample.shape), 0};
        std::int64_t stride = 1;
        for (std::size_t d = 0; !packed && d < sample.shape.size(); ++d) {
            view.strides[d] = stride;
            stride *= static_cast<std::int64_t>(sample.shape[d]);
        }
        tensors.emplace_back(sample.name, TensorView(sample.dtype, {*bytes, bytes, false}, std::move(view)));
    }
    return Checkpoint::of(tensors);
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
