// Compares what the files of all ranks must state alike: one comparison, and one sentence that names both values and
// both files.
#pragma once

#include <safemap/dtype.hpp>
#include <safemap/error.hpp>
#include <safemap/shape.hpp>

#include <cstdint>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>
#include <vector>

namespace safemap::SAFEMAP_ABI::distributed {

// How values are printed.
std::string stated_text(Dtype dtype);
std::string stated_text(const Shape& shape);
std::string stated_text(const std::string& text);
std::string stated_text(std::uint64_t number);
std::string stated_text(int number);
std::string stated_text(double number);
std::string stated_text(const std::vector<std::uint64_t>& numbers);

/// Compares what a file states with what the first file states, value by value.
class Agreement {
public:
    /// `first_file` is named in messages. Errors get `path`, that of the file that is compared; if it is empty, the
    /// caller adds it. `here` says where the other value is.
    explicit Agreement(std::string_view first_file, std::string_view path = {}, std::string here = "here")
        : first_file_(first_file), path_(path), here_(std::move(here)) {}

    /// Throws `code` unless the values are equal: "ranks differ in the dtype: F64 here, and F32 in rank_0.pt". `what`
    /// is a text, or a function that returns one.
    template <class What, class T>
    void operator()(const What& what, const T& first, const T& here, Errc code = Errc::ranks_differ) const {
        if (first == here) return;
        if constexpr (std::is_invocable_v<const What&>) differ(what(), stated_text(first), stated_text(here), code);
        else differ(what, stated_text(first), stated_text(here), code);
    }
    [[noreturn]] void differ(std::string_view what, std::string_view first, std::string_view here,
                             Errc code = Errc::ranks_differ) const {
        throw difference(what, first, here, code);
    }
    Error difference(std::string_view what, std::string_view first, std::string_view here,
                     Errc code = Errc::ranks_differ) const;

private:
    std::string_view first_file_;
    std::string_view path_;
    std::string here_;
};

}  // namespace safemap::SAFEMAP_ABI::distributed
