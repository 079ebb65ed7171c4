// Tests the detection of stale copies: a .pt beside the safetensors that were converted from it.
#include "state/fingerprint.hpp"

#include "forge/containers.hpp"
#include "forge/pickle.hpp"

#include <safemap/save.hpp>

#include <set>

namespace stale_copy_test {

using namespace safemap;

namespace {

std::string fingerprint_of(const std::string& content) { return state::fingerprint(*forge::source(content)); }

std::size_t stale(const std::filesystem::path& path) {
    const auto checkpoint = Checkpoint::open(path);
    return static_cast<std::size_t>(
        std::count_if(checkpoint.notes().begin(), checkpoint.notes().end(),
                      [](const std::string& note) { return note.find("stale") != std::string::npos; }));
}

char first_of(const LazyTensor& tensor) {
    char first = 0;
    tensor.read(0, std::as_writable_bytes(std::span(&first, 1)));
    return first;
}

std::string nested(const std::string& data) {
    return forge::archive(
        forge::dict({forge::text("a"),
                     forge::dict({forge::text("w"), forge::view(forge::storage("ByteStorage", "0", 4), 0, {4}, {1})})}),
        {{"0", data}});
}

}  // namespace

TEST_CASE("a fingerprint covers the size and, in small files, every byte") {
    std::set<std::string> seen;
    for (const char* content : {"", "a", "b", "aa", "aaa"}) seen.insert(fingerprint_of(content));
    CHECK(seen.size() == 5);
    std::string content(1'300'000, 'x');
    const std::string before = fingerprint_of(content);
    for (const std::size_t at : {std::size_t{0}, content.size() / 2, content.size() - 1}) {
        CAPTURE(at);
        std::string other = content;
        other[at] = 'y';
        CHECK(fingerprint_of(other) != before);
    }
}

TEST_CASE("in large files, a fingerprint covers both ends and blocks between them") {
    std::mt19937 random(3);
    std::string content = containers::random_bytes(random, 5'000'000);
    const std::string before = fingerprint_of(content);
    CHECK(fingerprint_of(content) == before);
    for (const std::size_t at : {std::size_t{0}, std::size_t{65'535}, content.size() - 1, content.size() - (1 << 20)}) {
        CAPTURE(at);
        std::string other = content;
        other[at] = static_cast<char>(other[at] + 1);
        CHECK(fingerprint_of(other) != before);
    }
    std::string trained = content;
    for (std::size_t i = 100'000; i < trained.size() - (2 << 20); i += 1000)
        trained[i] = static_cast<char>(trained[i] + 1);
    CHECK(fingerprint_of(trained) != before);
    content += 'x';
    CHECK(fingerprint_of(content) != before);
}

TEST_CASE("a stale copy is noted, whichever of the two files is opened") {
    TempDir dir;
    const auto pt = dir.path() / "x.pt", out = dir.path() / "x.safetensors";
    dir.write("x.pt", nested("abcd"));
    save(out, Checkpoint::open(pt));
    CHECK(stale(pt) == 0);
    CHECK(stale(out) == 0);
    dir.write("x.pt", nested("efgh"));
    CHECK(stale(pt) == 1);
    CHECK(stale(out) == 1);
    CHECK(first_of(Checkpoint::open(pt)["w"]) == 'e');
    CHECK(first_of(Checkpoint::open(out)["w"]) == 'a');
    save(out, Checkpoint::open(pt), {.overwrite = true});
    CHECK(stale(out) == 0);
    dir.write("x.pt", "what is this");
    CHECK(stale(out) == 1);
    std::filesystem::remove(pt);
    CHECK(stale(out) == 0);
    dir.write("x.ckpt", nested("abcd"));
    CHECK(stale(out) == 1);
    dir.write("x.pth",
              nested("efgh"));  // if there are several candidates, the one with the recorded fingerprint counts
    CHECK(stale(out) == 0);
}

TEST_CASE("files without a recorded source are not compared") {
    TempDir dir;
    dir.write("x.pt", nested("abcd"));
    for (const std::string& content : {containers::safetensors({}), std::string("no safetensors"), std::string()}) {
        dir.write("x.safetensors", content);
        CHECK(stale(dir.path() / "x.pt") == 0);
    }
    save(dir.path() / "y.safetensors", Checkpoint::open(dir.path() / "x.pt"), {.structure = StructurePolicy::drop});
    const auto dropped = Checkpoint::open(dir.path() / "y.safetensors");
    CHECK(dropped.metadata().size() == 1);
}

}  // namespace stale_copy_test
