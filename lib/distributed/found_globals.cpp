// Lists globals in the order of the files, whichever thread reads a file first.
#include "distributed/found_globals.hpp"

#include "distributed/rank_files.hpp"

#include <algorithm>
#include <iterator>
#include <utility>

namespace safemap::SAFEMAP_ABI::distributed {

namespace {

std::string key_of(const NamedGlobal& named) { return named.module + '\0' + named.name + (named.called ? "()" : ""); }

}  // namespace

GlobalKeys keys_of(const torch::NamedGlobals& globals) {
    GlobalKeys keys;
    for (const NamedGlobal& named : globals.all()) keys.insert(key_of(named));
    return keys;
}

void FoundGlobals::add(const torch::NamedGlobals& globals, const std::string& file, const GlobalKeys& listed) {
    asks_for_code_ = asks_for_code_ || globals.asks_for_code();
    if (const auto said = note_ ? std::nullopt : globals.note()) note_ = prefix_ + file + ": " + *said;
    for (NamedGlobal named : globals.all()) {
        if (listed.contains(key_of(named))) continue;
        named.record.insert(0, prefix_ + file + ": ");
        all_.push_back(std::move(named));
    }
}

void FoundGlobals::add(FoundGlobals other) {
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
        of_files[i].add(globals, files[i], first);
        if (i == 0) first = keys_of(globals);
    };
    for_each_file(folder, files.first(1), work, read_one);
    for_each_file(folder, files.subspan(1), work, [&](std::size_t i, const auto& source) { read_one(i + 1, source); });
    if (found == nullptr) return;
    for (FoundGlobals& of_file : of_files) found->add_new(std::move(of_file));
}

}  // namespace safemap::SAFEMAP_ABI::distributed
