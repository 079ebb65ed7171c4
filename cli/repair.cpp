// safemap repair: rewrites a non-conforming file as the reference implementation would write it.
#include "command.hpp"
#include "convert_report.hpp"
#include "parse.hpp"
#include "progress.hpp"
#include "signals.hpp"

#include <safemap/advanced/edit.hpp>
#include <safemap/advanced/text.hpp>

#include <fmt/core.h>

#include <optional>

namespace safemap::cli {
namespace {

class Repair final : public Command {
public:
    Repair() {
        common.selectable = false;
        common.trainable = false;
    }

    void declare(CLI::App& app) override {
        app.add_option("IN", in_, "a file, a folder or an index")->required()->type_name("");
        app.add_option("OUT", out_, "a new folder, or a new file that ends in .safetensors or .sft")->type_name("");
        app.add_option("-o", named_out_, "where to write: another way to give OUT")->type_name("OUT");
        app.add_flag("--checksums", options_.checksums, "store a digest of each tensor, for verify to check");
        app.add_flag("-f,--force", options_.overwrite,
                     "replace an existing checkpoint at OUT once the new one is complete");
    }

    int run(Console& console) override {
        if (!common.selects_all())
            throw Error(Errc::invalid_argument, "repair rewrites everything; it does not take --include and --exclude");
        take_out();
        require_out(out_);
        const RepairReport report = repaired(console);
        if (console.json()) {
            JsonWriter json;
            json.begin_object();
            json.member("repairs", report.repairs).member("tensors", report.saved.tensors);
            json.member("files", report.saved.files).member("bytes_written", report.saved.bytes_written);
            json.end_object();
            console.result(json);
        } else {
            console.result(as_text(report));
        }
        return 0;
    }

private:
    void take_out() {
        if (named_out_ && !out_.empty())
            throw Error(Errc::invalid_argument,
                        fmt::format("there are two OUT: -o {} and {}", printable(*named_out_), printable(out_)));
        if (named_out_) out_ = *named_out_;
        if (out_.empty())
            throw Error(Errc::invalid_argument, "OUT is missing").with_hint("safemap repair IN OUT [options]");
    }

    RepairReport repaired(Console& console) const {
        ProgressBar bar(console);
        const DeferSignals deferred;
        SaveOptions options = options_;
        options.max_header_bytes = common.open.max_header_bytes;
        options.work.threads = common.open.work.threads;
        options.work.monitor = bar.monitor();
        return repair(in_, out_, options, common.open);
    }

    std::string as_text(const RepairReport& report) const {
        std::string text = fmt::format("{}; {} repaired\n", saved_text(printable(in_), out_, "", report.saved),
                                       count_text(report.repairs.size(), "fault"));
        for (const std::string& repair : report.repairs) text += fmt::format("  repaired {}\n", printable(repair));
        return text;
    }

    std::string in_;
    std::string out_;
    std::optional<std::string> named_out_;
    SaveOptions options_;
};

}  // namespace

std::unique_ptr<Command> make_repair() { return std::make_unique<Repair>(); }

}  // namespace safemap::cli
