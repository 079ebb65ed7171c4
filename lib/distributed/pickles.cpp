// Opens and reads the files of ranks on the threads of the pool; lists globals in the order of the files, whichever
// thread reads a file first. Tested by tests/distributed/rank_files_test.cpp and globals_test.cpp.
#include "distributed/pickles.hpp"

#include "base/faults.hpp"
#include "base/pool.hpp"
#include "base/watch.hpp"
#include "distributed/values.hpp"
#include "pickle/memory_share.hpp"
#include "state/findings.hpp"
#include "torch/parts.hpp"

#include <algorithm>
#include <iterator>
#include <utility>

namespace safemap::SAFEMAP_ABI::distributed {

namespace {

using Read = std::function<void(std::size_t, const std::shared_ptr<const Source>&)>;

/// Each thread holds the pickle and the tree of one file: of a large model, a few megabytes.
constexpr ThreadLimits rank_threads{8, 8};

std::shared_ptr<const Source> open_file_of(const Folder& folder, const std::string& file) {
    try {
        if (auto source = folder.open(file)) return source;
    } catch (const Error& error) {
        if (error.code() != Errc::shard_missing) throw;
        throw Error(Errc::rank_missing, error.message());
    }
    throw Error(Errc::rank_missing, "there is no such file (or it is a broken link)");
}

void read_one(const Folder& folder, std::span<const std::string> files, std::size_t i, const Read& read) {
    const auto path = [&] { return folder.name() + "/" + files[i]; };
    about_file(path, [&] {
        const auto source = open_file_of(folder, files[i]);
        about_file(source->name(), [&] { read(i, source); });
    });
}

std::string key_of(const NamedGlobal& named) { return named.module + '\0' + named.name + (named.called ? "()" : ""); }

}  // namespace

void for_each_file(const Folder& folder, std::span<const std::string> files, const Work& work, const Read& read) {
    const Watch watch(work.monitor, "opening", 0);
    parallel_for_pickles(files.size(), thread_count(work.threads, rank_threads), [&](std::size_t i) {
        watch.check_stop();
        read_one(folder, files, i, read);
    });
}

GlobalKeys keys_of(const torch::NamedGlobals& globals) {
    GlobalKeys keys;
    for (const NamedGlobal& named : globals.all()) keys.insert(key_of(named));
    return keys;
}

FoundGlobals FoundGlobals::another(const torch::NamedGlobals& globals, const std::string& file,
                                   const GlobalKeys& listed) const {
    FoundGlobals found = another();
    found.add(globals, file, listed);
    return found;
}

void FoundGlobals::add(const torch::NamedGlobals& globals, const std::string& file, const GlobalKeys& listed) {
    state::add_findings(globals.findings(), findings_, prefix_ + file + ": ");
    asks_for_code_ = asks_for_code_ || globals.asks_for_code();
    if (const auto said = note_ ? std::nullopt : globals.note()) note_ = prefix_ + file + ": " + *said;
    for (NamedGlobal named : globals.all()) {
        if (listed.contains(key_of(named))) continue;
        named.record.insert(0, prefix_ + file + ": ");
        all_.push_back(std::move(named));
    }
}

void FoundGlobals::add(FoundGlobals other) {
    state::add_findings(other.findings_, findings_);
    asks_for_code_ = asks_for_code_ || other.asks_for_code_;
    if (!note_) note_ = std::move(other.note_);
    std::move(other.all_.begin(), other.all_.end(), std::back_inserter(all_));
}

void FoundGlobals::add_new(FoundGlobals other) {
    // A file has several records, which may name the same: all of them are listed.
    std::vector<std::string> keys;
    for (const NamedGlobal& named : other.all_) keys.push_back(key_of(named));
    std::erase_if(other.all_, [&](const NamedGlobal& named) { return new_.contains(key_of(named)); });
    new_.insert(keys.begin(), keys.end());
    add(std::move(other));
}

void FoundGlobals::move_to(state::Contents& contents) {
    contents.globals = std::move(all_);
    contents.findings = std::move(findings_);
    contents.asks_for_code = asks_for_code_;
    if (note_) contents.notes.push_back(std::move(*note_));
}

void for_each_pickle(
    const Folder& folder, std::span<const std::string> files, const Work& work, FoundGlobals* found,
    const std::function<void(std::size_t, const std::shared_ptr<const Source>&, torch::NamedGlobals&)>& read) {
    if (files.empty()) return;
    const FoundGlobals none = found == nullptr ? FoundGlobals() : found->another();
    std::vector<FoundGlobals> of_files(files.size(), none);
    GlobalKeys first;
    const auto read_one = [&](std::size_t i, const std::shared_ptr<const Source>& source) {
        torch::NamedGlobals globals = none.of_file();
        read(i, source, globals);
        of_files[i] = none.another(globals, files[i], first);  // also replaces what a first reading has found
        if (i == 0) first = keys_of(globals);
    };
    for_each_file(folder, files.first(1), work, read_one);
    for_each_file(folder, files.subspan(1), work, [&](std::size_t i, const auto& source) { read_one(i + 1, source); });
    if (found == nullptr) return;
    for (FoundGlobals& of_file : of_files) found->add_new(std::move(of_file));
}

std::vector<std::pair<std::string, LazyTensor>> read_tensors(const Folder& folder, std::span<const std::string> files,
                                                             const Work& work, FoundGlobals* found,
                                                             std::span<const std::string> prefixes) {
    std::vector<std::vector<std::pair<std::string, LazyTensor>>> read(files.size());
    for_each_pickle(folder, files, work, found, [&](std::size_t i, const auto& source, auto& globals) {
        read[i] = Value(torch::read_parts(source, {}, &globals).tree).tensors();
    });
    std::vector<std::pair<std::string, LazyTensor>> all;
    for (std::size_t i = 0; i < files.size(); ++i)
        for (auto& [key, tensor] : read[i]) {
            std::string name = prefixes.empty() ? std::move(key) : prefixes[i] + key;
            all.emplace_back(name, tensor.renamed(name));
        }
    return all;
}

}  // namespace safemap::SAFEMAP_ABI::distributed
