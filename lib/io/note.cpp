// Reads notes, and replaces them atomically.
#include "io/note.hpp"

#include "io/calls.hpp"
#include "io/output.hpp"
#include "io/system.hpp"

#include <span>

namespace safemap::SAFEMAP_ABI::io {

namespace {

constexpr off_t largest_note = 256 << 20;

}  // namespace

std::string read_note(int note, std::string_view what) {
    struct stat status = {};
    if (calls.fstat(note, &status) != 0) throw system_error(errno, "examine " + std::string(what));
    if (!S_ISREG(status.st_mode) || status.st_size > largest_note) return {};
    std::string text(static_cast<std::size_t>(status.st_size), '\0');
    std::size_t done = 0;
    while (done < text.size()) {
        const ssize_t count = uninterrupted(
            [&] { return calls.pread(note, text.data() + done, text.size() - done, static_cast<off_t>(done)); });
        if (count < 0) throw system_error(errno, "read " + std::string(what));
        if (count == 0) break;
        done += static_cast<std::size_t>(count);
    }
    text.resize(done);
    return text;
}

void put_note(int sibling, const char* name, const char* unfinished, std::optional<mode_t> mode, std::string_view what,
              bool durable, const std::function<std::string(int note)>& text) {
    const auto failed = [what](const char* doing, const char* how = "") {
        return system_error(errno, doing + std::string(what) + how);
    };
    // A save that died may have left an unfinished note.
    if (calls.unlinkat(sibling, unfinished, 0) != 0 && errno != ENOENT) throw failed("remove an unfinished ");
    OutputFile file = OutputFile::create(sibling, unfinished, durable);
    if (mode && calls.fchmod(file.descriptor(), *mode) != 0) throw failed("set the permissions of ");
    const std::string said = text(file.descriptor());
    file.write_at(0, std::as_bytes(std::span(said)));
    file.finish();
    if (calls.renameat2(sibling, unfinished, sibling, name, 0) != 0) throw failed("rename ", " into place");
    if (durable) sync_folder(sibling);
}

}  // namespace safemap::SAFEMAP_ABI::io
