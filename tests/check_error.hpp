// Checks all that a test knows of an error at once.
#pragma once

#include "doctest_safemap.hpp"

#include <safemap/error.hpp>

#include <functional>
#include <optional>
#include <string>
#include <utility>
#include <vector>

using Codes = std::vector<safemap::Errc>;
using Words = std::vector<std::string>;

/// More that an error says. Nothing is looked at that is not set.
struct ErrorParts {
    std::optional<std::string> tensor = {};
    std::optional<std::string> path = {};
    std::optional<std::string> message = {};
    std::optional<std::string> hint = {};
};

/// Checks that there is an error, that it has one of the codes, and that its message has all words.
void check_error(const std::optional<safemap::Error>& error, const Codes& codes, const Words& words,
                 const ErrorParts& parts = {});

/// A wrong call, as text and to make, and the code of its error.
struct BadCall {
    BadCall(const char* text_, safemap::Errc code_, std::function<void()> make_)
        : text(text_), code(code_), make(std::move(make_)) {}
    const char* text;
    safemap::Errc code;
    std::function<void()> make;
};
#define BAD_CALL(code, expression) BadCall(#expression, safemap::Errc::code, [&] { static_cast<void>(expression); })

/// Checks that each call throws a safemap::Error with its code and a message.
void check_bad_calls(const std::vector<BadCall>& calls);
