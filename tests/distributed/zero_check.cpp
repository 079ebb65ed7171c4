// Checks of opened checkpoints that were forged as those of DeepSpeed.
#include "distributed/zero_check.hpp"

#include "forge/files.hpp"

#include <cstddef>
#include <functional>
#include <utility>

namespace zero_forge {

void check_tensor(const safemap::Checkpoint& checkpoint, const std::string& name, const Expected& wanted) {
    const safemap::LazyTensor* const tensor = checkpoint.find(name);
    INFO(name);
    REQUIRE(tensor != nullptr);
    CHECK(tensor->dtype() == wanted.dtype);
    CHECK(tensor->shape() == wanted.shape);
    CHECK((bytes_of(*tensor) == wanted.bytes));
}

void check_tensors(const safemap::Checkpoint& checkpoint, const Tensors& wanted) {
    for (const auto& [name, tensor] : wanted) check_tensor(checkpoint, name, tensor);
    std::size_t names = checkpoint.size();
    for (const safemap::AliasGroup& group : checkpoint.aliases()) names += group.size() - 1;
    CHECK(names == wanted.size());
    for (const safemap::LazyTensor& tensor : checkpoint) {
        INFO(tensor.name());
        CHECK(wanted.contains(tensor.name()));
    }
}

void check_text(const std::optional<safemap::Error>& error, const Codes& codes, const Words& words) {
    check_error(error, codes, {});
    const std::string text = error->what();
    INFO(text);
    for (const std::string& word : words) CHECK_MESSAGE(text.find(word) != std::string::npos, word.c_str());
}

std::optional<safemap::Error> refusal(const Run& run, const safemap::OpenOptions& options) {
    return error_of([&] { static_cast<void>(Opened(run, options)); });
}

std::optional<safemap::Error> refusal_of_files(const std::map<std::string, std::string>& files) {
    const TempDir dir = TempDir::in_memory();
    forge::write_files(dir.path(), files);
    return error_of([&] { static_cast<void>(safemap::Checkpoint::open(dir.path())); });
}

namespace {

Words with_names(const Run& run, Words words) {
    for (std::string& word : words) {
        if (!word.starts_with('<')) continue;
        const auto rank = static_cast<std::uint64_t>(word[word.size() - 2] - '0');
        word = word.starts_with("<model") ? run.model_name(rank) : run.optimizer_name(rank);
    }
    return words;
}

void check_each(const char* fault, const std::vector<int>& stages, void (*inflict)(Run&), std::uint64_t world,
                const std::function<void(const Run&)>& check) {
    CAPTURE(fault);
    for (const int stage : stages) {
        CAPTURE(stage);
        Run run = Forge::run(small(stage, world));
        inflict(run);
        check(run);
    }
}

}  // namespace

void check_refused(const Run& run, const Codes& codes, const Words& words) {
    check_text(refusal(run), codes, with_names(run, words));
}

void check_optimizer_refused(const Run& run, const Codes& codes, const Words& words) {
    const Opened opened(run);
    check_text(error_of([&] { static_cast<void>(opened.checkpoint.optimizer()); }), codes, with_names(run, words));
}

void check_fault(const char* fault, const std::vector<int>& stages, const Codes& codes, const Words& words,
                 void (*inflict)(Run&), std::uint64_t world) {
    check_each(fault, stages, inflict, world, [&](const Run& run) { check_refused(run, codes, words); });
}

void check_optimizer_fault(const char* fault, const std::vector<int>& stages, const Codes& codes, const Words& words,
                           void (*inflict)(Run&), std::uint64_t world) {
    check_each(fault, stages, inflict, world, [&](const Run& run) { check_optimizer_refused(run, codes, words); });
}

void resize(pt::Value& flat, std::int64_t by) {
    const std::uint64_t count = flat.shape[0] + static_cast<std::uint64_t>(by);
    const std::size_t size = pt::element_bytes(flat.storage->dtype);
    std::string bytes = flat.storage->bytes.substr(flat.offset * size, flat.shape[0] * size);
    bytes.resize(count * size, '\1');
    flat = pt::tensor(flat.storage->dtype, {count}, std::move(bytes));
}

}  // namespace zero_forge
