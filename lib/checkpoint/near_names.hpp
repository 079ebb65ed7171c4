// Suggests names that a caller may have meant.
#pragma once

#include <safemap/lazy_tensor.hpp>

#include <array>
#include <cstddef>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace safemap::SAFEMAP_ABI::checkpoint {

/// A collection of the names nearest to a wanted one by edits (insert, delete, replace). A prefix such as "model."
/// counts as one edit. Names that are not near are left out.
class NearNames {
public:
    explicit NearNames(std::string_view wanted) : wanted_(wanted) {}

    void consider(std::string_view name);
    /// Returns at most three names, the nearest first.
    const std::vector<std::string>& names() const noexcept { return names_; }
    /// Returns "did you mean 'a' or 'b'?", or an empty string if there are no near names.
    std::string question() const;

private:
    std::size_t distance(std::string_view name) const;

    std::string_view wanted_;
    std::vector<std::string> names_;
    std::vector<std::size_t> distances_;  // distances of names_
};

/// Throws tensor_not_found for a name that no tensor of two lists has, with a hint on names that are near.
[[noreturn]] void throw_not_found(std::string_view wanted, const std::array<std::span<const LazyTensor>, 2>& tensors);

}  // namespace safemap::SAFEMAP_ABI::checkpoint
