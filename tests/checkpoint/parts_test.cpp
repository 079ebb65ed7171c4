// Tests which part of a nested state dict gives the tensors: the only part with tensors, OpenOptions::root, and the
// model of several parts. Each file has the same names as the file that save() makes of it.
#include <safemap/checkpoint.hpp>

#include "check_error.hpp"
#include "doctest_safemap.hpp"
#include "forge/files.hpp"
#include "forge/value.hpp"
#include "inspect.hpp"
#include "temp_dir.hpp"

#include <safemap/advanced/structure.hpp>
#include <safemap/diff.hpp>
#include <safemap/save.hpp>

#include <algorithm>
#include <string>
#include <vector>

namespace parts_test {

using namespace safemap;
using Names = std::vector<std::string>;

namespace {

pt::Value weight(const std::string& bytes = "wwww") { return pt::tensor(Dtype::u8, {bytes.size()}, bytes); }
pt::Value weights(const Names& names) {
    pt::Value dict = pt::dict();
    for (const std::string& name : names) dict.set(name, weight(std::string(4, name.back())));
    return dict;
}
pt::Value module_of(const Names& names) {
    pt::Value parameters = weights(names);
    return pt::object("torch.nn.modules.linear", "Linear",
                      {{"training", pt::boolean(true)},
                       {"_parameters", std::move(parameters)},
                       {"_buffers", pt::dict()},
                       {"_modules", pt::dict()}});
}

Checkpoint open(const pt::Value& value, const OpenOptions& options = {}) {
    return Checkpoint::open(forge::source(pt::Writer::file(value)), options);
}
Names names(const Checkpoint& checkpoint) {
    Names all = names_of(checkpoint);
    for (const AliasGroup& group : checkpoint.aliases()) all.insert(all.end(), group.begin() + 1, group.end());
    std::sort(all.begin(), all.end());
    return all;
}

struct Row {
    const char* what;
    pt::Value value;
    std::string root;  ///< the part that is taken; empty if none is
    Names own;
    Names whole;
};

std::vector<Row> rows() {
    pt::Value tied = weights({"a"});
    tied.set("b", tied["a"]);
    pt::Value two_places = pt::dict({{"model", weights({"w"})}, {"ema", pt::none()}});
    return {
        {"one part",
         pt::dict({{"state_dict", weights({"m.w", "m.b"})}, {"epoch", pt::integer(3)}}),
         "state_dict",
         {"m.b", "m.w"},
         {"state_dict/m.b", "state_dict/m.w"}},
        {"a part in a part",
         pt::dict({{"state_dict", pt::dict({{"model", weights({"w"})}})}}),
         "state_dict/model",
         {"w"},
         {"state_dict/model/w"}},
        {"keys with slashes",
         pt::dict({{"a/b", weights({"x/y", "~z", "7"})}}),
         "a~1b",
         {"7", "x/y", "~z"},
         {"a~1b/x~1y", "a~1b/~07", "a~1b/~0z"}},
        {"names that begin with the part's",
         pt::dict({{"model", weights({"model.w", "model.b"})}}),
         "model",
         {"model.b", "model.w"},
         {"model/model.b", "model/model.w"}},
        {"tied tensors", pt::dict({{"net", tied}}), "net", {"a", "b"}, {"net/a", "net/b"}},
        {"a module",
         pt::dict({{"model", module_of({"weight", "bias"})}, {"ema", pt::none()}}),
         "model",
         {"bias", "weight"},
         {"model/bias", "model/weight"}},
        {"two parts",
         pt::dict({{"model", weights({"w"})}, {"optimizer", weights({"m"})}}),
         "",
         {"model/w", "optimizer/m"},
         {"model/w", "optimizer/m"}},
        {"a tensor beside",
         pt::dict({{"model", weights({"w"})}, {"step", weight()}}),
         "",
         {"model/w", "step"},
         {"model/w", "step"}},
        {"a list",
         pt::dict({{"params", pt::list({weight(), weight("bbbb")})}}),
         "",
         {"params/0", "params/1"},
         {"params/0", "params/1"}},
        {"a tie between parts",
         pt::dict({{"a", weights({"w"})}, {"b", two_places["model"]}}),
         "",
         {"a/w", "b/w"},
         {"a/w", "b/w"}},
        {"flat", weights({"w", "a/b"}), "", {"a/b", "w"}, {"a/b", "w"}},
        {"a module alone", module_of({"weight"}), "", {"weight"}, {"weight"}},
    };
}

}  // namespace

TEST_CASE("the only part gives its own names, and a saved file the same") {
    for (Row& row : rows()) {
        CAPTURE(row.what);
        if (std::string_view(row.what) == "keys with slashes")  // "7" is escaped, because it looks like an integer
            row.whole = {"a~1b/x~1y", "a~1b/~0z", "a~1b/~s7"};
        const Checkpoint own = open(row.value);
        const Checkpoint whole = open(row.value, {.root = ""});
        CHECK(names(own) == row.own);
        CHECK(own.root() == row.root);
        CHECK(names(whole) == row.whole);
        CHECK(whole.root().empty());
        CHECK((own.tree() == nullptr) == (whole.tree() == nullptr));
        if (!row.root.empty()) {
            CHECK(names(whole.below(row.root)) == row.own);
            CHECK(names(own.below(row.root)) == row.own);
            const Checkpoint part = own.below(row.root);
            CHECK(part.root() == row.root);
            CHECK(names(open(row.value, {.root = row.root})) == row.own);
        }
        const TempDir folder = TempDir::in_memory();
        for (const StructurePolicy policy : {StructurePolicy::automatic, StructurePolicy::keep}) {
            save(folder / "own.safetensors", own, {.structure = policy, .overwrite = true});
            save(folder / "whole.safetensors", whole,
                 {.structure = policy, .overwrite = true});  // as older versions do
            for (const char* file : {"own.safetensors", "whole.safetensors"}) {
                CAPTURE(file);
                const Checkpoint again = Checkpoint::open(folder / file);
                CHECK(names(again) == row.own);
                CHECK(diff(own, again).equal());
                CHECK(names(Checkpoint::open(folder / file, {.root = ""})) == row.whole);
                CHECK(again.root() == row.root);
                if (!row.root.empty()) {
                    CHECK(names(again.below(row.root)) == row.own);
                    CHECK(structure_of(again) == structure_of(own));
                }
            }
        }
        save(folder / "plain.safetensors", own, {.structure = StructurePolicy::drop});
        CHECK(names(Checkpoint::open(folder / "plain.safetensors")) == row.own);
    }
}

TEST_CASE("stored names are those of the file") {
    const Checkpoint whole = open(pt::dict({{"model", weights({"w"})}}), {.root = ""});
    const TempDir folder = TempDir::in_memory();
    save(folder / "old.safetensors", whole);
    CHECK(names(Checkpoint::open(folder / "old.safetensors")) == Names{"w"});
    CHECK(names(Checkpoint::open(folder / "old.safetensors", {.stored_names = true})) == Names{"model/w"});
    save(folder / "new.safetensors", Checkpoint::open(folder / "old.safetensors"));
    CHECK(names(Checkpoint::open(folder / "new.safetensors", {.stored_names = true})) == Names{"w"});
    CHECK(names(Checkpoint::open(folder / "new.safetensors", {.root = ""})) == Names{"model/w"});
}

TEST_CASE("renamed tensors keep the names that a file has for them") {
    for (const char* const from : {"own", "whole"})
        for (const std::string before : {"x.", "model.", "model/", "model/model."}) {
            const Checkpoint checkpoint =
                open(pt::dict({{"model", weights({"w", "b"})}}),
                     {.root = from == std::string_view("own") ? std::optional<std::string>()
                                                              : std::optional<std::string>("")});
            const Checkpoint renamed = checkpoint.renamed(
                [&](std::string_view name) { return before + std::string(name.substr(name.rfind('/') + 1)); });
            CAPTURE(from);
            CAPTURE(before);
            const TempDir folder = TempDir::in_memory();
            save(folder / "renamed.safetensors", renamed);
            const bool paths = before == "model/" && from == std::string_view("whole");  // nothing is renamed
            const Checkpoint again = Checkpoint::open(folder / "renamed.safetensors");
            CHECK(names(again) == (paths ? Names{"b", "w"} : Names{before + "b", before + "w"}));
            save(folder / "again.safetensors", again);
            CHECK(names(Checkpoint::open(folder / "again.safetensors")) == names(again));
        }
}

TEST_CASE("ties in the metadata follow the names of the only part") {
    pt::Value tied = weights({"a"});
    tied.set("b", tied["a"]);
    const Checkpoint own = open(pt::dict({{"net", tied}}));
    const TempDir folder = TempDir::in_memory();
    save(folder / "old.safetensors", open(pt::dict({{"net", tied}}), {.root = ""}));
    const Checkpoint again = Checkpoint::open(folder / "old.safetensors");
    CHECK(again.aliases() == std::vector<AliasGroup>{{"a", "b"}});
    CHECK(again.aliases() == own.aliases());
    CHECK(std::count(again.metadata().begin(), again.metadata().end(), std::pair<std::string, std::string>("b", "a")) ==
          1);
}

TEST_CASE("all parts are listed, with their sizes") {
    pt::Value model = weights({"w", "b"});
    const pt::Value value =
        pt::dict({{"model", model}, {"epoch", pt::integer(1)}, {"optimizer", pt::dict({{"state", weights({"m"})}})}});
    for (const OpenOptions& options :
         {OpenOptions{}, OpenOptions{.root = ""}, OpenOptions{.root = "model"}, OpenOptions{.root_auto = true}}) {
        const Checkpoint checkpoint = open(value, options);
        const auto& parts = checkpoint.all_parts();
        REQUIRE(parts.size() == 2);
        CHECK(parts[0].name == "model");
        CHECK(parts[0].tensors == 2);
        CHECK(parts[0].bytes == 8);
        CHECK(parts[1].name == "optimizer");
        CHECK(parts[1].tensors == 1);
    }
    const Checkpoint flat = open(weights({"w"}));
    CHECK(flat.all_parts().empty());
    const Checkpoint one = open(pt::dict({{"model", model}}));
    CHECK(one.all_parts().size() == 1);
}

TEST_CASE("the model is found by the names that trainers give to it") {
    struct Model {
        Names parts;
        std::string model;
    };
    const std::vector<Model> models{
        {{"state_dict", "optimizer_states"}, "state_dict"},  // Lightning, timm
        {{"optimizer", "model"}, "model"},                   // detectron2, fairseq, Megatron
        {{"model", "model_ema"}, "model"},
        {{"params", "params_ema"}, "params_ema"},  // BasicSR
        {{"optimizer_state_dict", "model_state_dict"}, "model_state_dict"},
        {{"module", "optimizer"}, "module"},
        {{"student", "teacher"}, "teacher"},  // DINO
        {{"g", "d", "g_ema"}, "g_ema"},       // StyleGAN2
        {{"model", "state_dict"}, "state_dict"},
        {{"net", "acc"}, "net"},
    };
    for (const Model& each : models) {
        CAPTURE(each.model);
        pt::Value value = pt::dict();
        for (const std::string& part : each.parts) value.set(part, weights({part + ".w"}));
        const Checkpoint checkpoint = open(value, {.root_auto = true});
        CHECK(names(checkpoint) == Names{each.model + ".w"});
        CHECK(checkpoint.root() == each.model);
        REQUIRE(!checkpoint.notes().empty());
        CHECK(checkpoint.notes().front().find("took the model from the part '" + each.model +
                                              "' (1 tensor, 4 bytes)") == 0);
        CHECK(checkpoint.notes().front().find("; left '") != std::string::npos);
    }
    const pt::Value yolo = pt::dict({{"model", module_of({"w"})}, {"ema", module_of({"e"})}});
    CHECK(names(open(yolo, {.root_auto = true})) == Names{"e"});
    const pt::Value object = pt::dict({{"model", weights({"w"})}, {"ema", weights({"e"})}});
    CHECK(names(open(object, {.root_auto = true})) == Names{"w"});
    const pt::Value app = pt::dict({{"app", pt::dict({{"model", weights({"w"})}, {"optim", weights({"m"})}})}});
    CHECK(names(open(app)) == Names{"model/w", "optim/m"});
    CHECK(names(open(app, {.root_auto = true})) == Names{"w"});
    const Checkpoint model = open(app, {.root_auto = true});
    CHECK(model.root() == "app/model");
    CHECK(names(open(weights({"w"}), {.root_auto = true})) == Names{"w"});
    CHECK(names(open(pt::dict({{"x", weights({"w"})}}), {.root_auto = true})) == Names{"w"});
    const auto error = error_of([] {
        return open(pt::dict({{"x", weights({"w"})}, {"y", weights({"v"})}}), {.root_auto = true});
    });
    CHECK(error->code() == Errc::invalid_argument);
    CHECK(error->message() ==
          "no part has a name that trainers give to a model: 'x' (1 tensor, 4 bytes), 'y' (1 tensor, 4 bytes)");
}

TEST_CASE("a path that leads to nothing is refused") {
    const auto error = error_of([] { return open(pt::dict({{"model", weights({"w"})}}), {.root = "nodel"}); });
    CHECK(error->code() == Errc::invalid_argument);
    CHECK(error->hint() == "its parts are 'model'");
    CHECK(error_of([] { return open(weights({"w"}), {.root = "nodel"}); })->code() == Errc::invalid_argument);
}

}  // namespace parts_test
