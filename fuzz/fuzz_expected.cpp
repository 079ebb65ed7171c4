// Fuzzes expectations of a model. Property: an accepted expectation can be filled completely from an empty checkpoint,
// and is the same after it is written and read again.
#include "base/json.hpp"
#include "fuzz_target.hpp"

#include <safemap/plan.hpp>

#include <cstdint>
#include <cstdlib>
#include <string>
#include <string_view>
#include <vector>

namespace fuzz_expected {

namespace {

using namespace safemap;

void require(bool holds) {
    if (!holds) std::abort();
}

void append_text(std::string& json, std::string_view text) { json::append_string(json, text, json::Charset::utf8); }

std::string written(const std::vector<ExpectedTensor>& expected) {
    std::string json = "{";
    for (const ExpectedTensor& tensor : expected) {
        if (json.size() > 1) json += ',';
        append_text(json, tensor.name);
        json += R"(:{"dtype":)";
        append_text(json, name(tensor.dtype));
        json += R"(,"shape":)" + to_string(tensor.shape);
        if (!tensor.alias_of.empty()) {
            json += R"(,"alias_of":)";
            append_text(json, tensor.alias_of);
        }
        json += '}';
    }
    return json + '}';
}

void require_same(const std::vector<ExpectedTensor>& a, const std::vector<ExpectedTensor>& b) {
    require(a.size() == b.size());
    for (std::size_t i = 0; i < a.size(); ++i)
        require(a[i].name == b[i].name && a[i].dtype == b[i].dtype && a[i].shape == b[i].shape &&
                a[i].alias_of == b[i].alias_of);
}

void require_had(const std::vector<ExpectedTensor>& expected) {
    constexpr std::string_view nothing("\2\0\0\0\0\0\0\0{}", 10);
    const auto bytes = std::as_bytes(std::span(nothing));
    const auto empty = Checkpoint::open(memory_source("nothing", {bytes.begin(), bytes.end()}));
    const LoadPlan plan = plan_load(empty, expected, {.fill = Fill::zeros});
    require(plan.ok() && plan.missing.size() == expected.size());
    require(plan.text().empty() == expected.empty());
    const auto tensors = plan.tensors();
    require(tensors.size() == expected.size());
    for (std::size_t i = 0; i < tensors.size(); ++i)
        require(tensors[i].name() == expected[i].name && tensors[i].dtype() == expected[i].dtype &&
                tensors[i].shape() == expected[i].shape);
}

}  // namespace

FUZZ_TARGET(expected, bytes, size) {
    try {
        const auto expected = parse_expected({reinterpret_cast<const char*>(bytes), size});
        require_same(parse_expected(written(expected)), expected);
        require_had(expected);
    } catch (const Error& error) {
        require(exit_code(error.code()) == 1);
    }
    return 0;
}

}  // namespace fuzz_expected
