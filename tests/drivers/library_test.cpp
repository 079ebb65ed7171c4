// Tests loading functions of libraries that are complete, incomplete and absent.
#include "drivers/library.hpp"

#include <doctest/doctest.h>

#include <array>

namespace library_test {

using safemap::drivers::LibraryFunction;
using safemap::drivers::LibraryState;
using safemap::drivers::load_library;

TEST_CASE("a library gives the functions that it has") {
    double (*cosine)(double) = nullptr;
    void (*none)() = [] {};
    const std::array functions = {LibraryFunction{"cos", &cosine, true},
                                  LibraryFunction{"no_such_function", &none, false}};
    const auto loaded = load_library("libm.so.6", functions);
    REQUIRE(loaded.state == LibraryState::loaded);
    CHECK(loaded.fault.empty());
    CHECK(cosine(0) == 1);
    CHECK_FALSE(static_cast<bool>(none));
}

TEST_CASE("a library that lacks required functions is incomplete, and the fault names them") {
    double (*cosine)(double) = nullptr;
    void (*one)() = nullptr;
    void (*two)() = nullptr;
    const std::array functions = {LibraryFunction{"no_such_one", &one, true}, LibraryFunction{"cos", &cosine, true},
                                  LibraryFunction{"no_such_two", &two, true}};
    const auto loaded = load_library("libm.so.6", functions);
    CHECK(loaded.state == LibraryState::incomplete);
    CHECK(loaded.fault == "libm.so.6 lacks no_such_one, no_such_two");
}

TEST_CASE("a library that is not there is absent, and the fault says so") {
    void (*one)() = nullptr;
    const std::array functions = {LibraryFunction{"one", &one, true}};
    const auto loaded = load_library("libno_such_library.so.1", functions);
    CHECK(loaded.state == LibraryState::absent);
    CHECK(loaded.fault.find("libno_such_library.so.1") != std::string::npos);
    CHECK_FALSE(loaded);
}

}  // namespace library_test
