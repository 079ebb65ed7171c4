// Finds how far the training had come: in the tree, and in small files that trainers write beside the weights.
#include "state/training.hpp"
#include "base/faults.hpp"
#include "base/folder.hpp"
#include "base/json.hpp"
#include "checkpoint/origin.hpp"
#include "checkpoint/small_files.hpp"
#include "checkpoint/state.hpp"
#include "open/read.hpp"

#include <safemap/checkpoint.hpp>

#include <algorithm>
#include <memory>
#include <string_view>

namespace safemap::SAFEMAP_ABI {

namespace {

constexpr std::uint64_t largest_json = 16 << 20;
constexpr std::uint64_t largest_pickle = 1 << 20;

/// Opens a small file. Returns null if the folder does not have it, or if it is larger.
std::shared_ptr<const Source> small_file(const Folder& folder, std::string_view name, std::uint64_t most) {
    auto source = folder.open(name);
    return source && source->size() <= most && folder.link_out(std::string(name)).empty() ? source : nullptr;
}

/// Adds what the Trainer of transformers writes. The learning rate is the last one that it has logged.
void add_trainer_state(const Folder& folder, TrainingState& known) {
    const auto source = small_file(folder, "trainer_state.json", largest_json);
    if (!source) return;
    const std::string text = json::read_text(*source, largest_json, Errc::index_not_json, "trainer_state.json");
    const json::Value root = json::parse(text, Errc::index_not_json);
    const auto* const step = root.find("global_step");
    const auto* const epoch = root.find("epoch");
    if (!known.step && step != nullptr) known.step = step->unsigned_integer();
    if (!known.epoch && epoch != nullptr) known.epoch = epoch->number();
    const auto* const log = root.find("log_history");
    if (known.learning_rate || log == nullptr || log->array() == nullptr) return;
    for (auto entry = log->array()->rbegin(); entry != log->array()->rend() && !known.learning_rate; ++entry)
        if (const auto* const rate = entry->find("learning_rate")) known.learning_rate = rate->number();
}

/// Adds what a small pickle of a trainer says: the state of a scheduler, or of a loss scaler.
void add_pickle(const Folder& folder, std::string_view name, TrainingState& known) {
    const auto source = small_file(folder, name, largest_pickle);
    if (!source) return;
    ThrowFirst faults;
    const state::Contents contents = open::read_file(source, {}, faults);
    TrainingState stated;
    if (contents.tree) state::add_training(*contents.tree, stated);
    if (!known.learning_rate) known.learning_rate = stated.learning_rate;
    if (!known.loss_scale) known.loss_scale = stated.loss_scale;
}

/// Adds what the state of the optimizer beside the model says. If it cannot be read, it says nothing.
void add_optimizer(const state::Contents& contents, TrainingState& known) {
    if (!contents.optimizer) return;
    try {
        const state::Contents optimizer = contents.optimizer();
        if (!optimizer.tree) return;
        state::add_training(*optimizer.tree, known);
        state::add_step_of_optimizer(*optimizer.tree, known);
    } catch (const Error&) {
    }
}

/// Adds what the small files in a folder say. A file that cannot be read says nothing.
void add_small_files(const Folder& folder, TrainingState& known) {
    const auto if_readable = [](auto&& add) {
        try {
            add();
        } catch (const Error&) {
        }
    };
    for (const std::string_view name : {"scheduler.pt", "scheduler.bin", "scaler.pt"})
        if_readable([&] { add_pickle(folder, name, known); });
    if_readable([&] { add_trainer_state(folder, known); });
}

}  // namespace

TrainingState Checkpoint::training() const {
    const state::Contents& contents = state_->contents;
    TrainingState known = contents.training;
    const StateTree* const tree = checkpoint::Origin::is_flat(*this) ? nullptr : this->tree();
    if (tree != nullptr) state::add_training(*tree, known);
    std::vector<std::shared_ptr<const Folder>> folders;
    if (contents.folder) folders.push_back(contents.folder);
    folders.insert(folders.end(), contents.around.begin(), contents.around.end());
    for (const checkpoint::SmallFilesPlace& place : checkpoint::places_of_small_files(contents))
        folders.push_back(place.folder);
    for (const auto& folder : folders) add_small_files(*folder, known);
    if (tree != nullptr) state::add_step_of_optimizer(*tree, known);
    if (!known.step || !known.learning_rate) add_optimizer(contents, known);
    if (!known.world_size && contents.layout) known.world_size = contents.layout->world_size;
    return known;
}

}  // namespace safemap::SAFEMAP_ABI
