// doctest with printers for safemap's types, and two macros of our own.
#pragma once

#include <safemap/dtype.hpp>
#include <safemap/error.hpp>
#include <safemap/shape.hpp>

#include <doctest/doctest.h>

#include <optional>
#include <string>

namespace doctest {
/// CAPTURE() of a text prints the text, not its address.
template <> struct StringMaker<const char*> {
    static String convert(const char* text) { return text; }
};
template <> struct StringMaker<safemap::Errc> {
    static String convert(safemap::Errc code) { return std::string(name(code)).c_str(); }
};
template <> struct StringMaker<safemap::Dtype> {
    static String convert(safemap::Dtype dtype) { return std::string(name(dtype)).c_str(); }
};
template <> struct StringMaker<safemap::Shape> {
    static String convert(const safemap::Shape& shape) { return to_string(shape).c_str(); }
};
}  // namespace doctest

/// Returns the error that `run` throws, or nothing.
template <class Run> std::optional<safemap::Error> error_of(Run&& run) {
    try {
        static_cast<void>(run());
    } catch (const safemap::Error& error) {
        return error;
    }
    return std::nullopt;
}

/// Checks that the expression throws a safemap::Error with this code.
#define CHECK_FAULT(expression, errc)                                                \
    do {                                                                             \
        const auto safemap_error = error_of([&] { static_cast<void>(expression); }); \
        CHECK_MESSAGE(safemap_error.has_value(), "no error from " #expression);      \
        if (safemap_error) {                                                         \
            INFO(std::string(safemap_error->what()));                                \
            CHECK(safemap_error->code() == errc);                                    \
        }                                                                            \
    } while (false)

/// Checks that the expression does not throw; a failure prints the error.
#define CHECK_OK(expression)                                                                                        \
    do {                                                                                                            \
        const auto safemap_error = error_of([&] { static_cast<void>(expression); });                                \
        CHECK_MESSAGE(!safemap_error.has_value(), std::string(safemap_error ? safemap_error->what() : "").c_str()); \
    } while (false)
