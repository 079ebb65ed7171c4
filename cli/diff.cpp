// safemap diff: what two checkpoints do not have in common.
#include "command.hpp"
#include "describe.hpp"
#include "entries.hpp"
#include "progress.hpp"

#include <safemap/diff.hpp>

#include <fmt/core.h>

#include <algorithm>

namespace safemap::cli {
namespace {

using Align = Table::Align;
using Side = TensorDifference::Side;
using What = TensorDifference::What;

void write_side(JsonWriter& json, std::string_view key, What what, const Side& side) {
    switch (what) {
        case What::dtype: json.member(key, name(side.dtype)); break;
        case What::shape: write_shape(json, key, side.shape); break;
        case What::value: json.member(key, side.value); break;
    }
}

JsonWriter as_json(const DiffReport& report) {
    JsonWriter json;
    json.begin_object();
    json.member("equal", report.equal());
    json.member("only_in_a", report.only_in_a).member("only_in_b", report.only_in_b);
    json.key("different").begin_array();
    for (const TensorDifference& one : report.different) {
        json.begin_object();
        json.member("name", one.name).member("what", name(one.what));
        write_side(json, "a", one.what, one.a);
        write_side(json, "b", one.what, one.b);
        if (one.what == What::value) write_shape(json, "index", one.index);
        json.end_object();
    }
    json.end_array().end_object();
    return json;
}

std::string both_sides(const TensorDifference& one) {
    switch (one.what) {
        case What::dtype: return fmt::format("dtype {} | {}", name(one.a.dtype), name(one.b.dtype));
        case What::shape: return fmt::format("shape {} | {}", to_string(one.a.shape), to_string(one.b.shape));
        case What::value: break;
    }
    return fmt::format("value at {}: {} | {}", to_string(one.index), one.a.value, one.b.value);
}

std::string different_lines(const DiffReport& report) {
    std::vector<Foldable> names;
    for (const TensorDifference& one : report.different) names.push_back({one.name, both_sides(one)});
    Table table({Align::left, Align::left, Align::left});
    for (const Folded& folded : fold(names)) table.row({printable(folded.name()), folded.times(), folded.kind});
    return table.text();
}

std::string lonely_lines(const Checkpoint& checkpoint, const std::vector<std::string>& lonely) {
    std::vector<Foldable> names;
    for (const std::string& name : lonely) names.push_back(foldable(checkpoint[name]));
    return tensor_table(fold(names));
}

class Diff final : public Command {
public:
    void declare(CLI::App& app) override {
        app.add_option("A", a_, "a file, a folder or an index")->required()->type_name("");
        app.add_option("B", b_, "another one")->required()->type_name("");
    }

    int run(Console& console) override {
        const Checkpoint a = Checkpoint::open(a_, common.open);
        const Checkpoint b = Checkpoint::open(b_, common.open);
        require_selection({a, b}, common);
        const DiffReport report = compare(console, a, b);
        if (console.json()) console.result(as_json(report));
        else console.result(as_text(report, a, b));
        return report.equal() ? 0 : 1;
    }

private:
    DiffReport compare(const Console& console, const Checkpoint& a, const Checkpoint& b) const {
        ProgressBar bar(console);
        DiffOptions options{.selection = common.selection(), .threads = common.open.threads};
        options.monitor.on_progress = [&bar](const Progress& progress) {
            bar.show(progress);
            return true;
        };
        return diff(a, b, options);
    }

    std::string as_text(const DiffReport& report, const Checkpoint& a, const Checkpoint& b) const {
        const std::string path_a = printable(a_);
        const std::string path_b = printable(b_);
        const std::string both = count_text(report.tensors, "tensor");
        if (report.equal())
            return fmt::format("{} and {} are equal: {}, {}\n", path_a, path_b, both, bytes_text(report.bytes));
        std::string text =
            fmt::format("{} and {} differ: {} of {} in both", path_a, path_b, report.different.size(), both);
        if (!report.only_in_a.empty()) text += fmt::format("; {} only in the first", report.only_in_a.size());
        if (!report.only_in_b.empty()) text += fmt::format("; {} only in the second", report.only_in_b.size());
        text += '\n';
        text += section("only in " + path_a, lonely_lines(a, report.only_in_a));
        text += section("only in " + path_b, lonely_lines(b, report.only_in_b));
        text += section("different", different_lines(report));
        return text;
    }

    std::string a_;
    std::string b_;
};

}  // namespace

std::unique_ptr<Command> make_diff() { return std::make_unique<Diff>(); }

}  // namespace safemap::cli
