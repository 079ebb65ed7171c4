// Goes through a checkpoint layer by layer, as inference does, with device memory for half of it. While a layer is
// used, the next one is on its way. Does so twice, then with everything on the device, and compares the results.
//
//     layers PATH [DEVICE]    DEVICE: host (the default), opencl:N or cuda:N
#include <safemap/safemap.hpp>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <iostream>
#include <iterator>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

namespace {

using Results = std::vector<std::uint64_t>;

/// Returns the layer of a tensor: its name up to the first part that is a number, such as "model.layers.12". A tensor
/// without a number, such as the embedding, is a layer by itself.
std::string layer_of(std::string_view name) {
    for (std::size_t begin = 0, end = 0; end != std::string_view::npos; begin = end + 1) {
        end = name.find('.', begin);
        const std::string_view part = name.substr(begin, end - begin);
        if (!part.empty() && part.find_first_not_of("0123456789") == std::string_view::npos)
            return std::string(name.substr(0, end));
    }
    return std::string(name);
}

/// Makes a bundle for each layer, in the order of the checkpoint. Reads no weights.
std::vector<safemap::Bundle> bundles_of(safemap::Uploader& uploader, const safemap::Checkpoint& model) {
    std::map<std::string, std::size_t> numbers;
    std::vector<std::vector<safemap::LazyTensor>> layers;
    for (const safemap::LazyTensor& tensor : model) {
        const auto [at, is_new] = numbers.try_emplace(layer_of(tensor.name()), layers.size());
        if (is_new) layers.emplace_back();
        layers[at->second].push_back(tensor);
    }
    std::vector<safemap::Bundle> bundles;
    for (const auto& tensors : layers) bundles.push_back(uploader.bundle(tensors));
    return bundles;
}

/// Stands for the kernels of a layer: its result depends on every byte of the weights (FNV-1a). Kernels would take the
/// handle of the memory and the offset; this reads the weights back, which works on every device.
std::uint64_t compute(safemap::Device& device, const safemap::Lease& layer) {
    std::uint64_t result = 14695981039346656037U;
    std::vector<std::byte> bytes;
    for (const safemap::DeviceTensor& weight : layer.tensors()) {
        bytes.resize(weight.nbytes());
        device.copy_to_host(bytes, *weight.memory(), weight.offset());
        for (const std::byte byte : bytes) result = (result ^ std::to_integer<std::uint64_t>(byte)) * 1099511628211U;
    }
    return result;
}

Results forward(safemap::Device& device, safemap::UploadOrder& layers) {
    Results results;
    for (std::size_t i = 0; i < layers.size(); ++i) {
        const safemap::Lease layer = layers.next();  // waits until the layer is there; the next one is on its way
        results.push_back(compute(device, layer));
    }  // the lease ends, and another layer may have its memory
    return results;
}

/// Goes through the model twice under a budget, and says what that took.
Results forward_twice(const std::shared_ptr<safemap::Device>& device, const safemap::Checkpoint& model,
                      std::uint64_t budget) {
    safemap::Uploader uploader(device, model, {.device_budget = budget});
    safemap::UploadOrder layers = uploader.follow(bundles_of(uploader, model));
    Results results = forward(*device, layers);
    const std::uint64_t first_pass = uploader.stats().uploaded_bytes;
    std::ranges::copy(forward(*device, layers), std::back_inserter(results));
    const safemap::UploadStats stats = uploader.stats();
    std::cout << layers.size() << " layers twice: uploaded " << first_pass << " and "
              << stats.uploaded_bytes - first_pass << " bytes, with at most " << stats.peak_device_bytes
              << " on the device\n";
    return results;
}

}  // namespace

int main(int argc, char** argv) {
    if (argc != 2 && argc != 3) return 2;
    try {
        const auto model = safemap::Checkpoint::open(argv[1]);
        const auto device = safemap::Device::open(argc == 3 ? argv[2] : "host");
        const std::uint64_t half = model.total_bytes() / 2;
        std::cout << model.size() << " tensors of " << model.total_bytes() << " bytes, a budget of " << half << '\n';
        const Results streamed = forward_twice(device, model, half);
        const Results resident = forward_twice(device, model, 0);  // 0: nine tenths of the free memory
        std::cout << "the results are " << (streamed == resident ? "equal" : "different") << ", the last one is "
                  << (streamed.empty() ? 0 : streamed.back()) << '\n';
        return streamed == resident ? 0 : 1;
    } catch (const safemap::Error& error) {
        std::cerr << error.what() << '\n';
        return 1;
    }
}
