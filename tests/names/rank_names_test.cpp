// Tests the ranks that the names of files give.
#include "names/rank_names.hpp"

#include "check_error.hpp"
#include "doctest_safemap.hpp"

#include <safemap/error.hpp>

#include <string>
#include <vector>

namespace rank_names_test {

using namespace safemap;
using names::RankNames;

namespace {

std::string message_of(const RankNames& names) {
    const auto error = error_of([&] { names.require_named_ranks(); });
    return error ? error->message() : std::string();
}

}  // namespace

TEST_CASE("files are sorted by their ranks, as numbers") {
    const RankNames names({"rank10.pt", "rank2.pt", "rank0.pt"});
    CHECK(names.files() == std::vector<std::string>{"rank0.pt", "rank2.pt", "rank10.pt"});
    CHECK(names.rank(2) == 10);
    CHECK(names.find(10) == 2);
    CHECK_FALSE(names.find(1));
    CHECK_FALSE(names.world_size());
    CHECK(names.name_of(7) == "rank7.pt");
    CHECK_FAULT(names.require_named_ranks(), Errc::rank_missing);
    CHECK_OK(RankNames({"rank1.pt", "rank0.pt"}).require_named_ranks());
    const RankNames sized({"model_world_size_2_rank_1.pt", "model_world_size_2_rank_0.pt"});
    CHECK(sized.world_size() == 2);
    CHECK_FALSE(sized.without_world_size().world_size());
    CHECK_OK(sized.require_named_ranks());
}

TEST_CASE("names without ranks, or of several sets, are numbered in their order") {
    for (const std::vector<std::string>& files :
         {std::vector<std::string>{"b.pt", "a.pt"}, std::vector<std::string>{"a_rank1.pt", "b_rank0.pt"}}) {
        const RankNames names(files);
        CHECK(names.files() == files);
        CHECK(names.rank(1) == 1);
        CHECK(names.name_of(5) == "the file of rank 5");
    }
}

TEST_CASE("ranks that the world size does not allow, or that are missing") {
    CHECK_FAULT(RankNames({"rank_1.pt", "rank_01.pt"}), Errc::rank_repeated);
    const RankNames third({"a_world_size_2_rank_0.pt", "a_world_size_2_rank_1.pt", "a_world_size_2_rank_2.pt"});
    CHECK_FAULT(third.require_named_ranks(), Errc::world_mismatch);
    const RankNames holes({"a_world_size_5_rank_1.pt", "a_world_size_5_rank_3.pt"});
    CHECK_FAULT(holes.require_named_ranks(), Errc::rank_missing);
    for (const char* const name : {"rank_0.pt", "rank_2.pt", "rank_4.pt"})
        CHECK(message_of(holes).find(name) != std::string::npos);
    // Only the first names are listed.
    const RankNames one({"a_world_size_999999999_rank_7.pt"});
    CHECK(message_of(one).find("and 999999934 more") != std::string::npos);
    CHECK(message_of(one).size() < 10'000);
    CHECK_FAULT(RankNames({"a_world_size_0_rank_0.pt"}).require_named_ranks(), Errc::world_mismatch);
}

TEST_CASE("ranks that are missing although the names do not say how many there are") {
    const auto text_of = [](const RankNames& names, auto&& check) {
        const auto error = error_of([&] { check(names); });
        if (!error) return std::string();
        CHECK(error->code() == Errc::rank_missing);
        return std::string(error->message());
    };
    const auto named = [](const RankNames& names) { names.require_named_ranks(); };
    const RankNames complete({"rank0.pt", "rank1.pt"});
    CHECK(text_of(complete, named).empty());
    CHECK(text_of(RankNames({"rank1.pt", "rank3.pt"}), named) == "missing files of rank*.pt: rank0.pt, rank2.pt");
    const auto three = [](const RankNames& names) { names.require_first(3, "the manifest"); };
    CHECK(text_of(complete, three) == "the manifest has 3 ranks; missing are rank2.pt");
    CHECK(text_of(RankNames({"rank0.pt", "rank1.pt", "rank2.pt", "rank3.pt"}), three).empty());
    const auto most = [](const RankNames& names) { names.require_first(UINT64_MAX, "the manifest"); };
    CHECK(text_of(complete, most).ends_with("and 18446744073709551549 more"));
    CHECK(text_of(RankNames({"rank999999999.pt"}), named).size() < 10'000);
}

TEST_CASE("the files of a mesh") {
    const std::vector<std::uint64_t> ranks = {0, 1, 4};
    const RankNames open({"a_rank0.bin", "a_rank1.bin"});
    check_error(error_of([&] { open.require_files_of(ranks, "the mesh"); }), {Errc::rank_missing}, {},
                {.message = "the mesh has 3 ranks; missing are a_rank4.bin"});
    const RankNames sized({"a_world_size_2_rank_0.pt", "a_world_size_2_rank_1.pt"});
    CHECK_FAULT(sized.require_files_of(ranks, "the mesh"), Errc::world_mismatch);
    CHECK_OK(sized.require_files_of(std::vector<std::uint64_t>{1, 0}, "the mesh"));
}

}  // namespace rank_names_test
