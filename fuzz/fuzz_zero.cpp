// Fuzzes DeepSpeed folders: small forged checkpoints, in which one pickle is replaced or changed. Property: the folder
// opens, and its tensors load, or an Error says that the data is wrong, in time and memory proportional to the input.
//
// The first byte of an input picks the checkpoint and the file with five bits, and the weights with two. If its highest
// bit is set, the rest is a list of changes of that file's pickle: a kind, a place of two bytes, and a value. Otherwise
// the rest is the pickle itself.
#include "forge/files.hpp"
#include "forge/zero.hpp"
#include "fuzz_target.hpp"
#include "open/read.hpp"

#include <safemap/error.hpp>

#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <map>
#include <string>
#include <string_view>
#include <vector>

namespace fuzz_zero {

using namespace safemap;

namespace {

void require(bool holds) {
    if (!holds) std::abort();
}

/// A forged checkpoint, and the file of it that an input replaces.
struct Target {
    std::map<std::string, std::string> files;
    std::string name;
    pt::Value value;
};

std::vector<Target> forged() {
    std::vector<Target> targets;
    for (int stage = 0; stage < 4; ++stage) {
        zero_forge::Spec spec = zero_forge::small(stage);
        spec.bf16_optimizer = stage == 1;
        const zero_forge::Run run = zero_forge::Forge::run(spec);
        for (const auto& [name, value] : run.files) targets.push_back({run.packed(), spec.tag + '/' + name, value});
    }
    return targets;
}

std::string changed(std::string pickle, std::string_view changes) {
    for (; changes.size() >= 4 && !pickle.empty(); changes.remove_prefix(4)) {
        const auto byte = [changes](std::size_t i) { return static_cast<unsigned char>(changes[i]); };
        const std::size_t place = (byte(1) + 256U * byte(2)) % pickle.size();
        switch (byte(0) % 3) {
            case 0: pickle[place] = changes[3]; break;
            case 1: pickle.insert(place, 1, changes[3]); break;
            default: pickle.erase(place, 1U + byte(3) % 8); break;
        }
    }
    return pickle;
}

void load_small(const state::Contents& contents) {
    for (const LazyTensor& tensor : contents.tensors)
        if (tensor.nbytes() <= 65536) static_cast<void>(tensor.load());
}

void open_all(const std::map<std::string, std::string>& files, const OpenOptions& options) {
    ThrowFirst faults;
    const auto contents = open::read_located(open::locate(std::make_shared<forge::Folder>(files)), options, faults);
    load_small(contents);
    if (contents.optimizer) load_small(contents.optimizer());
}

void try_open(const std::map<std::string, std::string>& files, const OpenOptions& options) {
    try {
        open_all(files, options);
    } catch (const Error& error) {
        // Some stages have no module, and DeepSpeed refuses some.
        require(remedy(error.code()) == Remedy::reject_data || error.code() == Errc::invalid_argument);
    }
}

}  // namespace

FUZZ_TARGET(zero, data, size) {
    static const std::vector<Target> targets = forged();
    if (size == 0) return 0;
    const Target& target = targets[(data[0] & 0x1fU) % targets.size()];
    const std::string_view rest(reinterpret_cast<const char*>(data) + 1, size - 1);
    const std::string pickle =
        (data[0] & 0x80U) != 0 ? changed(pt::Writer::pickle(target.value), rest) : std::string(rest);
    auto files = target.files;
    files[target.name] = pt::Writer::file_with(target.value, pickle);
    OpenOptions options = {.work = {.threads = 1}};
    const unsigned ways = data[0] >> 5U & 3U;
    if (ways == 1) options.weights = Weights::module;
    options.deepspeed_compat = ways == 2;
    try_open(files, options);
    return 0;
}

}  // namespace fuzz_zero
