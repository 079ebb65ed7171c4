// Tests which names in pickles are known, and the refusal of all others under strict globals. From top to bottom:
// refusals and their messages, functions that run code, the list of globals, indirect calls, notes and limits.
#include "torch/globals.hpp"
#include "torch/named_globals.hpp"

#include "doctest_safemap.hpp"
#include "fixtures.hpp"
#include "forge/pickle.hpp"
#include "inspect.hpp"

#include <algorithm>
#include <array>
#include <string>
#include <string_view>
#include <vector>

namespace globals_test {

using namespace safemap;

using namespace std::string_literals;

namespace {

/// Opens a file under strict globals, and returns the error.
std::optional<Error> strict_fault(std::string_view bytes) {
    torch::NamedGlobals unknown;
    ThrowFirst faults;
    return error_of([&] { fixtures::read(bytes, faults, &unknown); });
}
std::string refusal(std::string_view bytes) {
    const auto error = strict_fault(bytes);
    REQUIRE(error.has_value());
    CAPTURE(error->message());
    CHECK(error->code() == Errc::unknown_global);
    return error->message();
}
std::string refusal_of(const std::string& value) { return refusal(forge::archive(value)); }

bool runs_code(std::string_view module, std::string_view name) { return torch::runs_code({module, name}); }

std::string os_call() { return forge::call("os", "system", {forge::text("true")}); }

}  // namespace

TEST_CASE("under strict globals, only files whose names are all known are opened") {
    constexpr std::array unknown{
        "containers.pt",
        "containers_protocol4.pt",
        "containers_protocol5.pt",
        "dtensor.pt",
        "keys.pt",
        "lightning.ckpt",
        "module.pt",
        "module_legacy.pt",
        "module_main.pt",
        "sharded_tensor.pt",
        "subclasses.pt",
    };
    std::size_t refused = 0;
    for (const auto& file : fixtures::table()) {
        if (!file.error.empty() && file.error != "torchscript" && file.error != "no-data") continue;
        if (file.file.starts_with("broken/") || file.file.find('/') != std::string::npos) continue;
        CAPTURE(file.file);
        const auto error = strict_fault(fixtures::content(file.file));
        const bool listed = std::find(unknown.begin(), unknown.end(), file.file) != unknown.end();
        CHECK(error.has_value() == listed);
        if (error) CHECK(error->code() == Errc::unknown_global);
        refused += error ? 1 : 0;
    }
    CHECK(refused == unknown.size());
}

TEST_CASE("a refusal names every unknown global once, those that run code first") {
    const std::string value =
        forge::dict({forge::text("a"), forge::call("my", "thing", {}), forge::text("b"), os_call(), forge::text("c"),
                     forge::call("my", "thing", {}), forge::text("d"), forge::global("__builtin__", "eval")});
    CHECK(refusal_of(value) == "globals that run code: os.system, builtins.eval; unknown globals: my.thing");
    CHECK(refusal_of(os_call()) == "globals that run code: os.system");
    // The form of a nested class below protocol 4.
    const std::string getattr =
        forge::call("__builtin__", "getattr", {forge::global("my", "Outer"), forge::text("Inner")});
    CHECK(refusal_of(getattr + ")R") == "unknown globals: my.Outer, my.Outer.Inner");
    CHECK(refusal_of(forge::tuple({getattr, forge::call("__builtin__", "getattr", {forge::integer(1)})}))
              .starts_with("globals that run code: builtins.getattr; unknown globals: my.Outer"));
    CHECK(refusal_of(forge::global("my", "a\x1b")) == "globals that run code: my.a\\x1b");
}

TEST_CASE("a function that loads pickles is refused if it is passed as a value, and noted") {
    const std::string loader = forge::global("torch.storage", "_load_from_bytes");
    const std::string evil = forge::text("os.system");
    for (const std::string& value :
         {forge::call("torch._tensor", "_rebuild_from_type_v2",
                      {loader, forge::global("torch", "Tensor"), forge::tuple({evil}), "}"}) +
              "0}",
          forge::ordered() + forge::dict({forge::text("__setstate__"), loader}) + "b" + evil + "b",
          forge::ordered() + loader + "b", "](" + loader + "e", forge::tuple({loader})}) {
        CAPTURE(value);
        CHECK(refusal_of(value).find("torch.storage._load_from_bytes") != std::string::npos);
        CHECK(has_note(fixtures::open(forge::archive(value)), "_load_from_bytes"));
    }
}

TEST_CASE("the refusal of a million names has a limited length") {
    std::string names = "(";
    for (int i = 0; i < 1000; ++i) names += forge::global("my", "thing" + std::to_string(i)) + "0";
    const std::string message = refusal_of(names + "t");
    CHECK(message.find("my.thing31 and more") != std::string::npos);
    CHECK(message.find("my.thing32") == std::string::npos);
    std::string some = "(";
    for (int i = 0; i < 32; ++i) some += forge::global("my", "thing" + std::to_string(i)) + "0";
    CHECK(refusal_of(some + "t").ends_with("my.thing31"));
}

TEST_CASE("unknown globals are refused at any place") {
    const std::string attack = os_call();
    // Popped off the stack, overwritten, as an unused argument, and as a value that is not called.
    CHECK_FAULT((throw *strict_fault(forge::archive(attack + "0}"))), Errc::unknown_global);
    CHECK_FAULT((throw *strict_fault(
                    forge::archive(forge::dict({forge::text("x"), attack, forge::text("x"), forge::integer(1)})))),
                Errc::unknown_global);
    CHECK_FAULT((throw *strict_fault(forge::archive(forge::ordered() + forge::dict({forge::text("x"), attack}) + "b"))),
                Errc::unknown_global);
    CHECK_FAULT((throw *strict_fault(forge::archive(forge::global("os", "system")))), Errc::unknown_global);
    // In files of other formats.
    CHECK_FAULT((throw *strict_fault(forge::pickle(attack + "0}"))), Errc::unknown_global);
    CHECK(refusal(fixtures::content("broken/legacy_os_system.pt")) ==
          "globals that run code: posix.system (os.system)");
}

TEST_CASE("unknown globals of a file inside a pickle are refused, even if the file is dropped") {
    const auto embedded = [](const std::string& object) {
        return "\x80\x03"s + forge::load_from_bytes(forge::Legacy{.object = object, .machine = "}"}.join()) + "0}.";
    };
    CHECK(refusal(embedded(os_call())) == "globals that run code: os.system");
    CHECK_FAULT((throw *strict_fault(embedded("}"))), Errc::bad_tensor);  // contains nothing that would be loaded
    CHECK_OK(fixtures::open(embedded(os_call())));
}

TEST_CASE("classes of TorchScript are known only in TorchScript archives") {
    const std::string object = forge::global("__torch__.m", "Net") + ")\x81}b";
    forge::Zip script;
    script.add("a/data.pkl", forge::pickle(object));
    script.add("a/constants.pkl", forge::pickle(")"));
    CHECK_FALSE(strict_fault(script.join()).has_value());
    CHECK(refusal_of(object) == "unknown globals: __torch__.m.Net");
    script.records[0] = {.name = "a/data.pkl", .data = forge::pickle(os_call() + "0" + object)};
    CHECK(refusal(script.join()) == "globals that run code: os.system");
}

TEST_CASE("globals that run code are recognised by module and name, and by modules that a module has imported") {
    for (const char* module :
         {"os", "posix", "nt", "subprocess", "sys", "runpy", "importlib", "os.path", "_pickle", "timeit"})
        CHECK(runs_code(module, "anything"));
    for (const char* name : {"eval", "exec", "compile", "__import__", "getattr"}) CHECK(runs_code("builtins", name));
    CHECK(runs_code("torch.serialization", "os.system"));
    CHECK(runs_code("a", "b.builtins.eval"));
    CHECK(runs_code("a", "b.sys.modules.get"));
    CHECK_FALSE(runs_code("builtins", "list"));
    CHECK_FALSE(runs_code("posixpath", "join"));
    CHECK_FALSE(runs_code("code.models", "Net"));  // more often a folder of the user than Python's module
    CHECK_FALSE(runs_code("my.os", "thing"));
    CHECK_FALSE(runs_code("my", "Thing.eval"));
    // The Python 3 name of a Python 2 module.
    CHECK(refusal_of(forge::global("commands", "getoutput")) == "globals that run code: subprocess.getoutput");
}

TEST_CASE("a function that runs code is noted if it is passed for others to call") {
    const auto notes = [](const std::string& value) { return fixtures::open(forge::archive(value)).notes; };
    const auto named = notes(forge::call("functools", "partial", {forge::global("os", "system")}));
    REQUIRE(named.size() == 1);
    CHECK(named[0].find("names os.system, which was not called") != std::string::npos);
    const auto called = notes(forge::tuple({forge::global("os", "system"), os_call(), os_call()}));
    REQUIRE(called.size() == 1);
    CHECK(called[0].find("asks to call os.system (2 times), which was not called") != std::string::npos);
    std::string calls;
    for (int i = 0; i < 1000; ++i) calls += forge::call("posix", "f" + std::to_string(i), {});
    const auto many = notes("(" + calls + "t");
    REQUIRE(many.size() == 17);
    CHECK(many.back().find("984 more functions that run code") != std::string::npos);
    const std::string nested = forge::call("__builtin__", "getattr", {forge::global("my", "Outer"), forge::text("In")});
    CHECK(notes(nested).empty());
}

namespace {

/// Returns the names in the file, each as "module.name known called record".
std::vector<std::string> named(std::string_view bytes) {
    torch::NamedGlobals globals(false);
    ThrowFirst faults;
    fixtures::read(bytes, faults, &globals);
    std::vector<std::string> lines;
    for (const auto& each : globals.all())
        lines.push_back(each.module + "." + each.name + (each.known ? " known" : " unknown") +
                        (each.called ? " called " : " named ") + each.record);
    return lines;
}
std::string note_of(std::string_view bytes) {
    torch::NamedGlobals globals(false);
    ThrowFirst faults;
    fixtures::read(bytes, faults, &globals);
    return globals.note().value_or("");
}
using Lines = std::vector<std::string>;

}  // namespace

TEST_CASE("every class and function in every pickle is listed, with whether it would be called") {
    const std::string value = forge::dict({forge::text("a"), forge::call("my", "thing", {}), forge::text("b"),
                                           forge::global("my", "Other"), forge::text("c"), forge::ordered()});
    CHECK(named(forge::archive(os_call() + "0" + value)) ==
          Lines{"os.system unknown called a/data.pkl", "my.thing unknown called a/data.pkl",
                "my.Other unknown named a/data.pkl", "collections.OrderedDict known called a/data.pkl"});
    // Indirect calls: the class of an object, and the function of a tensor subclass.
    CHECK(named(forge::archive(forge::call("copyreg", "_reconstructor", {forge::global("my", "thing"), "N", "N"}))) ==
          Lines{"copyreg._reconstructor unknown called a/data.pkl", "my.thing unknown called a/data.pkl"});
    // The form of a nested class below protocol 4, and getattr passed as a value.
    const std::string getattr = forge::global("__builtin__", "getattr");
    CHECK(named(forge::archive(getattr + forge::tuple({forge::global("my", "Outer"), forge::text("Inner")}) + "R")) ==
          Lines{"my.Outer unknown named a/data.pkl", "my.Outer.Inner unknown named a/data.pkl"});
    CHECK(named(forge::archive(forge::tuple({getattr}))) == Lines{"builtins.getattr unknown named a/data.pkl"});
    CHECK(refusal_of(forge::tuple({getattr})) == "globals that run code: builtins.getattr");
}

namespace {

/// Returns the names that would be called in a pickle of the kind that old files of torch.save hold.
std::string called_in_legacy(const std::string& object) {
    const std::string file = forge::Legacy{.object = object, .machine = "}"}.join();
    std::string called;
    for (const std::string& line : named(file))
        if (const auto end = line.find(" unknown called "); end != line.npos)
            called += (called.empty() ? "" : " ") + line.substr(0, end);
    CHECK(note_of(file).empty() == called.empty());
    return called;
}
std::string persistent(std::initializer_list<std::string> parts) { return forge::tuple(parts) + "Q"; }
std::string in_dict(const std::string& value) { return forge::dict({forge::text("a"), value}); }

const std::string thing = forge::global("my", "thing");
const std::string other = forge::global("my", "Other");

}  // namespace

TEST_CASE("a persistent id that stands for a class counts as a call") {
    const std::string module = forge::text("module");
    const std::string id = persistent({module, thing, "N", "N"});
    CHECK(called_in_legacy(in_dict(id)).empty());  // named, not called
    for (const std::string& callee :
         {id, persistent({module, thing, forge::text("a.py"), forge::text("class Thing")}),
          persistent({module, thing, "N"}), persistent({module, thing}), persistent({"C\x06module", thing, "N", "N"}),
          persistent({module, id, "N", "N"}), persistent({id, id, "N"}),
          forge::call("builtins", "tuple", {"](" + module + thing + "e"}) + "Q"}) {
        CAPTURE(callee);
        CHECK(called_in_legacy(in_dict(callee + ")R")) == "my.thing");
        CHECK(called_in_legacy(in_dict(callee + ")\x81")) == "my.thing");
        CHECK(called_in_legacy(in_dict("(" + callee + "o")) == "my.thing");
        CHECK(called_in_legacy(callee + ")R0}") == "my.thing");
    }
    // The known function that it stands for calls others.
    const std::string rebuild = forge::global("torch._tensor", "_rebuild_from_type_v2");
    const std::string arguments = forge::tuple({thing, other, ")", "N"});
    CHECK(called_in_legacy(in_dict(persistent({module, rebuild, "N", "N"}) + arguments + "R")) == "my.thing my.Other");
    CHECK(called_in_legacy(in_dict(persistent({module, persistent({module, rebuild, "N"}), "N"}) + arguments + "R")) ==
          "my.thing my.Other");
}

TEST_CASE("nested and cyclic persistent ids are searched once") {
    std::string deep = thing;
    for (int i = 0; i < 30'000; ++i) deep += "\x85Q";
    CHECK(called_in_legacy(in_dict(deep + ")R")) == "my.thing");
    std::string many = deep + "q\0010(";
    for (int i = 0; i < 5'000; ++i) many += "h\x01)R";
    CHECK(called_in_legacy(many + "t") == "my.thing");
    CHECK(called_in_legacy("]q\x01(h\x01" + thing + "e\x85Q)R0}") == "my.thing");
}

TEST_CASE("functions that call their arguments are followed") {
    // The object is dropped, because some of them are refused where they are used.
    const auto of_type = [](const char* name, std::initializer_list<std::string> arguments) {
        return forge::call("torch._tensor", name, arguments) + "0}";
    };
    const std::string tensor = forge::global("torch", "Tensor");
    const std::string size = forge::global("torch", "Size");
    for (const char* name : {"_rebuild_from_type", "_rebuild_from_type_v2"}) {
        CAPTURE(name);
        CHECK(called_in_legacy(of_type(name, {size, tensor, ")", "}"})).empty());
        CHECK(called_in_legacy(of_type(name, {size, thing, ")", "}"})) == "my.thing");
        CHECK(called_in_legacy(of_type(name, {thing, tensor, ")", "}"})) == "my.thing");
        CHECK(called_in_legacy(of_type(name, {thing, other, ")", "}"})) == "my.thing my.Other");
        CHECK(called_in_legacy(of_type(name, {size, tensor, forge::tuple({thing}), "}"})).empty());
        CHECK(called_in_legacy(of_type(name, {persistent({forge::text("module"), thing, "N", "N"}),
                                              persistent({forge::text("module"), other, "N"}), ")", "}"})) ==
              "my.thing my.Other");
        // Through another such function, and through the result of a known function.
        CHECK(called_in_legacy(of_type(name, {forge::global("torch._tensor", name), tensor,
                                              forge::tuple({thing, tensor, ")", "}"}), "}"})) == "my.thing");
        CHECK(called_in_legacy(of_type(
                  name, {forge::global("torch._tensor", name), tensor,
                         forge::call("builtins", "tuple", {"](" + thing + tensor + ")}e"}), "}"})) == "my.thing");
    }
    CHECK(called_in_legacy(in_dict(forge::call("numpy.core.multiarray", "_reconstruct",
                                               {thing, forge::tuple({forge::integer(0)}), "C\001b"}))) == "my.thing");
    CHECK(called_in_legacy(in_dict(forge::call("torch._utils", "_rebuild_wrapper_subclass", {thing}))) == "my.thing");
    const std::string scalar =
        forge::call("numpy.core.multiarray", "scalar", {forge::call("numpy", "dtype", {forge::text("O8")}), thing});
    CHECK(called_in_legacy(in_dict(scalar + ")R")) == "my.thing");
}

TEST_CASE("a function that is set on an object as a method counts as called") {
    const std::string object = forge::ordered();
    const auto with = [&](const char* name, const std::string& value) {
        return object + forge::dict({forge::text(name), value}) + "b";
    };
    for (const char* name : {"__setstate__", "append", "add", "__class__"}) {
        CAPTURE(name);
        CHECK(called_in_legacy(in_dict(with(name, thing))) == "my.thing");
        CHECK(called_in_legacy(with(name, thing) + "0}") == "my.thing");
        CHECK(called_in_legacy(with(name, persistent({forge::text("module"), thing, "N"})) + "0}") == "my.thing");
        CHECK(called_in_legacy(object + forge::tuple({"N", forge::dict({forge::text(name), thing})}) + "b0}") ==
              "my.thing");
        for (const char* function : {"_rebuild_from_type", "_rebuild_from_type_v2"})
            CHECK(called_in_legacy(forge::call("torch._tensor", function,
                                               {forge::global("torch", "Size"), forge::global("torch", "Tensor"), ")",
                                                forge::dict({forge::text(name), thing})}) +
                                   "0}") == "my.thing");
        CHECK(called_in_legacy(forge::call("torch._utils", "_rebuild_parameter_with_state",
                                           {"N", "\x88", "N", forge::dict({forge::text(name), thing})}) +
                               "0}") == "my.thing");
    }
    CHECK(called_in_legacy(object + forge::dict({forge::call("builtins", "str", {forge::text("x")}), thing}) + "b0}") ==
          "my.thing");
    CHECK(called_in_legacy(in_dict(with("weight_loader", thing))).empty());
    std::string shared = "}q\x01(";
    for (int i = 0; i < 10'000; ++i) shared += forge::text("a" + std::to_string(i)) + "N";
    shared += forge::text("add") + thing + "u0" + forge::global("collections", "OrderedDict") + "q\0020(";
    for (int i = 0; i < 10'000; ++i) shared += "h\x02)Rh\001b";
    CHECK(called_in_legacy(shared + "1}") == "my.thing");
    CHECK(called_in_legacy(in_dict(forge::dict({forge::text("append"), thing}))).empty());
}

TEST_CASE("a function that comes from a file inside the pickle counts as called") {
    const std::string loaded = forge::load_from_bytes(forge::Legacy{.object = thing, .machine = "}"}.join());
    for (const std::string& value :
         {loaded + ")R0}",
          forge::call("torch._tensor", "_rebuild_from_type_v2", {loaded, forge::global("torch", "Tensor"), ")", "}"}) +
              "0}",
          forge::ordered() + forge::dict({forge::text("__setstate__"), loaded}) + "b0}"}) {
        CHECK(note_of(forge::pickle(value)).find("_load_from_bytes") != std::string::npos);
    }
}

TEST_CASE("the names in all pickles of a file are listed") {
    const auto legacy = [](const std::string& machine, const std::string& object) {
        return forge::Legacy{.object = object, .machine = machine}.join();
    };
    CHECK(named(legacy(os_call(), forge::call("my", "thing", {}))) ==
          Lines{"os.system unknown called the description of the machine", "my.thing unknown called the object"});
    const std::string inner = legacy("}", os_call());
    CHECK(named("\x80\x03"s + forge::load_from_bytes(inner) + "0}.") ==
          Lines{"torch.storage._load_from_bytes known called the pickle",
                "os.system unknown called the pickle, a storage in it: the object"});
    forge::Zip script;
    script.add("a/data.pkl", forge::pickle(forge::global("__torch__.m", "Net") + ")\x81" +
                                           forge::dict({forge::text("w"), forge::call("my", "thing", {})}) + "b"));
    script.add("a/constants.pkl", forge::pickle(os_call() + "0)"));
    CHECK(named(script.join()) == Lines{"__torch__.m.Net known called a/data.pkl", "my.thing unknown called a/data.pkl",
                                        "os.system unknown called a/constants.pkl"});
}

TEST_CASE("one note counts the unknown functions that would be called") {
    CHECK(note_of(forge::archive(forge::tuple({forge::global("my", "thing"), forge::call("torch", "Size", {")"})}))) ==
          "");
    CHECK(note_of(forge::archive(forge::call("my", "thing", {}))) ==
          "unpickling would call an unknown class or function, my.thing; nothing was called; "
          "inspect --globals lists what the file names, --strict-globals refuses the file");
    // Functions that run code come first, and each is listed once.
    CHECK(note_of(
              forge::archive(forge::tuple({forge::call("my", "thing", {}), forge::call("my", "thing", {}), os_call()})))
              .starts_with("unpickling would call 2 unknown classes and functions, the first is "
                           "os.system; "));
}

TEST_CASE("the list of names has a limited length") {
    std::string names = "(";
    for (std::size_t i = 0; i < torch::NamedGlobals::most_listed + 10; ++i)
        names += forge::global("my", "thing" + std::to_string(i)) + "0";
    CHECK(named(forge::archive(names + "t")).size() == torch::NamedGlobals::most_listed);
}

TEST_CASE("a call is noted even after the list of names is full, and so is an unreadable file inside the pickle") {
    std::string names = "(";
    for (std::size_t i = 0; i < torch::NamedGlobals::most_listed; ++i)
        names += forge::global("my", "thing" + std::to_string(i)) + "0";
    CHECK(note_of(forge::archive(names + "0N")).empty());
    CHECK(note_of(forge::archive(names + "0" + forge::call("my", "run", {})))
              .starts_with("unpickling would call at least 1 unknown class or function, the first is "
                           "my.run;"));
    const std::string inside = forge::load_from_bytes(forge::archive("N"));
    CHECK(note_of(forge::archive(inside + "0N")).starts_with("a file inside the pickle cannot be read"));
}

}  // namespace globals_test
