// Tests how far a training had come, as the values of a file and the small files beside it say.
#include "forge/containers.hpp"
#include "forge/zero.hpp"

namespace training_test {

using namespace safemap;
using namespace forge;

namespace fs = std::filesystem;

namespace {

std::string real(double value) {
    std::uint64_t bits = 0;
    std::memcpy(&bits, &value, sizeof bits);
    std::string bytes = "G";
    for (int shift = 56; shift >= 0; shift -= 8) bytes += static_cast<char>(bits >> static_cast<unsigned>(shift));
    return bytes;
}
std::string list(const std::string& item) { return "]" + item + "a"; }
std::string weight() { return view(storage("FloatStorage", "0", 1), 0, {1}, {1}); }
std::string optimizer(const std::string& step) {
    return dict({text("state"), dict({integer(0), dict({text("step"), step, text("exp_avg"), weight()})}),
                 text("param_groups"), list(dict({text("lr"), real(0.25), text("params"), list(integer(0))}))});
}

/// Returns how far a file of torch.save with this value says that the training had come.
TrainingState said_by(const std::string& value) {
    const std::string seven = little_endian(7.0F);
    return containers::checkpoint_of(archive(value, {{"0", std::string(4, 'x')}, {"1", seven}})).training();
}

/// Returns the same of a folder with these files.
TrainingState said_by(const std::map<std::string, std::string>& files) {
    const TempDir dir;
    for (const auto& [name, content] : files) {
        fs::create_directories((dir / name).parent_path());
        dir.write(name, content);
    }
    return Checkpoint::open(dir.path()).training();
}

}  // namespace

TEST_CASE("entries of a training state say how far it had come") {
    const TrainingState state = said_by(
        dict({text("model"), dict({text("w"), weight()}), text("optimizer"), optimizer(integer(99)), text("epoch"),
              integer(3), text("global_step"), integer(1200), text("loss_scaler"), dict({text("cur_scale"), real(512)}),
              text("dp_world_size"), integer(4), text("mp_world_size"), integer(2)}));
    CHECK(state.step == 1200);
    CHECK(state.epoch == 3);
    CHECK(state.learning_rate == 0.25);
    CHECK(state.loss_scale == 512);
    CHECK(state.world_size == 8);
}

TEST_CASE("without an entry, the step is that of the optimizer, also as a tensor without dimensions") {
    const auto step = [](const std::string& value) {
        return said_by(dict({text("net"), dict({text("w"), weight()}), text("optims"), list(optimizer(value))})).step;
    };
    CHECK(step(integer(99)) == 99);
    CHECK(step(view(storage("FloatStorage", "1", 1), 0, {}, {})) == 7);
    for (const std::string& wrong : {integer(-1), real(0.5), real(1e300), text("7"), weight(), std::string("N")})
        CHECK_FALSE(step(wrong).has_value());
}

TEST_CASE("DeepSpeed's files say it, and a DCP or torch optimizer with flattened keys") {
    for (const int stage : {0, 1, 2, 3}) {
        CAPTURE(stage);
        const TempDir dir;
        zero_forge::Forge::run({.stage = stage, .world = 2, .groups = {{{"a.weight", {4, 5}}}}}).write(dir / "run");
        const TrainingState state = Checkpoint::open(dir / "run").training();
        CHECK(state.step == 7);
        CHECK(state.learning_rate == 0.01);
        if (stage > 0) CHECK(state.loss_scale == 1);
        CHECK(state.world_size == 2);
    }
    const TrainingState flat =
        said_by(dict({text("w"), weight(), text("optimizer"),
                      dict({text("state.w.exp_avg"), weight(), text("state.w.step"), integer(5),
                            text("param_groups.w.betas"), integer(1), text("param_groups.w.lr"), real(0.5)})}));
    CHECK(flat.step == 5);
    CHECK(flat.learning_rate == 0.5);
}

TEST_CASE("a plain model says nothing") {
    const TrainingState state = said_by(dict({text("step.weight"), weight(), text("epoch"), weight()}));
    CHECK_FALSE((state.step || state.epoch || state.learning_rate || state.loss_scale || state.world_size));
}

TEST_CASE("small files beside the weights say it, and damaged ones say nothing") {
    const std::string model = containers::safetensors({{"w", Dtype::u8, {1}, "1"}});
    const std::string trainer = R"({"global_step": 30, "epoch": 1.5, "log_history": [{"learning_rate": 0.5},
                                    {"learning_rate": 0.125}, {"eval_loss": 1}]})";
    const TrainingState logged = said_by({{"model.safetensors", model}, {"trainer_state.json", trainer}});
    CHECK(logged.step == 30);
    CHECK(logged.epoch == 1.5);
    CHECK(logged.learning_rate == 0.125);
    const std::string schedule = archive(dict({text("_last_lr"), list(real(0.75)), text("last_epoch"), integer(4)}));
    const std::string scaler = archive(dict({text("scale"), real(1024), text("growth_factor"), real(2)}));
    const TrainingState small = said_by({{"checkpoint-3/model.safetensors", model},
                                         {"checkpoint-3/scheduler.bin", schedule},
                                         {"checkpoint-3/scaler.pt", scaler}});
    CHECK(small.learning_rate == 0.75);
    CHECK(small.loss_scale == 1024);
    CHECK_FALSE(small.epoch.has_value());

    for (const char* damaged : {"", "{", "[]", "1", R"({"global_step": -1, "epoch": "x", "log_history": {}})",
                                R"({"global_step": 1.5, "log_history": [1, {"learning_rate": null}]})"}) {
        const TrainingState none = said_by({{"model.safetensors", model},
                                            {"trainer_state.json", damaged},
                                            {"scheduler.pt", damaged},
                                            {"scaler.pt", "PK"}});
        CHECK_FALSE((none.step || none.learning_rate || none.loss_scale));
    }
}

}  // namespace training_test
