// Finds checkpoints below folders and opens them, some at a time. Checkpoints of several files come first, outer
// folders before inner ones: what they have read is not opened again.
#include <safemap/scan.hpp>
#include <safemap/verify.hpp>

#include "names/file_names.hpp"
#include "open/paths_in.hpp"
#include "open/read.hpp"
#include "state/findings.hpp"

#include <algorithm>
#include <map>
#include <set>
#include <string_view>
#include <system_error>
#include <utility>

namespace safemap::SAFEMAP_ABI {

namespace {

namespace fs = std::filesystem;

constexpr std::size_t most_open = 64;
constexpr std::string_view pickle_endings[] = {".pkl", ".pickle", ".th", ".pt.tar", ".pth.tar"};

bool is_folder(const fs::path& path) {
    std::error_code ignored;
    return fs::is_directory(path, ignored);
}
bool is_file(const fs::path& path) {
    std::error_code ignored;
    return fs::is_regular_file(path, ignored);
}
bool is_hidden(const fs::path& path) { return path.filename().native().starts_with('.'); }

using Whole = open::PathsIn::Whole;

/// The checkpoints below one of the paths, before they are opened.
struct Found {
    std::vector<std::vector<Whole>> whole = {};  ///< by depth
    std::vector<fs::path> files = {};
    std::vector<ScannedCheckpoint> faults = {};  ///< folders that cannot be listed
};

class Scan {
public:
    Scan(const ScanOptions& options, const std::function<void(const ScannedCheckpoint&)>& visit)
        : options_(options), visit_(visit), open_(options.open) {
        for (const std::string& glob : options.includes) included_.include(glob);
        if (!options.excludes.empty()) excluded_ = Selection();
        for (const std::string& glob : options.excludes) excluded_.include(glob);
        open_.work.threads = 1;  // the threads open other checkpoints
    }

    void add(const fs::path& path) {
        root_ = path;
        if (const auto matches = open::matches_of(path)) return add_matches(path, *matches);
        if (fs::symlink_status(path).type() == fs::file_type::not_found)
            throw Error(Errc::path_not_found, "nothing has this name").with_path(path.native());
        if (!is_folder(path)) return open_all({{.path = path}});
        Found found;
        list(path, found);
        for (const ScannedCheckpoint& fault : found.faults) visit_(fault);
        for (std::vector<Whole>& level : found.whole) open_all(std::move(level));
        std::vector<Whole> files;
        for (fs::path& file : found.files) files.push_back({.path = std::move(file)});
        open_all(std::move(files));
    }

    /// Adds what a glob matches: the files of one checkpoint, or folders.
    void add_matches(const fs::path& glob, const std::vector<fs::path>& matches) {
        if (matches.empty()) throw Error(Errc::path_not_found, "nothing matches the glob").with_path(glob.native());
        if (std::none_of(matches.begin(), matches.end(), is_folder)) return open_all({{glob, matches}});
        for (const fs::path& path : matches) add(path);
    }

    std::uint64_t other_files() const {
        return static_cast<std::uint64_t>(
            std::count_if(others_.begin(), others_.end(), [&](const fs::path& file) { return !read_.contains(file); }));
    }

private:
    void list(const fs::path& folder, Found& found) {
        std::vector<std::pair<fs::path, std::size_t>> open = {{folder, 0}};
        while (!open.empty()) {
            const auto [path, depth] = std::move(open.back());
            open.pop_back();
            try {
                add_folder(path, depth, found, open);
            } catch (const Error& error) {
                if (error.code() == Errc::cancelled) throw;
                found.faults.push_back({.path = path, .fault = error});
            }
        }
        std::sort(found.files.begin(), found.files.end());
        for (std::vector<Whole>& level : found.whole)
            std::sort(level.begin(), level.end(), [](const Whole& a, const Whole& b) { return a.path < b.path; });
    }

    void add_folder(const fs::path& path, std::size_t depth, Found& found,
                    std::vector<std::pair<fs::path, std::size_t>>& open) {
        if (options_.open.work.monitor.stop.stop_requested()) throw Error(Errc::cancelled, "cancelled on request");
        open::PathsIn paths = open::paths_in(path);
        if (paths.is_cache && depth > 0 && !options_.hidden) return;
        if (found.whole.size() <= depth) found.whole.resize(depth + 1);
        state::move_to_end(std::move(paths.whole), found.whole[depth]);
        for (fs::path& file : paths.files)
            if (is_candidate(file)) found.files.push_back(std::move(file));
            else if (!is_hidden(file) || ends_as_weights(file.filename())) others_.insert(key_of(file));
        for (fs::path& inner : paths.folders)
            if (is_entered(inner)) open.emplace_back(std::move(inner), depth + 1);
    }

    bool is_entered(const fs::path& folder) const {
        const bool is_passed_over = is_hidden(folder) || folder.filename() == "__pycache__";
        return (options_.hidden || !is_passed_over) && !matches(excluded_, folder);
    }
    bool is_candidate(const fs::path& file) const {
        if (is_hidden(file) && !options_.hidden) return false;
        const bool ends = ends_as_weights(file.filename());
        return (ends || !options_.includes.empty()) && is_selected(file);
    }
    bool is_selected(const fs::path& file) const { return matches(included_, file) && !matches(excluded_, file); }
    bool matches(const Selection& globs, const fs::path& path) const {
        return globs.matches(path.filename().native()) || globs.matches(path.lexically_relative(root_).native());
    }

    /// Returns the path under which a file or folder is known, however it was given.
    static fs::path key_of(const fs::path& path) {
        fs::path key = fs::absolute(path).lexically_normal();
        return key.has_filename() ? key : key.parent_path();
    }

    void open_all(std::vector<Whole> all) {
        std::erase_if(all, [&](const Whole& one) { return read_.contains(key_of(one.path)); });
        for (std::size_t first = 0; first < all.size(); first += most_open)
            open_some(std::span(all).subspan(first, std::min(most_open, all.size() - first)));
    }

    void open_some(std::span<const Whole> all) {
        std::vector<ScannedCheckpoint> opened(all.size());
        open::read_each(all.size(), options_.open.work,
                        [&](std::size_t i, FaultSink& /*faults*/) { opened[i] = open_one(all[i]); });
        for (std::size_t i = 0; i < all.size(); ++i) {
            note_read(opened[i], all[i]);
            if (is_wanted(opened[i])) visit_(opened[i]);
        }
    }

    ScannedCheckpoint open_one(const Whole& whole) const {
        ScannedCheckpoint one{.path = whole.path};
        try {
            one.checkpoint.emplace(Checkpoint::open(whole.path, open_));
            one.findings = one.checkpoint->findings();
            one.files = files_of(one);
        } catch (const Error& error) {
            if (error.code() == Errc::cancelled) throw;
            one.fault = error;
            one.files = files_that_failed(whole);
            examine_files(one);
        }
        for (const fs::path& file : one.files) one.file_bytes += size_of(file);
        return one;
    }

    /// Returns the files that were read. Those of a folder or an index are called as in the folder.
    static std::vector<fs::path> files_of(const ScannedCheckpoint& one) {
        const std::vector<std::string>& names = one.checkpoint->files();
        if (names.size() < 2 && is_file(one.path)) return {one.path};
        const fs::path folder = is_folder(one.path) ? one.path : one.path.parent_path();
        std::vector<fs::path> files;
        for (const std::string& name : names) files.push_back(folder / name);
        return files;
    }
    /// Returns the files of what cannot be opened, by their names.
    static std::vector<fs::path> files_that_failed(const Whole& whole) {
        if (!is_folder(whole.path) && whole.files.empty()) return {whole.path};
        std::vector<fs::path> files = whole.files;
        const open::RunFiles run = open::files_of_run(whole.path);
        for (const std::string& file : run.files)
            if (is_of_rank(file)) files.push_back(fs::path(run.folder->name()) / file);
        std::sort(files.begin(), files.end());
        files.erase(std::unique(files.begin(), files.end()), files.end());
        return files;
    }
    /// Returns true if a file is surely of the run: any folder `zero` may be taken for a part of DeepSpeed.
    static bool is_of_rank(const fs::path& file) {
        const std::string name = file.filename();
        return names::any_zero_name(name).has_value() || names::rank_file(name).has_value();
    }
    /// Returns false for texts such as `latest`.
    static bool may_have_pickles(const std::string& name) { return ends_as_weights(name) || is_of_dcp(name); }
    static bool ends_as_weights(std::string name) {
        std::transform(name.begin(), name.end(), name.begin(),
                       [](char c) { return c >= 'A' && c <= 'Z' ? c + 32 : c; });
        return !names::ending_of_weights(name).empty() || names::ends_in(name, pickle_endings);
    }
    static bool is_of_dcp(const std::string& name) {
        return names::is_dcp_metadata(name) || names::is_kind(name, names::NameKind::dcp_items);
    }
    void examine_files(ScannedCheckpoint& one) const {
        std::map<fs::path, std::set<std::string>> with_items;  // by folder
        for (const fs::path& file : one.files) {
            const std::string name = file.filename();
            if (file.extension() == ".json" || (is_of_several(one) && !may_have_pickles(name))) continue;
            try {
                if (is_of_dcp(name)) {
                    const auto [known, fresh] = with_items.try_emplace(file.parent_path());
                    if (fresh) known->second = open::examine_items(file.parent_path(), open_, one.findings);
                    if (known->second.contains(name)) continue;
                }
                state::add_findings(examine(file, open_), one.findings, file.filename().native() + ": ");
            } catch (const Error& error) {
                if (error.code() == Errc::cancelled) throw;
            }
        }
    }

    static std::uint64_t size_of(const fs::path& file) {
        std::error_code failed;
        const auto size = fs::file_size(file, failed);
        return failed ? 0 : size;
    }

    /// Notes the files of a checkpoint of several files, and the folders that they are in.
    void note_read(const ScannedCheckpoint& one, const Whole& whole) {
        read_.insert(key_of(one.path));
        if (!is_of_several(one)) return;
        for (const fs::path& file : one.files) note_file(one, file);
        for (const fs::path& file : whole.files) note_file(one, file);
        if (!one.checkpoint) return;
        const open::RunFiles run = open::files_of_run(one.path);
        for (const std::string& file : run.files) note_file(one, fs::path(run.folder->name()) / file);
    }
    void note_file(const ScannedCheckpoint& one, const fs::path& file) {
        fs::path read = key_of(file);
        const fs::path outer = key_of(one.path);
        // Inner folders of the same checkpoint, such as the tag of DeepSpeed, are read with the files in them.
        for (; read != outer && read.has_relative_path(); read = read.parent_path()) read_.insert(read);
    }

    /// A file is wanted already. A checkpoint of several files is wanted if one of its files is.
    bool is_wanted(const ScannedCheckpoint& one) const {
        if (!is_of_several(one) || one.files.empty()) return true;
        return std::any_of(one.files.begin(), one.files.end(), [&](const fs::path& file) { return is_selected(file); });
    }
    static bool is_of_several(const ScannedCheckpoint& one) {
        return one.files.size() != 1 || one.files.front() != one.path;
    }

    const ScanOptions& options_;
    const std::function<void(const ScannedCheckpoint&)>& visit_;
    OpenOptions open_;
    Selection included_ = {};
    Selection excluded_ = Selection::names({});
    fs::path root_ = {};
    std::set<fs::path> read_ = {};    ///< visited paths, and what checkpoints of several files have read
    std::set<fs::path> others_ = {};  ///< files that are not opened by themselves
};

}  // namespace

std::uint64_t scan(std::span<const std::filesystem::path> paths, const ScanOptions& options,
                   const std::function<void(const ScannedCheckpoint&)>& visit) {
    Scan scan(options, visit);
    for (const fs::path& path : paths) scan.add(path);
    return scan.other_files();
}

}  // namespace safemap::SAFEMAP_ABI
