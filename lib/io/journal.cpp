// Journals are lines of text. Each line ends with its own digest, so a torn line is detected.
#include "io/journal.hpp"

#include "base/checksum.hpp"
#include "io/calls.hpp"
#include "io/note.hpp"

#include <fcntl.h>

#include <algorithm>
#include <optional>
#include <span>
#include <string_view>

namespace safemap::SAFEMAP_ABI::io {

namespace {

constexpr std::string_view first_word = "safemap journal 1 ";
constexpr std::size_t digest_size = 32;

std::string digest_of(std::string_view text) {
    Xxh3 hash;
    hash.update(std::as_bytes(std::span(text)));
    return hash.hex();
}

/// Returns the line with its digest. A name is the last part of a line and may contain line feeds: the digest marks its
/// end.
std::string line_of(std::string_view text) { return std::string(text) + digest_of(text) + '\n'; }

/// Returns size, inode, times and name of a file as text, which changes when the file is modified. Returns nothing if
/// the file does not exist.
std::optional<std::string> named_stamp(int folder, const std::string& name) {
    struct stat status = {};
    if (calls.fstatat(folder, name.c_str(), &status, AT_SYMLINK_NOFOLLOW) != 0) return std::nullopt;
    const auto time = [](const timespec& t) { return std::to_string(t.tv_sec) + '.' + std::to_string(t.tv_nsec); };
    return std::to_string(status.st_size) + ' ' + std::to_string(status.st_ino) + ' ' + time(status.st_mtim) + ' ' +
           time(status.st_ctim) + ' ' + name + ' ';
}

void append(int file, std::string_view text, bool durable) {
    while (!text.empty()) {
        const struct stat status = examine(file, "the journal");
        const ssize_t count =
            uninterrupted([&] { return calls.pwrite(file, text.data(), text.size(), status.st_size); });
        if (count <= 0) throw system_error(count < 0 ? errno : EIO, "write the journal");
        text.remove_prefix(static_cast<std::size_t>(count));
    }
    if (durable && uninterrupted([&] { return calls.fsync(file); }) != 0)
        throw system_error(errno, "flush the journal to disk");
}

/// Returns the complete lines, without their digests. A line feed without a matching digest before it does not end a
/// line, so a damaged line hides the lines after it.
std::vector<std::string_view> lines_of(std::string_view text) {
    std::vector<std::string_view> lines;
    std::size_t begin = 0;
    for (std::size_t end = text.find('\n'); end != text.npos; end = text.find('\n', end + 1)) {
        const std::string_view line = text.substr(begin, end - begin);
        if (line.size() < digest_size) continue;
        const std::string_view said = line.substr(0, line.size() - digest_size);
        if (digest_of(said) != line.substr(said.size())) continue;  // damaged, or a line feed in a name
        lines.push_back(said);
        begin = end + 1;
    }
    return lines;
}

}  // namespace

Journal Journal::begin(int sibling, const std::string& job, bool durable) {
    // The journal gets its name when its first line is complete, so a journal always names its job.
    Descriptor file = open_at(sibling, new_journal_name, O_RDWR | O_CREAT | O_EXCL | O_NOFOLLOW, 0666);
    if (!file) throw system_error(errno, "create the journal");
    append(file.number(), line_of(std::string(first_word) + job), durable);
    if (calls.renameat2(sibling, new_journal_name, sibling, journal_name, 0) != 0)
        throw system_error(errno, "rename the journal into place");
    return Journal(std::move(file), durable);
}

Journal Journal::resume(int sibling, int content, const std::string& job, std::vector<std::string>& finished,
                        bool durable) {
    Descriptor file = open_at(sibling, journal_name, O_RDWR | O_NOFOLLOW | O_NONBLOCK);
    if (!file) {
        if (means_absent(errno)) return {};
        throw system_error(errno, "open the journal");
    }
    const std::string text = read_note(file.number(), "the journal");
    const auto lines = lines_of(text);
    if (lines.empty() || lines.front() != std::string(first_word) + job) return {};
    // Cut off an incomplete last line of the dead writer: it would damage the next line.
    const auto sound = static_cast<off_t>(lines.back().data() + lines.back().size() + digest_size + 1 - text.data());
    if (uninterrupted([&] { return calls.ftruncate(file.number(), sound); }) != 0)
        throw system_error(errno, "shorten the journal");
    for (std::size_t i = 1; i < lines.size(); ++i) {
        // A line has four words, the name and a space.
        std::size_t at = 0;
        for (int words = 0; words < 4 && at != lines[i].npos; ++words) at = lines[i].find(' ', at) + 1;
        if (at == 0 || lines[i].size() <= at) continue;
        const std::string name(lines[i].substr(at, lines[i].size() - at - 1));
        if (named_stamp(content, name) == lines[i]) finished.push_back(name);
    }
    return Journal(std::move(file), durable);
}

void Journal::add(int content, const std::string& name) {
    const auto stamp = named_stamp(content, name);
    if (!stamp) throw system_error(errno, "examine a finished file");
    append(file_.number(), line_of(*stamp), durable_);
}

}  // namespace safemap::SAFEMAP_ABI::io
