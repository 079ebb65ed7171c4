// Opens forged DeepSpeed checkpoints with random changes in the pickle of one rank's file: they open or are refused,
// and nothing worse. Where they open, every tensor loads, and the state of the optimizer opens or is refused.
#include "distributed/zero_check.hpp"
#include "doctest_safemap.hpp"
#include "forge/files.hpp"
#include "forge/zero.hpp"
#include "open/read.hpp"
#include "soak.hpp"

#include <iterator>
#include <random>
#include <string>

namespace zero_mutated_test {

using namespace safemap;
using zero_forge::Forge;
using zero_forge::Run;

namespace {

void load_all(const state::Contents& contents) {
    for (const LazyTensor& tensor : contents.tensors)
        if (tensor.nbytes() < 1U << 20U) static_cast<void>(tensor.load());
}

std::string mutated(std::string pickle, std::mt19937& random) {
    for (std::size_t changes = random() % 3 + 1; changes > 0; --changes) {
        const std::size_t place = random() % pickle.size();
        const auto byte = static_cast<char>(random());
        switch (random() % 4) {
            case 0: pickle[place] = byte; break;
            case 1: pickle[place] = static_cast<char>(pickle[place] ^ 1 << random() % 8); break;
            case 2: pickle.insert(place, 1, byte); break;
            default: pickle.erase(place, random() % 20 + 1); break;
        }
        if (pickle.empty()) pickle = ".";
    }
    return pickle;
}

}  // namespace

TEST_CASE("mutated rank pickles are read or refused, and nothing worse") {
    const unsigned seed = soak::seed(170);
    CAPTURE(seed);
    std::mt19937 random(seed);
    int opened = 0;
    int refused = 0;
    for (int stage = 0; stage < 4; ++stage) {
        const Run run = Forge::run(zero_forge::small(stage));
        const auto whole = run.packed();
        for (int round = 0; round < soak::rounds(400); ++round) {
            const auto file = std::next(run.files.begin(), static_cast<std::ptrdiff_t>(random() % run.files.size()));
            auto files = whole;
            const std::string pickle = mutated(pt::Writer::pickle(file->second), random);
            files[run.spec.tag + '/' + file->first] = pt::Writer::file_with(file->second, pickle);
            const auto error = error_of([&] {
                ThrowFirst faults;
                const auto folder = std::make_shared<forge::Folder>(files);
                const auto contents = open::read_located(open::locate(folder), {}, faults);
                load_all(contents);
                if (contents.optimizer) load_all(contents.optimizer());
            });
            if (error) CHECK(remedy(error->code()) == Remedy::reject_data);
            ++(error ? refused : opened);
        }
    }
    CHECK(opened > 0);
    CHECK(refused > 0);
}

}  // namespace zero_mutated_test
