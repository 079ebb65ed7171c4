// Tests who holds what of a group of experts, and the files of single experts.
#include "distributed/parallel/experts.hpp"

#include "check_error.hpp"
#include "doctest_safemap.hpp"
#include "forge/files.hpp"
#include "forge/pickle.hpp"

#include <map>
#include <set>

namespace experts_test {

using namespace safemap;
using distributed::expert_shares;
using distributed::ExpertShare;
using distributed::Group;
using distributed::read_experts;

namespace {

const std::string prefix = "block.deepspeed_moe.experts.deepspeed_experts.";

Group experts(std::uint64_t count, const std::string& before = prefix) {
    Group group;
    for (std::uint64_t expert = 0; expert < count; ++expert)
        for (const char* part : {".up.weight", ".down.bias"})
            group.push_back({before + std::to_string(expert) + part, {3, expert + 1}, 3 * (expert + 1)});
    return group;
}

std::map<std::string, std::string> files_of(std::initializer_list<const char*> names) {
    std::map<std::string, std::string> files;
    float value = 0;
    for (const char* name : names)
        files.emplace(name, forge::pt({{std::string("weight of ") + name, {1}, {value += 1}}}));
    return files;
}

}  // namespace

TEST_CASE("shares of a group of experts, in both orders of the ranks") {
    for (const std::uint64_t data_ranks : {1U, 2U, 6U, 12U, 64U})
        for (std::uint64_t partitions = 1; partitions <= data_ranks; ++partitions)
            for (const bool data_first : {false, true}) {
                if (data_ranks % partitions != 0) continue;
                CAPTURE(data_ranks);
                CAPTURE(partitions);
                CAPTURE(data_first);
                const auto shares = expert_shares(experts(3), data_ranks, partitions, data_first, "f");
                REQUIRE(shares.size() == data_ranks / partitions);
                std::set<std::string> names;
                for (std::size_t share = 0; share < shares.size(); ++share) {
                    REQUIRE(shares[share].ranks.size() == partitions);
                    for (std::size_t i = 0; i < partitions; ++i)
                        CHECK(shares[share].ranks[i] ==
                              (data_first ? share * partitions + i : i * shares.size() + share));
                    REQUIRE(shares[share].parameters.size() == 6);
                    CHECK(shares[share].parameters[2].name == prefix + std::to_string(share * 3 + 1) + ".up.weight");
                    CHECK(shares[share].parameters[2].shape == Shape{3, 2});
                    CHECK(shares[share].parameters[2].count == 6);
                    for (const auto& parameter : shares[share].parameters) names.insert(parameter.name);
                }
                CHECK(names.size() == 6 * shares.size());
            }
}

TEST_CASE("experts of several layers are numbered by layer") {
    Group group = experts(2, "a." + prefix);
    const Group more = experts(1, "b." + prefix);
    group.insert(group.end(), more.begin(), more.end());
    const auto shares = expert_shares(group, 2, 1, false, "f");
    REQUIRE(shares.size() == 2);
    CHECK(shares[1].parameters[0].name == "a." + prefix + "2.up.weight");
    CHECK(shares[1].parameters[4].name == "b." + prefix + "1.up.weight");
}

TEST_CASE("groups that cannot be shared out") {
    CHECK_FAULT(expert_shares(experts(2), 4, 3, false, "f"), Errc::world_mismatch);
    CHECK_FAULT(expert_shares(experts(2), 4, 0, false, "f"), Errc::world_mismatch);
    CHECK_FAULT(expert_shares(experts(2), 4, 8, false, "f"), Errc::world_mismatch);
    CHECK_FAULT(expert_shares({{"norm.weight", {2}, 2}}, 4, 2, false, "f"), Errc::unsupported_layout);
    CHECK(expert_shares({{"norm.weight", {2}, 2}}, 4, 4, false, "f").front().parameters.front().name == "norm.weight");
    CHECK_FAULT(expert_shares({{prefix + "x.weight", {2}, 2}}, 4, 2, false, "f"), Errc::unsupported_layout);
    CHECK_FAULT(expert_shares({{prefix + "1.weight", {2}, 2}}, 4, 2, false, "f"), Errc::unsupported_layout);
    CHECK_FAULT(expert_shares({{prefix + "99999999999999999999.w", {2}, 2}}, 4, 2, false, "f"),
                Errc::unsupported_layout);
    const auto error = error_of([] { expert_shares(experts(2), 4, 3, false, "run/file.pt"); });
    REQUIRE(error.has_value());
    CHECK(error->path() == "run/file.pt");
}

TEST_CASE("files of experts are read in the order of their numbers") {
    const forge::Folder folder(
        files_of({"mp_rank_00_model_states.pt", "mp_rank_01_model_states.pt",
                  "layer_0_expert_0_mp_rank_00_model_states.pt", "layer_0_expert_1_mp_rank_00_model_states.pt",
                  "layer_1_expert_0_mp_rank_00_model_states.pt", "layer_1_expert_1_mp_rank_00_model_states.pt",
                  "layer_0_expert_0_mp_rank_01_model_states.pt", "layer_0_expert_1_mp_rank_01_model_states.pt"}));
    const auto read = read_experts(folder, 0, {2, 2});
    REQUIRE(read.weights.size() == 4);
    CHECK(read.files.size() == 4);
    CHECK(read.weights[2].first == "weight of layer_1_expert_0_mp_rank_00_model_states.pt");
    CHECK(read_experts(folder, 1, {}).weights.size() == 2);
    CHECK_FAULT(read_experts(folder, 1, {2, 2}), Errc::rank_missing);
    check_error(error_of([&] {
                    read_experts(folder, 0, {2, 3});
                }),
                {Errc::rank_missing}, {"layer_1_expert_2_mp_rank_00_model_states.pt"});
}

TEST_CASE("a file of an expert that num_experts does not count is refused") {
    const forge::Folder folder(
        files_of({"mp_rank_00_model_states.pt", "layer_0_expert_0_mp_rank_00_model_states.pt",
                  "layer_0_expert_1_mp_rank_00_model_states.pt", "layer_0_expert_2_mp_rank_00_model_states.pt"}));
    CHECK(read_experts(folder, 0, {3}).weights.size() == 3);
    check_error(error_of([&] { read_experts(folder, 0, {2}); }), {Errc::world_mismatch},
                {"layer_0_expert_2_mp_rank_00_model_states.pt"}, {.path = folder.name()});
}

}  // namespace experts_test
