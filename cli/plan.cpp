// safemap plan: compares a checkpoint with the tensors that a model expects.
#include "command.hpp"
#include "describe.hpp"
#include "entries.hpp"
#include "rename.hpp"

#include <safemap/advanced/fold.hpp>
#include <safemap/advanced/names.hpp>
#include <safemap/advanced/text.hpp>
#include <safemap/plan.hpp>

#include <fmt/core.h>

#include <algorithm>

namespace safemap::cli {
namespace {

using Mismatches = std::vector<TensorMismatch>;

template <class Tensors, class Name>
void write_names(JsonWriter& json, std::string_view key, const Tensors& tensors, Name&& name_of) {
    json.key(key).begin_array();
    for (const auto& tensor : tensors) json.value(name_of(tensor));
    json.end_array();
}

template <class WriteSide>
void write_mismatches(JsonWriter& json, std::string_view key, const Mismatches& mismatches, WriteSide&& write_side) {
    json.key(key).begin_array();
    for (const auto& [expected, found] : mismatches) {
        json.begin_object().member("name", expected.name);
        write_side("expected", expected.dtype, expected.shape);
        write_side("found", found.dtype(), found.shape());
        json.end_object();
    }
    json.end_array();
}

JsonWriter as_json(const LoadPlan& plan) {
    JsonWriter json;
    json.begin_object().member("ok", plan.ok());
    write_names(json, "missing", plan.missing, [](const ExpectedTensor& tensor) { return tensor.name; });
    write_names(json, "unexpected", plan.unexpected, [](const LazyTensor& tensor) { return tensor.name(); });
    write_mismatches(json, "shape", plan.shape,
                     [&](std::string_view side, Dtype, const Shape& shape) { write_shape(json, side, shape); });
    write_mismatches(json, "dtype", plan.dtype,
                     [&](std::string_view side, Dtype dtype, const Shape&) { json.member(side, name(dtype)); });
    json.member("tied", plan.tied).member("notes", plan.notes).end_object();
    return json;
}

std::string tensor_lines(const std::vector<ExpectedTensor>& tensors) {
    std::vector<Foldable> names;
    for (const ExpectedTensor& tensor : tensors)
        names.push_back({tensor.name, fmt::format("{} {}", name(tensor.dtype), to_string(tensor.shape)),
                         *byte_size(tensor.dtype, *element_count(tensor.shape))});
    return tensor_table(fold(names));
}

std::string tensor_lines(const std::vector<LazyTensor>& tensors) {
    std::vector<Foldable> names;
    for (const LazyTensor& tensor : tensors) names.push_back(foldable(tensor));
    return tensor_table(fold(names));
}

template <class Side> std::string mismatch_lines(const Mismatches& mismatches, Side&& side) {
    std::vector<Foldable> names;
    for (const auto& [expected, found] : mismatches)
        names.push_back({expected.name, fmt::format("{} expected, {} found", side(expected.dtype, expected.shape),
                                                    side(found.dtype(), found.shape()))});
    return kind_table(fold(names));
}

std::string tied_lines(const std::vector<AliasGroup>& groups) {
    std::string lines;
    for (const AliasGroup& group : groups) {
        lines += "  " + printable(group.front());
        for (std::size_t i = 1; i < group.size(); ++i) lines += " = " + printable(group[i]);
        lines += '\n';
    }
    return lines;
}

/// Returns "1 missing, 2 with a different shape"; empty if everything is as expected.
std::string differences(const LoadPlan& plan) {
    std::string text;
    const auto add = [&](std::size_t count, std::string_view what) {
        if (count > 0) text += fmt::format("{}{} {}", text.empty() ? "" : ", ", count, what);
    };
    add(plan.missing.size(), "missing");
    add(plan.unexpected.size(), "unexpected");
    add(plan.shape.size(), "with a different shape");
    add(plan.dtype.size(), "with a different dtype");
    return text;
}

class Plan final : public Command {
public:
    void declare(CLI::App& app) override {
        app.add_option("PATH", path_, "a file, a folder or an index")->required()->type_name("");
        app.add_option("--expect", expect_,
                       "what the model expects: JSON {\"name\": {\"dtype\", \"shape\"}, ...}, or another checkpoint")
            ->required()
            ->type_name("FILE");
        renaming_.declare(app, "tensors of both sides");
        app.add_flag("--non-strict", non_strict_, "allow missing and unexpected tensors, and report them");
    }

    int run(Console& console) override {
        std::string lacks;
        const Checkpoint opened = open_side(path_, common, lacks);
        std::vector<ExpectedTensor> expected = expectation(!lacks.empty());
        Renaming renaming(renaming_);
        const Checkpoint checkpoint = rename_both(renaming, opened, expected);
        LoadOptions options{.selection = common.selection()};
        if (non_strict_) {
            options.fill = Fill::none;
            options.ignore_unexpected = true;
        }
        const auto selected = [&](const ExpectedTensor& tensor) { return options.selection.matches(tensor.name); };
        if (std::none_of(expected.begin(), expected.end(), selected)) require_selection({checkpoint}, common);

        LoadPlan plan = plan_load(checkpoint, expected, options);
        const std::vector<std::string> unused = renaming.notes();
        plan.notes.insert(plan.notes.begin(), unused.begin(), unused.end());
        if (console.json()) console.result(as_json(plan));
        else console.result(as_text(plan));
        return plan.ok() ? 0 : 1;
    }

private:
    /// Returns what the model expects. The part of --root, and averages for --ema, have to be in one side.
    std::vector<ExpectedTensor> expectation(bool path_lacks) const {
        OpenOptions options = common.open;
        for (;;) {
            try {
                return read_expected(expect_, options);
            } catch (const Error& error) {
                const bool no_part = error.code() == Errc::invalid_argument && options.root && !options.root->empty();
                const bool no_averages = error.code() == Errc::tensor_not_found && options.ema;
                if (path_lacks || (!no_part && !no_averages)) throw;
                if (no_part) options.root.reset();
                else options.ema = false;
            }
        }
    }

    static Checkpoint rename_both(Renaming& renaming, const Checkpoint& opened, std::vector<ExpectedTensor>& expected) {
        if (renaming.empty()) return opened;
        std::vector<std::string> found;
        std::vector<std::string> wanted;
        for (const NamedTensor& named : all_names(opened)) found.emplace_back(named.name);
        for (const ExpectedTensor& tensor : expected) wanted.push_back(tensor.name);
        const RenamedSides names(renaming, found, wanted);
        for (ExpectedTensor& tensor : expected) {
            tensor.name = names.b(tensor.name);
            if (!tensor.alias_of.empty()) tensor.alias_of = names.b(tensor.alias_of);
        }
        return opened.renamed([&](std::string_view name) { return names.a(name); });
    }

    std::string headline(const LoadPlan& plan) const {
        const std::string path = printable(path_);
        const std::string expect = printable(expect_);
        const std::string differs = differences(plan);
        if (!plan.ok()) return fmt::format("{} does not match {}: {}\n", path, expect, differs);
        const std::size_t found = plan.tensors().size();
        const std::string all = count_text(found + plan.missing.size(), "tensor");
        if (differs.empty()) return fmt::format("{} matches {}: {}\n", path, expect, all);
        return fmt::format("{} has {} of {} that {} expects: {}\n", path, found, all, expect, differs);
    }

    std::string as_text(const LoadPlan& plan) const {
        std::string text = headline(plan);
        text += section(non_strict_ ? "missing, left as the model has them" : "missing", tensor_lines(plan.missing));
        text += section(non_strict_ ? "unexpected, not loaded" : "unexpected", tensor_lines(plan.unexpected));
        text +=
            section("shape", mismatch_lines(plan.shape, [](Dtype, const Shape& shape) { return to_string(shape); }));
        text += section("dtype", mismatch_lines(plan.dtype, [](Dtype dtype, const Shape&) { return name(dtype); }));
        text += section("tied", tied_lines(plan.tied));
        text += section("notes", note_lines(plan.notes));
        return text;
    }

    std::string path_;
    std::string expect_;
    bool non_strict_ = false;
    RenameOptions renaming_;
};

}  // namespace

std::unique_ptr<Command> make_plan() { return std::make_unique<Plan>(); }

}  // namespace safemap::cli
