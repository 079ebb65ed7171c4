// Tests pickled modules: every way to construct the object, every kind of tensor in it, and its errors.
#include <safemap/advanced/flatten.hpp>

#include "check_error.hpp"
#include "doctest_safemap.hpp"
#include "fixtures.hpp"
#include "forge/pickle.hpp"
#include "inspect.hpp"

#include <initializer_list>
#include <string>
#include <vector>

namespace modules_test {

using namespace safemap;

namespace {

StateTree tree_of(const std::string& value) {
    return fixtures::open(forge::archive(value, {{"0", std::string(64, '\1')}})).tree;
}
std::vector<std::string> names_of(const std::string& value) { return ::names_of(flatten(tree_of(value)).tensors); }

std::string tensor(std::int64_t offset = 0, std::int64_t size = 2) {
    return forge::view(forge::storage("FloatStorage", "0", 16), offset, {size}, {1});
}
std::string ordered(std::initializer_list<std::string> items) {
    return forge::ordered() + forge::dict(items).substr(1);
}
/// Returns the __dict__ of a module.
std::string state_of(const std::string& parameters, const std::string& modules = forge::dict({})) {
    return forge::dict({forge::text("training"), "\x88", forge::text("_parameters"), parameters,
                        forge::text("_buffers"), forge::dict({}), forge::text("_modules"), modules});
}
std::string module(const std::string& state) { return forge::global("my", "Net") + ")\x81" + state + "b"; }

const std::vector<std::string> net_weight{"net.weight"};

}  // namespace

TEST_CASE("a module is recognised, however its pickle constructs it") {
    const std::string parameters = forge::dict({forge::text("weight"), tensor()});
    const auto within = [](const std::string& inner) {
        return module(state_of(forge::dict({}), forge::dict({forge::text("net"), inner})));
    };
    SUBCASE("protocol 2 and later") { CHECK(names_of(within(module(state_of(parameters)))) == net_weight); }
    SUBCASE("protocols 0 and 1") {
        const std::string made = forge::call("copy_reg", "_reconstructor",
                                             {forge::global("my", "Net"), forge::global("__builtin__", "object"), "N"});
        CHECK(names_of(within(made + state_of(parameters) + "b")) == net_weight);
    }
    SUBCASE("with slots") {
        const std::string both = forge::tuple({state_of(parameters), forge::dict({forge::text("slot"), "N"})});
        CHECK(names_of(within(module(both))) == net_weight);
    }
    SUBCASE("with ordered dictionaries, as before torch 2.0") {
        const std::string old = ordered({forge::text("weight"), tensor()});
        CHECK(names_of(within(module(state_of(old, ordered({}))))) == net_weight);
    }
    SUBCASE("a class with a constructor of its own is an ordinary object") {
        const std::string made =
            forge::call("torch.fx.graph_module", "reduce_graph_module", {state_of(parameters), "N"});
        CHECK(names_of(within(made)) == std::vector<std::string>{"net/0/_parameters/weight"});
    }
}

TEST_CASE("parameters of a module can be any kind of tensor") {
    const std::string parameter =
        forge::call("torch._utils", "_rebuild_parameter", {tensor(), "\x88", forge::dict({})});
    const std::string layout = forge::call("torch.serialization", "_get_layout", {forge::text("torch.sparse_coo")});
    const std::string sparse =
        forge::call("torch._utils", "_rebuild_sparse_tensor",
                    {layout, forge::tuple({tensor(6), tensor(2), forge::tuple({forge::integer(2)})})});
    const std::string parameters = forge::dict({forge::text("weight"), parameter, forge::text("bias"), "N",
                                                forge::text("few"), sparse, forge::text("0"), tensor(4)});
    const FlatState flat = flatten(tree_of(forge::dict({forge::text("net"), module(state_of(parameters))})));
    std::vector<std::string> names;
    for (const LazyTensor& each : flat.tensors) names.push_back(each.name());
    CHECK(names == std::vector<std::string>{"net/weight", "net/few/indices", "net/few/values", "net/0"});
    REQUIRE(flat.skipped.size() == 2);
    CHECK(flat.skipped[0].name == "net");
    CHECK(flat.skipped[1].name == "net/few");
}

TEST_CASE("an error in a module gives the tensor's name") {
    const std::string inner = module(state_of(forge::dict({forge::text("a/b"), tensor(15)})));
    const std::string net = module(state_of(forge::dict({}), forge::dict({forge::text("0"), inner})));
    const auto tensor_of = [](const std::string& value) {
        const auto error = error_of([&] { return tree_of(value); });
        check_error(error, {Errc::storage_too_short}, {});
        return std::string(error->tensor());
    };
    CHECK(tensor_of(net) == "0.a/b");
    CHECK(tensor_of(forge::dict({forge::text("x"), net})) == "x/0.a/b");
    CHECK(tensor_of(inner) == "a/b");
    CHECK(tensor_of(forge::dict({forge::text("_parameters"), forge::dict({forge::text("0"), tensor(15)})})) ==
          "_parameters/~s0");
}

}  // namespace modules_test
