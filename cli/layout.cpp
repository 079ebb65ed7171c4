// Formats a TrainingLayout in one line for people, and in full for JSON.
#include "layout.hpp"

#include <safemap/advanced/text.hpp>

#include <fmt/core.h>
#include <fmt/format.h>

#include <algorithm>
#include <cstdint>
#include <string_view>

namespace safemap::cli {
namespace {

/// A list of words with commas between them. Empty words are left out.
class Words {
public:
    Words& add(std::string_view word) {
        if (!word.empty()) text_ += fmt::format("{}{}", text_.empty() ? "" : ", ", printable(word));
        return *this;
    }
    const std::string& text() const noexcept { return text_; }

private:
    std::string text_;
};

std::string kind_text(const TrainingLayout& layout) {
    std::string text = layout.kind;
    std::replace(text.begin(), text.end(), '_', ' ');
    return text;
}

/// Returns "mesh [2, 4] (dp, tp)".
std::string mesh_text(const TrainingLayout& layout) {
    std::string text = fmt::format("mesh [{}]", fmt::join(layout.mesh, ", "));
    if (!layout.mesh_names.empty()) text += fmt::format(" ({})", fmt::join(layout.mesh_names, ", "));
    return text;
}

}  // namespace

void write_layout(JsonWriter& json, const TrainingLayout& layout) {
    json.key("layout").begin_object();
    json.member("kind", layout.kind);
    if (layout.stage) json.member("stage", *layout.stage);
    if (layout.world_size) json.member("world_size", *layout.world_size);
    if (!layout.tag.empty()) json.member("tag", layout.tag);
    if (!layout.version.empty()) json.member("version", layout.version);
    if (!layout.mesh.empty()) {
        json.key("mesh").begin_array();
        for (const std::uint64_t size : layout.mesh) json.value(size);
        json.end_array();
    }
    if (layout.chunks) json.member("chunks", *layout.chunks);
    if (!layout.optimizer.empty()) json.member("optimizer", layout.optimizer);
    json.end_object();
}

void write_training(JsonWriter& json, const TrainingState& training) {
    const bool is_known = training.step || training.epoch || training.learning_rate || training.loss_scale;
    if (!is_known && !training.world_size) return;
    json.key("training").begin_object();
    if (training.step) json.member("step", *training.step);
    if (training.epoch) json.member("epoch", *training.epoch);
    if (training.learning_rate) json.member("learning_rate", *training.learning_rate);
    if (training.loss_scale) json.member("loss_scale", *training.loss_scale);
    if (training.world_size) json.member("world_size", *training.world_size);
    json.end_object();
}

std::string training_line(const TrainingState& training) {
    Words words;
    if (training.step) words.add(fmt::format("step {}", *training.step));
    if (training.epoch) words.add(fmt::format("epoch {}", *training.epoch));
    if (training.learning_rate) words.add(fmt::format("learning rate {}", *training.learning_rate));
    if (training.loss_scale) words.add(fmt::format("loss scale {}", *training.loss_scale));
    if (words.text().empty()) return {};  // the line above has the ranks
    if (training.world_size) words.add(count_text(*training.world_size, "rank"));
    return fmt::format("training: {}\n", words.text());
}

bool is_deepspeed(const TrainingLayout& layout) { return layout.kind == "deepspeed" || layout.kind == "universal"; }

std::string layout_text(const TrainingLayout& layout) {
    Words words;
    if (layout.kind != "deepspeed" && layout.kind != "dcp") words.add(kind_text(layout));
    if (layout.stage) words.add(fmt::format("stage {}", *layout.stage));
    if (layout.world_size) words.add(count_text(*layout.world_size, "rank"));
    if (!layout.mesh.empty()) words.add(mesh_text(layout));
    if (!layout.tag.empty()) words.add("tag " + layout.tag);
    if (!layout.version.empty()) words.add((is_deepspeed(layout) ? "DeepSpeed " : "torch metadata ") + layout.version);
    if (layout.chunks) words.add(count_text(*layout.chunks, "chunk"));
    return words.add(layout.dtype).text();
}

Weights weights_given(const TrainingLayout& layout, Weights asked) {
    if (asked != Weights::automatic) return asked;
    return layout.kind == "deepspeed" && layout.stage == 0 ? Weights::module : Weights::fp32;
}

std::string layout_lines(const TrainingLayout& layout, std::string_view format, Weights asked) {
    std::string text = fmt::format("{}: {}\n", format, layout_text(layout));
    if (!is_deepspeed(layout)) return text;
    text += weights_given(layout, asked) == Weights::module ? "weights: of the module" : "masters: fp32";
    Words optimizer;
    for (const std::string& state : layout.optimizer) optimizer.add(state);
    if (!layout.optimizer.empty()) text += fmt::format("; optimizer: {}: --optimizer", optimizer.text());
    return text + '\n';
}

}  // namespace safemap::cli
