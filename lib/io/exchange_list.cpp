// Reads and writes exchange lists. The format is NUL-terminated lines: the version; the inode of the list itself; pairs
// of a role with a path and a stamp; "end".
#include "io/exchange_list.hpp"

#include "io/calls.hpp"
#include "io/note.hpp"
#include "io/stamp.hpp"
#include "io/system.hpp"

#include <fcntl.h>

#include <algorithm>
#include <string_view>
#include <utility>
#include <vector>

namespace safemap::SAFEMAP_ABI::io {

namespace {

constexpr std::string_view first_text = "safemap exchange 1";
constexpr std::string_view last_text = "end";
constexpr std::string_view called = "the exchange list";

/// Returns the inode alone for a folder: a folder's size and time change with every file in it.
std::string stamp_of_whole(const struct stat& status) {
    return S_ISDIR(status.st_mode) ? std::to_string(status.st_ino) : stamp_of(status);
}

std::vector<std::string> texts_of(std::string_view text) {
    std::vector<std::string> lines;
    for (std::size_t end = text.find('\0'); end != text.npos; end = text.find('\0')) {
        lines.emplace_back(text.substr(0, end));
        text.remove_prefix(end + 1);
    }
    if (!text.empty()) lines.clear();  // truncated
    return lines;
}

}  // namespace

void ExchangeList::add_whole(Role role, const struct stat& status) { add(role, {}, stamp_of_whole(status)); }

void ExchangeList::add(Role role, const std::string& path, const std::string& stamp) {
    if (!stamp.empty()) entries_.emplace(path, Entry{role, stamp});
}

bool ExchangeList::knows_whole(const struct stat& status) const {
    if (S_ISDIR(status.st_mode) && !inodes_last_) return true;
    return knows({}, stamp_of_whole(status));
}

bool ExchangeList::knows(const std::string& path, const std::string& stamp) const {
    const auto [begin, end] = entries_.equal_range(path);
    return std::any_of(begin, end,
                       [&](const auto& entry) { return same_stamp(entry.second.stamp, stamp, inodes_last_); });
}

bool ExchangeList::stays(const std::string& path, const std::string& stamp) const {
    const auto [begin, end] = entries_.equal_range(path);
    return std::any_of(begin, end, [&](const auto& entry) {
        return entry.second.role == Role::stays && same_stamp(entry.second.stamp, stamp, inodes_last_);
    });
}

void ExchangeList::write(int sibling, bool durable) const {
    put_note(sibling, exchange_list_name, new_exchange_list_name, std::nullopt, called, durable, [this](int note) {
        std::string text(first_text);
        text += '\0';
        text.append(inode_text(note)) += '\0';
        for (const auto& [path, entry] : entries_) {
            (text += static_cast<char>(entry.role)).append(path) += '\0';
            text.append(entry.stamp) += '\0';
        }
        (text += last_text) += '\0';
        return text;
    });
}

std::optional<ExchangeList> ExchangeList::read(int sibling) {
    const Descriptor note = open_at(sibling, exchange_list_name, O_RDONLY | O_NOFOLLOW | O_NONBLOCK);
    if (!note) {
        if (errno == ENOENT) return std::nullopt;
        throw system_error(errno, "open " + std::string(called));
    }
    const std::vector<std::string> lines = texts_of(read_note(note.number(), called));
    ExchangeList list;
    if (lines.size() < 3 || lines.size() % 2 == 0 || lines[0] != first_text || lines.back() != last_text) return list;
    list.inodes_last_ = inode_lasted(note.number(), lines[1]);
    for (std::size_t i = 2; i + 1 < lines.size(); i += 2) {
        if (lines[i].empty()) return ExchangeList();
        list.add(static_cast<Role>(lines[i].front()), lines[i].substr(1), lines[i + 1]);
    }
    return list;
}

}  // namespace safemap::SAFEMAP_ABI::io
