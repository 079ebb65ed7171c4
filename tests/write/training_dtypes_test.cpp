// Tests that a cast of the model leaves the state of the optimizer as it is, unless it is asked for.
#include "distributed/zero_check.hpp"
#include "forge/containers.hpp"
#include "write/samples.hpp"

#include <safemap/save.hpp>

#include <sstream>

namespace training_dtypes_test {

using namespace safemap;
using namespace samples;

namespace {

using forge::dict;
using forge::text;

constexpr std::int64_t most_tensors = 512;

/// Returns a tensor whose values do not matter. It shares no elements with another one, which would be tied to it.
std::string tensor(std::string_view storage_class = "FloatStorage", const forge::Numbers& size = {2}) {
    static std::int64_t tensors = 0;
    const std::string key = storage_class == "DoubleStorage" ? "1" : "0";
    const std::int64_t offset = 2 * (tensors++ % most_tensors);
    return forge::view(forge::storage(storage_class, key, 2 * most_tensors), offset, size, forge::strides_of(size));
}
std::string file_of(const std::string& value) {
    return forge::archive(value,
                          {{"0", std::string(8 * most_tensors, '\0')}, {"1", std::string(16 * most_tensors, '\0')}});
}
std::string optimizer() {
    return dict({text("state"), dict({text("w"), dict({text("exp_avg"), tensor(), text("step"), tensor()})}),
                 text("param_groups"), dict({text("lr"), tensor()})});
}

/// Returns "name=DTYPE" of each tensor of a save of the checkpoint, and puts its notes into `notes`.
std::string saved(const Checkpoint& checkpoint, const SaveOptions& options, std::vector<std::string>& notes) {
    const TempDir dir = TempDir::in_memory();
    notes = save(dir / "out", checkpoint, options).notes;
    std::string all;
    for (const LazyTensor& each : Checkpoint::open(dir / "out"))
        all += each.name() + '=' + std::string(name(each.dtype())) + ' ';
    return all;
}
std::string saved(const std::string& value, const SaveOptions& options, std::vector<std::string>& notes) {
    return saved(containers::checkpoint_of(file_of(value)), options, notes);
}

bool is_noted(const std::vector<std::string>& notes, std::string_view part) {
    return std::any_of(notes.begin(), notes.end(), [&](const auto& note) { return note.find(part) != note.npos; });
}

}  // namespace

TEST_CASE("the state of an optimizer keeps its dtypes, found by its structure or by the name of its entry") {
    std::vector<std::string> notes;
    const SaveOptions cast{.dtype = Dtype::bf16};
    for (const auto& entry : {std::pair("anything", optimizer()),
                              {"optimizer_states", dict({text("x"), tensor()})},
                              {"d_optim", dict({text("x"), tensor()})},
                              {"lr_schedulers", dict({text("x"), tensor()})},
                              {"opt_state", dict({text("x"), tensor()})},
                              {"grad_scaler", dict({text("x"), tensor()})}}) {
        const std::string names =
            saved(dict({text("model"), dict({text("w"), tensor()}), text(entry.first), entry.second}), cast, notes);
        CAPTURE(entry.first);
        CAPTURE(names);
        CHECK(names.find("model/w=BF16 ") != names.npos);
        CHECK(names.find(std::string(entry.first) + "/") != names.npos);
        CHECK(names.find("BF16") == names.rfind("BF16"));
        CHECK(is_noted(notes, "keep"));
        CHECK(is_noted(notes, "--dtype-optimizer D"));
    }
    // These are of a model.
    for (const char* key : {"optimus", "head_opts", "state", "opt_model"})
        CHECK(saved(dict({text(key), dict({text("w"), tensor()}), text("other"), dict({text("v"), tensor()})}), cast,
                    notes)
                  .find("F32") == std::string::npos);
    CHECK(saved(dict({text("optimizer"), tensor(), text("optim.w"), tensor("FloatStorage", {1})}), cast, notes)
              .find("=F32") == std::string::npos);
}

TEST_CASE("optimizer_dtype casts the optimizer's state; dtype_of and keep_dtype win") {
    std::vector<std::string> notes;
    const std::string value = dict({text("model"), dict({text("w"), tensor()}), text("optimizer"), optimizer()});
    const auto dtypes = [&](const SaveOptions& options) {
        std::map<std::string, std::string> all;
        std::istringstream pairs(saved(value, options, notes));
        for (std::string pair; pairs >> pair;)
            all.emplace(pair.substr(0, pair.find('=')), pair.substr(pair.find('=') + 1));
        return all["model/w"] + ' ' + all["optimizer/state/w/exp_avg"] + ' ' + all["optimizer/param_groups/lr"];
    };
    CHECK(dtypes({.dtype = Dtype::bf16}) == "BF16 F32 F32");
    CHECK(is_noted(notes, "3 tensors of the optimizer's state, 'optimizer/state/w/exp_avg' first, keep"));
    CHECK(dtypes({.optimizer_dtype = Dtype::bf16}) == "F32 BF16 BF16");
    CHECK_FALSE(is_noted(notes, "keep"));
    CHECK(dtypes({.dtype = Dtype::f16, .optimizer_dtype = Dtype::bf16}) == "F16 BF16 BF16");
    CHECK(dtypes({.dtype = Dtype::f16, .keep_dtype = Selection::glob("*lr"), .optimizer_dtype = Dtype::bf16}) ==
          "F16 BF16 F32");
    const SaveOptions by_name{
        .dtype = Dtype::f16, .dtype_of = {{Selection::glob("*exp_avg"), Dtype::bf16}}, .optimizer_dtype = std::nullopt};
    CHECK(dtypes(by_name) == "F16 BF16 F32");
    CHECK(is_noted(notes, "2 tensors of the optimizer's state"));
}

TEST_CASE("names do not matter: a derived checkpoint, an optimizer alone, and a converted one keep their dtypes") {
    std::vector<std::string> notes;
    const SaveOptions cast{.dtype = Dtype::bf16};
    const std::string value = dict({text("model"), dict({text("w"), tensor()}), text("optimizer"), optimizer()});
    const Checkpoint whole = containers::checkpoint_of(file_of(value));
    const Checkpoint renamed = whole.select(Selection::glob("*w*")).renamed([](std::string_view name) {
        return "x" + std::to_string(name.size());
    });
    CHECK(saved(renamed, cast, notes).find("x7=BF16") != std::string::npos);
    CHECK(saved(renamed, cast, notes).find("x25=F32") != std::string::npos);
    CHECK(saved(whole.below("optimizer"), cast, notes).find("BF16") == std::string::npos);
    CHECK(is_noted(notes, "3 tensors of the optimizer's state"));
    // A file without a structure document has names only.
    const TempDir dir = TempDir::in_memory();
    save(dir / "plain", whole, {.structure = StructurePolicy::drop});
    const std::string plain = saved(Checkpoint::open(dir / "plain"), cast, notes);
    CHECK(plain.find("model/w=BF16") != std::string::npos);
    CHECK(plain.find("optimizer/state/w/exp_avg=F32") != std::string::npos);
}

TEST_CASE("casts of F64 are noted if the tensor has no dimensions, or if the checkpoint is of a training") {
    std::vector<std::string> notes;
    const SaveOptions cast{.dtype = Dtype::bf16};
    const std::string scalar = tensor("DoubleStorage", {});
    saved(dict({text("w"), tensor(), text("scale"), scalar}), cast, notes);
    CHECK(is_noted(notes, "1 F64 tensor is cast to BF16, 'scale' first"));
    saved(dict({text("w"), tensor("DoubleStorage")}), cast, notes);
    CHECK_FALSE(is_noted(notes, "F64"));
    const std::string value = dict({text("model"), dict({text("w"), tensor("DoubleStorage")}), text("optimizer"),
                                    optimizer(), text("loss"), scalar});
    saved(value, cast, notes);
    CHECK(is_noted(notes, "2 F64 tensors are cast to BF16"));
    saved(value, {.dtype = Dtype::bf16, .keep_dtype = Selection::glob("*")}, notes);
    CHECK_FALSE(is_noted(notes, "F64"));
}

TEST_CASE("the folder of an optimizer is cast only with optimizer_dtype") {
    const TempDir dir = TempDir::in_memory();
    zero_forge::Forge::run({.stage = 2, .world = 2, .groups = {{{"a.weight", {4, 5}}}}}).write(dir / "run");
    const Checkpoint model = Checkpoint::open(dir / "run");
    SaveOptions options{.dtype = Dtype::bf16};
    options.folders.emplace("optimizer", *model.optimizer());
    const auto dtypes = [&](const char* out) {
        const SaveReport report = save(dir / out, model, options);
        const Checkpoint saved = Checkpoint::open(dir / out);
        std::uint64_t casts = 0;
        for (const SaveReport::Cast& cast : report.casts) casts += cast.tensors;
        return std::string(name(saved["a.weight"].dtype())) + ' ' +
               std::string(name((*saved.optimizer())["optimizer/state/a.weight/exp_avg"].dtype())) + ' ' +
               std::to_string(casts);
    };
    CHECK(dtypes("first") == "BF16 F32 1");
    options.optimizer_dtype = Dtype::bf16;
    CHECK(dtypes("second").starts_with("BF16 BF16 "));
}

}  // namespace training_dtypes_test
