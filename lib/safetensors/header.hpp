// Reads and writes the header of a safetensors file. The file: a length of eight bytes (little-endian), that many bytes
// of JSON, the data. docs/format.md has a drawing.
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

/// The rules for accepting a header. They mirror the public Policy, which this layer does not know.
enum class Rules : std::uint8_t {
    compatible,
    strict,
    lenient,
    repair,  ///< for repair(): as lenient, plus everything that can be read without guessing
};

/// A tensor as the header describes it.
struct TensorInfo {
    std::string_view name;  ///< valid as long as the header
    Dtype dtype = {};
    Shape shape = {};
    Extent data = {};  ///< in the file, not in the data section
};

/// The tensors of a header. Uses 32 bytes per tensor plus the text of the header, which holds the names and shapes.
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
        std::uint64_t begin = 0;  ///< [begin, end) is relative to the start of the data
        std::uint64_t end = 0;
        std::uint32_t name = 0;  ///< its offset in the text
        std::uint32_t name_size = 0;
        std::uint32_t shape = 0;  ///< offset of its `[` in the text
        Dtype dtype = {};
        bool sized = false;  ///< end - begin is the size of dtype and shape

        /// Sets `sized`. `elements` is empty if the number of elements does not fit in 64 bits.
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
    TensorList tensors;                                         ///< sorted by data offset, then as the reference sorts
    std::vector<std::pair<std::string, std::string>> metadata;  ///< sorted by key
    bool has_metadata = false;                                  ///< `__metadata__` is present and not null
    std::uint64_t data_offset = 0;                              ///< 8 + header length
    /// The faults that were tolerated: under `compatible` everything that `strict` refuses, under `lenient` also
    /// trailing bytes. If there are very many, the last one says how many more there are.
    std::vector<Error> tolerated;
};

/// Reads and validates the header of `source`; reads nothing else. Checks, in the order of the reference implementation
/// (safetensors 0.8):
/// 1. header_too_short, header_too_large, header_past_end, header_not_utf8
/// 2. header_not_json, header_bad_field, header_bad_metadata, unknown_dtype
/// 3. for each tensor by offset: offsets_overlap, offsets_leave_gap or offsets_reversed; then shape_overflow,
///    partial_byte, size_mismatch
/// 4. at the end: file_truncated, trailing_bytes
/// `strict` also refuses anything outside the written specification (header_not_canonical), duplicate names in one map
/// (duplicate_name) and names with a NUL (bad_name). `lenient` accepts trailing bytes. The rules for repair() also
/// accept gaps between tensors, and tensors that share bytes.
/// If `faults` returns from a fault, the remaining checks go on. Faults carry the tensor's name; the caller adds the
/// path. Takes linear time if tensors are in order. Memory: at most five times the header while reading (eight times if
/// all of it is `__metadata__`); afterwards the header and 32 bytes per tensor.
Header read_header(const Source& source, Rules rules, std::uint64_t max_header_bytes, FaultSink& faults);

/// The limit of the reference implementation, for reading and for writing.
inline constexpr std::uint64_t usual_max_header = 100'000'000;
/// No longer header can be read: the parser of JSON counts in 32 bits.
inline constexpr std::uint64_t longest_header = 0xFFFF'FFFF;

/// A tensor to write.
struct TensorSpec {
    std::string_view name;
    Dtype dtype = {};
    const Shape* shape = nullptr;
};

/// Returns the order of the reference implementation, as indices into `tensors`: dtype descending in enum order, then
/// name bytes ascending.
std::vector<std::uint32_t> file_order(std::span<const TensorSpec> tensors);

/// Returns length, JSON and padding: everything before the data. Tensors are in the file in the given order, without
/// gaps; `metadata` keeps its order too. The data begins at a multiple of `alignment`. For alignment 8, the bytes are
/// those of the reference implementation. Throws name_collision (a name given twice, or `__metadata__`), unnamed_dtype,
/// partial_byte, shape_overflow, header_too_large for a header longer than `max_header_bytes`.
std::string write_header(std::span<const TensorSpec> tensors,
                         std::span<const std::pair<std::string, std::string>> metadata, bool with_metadata,
                         std::uint32_t alignment, std::uint64_t max_header_bytes = usual_max_header);

/// Returns the number of bytes that a tensor takes in a header, or a few more: for a file with at most `data_bytes` of
/// data. With `digest`, adds its entry in the list of digests. `buffer` is for text. Throws what write_header() throws
/// for this tensor.
std::uint64_t bytes_in_header(const TensorSpec& tensor, std::uint64_t data_bytes, bool digest, std::string& buffer);
/// Returns the number of bytes that a header takes besides its tensors, or a few more.
std::uint64_t bytes_around_tensors(std::span<const std::pair<std::string, std::string>> metadata,
                                   std::uint32_t alignment);

}  // namespace safemap::SAFEMAP_ABI::safetensors
