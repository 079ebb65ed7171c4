// Tests the mapping of Python 2 names, and the protocols that use it.
#include "pickle/python2_names.hpp"

#include "doctest_safemap.hpp"

#include <string>
#include <string_view>

namespace python2_names_test {

using namespace safemap;

namespace {

std::string renamed(std::string_view module, std::string_view name, unsigned protocol) {
    const auto global = in_python3({module, name}, protocol);
    return std::string(global.module) + " " + std::string(global.name);
}

}  // namespace

TEST_CASE("names of Python 2 map to the names that Python 3 imports for them") {
    CHECK(renamed("cPickle", "loads", 2) == "pickle loads");
    CHECK(renamed("commands", "getoutput", 0) == "subprocess getoutput");
    CHECK(renamed("copy_reg", "_reconstructor", 2) == "copyreg _reconstructor");
    CHECK(renamed("StringIO", "StringIO", 2) == "io StringIO");
    // The mapping of a full name is preferred to the mapping of its module.
    CHECK(renamed("__builtin__", "long", 2) == "builtins int");
    CHECK(renamed("__builtin__", "basestring", 2) == "builtins str");
    CHECK(renamed("__builtin__", "eval", 2) == "builtins eval");
    CHECK(renamed("urllib", "urlopen", 2) == "urllib.request urlopen");
    CHECK(renamed("urllib", "unknown", 2) == "urllib unknown");
    CHECK(renamed("exceptions", "ValueError", 2) == "builtins ValueError");
    CHECK(renamed("exceptions", "StandardError", 2) == "builtins Exception");
    CHECK(renamed("exceptions", "eval", 2) == "exceptions eval");
    CHECK(renamed("my", "cPickle", 2) == "my cPickle");
    CHECK(renamed("", "", 2) == " ");
}

TEST_CASE("from protocol 3 on, names are not mapped") {
    for (const unsigned protocol : {3U, 4U, 5U}) {
        CHECK(renamed("cPickle", "loads", protocol) == "cPickle loads");
        CHECK(renamed("__builtin__", "long", protocol) == "__builtin__ long");
        CHECK(renamed("exceptions", "ValueError", protocol) == "exceptions ValueError");
    }
}

TEST_CASE("modules that moved in PyTorch and NumPy are renamed at every protocol") {
    for (const unsigned protocol : {0U, 2U, 5U}) {
        CHECK(renamed("torch.tensor", "Tensor", protocol) == "torch._tensor Tensor");
        CHECK(renamed("numpy.core.multiarray", "scalar", protocol) == "numpy._core.multiarray scalar");
        CHECK(renamed("pathlib._local", "PosixPath", protocol) == "pathlib PosixPath");
    }
}

}  // namespace python2_names_test
