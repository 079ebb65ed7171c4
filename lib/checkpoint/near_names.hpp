// Names that somebody may have meant.
#pragma once

#include <safemap/api.hpp>

#include <cstddef>
#include <string>
#include <string_view>
#include <vector>

namespace safemap::SAFEMAP_ABI::checkpoint {

/// Collects the names nearest to a wanted one by edits (insert, delete, replace); only those that are near.
class NearNames {
public:
    explicit NearNames(std::string_view wanted) : wanted_(wanted) {}

    void consider(std::string_view name);
    /// Nearest first, at most three.
    const std::vector<std::string>& names() const noexcept { return names_; }
    /// "did you mean 'a' or 'b'?"; empty where there are none.
    std::string question() const;

private:
    std::size_t distance(std::string_view name) const;

    std::string_view wanted_;
    std::vector<std::string> names_;
    std::vector<std::size_t> distances_;  // of names_
};

}  // namespace safemap::SAFEMAP_ABI::checkpoint
