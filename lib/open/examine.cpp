// Judges the pickles of files that may not open as a checkpoint. Tested by tests/check/verdict_test.cpp.
#include "torch/examine.hpp"

#include "base/watch.hpp"
#include "io/file_folder.hpp"
#include "open/formats.hpp"
#include "open/read.hpp"

#include <safemap/advanced/file.hpp>

#include <string>
#include <string_view>
#include <system_error>

namespace safemap::SAFEMAP_ABI::open {

namespace {

/// Most levels of folders, and most files, that are examined.
constexpr unsigned deepest_folder = 8;
constexpr std::size_t most_files = 100'000;

/// Looks at the files of a folder that may hold pickles.
class FolderExaminer {
public:
    FolderExaminer(const OpenOptions& options, state::FindingList& findings) : options_(options), findings_(findings) {}

    void examine_folder(const Folder& folder, const std::string& prefix, unsigned depth) {
        const Watch watch(options_.work.monitor, "opening", 0);
        for (const std::string& name : folder.list()) {
            watch.check_stop();
            if (files_++ == most_files) return add_unread(prefix + name, "is one of too many files");
            if (const auto source = folder.open(name)) examine_one(source, prefix + name, torch::names_pickle(name));
        }
        for (const std::string& name : folder.folders()) {
            if (name.starts_with('.') || !folder.link_to_folder(name).empty()) continue;
            if (depth == deepest_folder) return add_unread(prefix + name, "is in too many folders");
            if (const auto inner = folder.folder(name)) examine_folder(*inner, prefix + name + "/", depth + 1);
        }
    }

    /// Examines a file. If it is `expected` to hold pickles, other data are a finding.
    void examine_one(const std::shared_ptr<const Source>& source, const std::string& record, bool expected) {
        const Extent whole{0, source->size()};
        if (whole.size == 0) return;
        const Sniffed sniffed = sniff(*source);
        const bool harmless = sniffed.content == Content::safetensors || sniffed.content == Content::json;
        if (harmless && torch_takes_for(*source).empty()) return;
        state::FindingList own;
        const torch::Looked looked = torch::examine(source, whole, record, own);
        if (looked != torch::Looked::at_pickles && !expected) return;
        for (const Finding& finding : own.findings().listed) findings_.add(finding);
        if (looked == torch::Looked::at_other_data && !harmless)
            add_unread(record, "is neither safetensors nor a pickle, and safemap cannot judge it");
    }

private:
    void add_unread(const std::string& record, std::string why) {
        findings_.add({"the file", std::move(why), Verdict::unknown, record});
    }

    const OpenOptions& options_;
    state::FindingList& findings_;
    std::size_t files_ = 0;
};

void examine_path(const std::filesystem::path& path, const OpenOptions& options, state::FindingList& findings) {
    const Mapping mapping = mapping_of(options.access);
    std::error_code ignored;
    FolderExaminer examiner(options, findings);
    if (std::filesystem::is_directory(path, ignored))
        return examiner.examine_folder(*open_folder(path, mapping), {}, 0);
    const auto source = open_file(path, mapping);
    if (!is_index(*source)) return examiner.examine_one(source, path.filename().native(), true);
    const std::filesystem::path folder = path.has_parent_path() ? path.parent_path() : std::filesystem::path(".");
    examiner.examine_folder(*open_folder(folder, mapping), {}, 0);
}

}  // namespace

Findings examine(const std::filesystem::path& path, const OpenOptions& options) {
    state::FindingList findings;
    if (is_glob(path))
        for (const std::filesystem::path& match : paths_matching(path)) examine_path(match, options, findings);
    else examine_path(path, options, findings);
    return findings.findings();
}

}  // namespace safemap::SAFEMAP_ABI::open
