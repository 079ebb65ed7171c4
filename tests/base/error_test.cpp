// Tests the fault table and the context that errors collect.
#include "doctest_safemap.hpp"

#include <set>

namespace error_test {

using namespace safemap;

TEST_CASE("every code has a name of its own, a sentence and an exit code") {
    std::set<std::string_view> names;
    for (int i = 0; i <= static_cast<int>(Errc::cancelled); ++i) {
        const auto code = static_cast<Errc>(i);
        CAPTURE(i);
        CHECK(names.insert(name(code)).second);
        CHECK_FALSE(describe(code).empty());
        CHECK(name(code).find_first_not_of("abcdefghijklmnopqrstuvwxyz0123456789_") == std::string_view::npos);
    }
}

TEST_CASE("exit codes follow the remedy") {
    CHECK(exit_code(Errc::tensor_not_found) == 2);
    CHECK(exit_code(Errc::already_exists) == 2);
    CHECK(exit_code(Errc::header_too_large) == 1);
    CHECK(exit_code(Errc::storage_too_short) == 1);
    CHECK(exit_code(Errc::no_space) == 3);
    CHECK(exit_code(Errc::io_error) == 3);
    CHECK(exit_code(Errc::busy) == 3);
    CHECK(exit_code(Errc::cancelled) == 130);
    CHECK(remedy(Errc::no_space) == Remedy::free_space);
    CHECK(remedy(Errc::file_changed) == Remedy::retry);
}

TEST_CASE("context is added from the inside out, and the innermost file and tensor are kept") {
    Error error(Errc::size_mismatch, "24 bytes, but shape [2, 2] of F32 needs 16");
    error.with_tensor("wte").with_path("model-00002-of-00005.safetensors").during("save out/");
    CHECK(std::string(error.what()) ==
          "save out/: model-00002-of-00005.safetensors: tensor 'wte': 24 bytes, but shape [2, 2] of F32 needs 16");
    error.with_tensor("other").with_path("elsewhere").during("convert");
    CHECK(error.tensor() == "wte");
    CHECK(error.path() == "model-00002-of-00005.safetensors");
    CHECK(std::string(error.what()).substr(0, 18) == "convert: save out/");
    CHECK(error.hint().empty());
    CHECK(error.with_hint("look").hint() == "look");
}

TEST_CASE("a path that the operation already names is not repeated") {
    const auto text = [](const char* operation, const char* path) {
        Error error(Errc::already_exists, "exists already");
        error.with_path(path).during(operation);
        return std::string(error.what());
    };
    CHECK(text("save out/", "out") == "save out/: exists already");
    CHECK(text("save out", "out/") == "save out: exists already");
    CHECK(text("save a b/out.safetensors", "a b/out.safetensors") == "save a b/out.safetensors: exists already");
    CHECK(text("save out/", "out/model.safetensors") == "save out/: out/model.safetensors: exists already");
    CHECK(text("save a/out/", "out") == "save a/out/: out: exists already");
    CHECK(text("save /", "/") == "save /: /: exists already");
    Error error(Errc::already_exists, "exists already");
    error.with_path("out").during("save out/").during("convert");
    CHECK(std::string(error.what()) == "convert: save out/: exists already");
    CHECK(error.path() == "out");
}

}  // namespace error_test
