// A source that holds the ranges of another that were read last, for readers that jump between a few places near each
// other.
#pragma once

#include <safemap/source.hpp>

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

namespace safemap::SAFEMAP_ABI::distributed {

/// Reads through the source, which must outlive it. Not for several threads at once.
class ReadAhead final : public Source {
public:
    explicit ReadAhead(const Source& source) : source_(source) {}

    /// Reads a range, and keeps it and the range that was read before it. Does nothing if one of them is this range.
    void load(Extent range);
    /// Keeps bytes that the caller has, which begin at `offset`, in place of the older range.
    void keep(std::uint64_t offset, std::span<const std::byte> bytes);

    const std::string& name() const noexcept override { return source_.name(); }
    std::uint64_t size() const noexcept override { return source_.size(); }
    /// Copies bytes that are held; reads others.
    void read_at(std::uint64_t offset, std::span<std::byte> into) const override;

private:
    struct Window {
        std::uint64_t offset = 0;
        std::vector<std::byte> bytes = {};
    };

    const Source& source_;
    std::array<Window, 2> windows_ = {};
    std::size_t latest_ = 0;
};

}  // namespace safemap::SAFEMAP_ABI::distributed
