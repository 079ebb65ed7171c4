// Tests saving an opened checkpoint: its tensors, its metadata, its tied tensors.
#include "doctest_safemap.hpp"
#include "write/everywhere.hpp"
#include "write/samples.hpp"

namespace checkpoint_test {

using namespace safemap;
using namespace samples;

namespace {

const fs::path data = fs::path(SAFEMAP_TEST_DATA) / "write";

void check_equal(const Checkpoint& a, const Checkpoint& b) {
    REQUIRE(a.size() == b.size());
    for (const LazyTensor& tensor : a) {
        CAPTURE(tensor.name());
        const auto other = b.find(tensor.name());
        REQUIRE(other);
        CHECK(other->dtype() == tensor.dtype());
        CHECK(other->shape() == tensor.shape());
        std::vector<std::byte> here(static_cast<std::size_t>(tensor.nbytes()));
        std::vector<std::byte> there(here.size());
        tensor.read(0, here);
        REQUIRE(other->nbytes() == tensor.nbytes());
        other->read(0, there);
        CHECK(here == there);
    }
}

}  // namespace

TEST_CASE("a checkpoint can be joined to one file and split again, including tied tensors") {
    const TempDir dir;
    const auto hub = Checkpoint::open(data / "shards");
    REQUIRE(hub.find("zz.tied") != nullptr);

    save_everywhere(dir / "one.safetensors", hub);
    const auto one = Checkpoint::open(dir / "one.safetensors");
    check_equal(hub, one);
    CHECK(metadata_of(dir / "one.safetensors") ==
          std::map<std::string, std::string>{{"format", "pt"}, {"zz.tied", "wte.weight"}});
    CHECK(one.find("zz.tied") != nullptr);

    const SaveReport report = save(dir / "many", one, {.max_shard_size = 700});
    CHECK(report.files.size() > 3);
    const auto many = Checkpoint::open(dir / "many");
    check_equal(hub, many);
    CHECK(many.find("zz.tied") != nullptr);
    CHECK(many.aliases() == hub.aliases());
}

TEST_CASE("saving an unchanged file gives the same file") {
    const TempDir dir;
    save_everywhere(dir / "again.safetensors", Checkpoint::open(data / "whole/model.safetensors"));
    CHECK(TempDir::read(dir / "again.safetensors") == TempDir::read(data / "whole/model.safetensors"));
}

TEST_CASE("the caller's metadata overrides the checkpoint's") {
    const TempDir dir;
    const auto tensors = std::vector{tensor("w", Dtype::f32, {2})};
    save_everywhere(dir / "a.safetensors", tensors, {.metadata = {{"step", "1"}, {"who", "me"}}});
    save_everywhere(dir / "b.safetensors", Checkpoint::open(dir / "a.safetensors"), {.metadata = {{"step", "2"}}});
    CHECK(metadata_of(dir / "b.safetensors") ==
          std::map<std::string, std::string>{{"format", "pt"}, {"step", "2"}, {"who", "me"}});
}

}  // namespace checkpoint_test
