// The header of a safetensors file, both ways. The file: eight bytes of length (little-endian), that many bytes
// of JSON, the data. docs/format.md draws it.
#pragma once

#include "base/faults.hpp"

#include <safemap/dtype.hpp>
#include <safemap/shape.hpp>
#include <safemap/source.hpp>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace safemap::SAFEMAP_ABI::safetensors {

/// What is allowed; mirrors the public Policy, which this layer does not know.
enum class Rules : std::uint8_t {
    compatible,
    strict,
    lenient,
    mend,  ///< for repair(): as lenient, and whatever can be read without guessing
};

/// A tensor as the header describes it.
struct TensorInfo {
    std::string_view name;  ///< lives as long as the header
    Dtype dtype = {};
    Shape shape = {};
    Extent data = {};  ///< in the file, not in the data section
};

/// The tensors of a header: 32 bytes each besides the header's own text, where names and shapes stay.
class TensorList {
public:
    class Iterator {
    public:
        using value_type = TensorInfo;
        using difference_type = std::ptrdiff_t;

        Iterator(const TensorList& list, std::size_t at) : list_(&list), at_(at) {}
        TensorInfo operator*() const { return (*list_)[at_]; }
        Iterator& operator++() {
            ++at_;
            return *this;
        }
        friend bool operator==(const Iterator& a, const Iterator& b) { return a.at_ == b.at_; }

    private:
        const TensorList* list_;
        std::size_t at_;
    };

    std::size_t size() const noexcept { return rows_.size(); }
    TensorInfo operator[](std::size_t i) const;
    Iterator begin() const { return {*this, 0}; }
    Iterator end() const { return {*this, size()}; }

private:
    friend class HeaderReader;
    friend class CanonicalHeader;
    friend class CanonicalTensor;

    struct Row {
        std::uint64_t begin = 0;  ///< [begin, end) counts from the start of the data
        std::uint64_t end = 0;
        std::uint32_t name = 0;  ///< where it stands in the text
        std::uint32_t name_size = 0;
        std::uint32_t shape = 0;  ///< where its `[` stands in the text
        Dtype dtype = {};
        bool sized = false;  ///< end - begin is what dtype and shape want

        /// Sets `sized`. `elements` is empty if their number does not fit in 64 bits.
        void set_sized(const std::optional<std::uint64_t>& elements) noexcept {
            const auto wanted = elements ? byte_size(dtype, *elements) : std::nullopt;
            sized = wanted == end - begin;
        }
    };

    std::string_view name(const Row& row) const noexcept { return {text_.get() + row.name, row.name_size}; }
    Shape shape(const Row& row) const;

    std::unique_ptr<char[]> text_;
    std::vector<Row> rows_;
    std::uint64_t data_offset_ = 0;
};

struct Header {
    TensorList tensors;  ///< by data offset, then in the order of the reference's sort
    std::vector<std::pair<std::string, std::string>> metadata;  ///< sorted by key
    bool has_metadata = false;                                  ///< `__metadata__` is there and not null
    std::uint64_t data_offset = 0;                              ///< 8 + header length
    /// What was tolerated, as the faults that it would have been: under `compatible` all that `strict` refuses, under
    /// `lenient` trailing bytes too. Of very many, the last one says only how many more there are.
    std::vector<Error> tolerated;
};

/// Reads and validates the header of `source`, and nothing else of it. Rules in the order of the reference
/// implementation (safetensors 0.8): header_too_short, header_too_large, header_past_end, header_not_utf8,
/// header_not_json / header_bad_field / header_bad_metadata / unknown_dtype, then for each tensor by offset
/// offsets_overlap / offsets_leave_gap / offsets_reversed, shape_overflow, partial_byte, size_mismatch, and at the
/// end file_truncated / trailing_bytes. `strict` refuses besides what the written specification does not have
/// (header_not_canonical), names twice in one map (duplicate_name) and names with a NUL in them (bad_name).
/// `lenient` takes trailing bytes, `mend` also gaps between tensors and tensors that share bytes. `faults` that return
/// let the rest be checked. Faults carry the tensor's name; the caller adds the path. Linear time where tensors stand
/// in order; at most five times the header in memory while it is read (eight times, where all of it is `__metadata__`),
/// and the header and 32 bytes a tensor afterwards.
Header read_header(const Source& source, Rules rules, std::uint64_t max_header_bytes, FaultSink& faults);

/// What a file is made of, for writing.
struct TensorSpec {
    std::string_view name;
    Dtype dtype = {};
    const Shape* shape = nullptr;
};

/// Where the reference puts tensors: dtype descending in enum order, then name bytes ascending. Indices into
/// `tensors`.
std::vector<std::uint32_t> file_order(std::span<const TensorSpec> tensors);

/// Length, JSON and padding: everything before the data. `tensors` stand in the file in the order given, without
/// gaps; `metadata` as given; the data begins at a multiple of `alignment`. Byte for byte what the reference writes
/// for alignment 8. Throws name_collision (twice the same name, or `__metadata__`), unnamed_dtype, partial_byte,
/// shape_overflow, header_too_large.
std::string write_header(std::span<const TensorSpec> tensors,
                         std::span<const std::pair<std::string, std::string>> metadata, bool with_metadata,
                         std::uint32_t alignment);

}  // namespace safemap::SAFEMAP_ABI::safetensors
