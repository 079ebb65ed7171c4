// Tests of journal.hpp: which files of a killed save can be kept.
#include "io/journal.hpp"
#include "doctest_safemap.hpp"
#include "soak.hpp"
#include "temp_dir.hpp"

#include <fcntl.h>

#include <filesystem>
#include <string>
#include <vector>

namespace journal_test {

using namespace safemap;
using io::Journal;
namespace fs = std::filesystem;
using Names = std::vector<std::string>;

namespace {

const std::string job(32, 'a');
const std::string other_job(32, 'b');

io::Descriptor opened(const fs::path& folder) { return io::open_at(AT_FDCWD, folder.c_str(), O_RDONLY | O_DIRECTORY); }

/// Returns the files that a later process may keep, or nothing if it has to start over.
std::optional<Names> kept(const TempDir& dir, const std::string& id = job) {
    Names finished;
    const Journal journal =
        Journal::resume(opened(dir.path()).number(), opened(dir / "content").number(), id, finished);
    if (!journal) return std::nullopt;
    return finished;
}

/// A name that breaks a parser which splits at any line feed.
constexpr const char* awkward = "b and\na line feed";
void write_two(const TempDir& dir) {
    fs::create_directory(dir / "content");
    dir.write("content/a", "first");
    dir.write(std::string("content/") + awkward, "second");
    const auto content = opened(dir / "content");
    Journal journal = Journal::begin(opened(dir.path()).number(), job);
    journal.add(content.number(), "a");
    journal.add(content.number(), awkward);
}

}  // namespace

TEST_CASE("finished files are kept for the same job, and for no other") {
    const TempDir dir;
    write_two(dir);
    CHECK(kept(dir) == Names{"a", awkward});
    CHECK(kept(dir, other_job) == std::nullopt);
    CHECK(kept(dir) == Names{"a", awkward});
}

TEST_CASE("a file that was touched, replaced or removed is not kept") {
    const TempDir dir;
    write_two(dir);
    const auto touched = fs::last_write_time(dir / "content/a");
    dir.write("content/a", "FIRST");  // same size
    fs::last_write_time(dir / "content/a", touched);
    CHECK(kept(dir) == Names{awkward});
    fs::remove(dir / "content" / awkward);
    CHECK(kept(dir) == Names{});
}

TEST_CASE("a journal continues after its last complete line") {
    const TempDir dir;
    write_two(dir);
    const std::string whole = TempDir::read(dir / "journal");
    const std::size_t first = whole.find('\n') + 1;
    const std::size_t second = whole.find('\n', first) + 1;
    for (std::size_t cut = 0; cut <= whole.size(); cut += soak::stride(4)) {
        CAPTURE(cut);
        for (const std::string& torn : {whole.substr(0, cut), whole.substr(0, cut) + std::string(40, '\0')}) {
            dir.write("journal", torn);
            const auto found = kept(dir);
            if (cut < first) CHECK(found == std::nullopt);
            else if (cut < second) CHECK(found == Names{});
            else if (cut < whole.size()) CHECK(found == Names{"a"});
            else CHECK(found == Names{"a", awkward});
            if (!found) continue;
            Names before;
            Journal journal =
                Journal::resume(opened(dir.path()).number(), opened(dir / "content").number(), job, before);
            journal.add(opened(dir / "content").number(), awkward);
            CHECK(kept(dir)->back() == awkward);
            CHECK(kept(dir)->size() == before.size() + 1);
        }
    }
}

TEST_CASE("an invalid journal counts as no journal") {
    const TempDir dir;
    fs::create_directory(dir / "content");
    CHECK(kept(dir) == std::nullopt);
    for (const char* text : {"", "\n", "\n\n\n", "safemap journal 1 \n", "nothing of the kind\n"}) {
        dir.write("journal", text);
        CHECK(kept(dir) == std::nullopt);
    }
    fs::remove(dir / "journal");
    fs::create_directory(dir / "journal");
    const auto error = error_of([&] { kept(dir); });
    CHECK((!error || exit_code(error->code()) == 3));
}

}  // namespace journal_test
