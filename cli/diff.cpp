// safemap diff: compares names, dtypes, shapes and values of two checkpoints.
#include "command.hpp"
#include "describe.hpp"
#include "entries.hpp"
#include "parse.hpp"
#include "progress.hpp"
#include "rename.hpp"

#include <safemap/advanced/names.hpp>
#include <safemap/advanced/text.hpp>
#include <safemap/diff.hpp>

#include <fmt/core.h>

#include <string_view>
#include <utility>

namespace safemap::cli {
namespace {

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
        if (one.max_abs) json.member("max_abs", *one.max_abs);
        json.end_object();
    }
    json.end_array();
    json.key("close").begin_array();
    for (const CloseTensor& one : report.close)
        json.begin_object().member("name", one.name).member("max_abs", one.max_abs).end_object();
    json.end_array();
    json.member("notes", report.notes).end_object();
    return json;
}

std::string most_text(double max_abs) { return fmt::format("max |a-b| {:.6g}", max_abs); }

std::string both_sides(const TensorDifference& one) {
    switch (one.what) {
        case What::dtype: return fmt::format("dtype {} | {}", name(one.a.dtype), name(one.b.dtype));
        case What::shape: return fmt::format("shape {} | {}", to_string(one.a.shape), to_string(one.b.shape));
        case What::value: break;
    }
    const std::string most = one.max_abs ? "; " + most_text(*one.max_abs) : "";
    return fmt::format("value at {}: {} | {}{}", to_string(one.index), one.a.value, one.b.value, most);
}

std::string different_lines(const DiffReport& report) {
    std::vector<Foldable> names;
    for (const TensorDifference& one : report.different) names.push_back({one.name, both_sides(one)});
    return kind_table(fold(names));
}

std::string close_lines(const DiffReport& report) {
    std::vector<Foldable> names;
    for (const CloseTensor& one : report.close) names.push_back({one.name, most_text(one.max_abs)});
    return kind_table(fold(names));
}

std::string lines_of(const Checkpoint& side, const std::vector<std::string>& compared) {
    std::vector<Foldable> names;
    for (const std::string& name : compared) names.push_back(foldable(side[name]));
    return tensor_table(fold(names));
}

class Diff final : public Command {
public:
    void declare(CLI::App& app) override {
        app.add_option("A", a_, "a file, a folder or an index")->required()->type_name("");
        app.add_option("B", b_, "the checkpoint to compare with")->required()->type_name("");
        const auto add_bound = [&](const char* name, double Tolerance::*bound, const char* help) {
            const auto parse = [this, bound](std::string_view text) {
                Tolerance tolerance = tolerance_.value_or(Tolerance());
                tolerance.*bound = parse_tolerance(text);
                return tolerance;
            };
            add_parsed(app, name, tolerance_, parse, help)->type_name("X");
        };
        add_bound("--atol", &Tolerance::atol, "absolute tolerance: values are equal if |a - b| <= atol + rtol * |b|");
        add_bound("--rtol", &Tolerance::rtol, "relative tolerance, in proportion to |b|");
        app.add_flag("--cast", cast_, "compare values of different floating-point dtypes");
        renaming_.declare(app, "tensors of A and B");
    }

    int run(Console& console) override {
        Renaming renaming(renaming_);
        std::vector<std::string> notes;
        const auto [opened_a, opened_b] = open_both(notes);
        const auto [a, b] = renamed(renaming, opened_a, opened_b);
        if (renaming.empty()) require_selection({a, b}, common);
        else if (all_names(a, common.selection()).empty()) require_selection({b}, common);
        DiffReport report = compare(console, a, b);
        const std::vector<std::string> unused = renaming.notes();
        notes.insert(notes.end(), unused.begin(), unused.end());
        report.notes.insert(report.notes.begin(), notes.begin(), notes.end());
        if (console.json()) console.result(as_json(report));
        else console.result(as_text(report, a, b));
        return report.equal() ? 0 : 1;
    }

private:
    using Sides = std::pair<Checkpoint, Checkpoint>;

    /// Opens A and B. The part of --root, and the averages for --ema, have to be in one of them.
    Sides open_both(std::vector<std::string>& notes) const {
        std::string a_lacks;
        std::string b_lacks;
        Sides sides{open_side(a_, common, a_lacks), open_side(b_, common, b_lacks)};
        if (!a_lacks.empty() && !b_lacks.empty()) static_cast<void>(Checkpoint::open(a_, common.open));  // throws
        for (const auto& [side, lacks] : {std::pair("A", a_lacks), std::pair("B", b_lacks)})
            if (!lacks.empty()) notes.push_back(fmt::format("{} has no {}, and is compared as it is", side, lacks));
        return sides;
    }

    static Sides renamed(Renaming& renaming, const Checkpoint& a, const Checkpoint& b) {
        if (renaming.empty()) return {a, b};
        const RenamedSides names(renaming, names_of(a), names_of(b));
        return {a.renamed([&](std::string_view name) { return names.a(name); }),
                b.renamed([&](std::string_view name) { return names.b(name); })};
    }

    static std::vector<std::string> names_of(const Checkpoint& checkpoint) {
        std::vector<std::string> names;
        for (const NamedTensor& named : all_names(checkpoint)) names.emplace_back(named.name);
        return names;
    }

    DiffReport compare(const Console& console, const Checkpoint& a, const Checkpoint& b) const {
        ProgressBar bar(console);
        DiffOptions options{.selection = common.selection(), .tolerance = tolerance_, .cast = cast_};
        options.work.threads = common.open.work.threads;
        options.work.monitor = bar.monitor();
        return diff(a, b, options);
    }

    std::string as_text(const DiffReport& report, const Checkpoint& a, const Checkpoint& b) const {
        const std::string path_a = printable(a_);
        const std::string path_b = printable(b_);
        const std::string both = count_text(report.tensors, "tensor");
        if (report.equal())
            return fmt::format("{} and {} are equal: {}, {}\n", path_a, path_b, both, bytes_text(report.bytes)) +
                   close_and_notes(report);
        std::string text = fmt::format("{} and {} differ: {}", path_a, path_b, compared_text(report, both));
        const auto add_lonely = [&text](std::size_t count, std::string_view side) {
            if (count > 0) text += fmt::format("; {} {} only in the {}", count, count == 1 ? "is" : "are", side);
        };
        add_lonely(report.only_in_a.size(), "first");
        add_lonely(report.only_in_b.size(), "second");
        text += '\n';
        text += section("only in " + path_a, lines_of(a, report.only_in_a));
        text += section("only in " + path_b, lines_of(b, report.only_in_b));
        text += section("different", different_lines(report));
        return text + close_and_notes(report);
    }

    /// Returns "38 tensors are in both and equal" or "2 of 38 tensors in both are different".
    static std::string compared_text(const DiffReport& report, const std::string& both) {
        if (report.tensors == 0) return "no tensor is in both";
        const std::size_t count = report.different.size();
        if (count == 0) return fmt::format("{} {} in both and equal", both, report.tensors == 1 ? "is" : "are");
        return fmt::format("{} of {} in both {} different", count, both, count == 1 ? "is" : "are");
    }

    static std::string close_and_notes(const DiffReport& report) {
        std::string text = section("equal within the tolerance", close_lines(report));
        for (const std::string& note : report.notes) text += fmt::format("note: {}\n", printable(note));
        return text;
    }

    std::string a_;
    std::string b_;
    std::optional<Tolerance> tolerance_;
    bool cast_ = false;
    RenameOptions renaming_;
};

}  // namespace

std::unique_ptr<Command> make_diff() { return std::make_unique<Diff>(); }

}  // namespace safemap::cli
