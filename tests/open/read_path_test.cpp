// Tests the paths that name several files: globs, lists of files, a model with the state of its optimizer beside it.
#include "open/read.hpp"

#include "check_error.hpp"
#include "doctest_safemap.hpp"
#include "forge/files.hpp"
#include "inspect.hpp"
#include "io/file_folder.hpp"
#include "temp_dir.hpp"

#include <safemap/checkpoint.hpp>

#include <algorithm>
#include <filesystem>
#include <string>
#include <vector>

namespace read_path_test {

using namespace safemap;
namespace fs = std::filesystem;

namespace {

std::string file_of(const std::string& tensor) { return forge::u8_file({{tensor, 1}}); }

std::vector<std::string> names_of(const Checkpoint& checkpoint) {
    auto names = ::names_of(checkpoint);
    std::sort(names.begin(), names.end());
    return names;
}

using Names = std::vector<std::string>;

}  // namespace

TEST_CASE("a glob that matches files opens them as the shards of one checkpoint") {
    const TempDir dir;
    dir.write("a-1.safetensors", file_of("one"));
    dir.write("a-2.safetensors", file_of("two"));
    dir.write("b.safetensors", file_of("three"));
    CHECK(names_of(Checkpoint::open(dir / "a-*.safetensors")) == Names{"one", "two"});
    CHECK(names_of(Checkpoint::open(dir / "a-?.safetensors")) == Names{"one", "two"});
    CHECK(names_of(Checkpoint::open(dir / "[ab]*")) == Names{"one", "three", "two"});
    CHECK(names_of(Checkpoint::open(dir / "*b.safetensors")) == Names{"three"});
    fs::create_directory(dir / "inner");
    dir.write("inner/c.safetensors", file_of("four"));
    CHECK(names_of(Checkpoint::open(dir / "*/c.safetensors")) == Names{"four"});
    CHECK(names_of(Checkpoint::open(dir / "inn*")) == Names{"four"});  // one folder
}

TEST_CASE("numbered shards are complete, however they are given") {
    const TempDir dir;
    const fs::path first = dir / "model-00001-of-00003.safetensors";
    const fs::path second = dir / "model-00002-of-00003.safetensors";
    const fs::path third = dir / "model-00003-of-00003.safetensors";
    dir.write(first.filename().native(), file_of("one"));
    dir.write(third.filename().native(), file_of("three"));
    const auto lacks = [&](auto&& opened) {
        check_error(error_of(opened), {Errc::shard_missing}, {second.filename().native()});
    };
    lacks([&] { static_cast<void>(Checkpoint::open(dir.path())); });
    lacks([&] { static_cast<void>(Checkpoint::open(dir / "*.safetensors")); });
    lacks([&] { static_cast<void>(Checkpoint::open(dir / "model-00001*")); });
    lacks([&] { static_cast<void>(Checkpoint::open(std::vector{first, third})); });
    lacks([&] { static_cast<void>(Checkpoint::open(std::vector{open_file(first), open_file(third)})); });
    // One shard that is named by itself is what its reader wants.
    const Checkpoint alone = Checkpoint::open(first);
    CHECK(names_of(alone) == Names{"one"});
    CHECK(alone.notes().at(0).find("model-*-of-00003.safetensors") != std::string::npos);

    dir.write(second.filename().native(), file_of("two"));
    const Names all = {"one", "three", "two"};
    CHECK(names_of(Checkpoint::open(dir.path())) == all);
    const Checkpoint whole = Checkpoint::open(dir.path());
    CHECK(whole.notes().at(0).find("no index") != std::string::npos);
    CHECK(names_of(Checkpoint::open(dir / "*.safetensors")) == all);
    CHECK(names_of(Checkpoint::open(std::vector{third, first, second})) == all);
    dir.write(second.filename().native(), file_of("one"));
    CHECK_FAULT(Checkpoint::open(dir.path()), Errc::duplicate_name);
}

TEST_CASE("the components of a pipeline open by their folders, and are listed together") {
    const TempDir dir;
    dir.write("model_index.json", "{}");
    for (const char* file : {"unet/diffusion_pytorch_model.safetensors", "vae/diffusion_pytorch_model.bin",
                             "text_encoder/model.safetensors"}) {
        fs::create_directories((dir / file).parent_path());
        dir.write(file, file_of(fs::path(file).parent_path()));
    }
    for (const char* folder : {"unet", "vae", "text_encoder"})
        CHECK(names_of(Checkpoint::open(dir / folder)) == Names{folder});
    const auto error = error_of([&] { static_cast<void>(Checkpoint::open(dir.path())); });
    check_error(error, {Errc::several_models}, {});
    for (const char* folder : {"unet", "vae", "text_encoder"})
        CHECK(error->message().find((dir / folder).native()) != std::string::npos);
    CHECK(error->hint().find("safemap convert " + (dir / "text_encoder").native()) != std::string::npos);
}

TEST_CASE("a glob without a match, or with several folders, is a wrong call") {
    const TempDir dir;
    CHECK_FAULT(Checkpoint::open(dir / "*.pt"), Errc::path_not_found);
    CHECK_FAULT(Checkpoint::open(dir / "[.pt"), Errc::path_not_found);
    for (const char* folder : {"step-10", "step-20"}) {
        fs::create_directory(dir / folder);
        dir.write(std::string(folder) + "/model.safetensors", file_of(folder));
    }
    CHECK(names_of(Checkpoint::open(dir / "step-1*")) == Names{"step-10"});
    const auto error = error_of([&] { static_cast<void>(Checkpoint::open(dir / "step-*")); });
    check_error(error, {Errc::several_models}, {});
    for (const char* folder : {"step-10", "step-20"}) CHECK(error->message().find(folder) != std::string::npos);
}

TEST_CASE("a file whose name looks like a glob is a file") {
    const TempDir dir;
    dir.write("a[1]*.safetensors", file_of("odd"));
    dir.write("a1.safetensors", file_of("one"));
    CHECK_FALSE(is_glob(dir / "a[1]*.safetensors"));
    CHECK(names_of(Checkpoint::open(dir / "a[1]*.safetensors")) == Names{"odd"});
    CHECK(names_of(Checkpoint::open(dir / "a[1]?safetensors")) == Names{"one"});
    CHECK(names_of(Checkpoint::open(dir / "a\\[1]\\*.safetensor?")) == Names{"odd"});
}

TEST_CASE("hidden files match only a pattern that begins with a dot") {
    const TempDir dir;
    dir.write(".a.safetensors", file_of("hidden"));
    dir.write("b.safetensors", file_of("seen"));
    CHECK(names_of(Checkpoint::open(dir / "*.safetensors")) == Names{"seen"});
    CHECK(names_of(Checkpoint::open(dir / ".*.safetensors")) == Names{"hidden"});
    CHECK(paths_matching(dir / "*").size() == 1);
    CHECK(paths_matching(dir / ".*") == std::vector<fs::path>{dir / ".a.safetensors"});
}

TEST_CASE("files of two sets of ranks are several models, and two files of one rank are refused") {
    const TempDir dir;
    for (const char* file : {"model_rank0.pt", "model_rank1.pt", "value_rank0.pt"}) dir.write(file, "x");
    check_error(error_of([&] { static_cast<void>(Checkpoint::open(dir / "*.pt")); }), {Errc::several_models},
                {(dir / "model_rank*.pt").native(), (dir / "value_rank*.pt").native()});

    fs::create_directory(dir / "node");
    dir.write("node/model_rank1.pt", "x");
    const std::vector<fs::path> files = {dir / "model_rank0.pt", dir / "model_rank1.pt", dir / "node/model_rank1.pt"};
    CHECK_FAULT(Checkpoint::open(files), Errc::rank_repeated);
}

TEST_CASE("a model gives the state of its optimizer from the folder beside it") {
    const TempDir dir;
    dir.write("model.safetensors", file_of("w"));
    fs::create_directory(dir / "optimizer");
    CHECK_FALSE(Checkpoint::open(dir.path()).optimizer());  // the folder is empty
    dir.write("optimizer/model.safetensors", file_of("w.exp_avg"));
    const Checkpoint model = Checkpoint::open(dir.path());
    CHECK(names_of(model) == Names{"w"});
    REQUIRE(model.optimizer());
    CHECK(names_of(*model.optimizer()) == Names{"w.exp_avg"});
    CHECK(has_note(model, "--optimizer"));
    CHECK_FALSE(Checkpoint::open(dir / "model.safetensors").optimizer());
    // A link leads to the folder of another checkpoint.
    const TempDir other;
    other.write("model.safetensors", file_of("w"));
    fs::create_directory_symlink(dir / "optimizer", other / "optimizer");
    CHECK_FALSE(Checkpoint::open(other.path()).optimizer());
}

}  // namespace read_path_test
