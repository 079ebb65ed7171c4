// Looks up the functions with which tests control the stub, in the libcuda.so.1 that was found.
#include "cuda/stub_cuda.hpp"

#include "drivers/library.hpp"

#include <array>

StubCuda::StubCuda() {
    const auto row = [](const char* name, auto** pointer) {
        return safemap::drivers::LibraryFunction{name, pointer, true};
    };
    const std::array functions = {
        row("stub_is_real", &is_real_),
        row("stub_reset", &reset_),
        row("stub_set", &set_),
        row("stub_get", &get_),
        row("stub_call", &call_),
        row("stub_finding", &finding_),
        row("stub_clear_findings", &clear_findings_),
        row("stub_fail_nth", &fail_nth_),
        row("stub_break", &break_),
        row("stub_hold", &hold_),
        row("stub_release", &release_),
        row("stub_stream", &stream_),
        row("stub_priority", &priority_),
        row("stub_make_stream", &make_),
        row("stub_kernel_read", &kernel_read_),
        row("stub_synchronize", &sync_),
        row("stub_checksum", &checksum_),
        row("stub_begin_capture", &begin_),
        row("stub_end_capture", &end_),
    };
    const auto loaded = safemap::drivers::load_library("libcuda.so.1", functions);
    if (!loaded) throw std::runtime_error("these tests need the stub of the CUDA driver: " + loaded.fault);
    reset();
}

std::vector<std::string> StubCuda::calls() const {
    std::vector<std::string> names;
    while (const char* const name = call_(names.size())) names.emplace_back(name);
    return names;
}

std::vector<std::string> StubCuda::findings() const {
    std::vector<std::string> all;
    std::array<char, 256> text = {};
    while (finding_(all.size(), text.data(), text.size()) != 0) all.emplace_back(text.data());
    return all;
}

std::string StubCuda::take_findings() {
    std::string all;
    for (const std::string& finding : findings()) all += (all.empty() ? "" : "; ") + finding;
    clear_findings_();
    return all;
}
