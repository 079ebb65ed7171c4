// Tests that verify() reads the files of all ranks of a training run, a few at a time, and reports every fault of them.
#include "check/training_files.hpp"

#include "doctest_safemap.hpp"
#include "forge/files.hpp"
#include "forge/pickle.hpp"
#include "forge/zip.hpp"
#include "temp_dir.hpp"

#include <safemap/verify.hpp>

#include <filesystem>
#include <map>
#include <memory>
#include <string>
#include <vector>

namespace rank_files_test {

using namespace safemap;

namespace {

const std::vector<forge::PtTensor> tensors = {{"w", {4}, {1, 2, 3, 4}}, {"b", {1}, {5}}};

std::string file_with(std::size_t wrong_record = std::string::npos) {
    auto records = forge::pt_records(tensors);
    if (wrong_record < records.size()) records[wrong_record].crc32 ^= 0xdeadbeef;
    return forge::zip(records);
}

std::size_t bytes_of_records() {
    std::size_t bytes = 0;
    for (const auto& record : forge::pt_records(tensors)) bytes += record.data.size();
    return bytes;
}

open::RunFiles run_of(const std::map<std::string, std::string>& files) {
    open::RunFiles run{.folder = std::make_shared<forge::Folder>(files), .files = {}};
    for (const auto& file : files) run.files.push_back(file.first);
    return run;
}

VerifyReport report_on(const open::RunFiles& run, VerifyReport report = {}, const Monitor& monitor = {}) {
    Watch watch(monitor, "verifying", check::size_of(run));
    check::check_rank_files(run, 2, watch, report);
    watch.tell();
    return report;
}

std::vector<std::string> paths_of(const VerifyReport& report) {
    std::vector<std::string> paths;
    for (const Error& fault : report.faults) paths.push_back(fault.path());
    return paths;
}

}  // namespace

TEST_CASE("every record of every rank is compared with its checksum") {
    std::map<std::string, std::string> files;
    for (int rank = 0; rank < 200; ++rank) files["rank_" + std::to_string(1000 + rank)] = file_with();
    const std::size_t size = files.begin()->second.size();
    std::uint64_t done = 0;
    Monitor monitor;
    monitor.on_progress = [&](const Progress& progress) {
        CHECK(progress.bytes_total == 200 * size);
        CHECK(progress.bytes_done >= done);
        done = progress.bytes_done;
        return true;
    };
    const VerifyReport good = report_on(run_of(files), {}, monitor);
    CHECK(good.ok());
    CHECK(good.checked_bytes == 200 * bytes_of_records());
    CHECK(done == 200 * size);

    for (const char* const rank : {"rank_1000", "rank_1063", "rank_1064", "rank_1199"}) files[rank] = file_with(2);
    const VerifyReport report = report_on(run_of(files));
    REQUIRE(report.faults.size() == 4);
    for (const Error& fault : report.faults) {
        CHECK(fault.code() == Errc::checksum_mismatch);
        CHECK(fault.message().find("archive/data/0") != std::string::npos);
    }
    CHECK(report.faults[1].path().ends_with("rank_1063"));
    CHECK(report.faults[3].path().ends_with("rank_1199"));
    CHECK(report.checked_bytes == 200 * bytes_of_records());
}

TEST_CASE("deflated records are inflated, and are not counted twice in the progress") {
    forge::Zip zip;
    zip.add_deflated("a/data.pkl", forge::pickle(forge::dict({})));
    zip.add_deflated("a/data/0", std::string(100'000, 'x'));
    std::string content = zip.join();
    std::uint64_t done = 0;
    Monitor monitor;
    monitor.on_progress = [&](const Progress& progress) {
        done = progress.bytes_done;
        return true;
    };
    const VerifyReport good = report_on(run_of({{"rank_0", content}}), {}, monitor);
    CHECK(good.ok());
    CHECK(good.checked_bytes > 100'000);
    CHECK(done == content.size());

    const std::size_t record = content.find("a/data/0");
    REQUIRE(record != std::string::npos);
    content[record + 20] ^= 0x10;
    CHECK_FALSE(report_on(run_of({{"rank_0", content}})).ok());
}

TEST_CASE("files without records are read to the end, and files that are no zip are no faults of their own") {
    const VerifyReport report = report_on(run_of({{"rank_0", "not a zip"}, {"rank_1", file_with()}}));
    CHECK(report.ok());
    CHECK(report.checked_bytes == bytes_of_records());
}

TEST_CASE("a file that is missing or damaged does not hide the faults of the others") {
    const std::string good = file_with();
    open::RunFiles run = run_of({{"rank_0", good.substr(0, good.size() / 2)}, {"rank_2", file_with(1)}});
    run.files.insert(run.files.begin() + 1, "rank_1");
    const VerifyReport report = report_on(run);
    REQUIRE(report.faults.size() == 2);
    CHECK(report.faults[0].path().ends_with("rank_0"));
    CHECK(report.faults[1].path().ends_with("rank_2"));
}

TEST_CASE("a fault that opening has reported is not reported again") {
    const open::RunFiles run = run_of({{"rank_0", file_with(0)}, {"rank_1", file_with(0)}});
    VerifyReport opened;
    opened.faults.push_back(report_on(run).faults.at(0));
    const VerifyReport report = report_on(run, opened);
    REQUIRE(report.faults.size() == 2);
    CHECK(paths_of(report) == paths_of(report_on(run)));
}

TEST_CASE("checking the files of ranks can be cancelled") {
    Monitor monitor;
    monitor.on_progress = [](const Progress&) { return false; };
    CHECK_FAULT(report_on(run_of({{"rank_0", file_with()}}), {}, monitor), Errc::cancelled);
}

TEST_CASE("the records of a DeepSpeed folder are checked even if the folder cannot be opened") {
    const TempDir dir;
    std::string damaged;
    SUBCASE("files of ranks") {
        dir.write("latest", "global_step1");
        std::filesystem::create_directory(dir / "global_step1");
        dir.write("global_step1/mp_rank_00_model_states.pt", file_with());
        damaged = dir.write("global_step1/zero_pp_rank_0_mp_rank_00_optim_states.pt", file_with(3)).native();
    }
    SUBCASE("a universal checkpoint") {
        dir.write("latest_universal", "global_step1");
        std::filesystem::create_directories(dir / "global_step1/zero/w");
        dir.write("global_step1/mp_rank_00_model_states.pt", file_with());
        damaged = dir.write("global_step1/zero/w/fp32.pt", file_with(3)).native();
    }
    const VerifyReport report = verify(dir.path());
    REQUIRE(report.faults.size() >= 2);
    CHECK(report.faults[0].code() != Errc::checksum_mismatch);
    CHECK(report.faults[0].path().starts_with(dir.path().native()));
    CHECK(report.faults.back().code() == Errc::checksum_mismatch);
    CHECK(report.faults.back().path() == damaged);
    CHECK(report.checked_bytes == 2 * bytes_of_records());
}

}  // namespace rank_files_test
