// Tests one file of a run of several ranks that is opened by its own path: whole tensors, or a refusal that names the
// files to give.
#include "check_error.hpp"
#include "doctest_safemap.hpp"
#include "forge/ranks.hpp"
#include "inspect.hpp"
#include "temp_dir.hpp"

#include <safemap/checkpoint.hpp>
#include <safemap/diff.hpp>
#include <safemap/verify.hpp>

#include <filesystem>
#include <random>
#include <string>
#include <string_view>

namespace rank_alone_test {

using namespace safemap;
using namespace rank_forge;
namespace fs = std::filesystem;

namespace {

const fs::path reports = fs::path(SAFEMAP_TEST_DATA) / "reports";

void check_refused(const fs::path& file, std::string_view message, std::string_view hint) {
    CAPTURE(file.native());
    const auto error = error_of([&] { static_cast<void>(Checkpoint::open(file)); });
    check_error(error, {Errc::rank_missing}, {});
    CHECK(error->path() == file.native());
    CHECK(error->message().find(message) != std::string::npos);
    CHECK(error->hint().find(hint) != std::string::npos);
    CHECK(error->hint().find("--as-parts") != std::string::npos);
    const VerifyReport report = verify(file);
    REQUIRE_FALSE(report.ok());
    CHECK(report.faults.front().code() == Errc::rank_missing);
    CHECK(Checkpoint::open(file, {.as_parts = true}).format() == Format::torch);
}

fs::path write(const TempDir& dir, std::string_view name, const Value& value) {
    return dir.write(name, pt::Writer::file(value));
}

}  // namespace

TEST_CASE("the file of a world of one rank gives whole tensors, whatever its name") {
    const TempDir dir;
    const fs::path file = reports / "verl_world1_file/model_world_size_1_rank_0.pt";
    const Checkpoint expected = Checkpoint::open(reports / "verl_expected/world1.safetensors");
    for (const char* name : {"model_world_size_1_rank_0.pt", "renamed.pt", "model_rank3.bin"}) {
        CAPTURE(name);
        fs::copy_file(file, dir / name);
        for (const bool strict : {false, true}) {
            const Checkpoint alone = Checkpoint::open(dir / name, {.strict_globals = strict});
            CHECK(alone.format() == Format::fsdp);
            CHECK(diff(alone, expected).equal());
        }
        const VerifyReport report = verify(dir / name);
        CHECK(report.ok());
        CHECK(report.tensors == Checkpoint::open(dir / name).size());
        CHECK(report.checked_bytes > 0);
        const Checkpoint parts = Checkpoint::open(dir / name, {.as_parts = true});
        CHECK(parts["embed.weight/_local_tensor"].shape() == Shape{13, 7});
    }
    CHECK_FAULT(Checkpoint::open(dir / "renamed.pt", {.strict_globals = true, .as_parts = true}), Errc::unknown_global);
}

TEST_CASE("a file of DTensors that are cut over several ranks is refused, by its mesh or its name") {
    const TempDir dir;
    const fs::path actor = reports / "verl_actor_folder";
    check_refused(actor / "model_world_size_2_rank_1.pt", "rank 1 of 2", "model_world_size_2_rank_*.pt'");
    check_refused(actor / "optim_world_size_2_rank_0.pt", "state/1/exp_avg", "optim_world_size_2_rank_*.pt'");
    fs::copy_file(actor / "model_world_size_2_rank_1.pt", dir / "renamed.pt");
    check_refused(dir / "renamed.pt", "this is the file of rank 1, and it holds parts of tensors: embed.weight",
                  "the files of all ranks");
    // States of random number generators are not parts of tensors.
    CHECK(Checkpoint::open(actor / "extra_state_world_size_2_rank_0.pt").format() == Format::torch);
    const Value plain = pt::dict({{"w", pt::tensor(Dtype::u8, {4}, "abcd")}});
    check_refused(write(dir, "model_world_size_2_rank_0.pt", plain), "rank 0 of 2", "model_world_size_2_rank_*.pt'");
    CHECK(Checkpoint::open(write(dir, "plain_rank0.pt", plain)).size() == 1);
}

TEST_CASE("tensors that are replicated on all ranks of a mesh are whole in the file of any rank") {
    const TempDir dir;
    std::mt19937 random(11);
    for (const Era era : eras)
        for (const std::uint64_t rank : {0U, 1U, 3U}) {
            const Whole whole = random_whole(random, Dtype::f32, {5, 3});
            const Value local = pt::tensor(whole.dtype, whole.shape, whole.bytes);
            Value spec = dtensor_spec(device_mesh(line(4), rank, era), {replicate(era)}, whole.dtype, whole.shape, era);
            const Value value = pt::dict({{"w", dtensor(local, whole.shape, std::move(spec), whole.dtype, era)}});
            const fs::path file = write(dir, "w_" + std::to_string(rank) + ".pt", value);
            // torch 2.13 does not say which rank saved a whole mesh.
            const Checkpoint alone = Checkpoint::open(file);
            CHECK(bytes_of(alone["w"]) == whole.bytes);
            CHECK(verify(file).ok());
        }
}

TEST_CASE("a ShardedTensor is whole if all its shards are in the file") {
    const TempDir dir;
    std::mt19937 random(12);
    const Whole whole = random_whole(random, Dtype::f32, {4, 3});
    const ForgedShard upper{{0, 0}, {2, 3}, 0};
    const ForgedShard lower{{2, 0}, {2, 3}, 1};
    const auto local = [&](const ForgedShard& shard) {
        const std::size_t half = whole.bytes.size() / 2;
        return std::pair(shard,
                         pt::tensor(whole.dtype, {2, 3}, whole.bytes.substr(shard.start[0] == 0 ? 0 : half, half)));
    };
    const auto file_of = [&](const char* name, std::vector<std::pair<ForgedShard, Value>> locals) {
        return write(
            dir, name,
            pt::dict({{"w", sharded_tensor(std::move(locals), whole.shape, {upper, lower}, whole.dtype, 0, 2)}}));
    };
    CHECK(bytes_of(Checkpoint::open(file_of("both.pt", {local(upper), local(lower)}))["w"]) == whole.bytes);
    check_refused(file_of("m_rank0.pt", {local(upper)}), "w has 2 shards, and 1 is in the file", "m_rank*.pt'");
    check_refused(file_of("none_rank1.pt", {}), "0 are in the file", "none_rank*.pt'");
}

TEST_CASE("files of DeepSpeed and Megatron are refused if their worlds have several ranks") {
    const TempDir dir;
    const auto model = [](const char* field, std::uint64_t ranks) {
        return pt::dict({{"module", pt::dict({{"w", pt::tensor(Dtype::u8, {2}, "ab")}})}, {field, pt::integer(ranks)}});
    };
    const auto check_note = [](const fs::path& file, std::string_view note) {
        const Checkpoint alone = Checkpoint::open(file);
        CHECK(alone.size() == 1);
        CHECK(has_note(alone, note));
    };
    constexpr std::string_view the_folder = "give the folder, or the files of all ranks together";
    constexpr std::string_view one_file = "this is one file of a DeepSpeed checkpoint";
    check_refused(write(dir, "mp_rank_00_model_states.pt", model("mp_world_size", 2)), "2 ranks", the_folder);
    check_note(write(dir, "mp_rank_00_model_states.pt", model("mp_world_size", 1)), one_file);
    // Without stage 3, each rank of data parallelism has the whole module.
    check_note(write(dir, "mp_rank_00_model_states.pt", model("dp_world_size", 8)), one_file);
    check_refused(write(dir, "zero_pp_rank_0_mp_rank_00_model_states.pt", model("dp_world_size", 8)), "8 ranks",
                  the_folder);
    check_note(write(dir, "zero_pp_rank_0_mp_rank_00_model_states.pt", model("dp_world_size", 1)),
               "this is the part of rank 0 of a DeepSpeed checkpoint");
    const auto optimizer = [](Value count) {
        return pt::dict({{"optimizer_state_dict",
                          pt::dict({{"partition_count", std::move(count)}, {"w", pt::tensor(Dtype::u8, {2}, "ab")}})}});
    };
    check_refused(write(dir, "zero_pp_rank_1_mp_rank_00_optim_states.pt", optimizer(pt::integer(4))), "4 ranks",
                  the_folder);
    check_refused(write(dir, "zero_pp_rank_1_mp_rank_00_optim_states.pt", optimizer(pt::integers({1, 2}))), "2 ranks",
                  the_folder);
    check_note(write(dir, "zero_pp_rank_0_mp_rank_00_optim_states.pt", optimizer(pt::integer(1))),
               "this is the part of rank 0 of a DeepSpeed checkpoint");
    fs::create_directories(dir / "megatron/mp_rank_00");
    const auto megatron = [&](std::uint64_t ranks) {
        return write(dir, "megatron/mp_rank_00/model_optim_rng.pt",
                     pt::dict({{"args", pt::object("argparse", "Namespace",
                                                   {{"tensor_model_parallel_size", pt::integer(ranks)},
                                                    {"pipeline_model_parallel_size", pt::integer(2)}})},
                               {"model", pt::dict({{"w", pt::tensor(Dtype::u8, {2}, "ab")}})}}));
    };
    check_refused(megatron(4), "8 ranks", "the folder");
    // The folder lists the tensors of each rank by its name.
    CHECK(Checkpoint::open(dir / "megatron").size() == 1);
}

TEST_CASE("flat parameters and local shards of OLMo are parts") {
    const TempDir dir;
    const Value flat = pt::dict({{"a._flat_param", pt::tensor(Dtype::f32, {4}, std::string(16, 'x'))}});
    check_refused(write(dir, "flat_rank0.bin", flat), "flat parameters", "flat_rank*.bin'");
}

}  // namespace rank_alone_test
