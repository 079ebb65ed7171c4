// Finds a sibling by its token. Tested by tests/io/joined_staging_test.cpp.
#include "io/joined_staging.hpp"

#include "base/faults.hpp"
#include "base/text.hpp"
#include "io/calls.hpp"
#include "io/hidden_sibling.hpp"
#include "io/note.hpp"

#include <fcntl.h>

#include <chrono>
#include <optional>
#include <random>
#include <string_view>
#include <utility>

namespace safemap::SAFEMAP_ABI::io {

namespace {

// A client of NFS may keep for three seconds that a name does not exist.
constexpr std::chrono::milliseconds between{50};
constexpr int most_waits = 60;

// As every note begins, so that a sibling that has lost its lock file is known by it.
constexpr std::string_view first_words = "safemap token ";

Descriptor open_sibling(int parent, const std::string& target, bool inside) {
    if (!inside)
        return open_at(parent, ('.' + target + HiddenSibling::suffix).c_str(), O_RDONLY | O_DIRECTORY | O_NOFOLLOW);
    const Descriptor folder = open_at(parent, target.c_str(), O_RDONLY | O_DIRECTORY | O_NOFOLLOW);
    if (!folder) return {};
    return open_at(folder.number(), HiddenSibling::suffix, O_RDONLY | O_DIRECTORY | O_NOFOLLOW);
}

/// Returns the token of a sibling; an empty text if it has none.
std::string token_in(int sibling) {
    const Descriptor file = open_at(sibling, token_name, O_RDONLY | O_NOFOLLOW | O_NONBLOCK);
    if (!file) return {};
    const std::string text = read_note(file.number(), "the token");
    return text.starts_with(first_words) ? text.substr(first_words.size()) : std::string();
}

}  // namespace

std::string new_token() {
    std::random_device random;
    std::string token;
    for (int i = 0; i < 4; ++i) token += std::to_string(random()) + (i < 3 ? "-" : "");
    return token;
}

void put_token(int sibling, const std::string& token, bool durable) {
    put_note(sibling, token_name, new_token_name, std::nullopt, "the token", durable,
             [&](int) { return std::string(first_words) + token; });
}

JoinedStaging::JoinedStaging(const std::filesystem::path& target, Staging::Kind kind, Existing existing,
                             const std::string& key, bool durable)
    : kind_(kind), durable_(durable) {
    const Staging::Place place(target, existing != Existing::refuse && kind == Staging::Kind::folder);
    target_ = place.target;
    const std::string_view where = std::string_view(key).substr(0, key.find(' '));
    const std::string_view token = std::string_view(key).substr(where.size() + 1);
    about_file(target_, [&] {
        for (int attempt = 0; attempt < most_waits; ++attempt) {
            if (attempt > 0) calls.sleep(between);
            const Descriptor sibling = open_sibling(place.parent.number(), place.name, where == "inside");
            if (!sibling || token_in(sibling.number()) != token) continue;
            if (where == "published") return;  // every file is finished
            folder_ = open_at(sibling.number(), kind == Staging::Kind::folder ? HiddenSibling::content : ".",
                              O_RDONLY | O_DIRECTORY | O_NOFOLLOW);
            if (!folder_) throw system_error(errno, "open the new folder");
            return;
        }
        throw Error(Errc::invalid_argument, "this process does not see what the first process has created there")
            .with_hint("save to a file system that all processes share, under the same path");
    });
}

OutputFile JoinedStaging::reopen(const std::string& name) const {
    const char* const file = kind_ == Staging::Kind::folder ? name.c_str() : HiddenSibling::content;
    Descriptor descriptor = open_at(folder_.number(), file, O_WRONLY | O_NOFOLLOW);
    if (!descriptor) throw system_error(errno, "open it again");
    return OutputFile(std::move(descriptor), durable_);
}

std::string JoinedStaging::path_of(const std::string& name) const {
    return kind_ == Staging::Kind::folder ? target_ + "/" + name : target_;
}

}  // namespace safemap::SAFEMAP_ABI::io
