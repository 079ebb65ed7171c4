// Checks errors.
#include "check_error.hpp"

#include <algorithm>

void check_error(const std::optional<safemap::Error>& error, const Codes& codes, const Words& words,
                 const ErrorParts& parts) {
    REQUIRE_MESSAGE(error.has_value(), "no error");
    INFO(std::string(error->what()));
    CHECK_MESSAGE(std::find(codes.begin(), codes.end(), error->code()) != codes.end(),
                  std::string(name(error->code())).c_str());
    for (const std::string& word : words) CHECK_MESSAGE(error->message().find(word) != std::string::npos, word.c_str());
    if (parts.tensor) CHECK(error->tensor() == *parts.tensor);
    if (parts.path) CHECK(error->path() == *parts.path);
    if (parts.message) CHECK(error->message() == *parts.message);
    if (parts.hint) CHECK(error->hint() == *parts.hint);
}

void check_bad_calls(const std::vector<BadCall>& calls) {
    for (const BadCall& call : calls) {
        CAPTURE(call.text);
        check_error(error_of(call.make), {call.code}, {});
    }
}
