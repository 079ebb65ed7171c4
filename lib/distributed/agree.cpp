// Spells what two files state differently.
#include "distributed/agree.hpp"

#include "base/text.hpp"

#include <array>
#include <charconv>
#include <cmath>

namespace safemap::SAFEMAP_ABI::distributed {

std::string stated_text(Dtype dtype) { return std::string(name(dtype)); }
std::string stated_text(const Shape& shape) { return to_string(shape); }
std::string stated_text(const std::string& text) { return excerpt(text); }
std::string stated_text(std::uint64_t number) { return std::to_string(number); }
std::string stated_text(int number) { return std::to_string(number); }

std::string stated_text(double number) {
    constexpr double most = 1e15;
    if (number > -most && number < most && number == std::trunc(number))
        return std::to_string(static_cast<std::int64_t>(number));
    std::array<char, 32> digits;
    return {digits.data(), std::to_chars(digits.data(), digits.data() + digits.size(), number).ptr};
}

std::string stated_text(const std::vector<std::uint64_t>& numbers) {
    std::string text = "[";
    for (std::size_t i = 0; i < numbers.size() && i < 8; ++i) text += (i > 0 ? ", " : "") + std::to_string(numbers[i]);
    return text + (numbers.size() > 8 ? ", …]" : "]");
}

Error Agreement::difference(std::string_view what, std::string_view first, std::string_view here, Errc code) const {
    return Error(code, "ranks differ in " + std::string(what) + ": " + std::string(here) + ' ' + here_ + ", and " +
                           std::string(first) + " in " + excerpt(first_file_))
        .with_path(path_);
}

}  // namespace safemap::SAFEMAP_ABI::distributed
