// safemap edit: changes the metadata and the tensor names of a file.
#include "command.hpp"
#include "progress.hpp"
#include "rename.hpp"
#include "signals.hpp"

#include <safemap/advanced/edit.hpp>
#include <safemap/advanced/names.hpp>
#include <safemap/advanced/text.hpp>

#include <fmt/core.h>

namespace safemap::cli {
namespace {

class Edit final : public Command {
public:
    Edit() {
        common.selectable = false;
        common.trainable = false;
    }

    void declare(CLI::App& app) override {
        app.add_option("FILE", file_, "a file that ends in .safetensors or .sft")->required()->type_name("");
        add_repeatable(app, "--set", set_, "add a key to the metadata, or replace its value (repeatable)")
            ->type_name("KEY=VALUE");
        add_repeatable(app, "--unset", options_.unset, "remove a key from the metadata (repeatable)")->type_name("KEY");
        add_repeatable(app, "--rename", rules_, "rename tensors: 's/RE/TEXT/' (repeatable)")->type_name("RULE");
    }

    int run(Console& console) override {
        if (!common.selects_all())
            throw Error(Errc::invalid_argument, "edit changes a whole file; it does not take --include and --exclude");
        if (set_.empty() && options_.unset.empty() && rules_.empty())
            throw Error(Errc::invalid_argument, "nothing to edit; expected --set, --unset or --rename");
        ProgressBar bar(console);
        const DeferSignals deferred;
        EditOptions options = options_;
        options.open = common.open;
        options.work.threads = common.open.work.threads;
        options.work.monitor = bar.monitor();
        for (const std::string& pair : set_) add_pair(pair, options);
        Renaming renaming({.rules = rules_});
        if (!renaming.empty()) add_names(renaming, options);
        std::vector<std::string> notes = renaming.notes();
        const EditReport report = edit(file_, options);
        notes.insert(notes.end(), report.notes.begin(), report.notes.end());
        if (console.json()) console.result(as_json(report, notes));
        else console.result(as_text(report, notes));
        return 0;
    }

private:
    static void add_pair(const std::string& pair, EditOptions& options) {
        const std::size_t equals = pair.find('=');
        if (equals == std::string::npos || equals == 0)
            throw Error(Errc::invalid_argument, fmt::format("--set '{}': expected KEY=VALUE", printable(pair)));
        options.set.insert_or_assign(pair.substr(0, equals), pair.substr(equals + 1));
    }

    /// Adds the names that the rules change to `options`.
    void add_names(Renaming& renaming, EditOptions& options) const {
        OpenOptions open = common.open;
        open.root.reset();
        open.stored_names = true;
        const Checkpoint model = Checkpoint::open(file_, open);
        for (const NamedTensor& named : all_names(model)) {
            std::string after = renaming.apply(named.name);
            if (after != named.name) options.rename.emplace(named.name, std::move(after));
        }
    }

    static JsonWriter as_json(const EditReport& report, const std::vector<std::string>& notes) {
        JsonWriter json;
        json.begin_object();
        json.member("changed", report.changed).member("renamed", report.renamed);
        json.key("metadata").begin_object();
        for (const auto& [key, value] : report.metadata) json.member(key, value);
        json.end_object();
        json.member("notes", notes);
        json.end_object();
        return json;
    }

    std::string as_text(const EditReport& report, const std::vector<std::string>& notes) const {
        std::string text =
            fmt::format("{}: {}, {} of metadata{}\n", printable(file_), count_text(report.renamed, "name") + " changed",
                        count_text(report.metadata.size(), "pair"), report.changed ? "" : "; the file is unchanged");
        for (const std::string& note : notes) text += fmt::format("  note     {}\n", printable(note));
        return text;
    }

    std::string file_;
    std::vector<std::string> set_;
    std::vector<std::string> rules_;
    EditOptions options_;
};

}  // namespace

std::unique_ptr<Command> make_edit() { return std::make_unique<Edit>(); }

}  // namespace safemap::cli
