// Reads pickles from stdin, each after its length (64 bits), and prints the library's verdict on each as a line of
// JSON: the classes and functions it names, whether --strict-globals refuses it, and why. tests/interop/pickles.py
// writes the pickles and compares with Python's unpicklers.
#include "base/json.hpp"
#include "pickle/pickle.hpp"
#include "torch/named_globals.hpp"
#include "torch/plain.hpp"

#include <cstdio>
#include <functional>
#include <iostream>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace {

using namespace safemap;

std::string json_text(std::string_view text) {
    std::string out;
    json::append_string(out, text, json::Charset::ascii);
    return out;
}

/// Returns the code of the error that `work` throws, or null.
std::string code_of(const std::function<void()>& work) {
    try {
        work();
        return "null";
    } catch (const Error& error) {
        return json_text(name(error.code()));
    }
}

std::string names(std::span<const char> bytes) {
    const PickleGraph pickle = read_pickle(bytes);
    std::string list = "[";
    for (PickleGraph::Id id = 0; id < pickle.size(); ++id) {
        if (pickle.kind(id) != PickleGraph::Kind::global) continue;
        const PickleGraph::Global global = pickle.global(id);
        list += (list.size() > 1 ? ",[" : "[") + json_text(global.module) + "," + json_text(global.name) + "]";
    }
    return list + R"(],"consumed":)" + std::to_string(pickle.consumed());
}

std::string verdict(std::span<const char> bytes) {
    std::string globals = "null";
    std::string called = "[";
    const std::string lenient = code_of([&] { globals = names(bytes); });
    const auto all = std::as_bytes(bytes);
    const std::string strict = code_of([&] {
        torch::NamedGlobals unknown;
        ThrowFirst faults;
        torch::read_plain(memory_source("stdin", {all.begin(), all.end()}), faults, &unknown);
    });
    code_of([&] {
        torch::NamedGlobals all_named(false);
        all_named.add(read_pickle(bytes), "stdin");
        for (const NamedGlobal& each : all_named.all())
            if (each.called)
                called += (called.size() > 1 ? ",[" : "[") + json_text(each.module) + "," + json_text(each.name) + "]";
    });
    return R"({"called":)" + called + R"(],"names":)" + globals + R"(,"error":)" + lenient + R"(,"strict":)" + strict +
           "}";
}

}  // namespace

int main() {
    std::uint64_t size = 0;
    while (std::cin.read(reinterpret_cast<char*>(&size), sizeof size)) {
        std::vector<char> pickle(size);
        std::cin.read(pickle.data(), static_cast<std::streamsize>(size));
        std::cout << verdict(pickle) << '\n';
    }
}
