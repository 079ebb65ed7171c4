// Checks all that a test knows of an error at once.
#pragma once

#include "doctest_safemap.hpp"

#include <safemap/error.hpp>

#include <optional>
#include <string>
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
