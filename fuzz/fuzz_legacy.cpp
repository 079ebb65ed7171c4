// Fuzzes files from before torch 1.6, plain pickles, and tars of torch 0.1, as format detection sorts them. Property:
// any bytes give a tree or an Error, in time and memory proportional to the input.
#include "fuzz_target.hpp"
#include "torch/legacy.hpp"
#include "torch/plain.hpp"
#include "torch/tar.hpp"

#include <safemap/advanced/flatten.hpp>
#include <safemap/state_tree.hpp>

#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <span>
#include <string_view>
#include <vector>

namespace fuzz_legacy {

using namespace safemap;

FUZZ_TARGET(legacy, data, size) {
    const auto bytes = std::as_bytes(std::span(data, size));
    const auto source = memory_source("fuzz", std::vector<std::byte>(bytes.begin(), bytes.end()));
    const std::string_view text(reinterpret_cast<const char*>(data), size);
    const bool tar = size > 262 && text.substr(257, 5) == "ustar";
    const auto read = tar ? torch::read_tar : torch::is_legacy(text) ? torch::read_legacy : torch::read_plain;
    try {
        CollectFaults faults;
        torch::NamedGlobals unknown;
        const FlatState flat = flatten(read(source, faults, size % 2 == 0 ? nullptr : &unknown).tree);
        for (const LazyTensor& tensor : flat.tensors) {
            if (tensor.nbytes() <= 65536) static_cast<void>(tensor.load());
        }
    } catch (const Error& error) {
        if (remedy(error.code()) != Remedy::reject_data) std::abort();
    }
    return 0;
}

}  // namespace fuzz_legacy
