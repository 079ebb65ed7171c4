// Tests universal checkpoints without files of model states: what a parameter's files may hold.
#include "distributed/universal.hpp"

#include "doctest_safemap.hpp"
#include "forge.hpp"

#include <map>
#include <variant>

using namespace safemap;
using distributed::read_universal;
using distributed::Universal;

namespace {

using Files = std::map<std::string, std::string>;

/// Returns a file of torch.save that holds what the opcodes make.
std::string pickled(const std::string& opcodes) {
    const std::vector<forge::ZipRecord> records = {
        {"archive/data.pkl", "\x80\x02" + opcodes + "."}, {"archive/byteorder", "little"}, {"archive/version", "3\n"}};
    return forge::zip(records);
}

std::string tensor(std::uint32_t count) { return forge::pt({{"param", {count}, std::vector<float>(count, 1.5F)}}); }

Files small() {
    return {{"zero/w/fp32.pt", tensor(3)},
            {"zero/w/exp_avg.pt", tensor(3)},
            {"zero/w/step.pt", pickled("K\x07")},
            {"zero/v/fp32.pt", tensor(2)}};
}

Universal read(Files files) { return read_universal(forge::Folder(std::move(files)), {}, nullptr); }

/// Checks that a file, changed to this content, is refused, and that the error names the parameter.
void check_refused(const std::string& file, const std::string& content, Errc code) {
    CAPTURE(file);
    Files files = small();
    files[file] = content;
    const auto error = error_of([&] { read(files); });
    REQUIRE(error.has_value());
    INFO(std::string(error->what()));
    CHECK(error->code() == code);
    if (code == Errc::piece_mismatch) CHECK(error->tensor() == "w");
}

}  // namespace

TEST_CASE("parameters, their state and their steps") {
    const Universal universal = read(small());
    REQUIRE(universal.gathered.weights.size() == 2);
    CHECK(universal.gathered.weights[0].name == "v");
    CHECK(universal.gathered.weights[1].name == "w");
    CHECK(universal.gathered.weights[1].tensor.shape() == Shape{3});
    REQUIRE(universal.gathered.weights[1].state.size() == 1);
    CHECK(universal.gathered.weights[1].state.front().first == "exp_avg");
    REQUIRE(universal.rest.has_value());
    const auto step = universal.rest->find("step/w");
    REQUIRE(step.has_value());
    CHECK(std::get<std::int64_t>((*universal.rest)[*step]) == 7);
}

TEST_CASE("a step is a tensor or a number") {
    CHECK_OK(read([] {
        Files files = small();
        files["zero/w/step.pt"] = tensor(1);
        return files;
    }()));
    // Containers, one of which holds itself, None and a text.
    const std::string one = "K\x01";
    const std::string memo("q\0h\0", 4);
    const std::string text("X\1\0\0\0x", 6);
    for (const std::string& opcodes :
         {']' + one + 'a', '(' + one + one + 't', ']' + memo + 'a', std::string("N"), text})
        check_refused("zero/w/step.pt", pickled(opcodes), Errc::piece_mismatch);
}

TEST_CASE("files that are missing or hold something else") {
    Files files = small();
    files.erase("zero/w/fp32.pt");
    CHECK_FAULT(read(files), Errc::unfinished_checkpoint);
    CHECK_FAULT(read({{"zero/optimizer_state.pt", pickled("}")}}), Errc::not_a_checkpoint);
    CHECK_FAULT(read({{"other/w/fp32.pt", tensor(3)}}), Errc::not_a_checkpoint);
    check_refused("zero/w/exp_avg.pt", tensor(4), Errc::piece_mismatch);
    check_refused("zero/w/fp32.pt", tensor(4), Errc::piece_mismatch);
    check_refused("zero/w/fp32.pt", pickled("K\x01"), Errc::piece_mismatch);
    check_refused("zero/w/exp_avg.pt", pickled("}"), Errc::field_missing);
    check_refused("zero/optimizer_state.pt", pickled("]"), Errc::field_missing);
}
