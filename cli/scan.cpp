// safemap scan: opens every checkpoint below some paths. From top to bottom:
//   - Row: what is kept of a checkpoint, and its JSON and text.
//   - Totals: the summary.
//   - Scan::declare(), Scan::run(): opens all, then computes digests of those that need them, then reports.
//   - duplicates: the same tensors in several checkpoints.
#include "command.hpp"
#include "duplicates.hpp"
#include "parse.hpp"
#include "progress.hpp"
#include "verdicts.hpp"

#include <safemap/advanced/text.hpp>
#include <safemap/digest.hpp>
#include <safemap/scan.hpp>

#include <fmt/core.h>

#include <algorithm>
#include <filesystem>
#include <limits>
#include <map>
#include <optional>
#include <set>
#include <system_error>
#include <utility>

namespace safemap::cli {
namespace {

namespace fs = std::filesystem;

/// Returns a sum that stops at the largest number: expanded tensors reach any size.
std::uint64_t added(std::uint64_t sum, std::uint64_t more) {
    std::uint64_t result = 0;
    return __builtin_add_overflow(sum, more, &result) ? std::numeric_limits<std::uint64_t>::max() : result;
}

/// Returns "8.03 B", "124 M" or "640" parameters.
std::string parameters_text(std::uint64_t parameters) {
    constexpr std::pair<double, std::string_view> scales[] = {{1e12, "T"}, {1e9, "B"}, {1e6, "M"}, {1e3, "k"}};
    for (const auto& [unit, letter] : scales) {
        const double number = static_cast<double>(parameters) / unit;
        if (number >= 1) return fmt::format("{:.{}f} {}", number, number < 10 ? 2 : number < 100 ? 1 : 0, letter);
    }
    return std::to_string(parameters);
}

/// Tensors with one dtype and shape: the digest of a value is only needed if another checkpoint has such a tensor.
std::string kind_of(const LazyTensor& tensor) {
    return fmt::format("{} {}", name(tensor.dtype()), to_string(tensor.shape()));
}

/// The entry of a checkpoint in the report.
struct Row {
    std::string path;
    std::vector<std::string> files = {};
    std::uint64_t file_bytes = 0;
    std::optional<Error> fault = {};
    std::string format = {};
    std::uint64_t tensors = 0;
    std::uint64_t parameters = 0;
    std::uint64_t bytes = 0;
    struct Count {
        std::uint64_t tensors = 0;
        std::uint64_t bytes = 0;
    };
    std::map<std::string, Count> dtypes = {};
    Findings findings = {};
    std::vector<std::string> notes = {};
    std::string digest = {};
    std::set<std::string> kinds = {};  ///< kept only to find duplicates

    bool is_unknown() const {
        return fault && (fault->code() == Errc::unknown_format || fault->code() == Errc::not_a_checkpoint);
    }
    /// Returns true if the data is wrong, or if nobody can say because it cannot be read.
    bool is_damaged() const { return fault && !is_unknown(); }
    bool runs_code() const { return findings.verdict == Verdict::runs_code; }
    /// Returns the verdict, the code of the fault, or both if the verdict warns.
    std::string state() const {
        if (!fault) return std::string(name(findings.verdict));
        const std::string verdict = warns() ? fmt::format("{}, ", name(findings.verdict)) : std::string();
        return verdict + std::string(name(fault->code()));
    }
    bool warns() const { return findings.verdict > Verdict::needs_classes; }
    /// Returns the cells of the row. The path comes last, so that it is whole on any terminal.
    std::vector<std::string> cells() const {
        constexpr std::size_t most_dtypes = 3;
        std::string types;
        std::size_t shown = 0;
        for (const auto& [type, count] : dtypes)
            if (++shown <= most_dtypes) types += (types.empty() ? "" : ", ") + type;
        if (shown > most_dtypes) types += ", ...";
        if (fault) return {state(), "", "", "", bytes_text(file_bytes), "", printable(path)};
        return {state(), format,         count_text(tensors, "tensor"), parameters_text(parameters), bytes_text(bytes),
                types,   printable(path)};
    }
};

Row row_of(const ScannedCheckpoint& found, bool with_kinds) {
    Row row{.path = found.path.native(), .file_bytes = found.file_bytes, .fault = found.fault};
    for (const fs::path& file : found.files) row.files.push_back(file.native());
    row.findings = found.findings;
    if (!found.checkpoint) return row;
    row.format = name(found.checkpoint->format());
    row.tensors = found.checkpoint->size();
    row.notes = found.checkpoint->notes();
    for (const LazyTensor& tensor : *found.checkpoint) {
        row.parameters = added(row.parameters, tensor.element_count());
        row.bytes = added(row.bytes, tensor.nbytes());
        Row::Count& count = row.dtypes[std::string(name(tensor.dtype()))];
        ++count.tensors;
        count.bytes = added(count.bytes, tensor.nbytes());
        if (with_kinds) row.kinds.insert(kind_of(tensor));
    }
    return row;
}

void write_row(JsonWriter& json, const Row& row) {
    json.begin_object().member("path", row.path).member("files", row.files).member("file_bytes", row.file_bytes);
    if (!row.fault) {
        json.member("format", row.format).member("tensors", row.tensors).member("parameters", row.parameters);
        json.member("bytes", row.bytes).key("dtypes").begin_object();
        for (const auto& [type, count] : row.dtypes)
            json.key(type).begin_object().member("tensors", count.tensors).member("bytes", count.bytes).end_object();
        json.end_object();
    }
    write_findings(json, row.findings);
    if (!row.digest.empty()) json.member("digest", row.digest);
    json.member("notes", row.notes);
    if (row.fault) {
        json.key("error").begin_object();
        write_error_members(json, *row.fault);
        json.end_object();
    }
    json.end_object();
}

/// The summary of all rows. Each is in one of the first three counts, and has a verdict.
struct Totals {
    std::uint64_t checkpoints = 0;
    std::uint64_t damaged = 0;
    std::uint64_t unknown = 0;      ///< files of no known format
    std::uint64_t other_files = 0;  ///< not opened
    std::uint64_t tensors = 0;
    std::uint64_t parameters = 0;
    std::uint64_t bytes = 0;
    std::uint64_t file_bytes = 0;
    std::map<Verdict, std::uint64_t> verdicts = {};

    void add(const Row& row) {
        ++(row.is_unknown() ? unknown : row.fault ? damaged : checkpoints);
        ++verdicts[row.findings.verdict];
        file_bytes = added(file_bytes, row.file_bytes);
        tensors += row.tensors;
        parameters = added(parameters, row.parameters);
        bytes = added(bytes, row.bytes);
    }
    void write(JsonWriter& json, double seconds) const {
        json.key("summary").begin_object().member("checkpoints", checkpoints).member("damaged", damaged);
        json.member("unknown_format", unknown).member("other_files", other_files).member("tensors", tensors);
        json.member("parameters", parameters).member("bytes", bytes).member("file_bytes", file_bytes);
        json.key("verdicts").begin_object();
        for (const auto& [verdict, count] : verdicts) json.member(name(verdict), count);
        json.end_object().member("seconds", seconds).end_object();
    }
    std::string text() const {
        std::string line = fmt::format("{}: {}, {} parameters, {}", count_text(checkpoints, "checkpoint"),
                                       count_text(tensors, "tensor"), parameters_text(parameters), bytes_text(bytes));
        if (damaged > 0) line += fmt::format("; {} cannot be opened", damaged);
        if (unknown > 0) line += fmt::format("; {} of no known format", count_text(unknown, "file"));
        if (other_files > 0) line += fmt::format("; {} not looked at", count_text(other_files, "other file"));
        std::string counts;
        for (const auto& [verdict, count] : verdicts)
            counts += fmt::format("{}{} {}", counts.empty() ? "\nverdicts: " : ", ", count, name(verdict));
        return line + counts + '\n';
    }
};

/// A word of --fail-on, and the rows that it finds.
struct FailOn {
    std::string_view word;
    bool (*finds)(const Row& row);
};
constexpr FailOn fail_on_words[] = {
    {"code", [](const Row& row) { return row.runs_code(); }},
    {"unknown", [](const Row& row) { return row.findings.verdict == Verdict::unknown; }},
    {"damage", [](const Row& row) { return row.is_damaged(); }},
    {"format", [](const Row& row) { return row.is_unknown(); }},
};

std::vector<FailOn> parse_fail_on(std::string_view text) {
    std::vector<FailOn> all;
    while (true) {
        const std::string_view word = text.substr(0, text.find(','));
        const auto* const found = std::find_if(std::begin(fail_on_words), std::end(fail_on_words),
                                               [&](const FailOn& one) { return one.word == word; });
        if (found == std::end(fail_on_words))
            throw Error(Errc::invalid_argument,
                        fmt::format("'{}': expected code, unknown, damage or format, or several "
                                    "of these with commas",
                                    printable(word)));
        all.push_back(*found);
        if (word.size() == text.size()) return all;
        text.remove_prefix(word.size() + 1);
    }
}

/// Returns true if `one` and `other` are the same files under two names: links.
bool are_same_files(const Row& one, const Row& other) {
    return std::equal(one.files.begin(), one.files.end(), other.files.begin(), other.files.end(),
                      [](const std::string& a, const std::string& b) {
                          std::error_code ignored;
                          return fs::equivalent(a, b, ignored);
                      });
}

/// The duplicates among rows, as JSON and text.
class DuplicateReport {
public:
    DuplicateReport(const std::vector<Row>& checkpoints, Duplicates found)
        : rows_(checkpoints), found_(std::move(found)) {
        for (const Duplicates::Copies& copies : found_.copies)
            for (const std::size_t copy : copies.checkpoints)
                if (copy != kept(copies)) let_go(copy, kept(copies));
        for (const Duplicates::Shared& shared : found_.shared)
            if (shared.contained) let_go(shared.other, shared.one);
    }

    void write(JsonWriter& json) const {
        json.key("duplicates").begin_object().key("copies").begin_array();
        for (const Duplicates::Copies& copies : found_.copies) {
            json.begin_object().key("paths").begin_array().value(rows_[kept(copies)].path);
            for (const std::size_t copy : copies.checkpoints)
                if (copy != kept(copies)) json.value(rows_[copy].path);
            json.end_array().member("tensors", copies.tensors).member("bytes", copies.bytes);
            json.member("same_names", copies.same_names).end_object();
        }
        json.end_array();
        write_shared(json, "contained", true);
        write_shared(json, "shared", false);
        json.member("bytes_that_could_go", bytes_).end_object();
    }

    std::string text() const {
        constexpr std::size_t most = 20;
        std::string lines;
        for (const Duplicates::Copies& copies : found_.copies) lines += copies_text(copies);
        std::size_t pairs = 0;
        for (const Duplicates::Shared& shared : found_.shared)
            if (shared.contained || pairs++ < most) lines += shared_text(shared);
        if (pairs > most) lines += fmt::format("  and {} more; --json lists them all\n", pairs - most);
        if (lines.empty()) return "\nno duplicates\n";
        return fmt::format("\nduplicates\n{}{} could go\n", lines, bytes_text(bytes_));
    }

private:
    /// Returns the copy to keep: the first one in safetensors, or else the first.
    std::size_t kept(const Duplicates::Copies& copies) const {
        const auto& all = copies.checkpoints;
        const auto safe = std::find_if(all.begin(), all.end(),
                                       [&](std::size_t i) { return rows_[i].format == name(Format::safetensors); });
        return safe == all.end() ? all.front() : *safe;
    }
    void let_go(std::size_t row, std::size_t for_row) {
        if (!gone_.insert(row).second || gone_.contains(for_row) || are_same_files(rows_[row], rows_[for_row])) return;
        bytes_ += rows_[row].file_bytes;
    }

    std::string copies_text(const Duplicates::Copies& copies) const {
        std::string line = "  " + printable(rows_[kept(copies)].path);
        for (const std::size_t copy : copies.checkpoints)
            if (copy != kept(copies)) line += " = " + printable(rows_[copy].path);
        return line + fmt::format(": {}, {}{}\n", count_text(copies.tensors, "tensor"), bytes_text(copies.bytes),
                                  copies.same_names ? "" : ", under other names");
    }
    std::string shared_text(const Duplicates::Shared& shared) const {
        const std::string one = printable(rows_[shared.one].path);
        const std::string other = printable(rows_[shared.other].path);
        const std::string common =
            fmt::format("{}, {}", count_text(shared.tensors, "tensor"), bytes_text(shared.bytes));
        if (!shared.contained) return fmt::format("  {} and {} share {}\n", one, other, common);
        std::string parts;
        for (const std::string& part : shared.more_parts) parts += (parts.empty() ? "" : ", ") + printable(part);
        if (shared.more_parts.size() > 3) parts = "the others";
        return fmt::format("  {} without {} ({}, {}) is {}: {}\n", one, parts,
                           count_text(shared.more_tensors, "tensor"), bytes_text(shared.more_bytes), other, common);
    }
    void write_shared(JsonWriter& json, std::string_view key, bool contained) const {
        json.key(key).begin_array();
        for (const Duplicates::Shared& shared : found_.shared) {
            if (shared.contained != contained) continue;
            json.begin_object()
                .member("path", rows_[shared.one].path)
                .member(contained ? "holds" : "and", rows_[shared.other].path);
            json.member("tensors", shared.tensors).member("bytes", shared.bytes);
            if (contained) {
                json.member("without", shared.more_parts).member("without_tensors", shared.more_tensors);
                json.member("without_bytes", shared.more_bytes);
            }
            json.end_object();
        }
        json.end_array();
    }

    const std::vector<Row>& rows_;
    Duplicates found_;
    std::set<std::size_t> gone_ = {};
    std::uint64_t bytes_ = 0;
};

class Scan final : public Command {
public:
    Scan() {
        common.selects_files = true;
        common.selecting = "Options";
    }

    void declare(CLI::App& app) override {
        app.add_option("PATH...", paths_, "files and folders, which are searched at any depth")
            ->required()
            ->allow_extra_args()
            ->type_name("");
        app.add_flag("--json-lines", lines_,
                     "print a JSON object for each checkpoint as it is opened, and the summary last");
        app.add_flag("--digest", digest_, "compute the digest of each checkpoint, as hash does; reads all tensors");
        app.add_flag("--duplicates", duplicates_,
                     "find the same tensors in several checkpoints; reads tensors with the same dtype and shape");
        add_parsed(app, "--fail-on", fail_on_, parse_fail_on,
                   "exit code 1 if a pickle runs code (code) or nobody can say (unknown), or a file cannot be opened "
                   "(damage) or is of no known format (format)")
            ->type_name("WHAT");
        app.add_flag("--hidden", hidden_, "enter hidden folders and caches too");
    }

    int run(Console& console) override {
        common.open.ema = false;  // most checkpoints have none
        ProgressBar bar(console);
        open_all(console, bar);
        std::sort(rows_.begin(), rows_.end(), [](const Row& a, const Row& b) { return a.path < b.path; });
        DuplicateSearch search;
        if (digest_ || duplicates_) hash_all(console, bar, search);
        std::optional<DuplicateReport> duplicates;
        if (duplicates_) duplicates.emplace(rows_, search.find());

        Totals totals{.other_files = other_files_};
        for (const Row& row : rows_) totals.add(row);
        if (lines_ || console.json()) console.result(as_json(totals, duplicates, bar.seconds()));
        else console.result(as_text(totals, duplicates));
        return exit_code(console);
    }

private:
    void open_all(Console& console, ProgressBar& bar) {
        const std::vector<fs::path> paths(paths_.begin(), paths_.end());
        const ScanOptions options{
            .open = common.open, .includes = common.includes, .excludes = common.excludes, .hidden = hidden_};
        other_files_ = scan(paths, options, [&](const ScannedCheckpoint& found) {
            rows_.push_back(row_of(found, duplicates_));
            bar.show(fmt::format("scanning: {}", count_text(rows_.size(), "checkpoint")));
            if (lines_ && !digest_ && !duplicates_) console.result(line_of(rows_.back()));
        });
    }

    /// Returns true if the values of a checkpoint are many times its files. A small file can ask for years of work.
    static bool is_inflated(const Row& row) {
        constexpr std::uint64_t most_times = 1100;  // a deflated record has up to 1032 times its bytes
        return row.bytes / most_times > row.file_bytes;
    }

    void hash_all(Console& console, ProgressBar& bar, DuplicateSearch& search) {
        std::map<std::string, std::size_t> kinds;
        for (const Row& row : rows_)
            for (const std::string& kind : row.kinds) ++kinds[kind];
        const auto is_common = [&](const std::string& kind) { return kinds[kind] > 1; };
        std::uint64_t total = 0;
        for (const Row& row : rows_) total = added(total, is_inflated(row) ? 0 : row.bytes);
        std::uint64_t done = 0;
        for (Row& row : rows_) {
            search.add();
            if (!row.fault && is_inflated(row))
                row.notes.push_back("no digest: the values are much larger than the files");
            else if (!row.fault && (digest_ || std::any_of(row.kinds.begin(), row.kinds.end(), is_common)))
                hash(row, bar, done, total, is_common, search);
            done = added(done, row.bytes);
            row.kinds.clear();
            if (lines_) console.result(line_of(row));
        }
    }

    template <class IsCommon>
    void hash(Row& row, ProgressBar& bar, std::uint64_t done, std::uint64_t total, const IsCommon& is_common,
              DuplicateSearch& search) {
        try {
            const Checkpoint checkpoint = Checkpoint::open(row.path, common.open);
            std::vector<std::string> names;
            for (const LazyTensor& tensor : checkpoint)
                if (digest_ || is_common(kind_of(tensor))) names.push_back(tensor.name());
            DigestOptions options{.selection = digest_ ? Selection() : Selection::names(names),
                                  .work = common.open.work};
            options.work.monitor.on_progress = [&](const Progress& progress) {
                bar.show({.stage = "hashing",
                          .bytes_done = done + progress.bytes_done,
                          .bytes_total = total,
                          .bytes_per_second = progress.bytes_per_second});
                return true;
            };
            const CheckpointDigests found = digests(checkpoint, options);
            if (digest_) row.digest = found.checkpoint;
            if (duplicates_) add_tensors(checkpoint, found, search);
        } catch (const Error& error) {
            if (error.code() == Errc::cancelled) throw;
            row.fault = error;
        }
    }

    static void add_tensors(const Checkpoint& checkpoint, const CheckpointDigests& digests, DuplicateSearch& search) {
        std::map<std::string_view, std::string_view> values;
        for (const TensorDigest& digest : digests.tensors) values.emplace(digest.name, digest.digest);
        for (const LazyTensor& tensor : checkpoint) {
            const auto value = values.find(tensor.name());
            const std::string key =
                value == values.end() ? std::string() : fmt::format("{} {}", kind_of(tensor), value->second);
            search.add_tensor(tensor.name(), key, tensor.nbytes());
        }
    }

    static JsonWriter line_of(const Row& row) {
        JsonWriter json;
        write_row(json, row);
        return json;
    }

    JsonWriter as_json(const Totals& totals, const std::optional<DuplicateReport>& duplicates, double seconds) const {
        JsonWriter json;
        json.begin_object();
        if (!lines_) {
            json.key("checkpoints").begin_array();
            for (const Row& row : rows_) write_row(json, row);
            json.end_array();
        }
        if (duplicates) duplicates->write(json);
        totals.write(json, seconds);
        json.end_object();
        return json;
    }

    std::string as_text(const Totals& totals, const std::optional<DuplicateReport>& duplicates) const {
        using enum Table::Align;
        Table table({left, left, right, right, right, left, left});
        for (const Row& row : rows_) table.row(row.cells());
        std::string text = table.text(unlimited_columns);
        if (digest_) text += digest_lines();
        text += reasons();
        if (duplicates) text += duplicates->text();
        return text + (rows_.empty() ? "" : "\n") + totals.text();
    }
    std::string digest_lines() const {
        std::string lines;
        for (const Row& row : rows_)
            if (!row.digest.empty()) lines += fmt::format("{}  {}\n", row.digest, printable(row.path));
        return lines.empty() ? lines : "\ndigests\n" + lines;
    }
    /// Returns why pickles run code, and why files cannot be opened.
    std::string reasons() const {
        constexpr std::size_t most = 3;
        std::string lines;
        for (const Row& row : rows_) {
            std::size_t shown = 0;
            for (const Finding& finding : row.findings.listed)
                if (finding.severity == Verdict::runs_code && shown++ < most)
                    lines += warned(fmt::format("{}: {}: {}", printable(row.path), printable(finding.name),
                                                printable(finding.why))) +
                             '\n';
            if (row.is_damaged())
                lines += fmt::format("{}: {}\n", printable(row.path), printable(row.fault->message()));
        }
        return lines.empty() ? lines : '\n' + lines;
    }

    int exit_code(Console& console) const {
        bool failed = false;
        for (const Row& row : rows_) {
            const auto finds = [&](const FailOn& one) { return one.finds(row); };
            if (std::none_of(fail_on_.begin(), fail_on_.end(), finds)) continue;
            failed = true;
            if (console.quiet() && !console.json())
                console.complain(row.fault && !row.warns() ? *row.fault : unsafe(row));
        }
        return failed ? 1 : 0;
    }
    static Error unsafe(const Row& row) {
        return Error(Errc::unsafe_call, verdict_text(row.findings)).with_path(row.path);
    }

    std::vector<std::string> paths_;
    bool lines_ = false;
    bool digest_ = false;
    bool duplicates_ = false;
    bool hidden_ = false;
    std::vector<FailOn> fail_on_ = {};
    std::uint64_t other_files_ = 0;
    std::vector<Row> rows_ = {};
};

}  // namespace

std::unique_ptr<Command> make_scan() { return std::make_unique<Scan>(); }

}  // namespace safemap::cli
