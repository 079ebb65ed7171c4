// Fuzzes the pickle machine, the conversion of its graph, and verdicts. Property: any bytes give a tree or an Error,
// and a verdict, in time and memory proportional to the input.
#include "fuzz_target.hpp"
#include "pickle/pickle.hpp"
#include "torch/examine.hpp"
#include "torch/rebuild.hpp"

#include <safemap/advanced/flatten.hpp>
#include <safemap/state_tree.hpp>

#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <span>
#include <vector>

namespace fuzz_pickle {

using namespace safemap;

FUZZ_TARGET(pickle, data, size) {
    static const auto storage = memory_source("storage", std::vector<std::byte>(4096));
    const std::span<const char> bytes(reinterpret_cast<const char*>(data), size);
    const torch::Storages storages{.find =
                                       [](std::string_view) {
                                           return RecordData{storage, {0, 4096}};
                                       },
                                   .big_endian = size % 2 == 1};
    state::FindingList findings;
    static_cast<void>(torch::examine(memory_source("fuzz", {reinterpret_cast<const std::byte*>(data),
                                                            reinterpret_cast<const std::byte*>(data) + size}),
                                     {0, size}, "fuzz", findings));
    try {
        const PickleGraph pickle = read_pickle(bytes);
        if (pickle.consumed() > size) std::abort();
        CollectFaults faults;
        const auto rebuilt = torch::rebuild(pickle, storages, faults);
        const FlatState flat = flatten(rebuilt.tree);
        for (const LazyTensor& tensor : flat.tensors) {
            if (tensor.nbytes() <= 65536) static_cast<void>(tensor.load());
        }
    } catch (const Error& error) {
        if (remedy(error.code()) != Remedy::reject_data) std::abort();
    }
    return 0;
}

}  // namespace fuzz_pickle
