// safemap verify: checks a whole checkpoint and reports every fault.
#include "command.hpp"
#include "progress.hpp"
#include "verdicts.hpp"

#include <safemap/advanced/text.hpp>
#include <safemap/verify.hpp>

#include <fmt/core.h>

#include <set>
#include <string_view>

namespace safemap::cli {
namespace {

JsonWriter as_json(const VerifyReport& report) {
    JsonWriter json;
    json.begin_object();
    json.member("ok", report.ok()).member("tensors", report.tensors).member("bytes", report.bytes);
    json.member("checked_bytes", report.checked_bytes).member("asks_for_code", report.asks_for_code);
    write_findings(json, report.findings);
    json.key("faults").begin_array();
    for (const Error& fault : report.faults) {
        json.begin_object();
        write_error_members(json, fault);
        json.end_object();
    }
    json.end_array();
    json.member("notes", report.notes);
    json.end_object();
    return json;
}

/// Returns true for the library's notes about calls, which are findings, too.
bool is_told_by_findings(std::string_view note) {
    return note.find(", which was not called: ") != note.npos || note.find("unpickling would call ") != note.npos;
}

std::string as_text(const VerifyReport& report, const std::string& path) {
    std::string text;
    std::set<std::string_view> hints;
    for (const Error& fault : report.faults) {
        text += fmt::format("fault: {}: {}\n", name(fault.code()), printable(fault.what()));
        if (!fault.hint().empty() && hints.insert(fault.hint()).second)
            text += fmt::format("hint: {}\n", printable(fault.hint()));
    }
    for (const std::string& note : report.notes)
        if (!is_told_by_findings(note)) text += fmt::format("note: {}\n", printable(note));
    text += finding_lines(report.findings);
    std::string verdict = report.ok() ? std::string() : count_text(report.faults.size(), "fault");
    if (report.ok() || report.verdict() != Verdict::ok)
        verdict += (verdict.empty() ? "" : ", ") + verdict_text(report.findings);
    const std::string line =
        fmt::format("{}: {}; {}, {}; {} compared with checksums", printable(path), verdict,
                    count_text(report.tensors, "tensor"), bytes_text(report.bytes), bytes_text(report.checked_bytes));
    return text + (report.verdict() == Verdict::runs_code ? alarmed(line) : line) + '\n';
}

class Verify final : public Command {
public:
    Verify() { common.selectable = false; }

    void declare(CLI::App& app) override {
        app.add_option("PATH", path_, "a file, a folder or an index")->required()->type_name("");
    }

    int run(Console& console) override {
        if (!common.selects_all())
            throw Error(Errc::invalid_argument, "verify checks everything; it does not take --include and --exclude");
        const VerifyReport report = check(console);
        if (console.json()) console.result(as_json(report));
        else console.result(as_text(report, path_));
        if (console.quiet() && !console.json())
            for (const Error& fault : report.faults) console.complain(fault);
        if (console.quiet() && !console.json() && report.verdict() == Verdict::runs_code)
            console.complain(code_error(report));
        return report.ok() && report.verdict() != Verdict::runs_code ? 0 : 1;
    }

private:
    Error code_error(const VerifyReport& report) const {
        const Finding& first = report.findings.listed.front();
        Error error(Errc::unsafe_call, "runs code: " + first.name + ' ' + first.why);
        return std::move(error.with_path(path_));
    }

    VerifyReport check(const Console& console) const {
        ProgressBar bar(console);
        VerifyOptions options{.open = common.open, .work = common.open.work};
        options.work.monitor = bar.monitor();
        return verify(path_, options);
    }

    std::string path_;
};

}  // namespace

std::unique_ptr<Command> make_verify() { return std::make_unique<Verify>(); }

}  // namespace safemap::cli
