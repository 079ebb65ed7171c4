// Judges the pickles of files that may not open as a checkpoint. Tested by tests/check/verdict_test.cpp.
#include "torch/examine.hpp"

#include "base/checked.hpp"
#include "base/watch.hpp"
#include "base/zstd.hpp"
#include "distributed/dcp/dcp_metadata.hpp"
#include "io/file_folder.hpp"
#include "names/file_names.hpp"
#include "open/formats.hpp"
#include "open/read.hpp"
#include "torch/named_globals.hpp"

#include <safemap/advanced/file.hpp>

#include <algorithm>
#include <memory>
#include <set>
#include <string>
#include <string_view>
#include <system_error>
#include <vector>

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
        const std::set<std::string> with_items = examine_items(folder, prefix);
        for (const std::string& name : folder.list()) {
            watch.check_stop();
            if (with_items.contains(name)) continue;
            if (files_++ == most_files) return add_unread(prefix + name, "is one of too many files");
            if (const auto source = folder.open(name)) examine_one(source, prefix + name, torch::names_pickle(name));
        }
        for (const std::string& name : folder.folders()) {
            if (name.starts_with('.') || !folder.link_to_folder(name).empty()) continue;
            if (depth == deepest_folder) return add_unread(prefix + name, "is in too many folders");
            if (const auto inner = folder.folder(name)) examine_folder(*inner, prefix + name + "/", depth + 1);
        }
    }

    /// Examines the items of torch.distributed.checkpoint, each as torch.load reads it. Returns the files that have
    /// them. A folder has one file of metadata, or one for each rank.
    std::set<std::string> examine_items(const Folder& folder, const std::string& prefix) {
        std::vector<std::string> metadata = folder.list();
        std::erase_if(metadata, [](const std::string& name) {
            return !names::is_dcp_metadata(name) && !names::is_kind(name, names::NameKind::dcp_rank_metadata);
        });
        std::set<std::string> examined;
        for (const std::string& name : metadata) {
            try {
                const auto source = folder.open(name);
                if (!source) continue;
                torch::NamedGlobals unused(false);
                examine_items(folder, distributed::read_dcp_metadata(*source, unused, metadata.size()), prefix,
                              examined);
            } catch (const Error& error) {
                if (remedy(error.code()) != Remedy::reject_data) throw;
                add_unread(prefix + name, "does not say where items are");
            }
        }
        return examined;
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
        const std::string_view name = std::string_view(record).substr(record.rfind('/') + 1);
        if (names::is_kind(name, names::NameKind::dcp_items))
            add_unread(record, "has items, and no metadata says where they are");
        if (looked == torch::Looked::at_other_data && !harmless)
            add_unread(record, "is neither safetensors nor a pickle, and safemap cannot judge it");
    }

private:
    void examine_items(const Folder& folder, const distributed::DcpMetadata& metadata, const std::string& prefix,
                       std::set<std::string>& examined) {
        const Watch watch(options_.work.monitor, "opening", 0);
        std::vector<std::shared_ptr<const Source>> files;
        for (const std::string& name : metadata.files) {
            files.push_back(folder.open(name));
            if (files.back()) examined.insert(name);
        }
        const auto examine = [&](const distributed::DcpItem& item) {
            watch.check_stop();
            if (item.file >= files.size() || !files[item.file]) return;
            // A file that is not the one of the metadata has other items.
            if (!item.extent().inside(files[item.file]->size())) examined.erase(metadata.files[item.file]);
            else examine_item(files[item.file], item, prefix + metadata.files[item.file]);
        };
        for (const distributed::DcpItem& item : metadata.items) examine(item);
        for (const distributed::DcpReplica& replica : metadata.replicas) examine(replica.other);
    }
    void examine_item(const std::shared_ptr<const Source>& file, const distributed::DcpItem& item,
                      const std::string& record) {
        constexpr std::uint64_t least = 64 << 20;
        constexpr std::uint64_t most_ratio = 1032;
        try {
            if (item.transform == 0) return static_cast<void>(torch::examine(file, item.extent(), record, findings_));
            const std::uint64_t most = std::max(least, checked_mul(item.length, most_ratio).value_or(least));
            const std::uint64_t size = scan_zstd(record, *file, item.extent(), most).size;
            const auto unpacked = zstd_source(record, file, item.extent(), size);
            static_cast<void>(torch::examine(unpacked, {0, size}, record, findings_));
        } catch (const Error& error) {
            if (remedy(error.code()) != Remedy::reject_data) throw;
            add_unread(record, "has an item that cannot be read");
        }
    }

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
    const std::string name = path.filename().native();
    const auto source = open_file(path, mapping);
    if (names::is_kind(name, names::NameKind::dcp_items)) {
        const std::filesystem::path parent = path.has_parent_path() ? path.parent_path() : ".";
        if (examiner.examine_items(*open_folder(parent, mapping), {}).contains(name)) return;
    }
    if (!is_index(*source)) return examiner.examine_one(source, name, true);
    const std::filesystem::path folder = path.has_parent_path() ? path.parent_path() : std::filesystem::path(".");
    examiner.examine_folder(*open_folder(folder, mapping), {}, 0);
}

}  // namespace

std::set<std::string> examine_items(const std::filesystem::path& folder, const OpenOptions& options, Findings& to) {
    state::FindingList findings;
    const auto opened = open_folder(folder, mapping_of(options.access));
    FolderExaminer examiner(options, findings);
    std::set<std::string> examined = examiner.examine_items(*opened, {});
    for (const std::string& name : opened->list()) {
        if (!names::is_kind(name, names::NameKind::dcp_items) || !examined.insert(name).second) continue;
        if (const auto source = opened->open(name)) examiner.examine_one(source, name, true);
    }
    state::add_findings(findings.findings(), to);
    return examined;
}

Findings examine(const std::filesystem::path& path, const OpenOptions& options) {
    state::FindingList findings;
    if (is_glob(path))
        for (const std::filesystem::path& match : paths_matching(path)) examine_path(match, options, findings);
    else examine_path(path, options, findings);
    return findings.findings();
}

}  // namespace safemap::SAFEMAP_ABI::open
