// Tests tied tensors that are skipped: every name is reported, and metadata does not refer to missing tensors.
#include <safemap/save.hpp>

#include "doctest_safemap.hpp"
#include "forge/pickle.hpp"
#include "inspect.hpp"
#include "write/everywhere.hpp"
#include "write/samples.hpp"

namespace skipped_ties_test {

using namespace safemap;
using namespace samples;

namespace {

std::string tensor_of(std::string_view type, std::string_view key) {
    return forge::view(forge::storage(type, key, 2), 0, {2}, {1});
}

/// Writes a tied complex128, a tied F32 and, under two names, a tensor of the meta device.
fs::path tied(const TempDir& dir) {
    const std::string meta = forge::call("torch._utils", "_rebuild_meta_tensor_no_storage",
                                         {forge::global("torch", "float32"), forge::tuple({forge::integer(2)}),
                                          forge::tuple({forge::integer(1)}), "\x89"});
    const std::string dict = forge::dict(
        {forge::text("t"), tensor_of("ComplexDoubleStorage", "0"), forge::text("u"),
         tensor_of("ComplexDoubleStorage", "0"), forge::text("w"), tensor_of("FloatStorage", "1"), forge::text("v"),
         tensor_of("FloatStorage", "1"), forge::text("m"), meta + "q\x07", forge::text("n"), "h\x07"});
    return dir.write("tied.pt", forge::archive(dict, {{"0", std::string(32, 'c')}, {"1", std::string(8, 'f')}}));
}

}  // namespace

TEST_CASE("both names of a skipped tied tensor are reported, and neither is in the metadata") {
    const TempDir dir;
    const Checkpoint source = Checkpoint::open(tied(dir));
    CHECK(names_of(source.skipped()) == std::vector<std::string>{"m", "n"});
    for (const char* const out : {"out.safetensors", "shards"})
        for (const bool checksums : {false, true}) {
            CAPTURE(out);
            const SaveReport report = save(
                dir / out, source, {.structure = StructurePolicy::drop, .checksums = checksums, .overwrite = true});
            CHECK(names_of(report.skipped) == std::vector<std::string>{"t", "u"});
            CHECK(report.skipped[1].type == "torch.complex128");
            CHECK(report.skipped[1].why == report.skipped[0].why);
            const Checkpoint written = Checkpoint::open(dir / out);
            for (const auto& [key, value] : written.metadata()) {
                CHECK(key != "u");
                CHECK(value != "t");
            }
            CHECK(written.aliases() == std::vector<AliasGroup>{{"w", "v"}});
        }
}

TEST_CASE("a tied tensor that is kept by a document has both names") {
    const TempDir dir;
    const SaveReport report =
        save(dir / "out.safetensors", Checkpoint::open(tied(dir)), {.structure = StructurePolicy::keep});
    CHECK(report.skipped.empty());
    CHECK(metadata_of(dir / "out.safetensors").at("u") == "t");
    CHECK(Checkpoint::open(dir / "out.safetensors")["u"].dtype() == Dtype::c128);
}

TEST_CASE("the caller's metadata is kept, even if a value is the name of a skipped tensor") {
    const TempDir dir;
    const std::vector<LazyTensor> tensors = {tensor("w", Dtype::f32, {2}), tensor("t", Dtype::c128, {2})};
    const SaveOptions options{.metadata = {{"u", "t"}, {"format", "t"}, {"safemap.source", "t"}, {"who", "me"}}};
    const SaveReport report = save_everywhere(dir / "out.safetensors", tensors, options);
    CHECK(names_of(report.skipped) == std::vector<std::string>{"t"});
    CHECK(metadata_of(dir / "out.safetensors") == options.metadata);
    // The same for a checkpoint, whose own ties are dropped.
    const SaveReport of_checkpoint =
        save_everywhere(dir / "tied.safetensors", Checkpoint::open(tied(dir)),
                        {.metadata = {{"note", "t"}, {"who", "u"}}, .structure = StructurePolicy::drop});
    CHECK(names_of(of_checkpoint.skipped) == std::vector<std::string>{"t", "u"});
    CHECK(metadata_of(dir / "tied.safetensors") ==
          std::map<std::string, std::string>{{"format", "pt"}, {"note", "t"}, {"v", "w"}, {"who", "u"}});
}

}  // namespace skipped_ties_test
