// The table of error codes: the name, the meaning and the remedy of each.
#include <safemap/error.hpp>

#include <safemap/advanced/text.hpp>

#include "base/text.hpp"

#include <array>
#include <cstddef>
#include <utility>

namespace safemap::SAFEMAP_ABI {
namespace {

struct Row {
    Errc code;
    std::string_view name;
    Remedy remedy;
    std::string_view text;
};

using enum Remedy;

constexpr std::array table{
    Row{Errc::invalid_argument, "invalid_argument", fix_call, "invalid option or argument"},
    Row{Errc::path_not_found, "path_not_found", fix_call, "no such file or folder"},
    Row{Errc::already_exists, "already_exists", fix_call, "the output already exists"},
    Row{Errc::several_models, "several_models", fix_call, "the folder holds several models"},
    Row{Errc::tensor_not_found, "tensor_not_found", fix_call, "no tensor of that name"},
    Row{Errc::wrong_dtype, "wrong_dtype", fix_call, "the element type is not the tensor's dtype"},
    Row{Errc::misaligned, "misaligned", fix_call, "the data is not aligned for the element type"},
    Row{Errc::not_contiguous, "not_contiguous", fix_call, "the view is not contiguous"},
    Row{Errc::no_view, "no_view", fix_call, "the value is not in one piece of mapped memory"},
    Row{Errc::read_only, "read_only", fix_call, "the view is read-only"},
    Row{Errc::index_out_of_range, "index_out_of_range", fix_call, "an index is outside its dimension"},
    Row{Errc::too_many_indices, "too_many_indices", fix_call, "more indices than dimensions"},
    Row{Errc::partial_byte_slice, "partial_byte_slice", fix_call, "the slice cuts a byte of a sub-byte dtype"},
    Row{Errc::unsupported_cast, "unsupported_cast", fix_call, "no cast between these dtypes"},
    Row{Errc::quantized_cast, "quantized_cast", fix_call, "a cast would separate numbers from their scales"},
    Row{Errc::unnamed_dtype, "unnamed_dtype", fix_call, "safetensors has no name for the dtype"},
    Row{Errc::no_dlpack, "no_dlpack", fix_call, "DLPack cannot describe the tensor"},
    Row{Errc::name_collision, "name_collision", fix_call, "two tensors would have the same name"},
    Row{Errc::budget_exceeded, "budget_exceeded", fix_call, "the tensors do not fit in the budget"},
    Row{Errc::no_such_device, "no_such_device", fix_call, "no device of that name"},
    Row{Errc::written_twice, "written_twice", fix_call, "bytes of a tensor are written twice"},
    Row{Errc::not_written, "not_written", fix_call, "bytes of a tensor were never written"},
    Row{Errc::writer_closed, "writer_closed", fix_call, "the writer is closed"},

    Row{Errc::unknown_format, "unknown_format", reject_data, "not a checkpoint of a known format"},
    Row{Errc::not_a_checkpoint, "not_a_checkpoint", reject_data, "no checkpoint in the folder"},
    Row{Errc::file_truncated, "file_truncated", reject_data, "the file ends too early"},
    Row{Errc::header_too_short, "header_too_short", reject_data, "fewer than eight bytes"},
    Row{Errc::header_too_large, "header_too_large", reject_data, "the header is longer than allowed"},
    Row{Errc::header_past_end, "header_past_end", reject_data, "the header reaches past the end of the file"},
    Row{Errc::header_not_utf8, "header_not_utf8", reject_data, "the header is not UTF-8"},
    Row{Errc::header_not_json, "header_not_json", reject_data, "the header is not a JSON object"},
    Row{Errc::header_bad_field, "header_bad_field", reject_data, "a field of the header is missing or invalid"},
    Row{Errc::header_bad_metadata, "header_bad_metadata", reject_data, "__metadata__ is not a map of strings"},
    Row{Errc::header_not_canonical, "header_not_canonical", reject_data,
        "the header does not follow the specification"},
    Row{Errc::duplicate_name, "duplicate_name", reject_data, "duplicate name"},
    Row{Errc::bad_name, "bad_name", reject_data, "invalid tensor name"},
    Row{Errc::unknown_dtype, "unknown_dtype", reject_data, "unknown dtype"},
    Row{Errc::offsets_reversed, "offsets_reversed", reject_data, "data_offsets end before they begin"},
    Row{Errc::offsets_overlap, "offsets_overlap", reject_data, "two tensors overlap"},
    Row{Errc::offsets_leave_gap, "offsets_leave_gap", reject_data, "bytes that belong to no tensor"},
    Row{Errc::shape_overflow, "shape_overflow", reject_data, "a size does not fit in 64 bits"},
    Row{Errc::partial_byte, "partial_byte", reject_data, "a sub-byte tensor does not fill whole bytes"},
    Row{Errc::size_mismatch, "size_mismatch", reject_data, "data_offsets and shape disagree"},
    Row{Errc::trailing_bytes, "trailing_bytes", reject_data, "bytes after the last tensor"},
    Row{Errc::index_not_json, "index_not_json", reject_data, "the index is not JSON"},
    Row{Errc::index_bad_field, "index_bad_field", reject_data, "a field of the index is missing or invalid"},
    Row{Errc::commit_list_damaged, "commit_list_damaged", reject_data, "the list of an interrupted save is damaged"},
    Row{Errc::shard_outside_folder, "shard_outside_folder", reject_data, "a shard name points outside the folder"},
    Row{Errc::shard_missing, "shard_missing", reject_data, "a shard is missing"},
    Row{Errc::shard_lacks_tensor, "shard_lacks_tensor", reject_data, "a tensor is not in the shard the index names"},
    Row{Errc::index_lacks_tensor, "index_lacks_tensor", reject_data, "the index does not name a tensor of a shard"},
    Row{Errc::no_tensors, "no_tensors", reject_data, "nothing to write: no tensor and no structure document"},

    Row{Errc::expectation_not_json, "expectation_not_json", reject_data,
        "the list of expected tensors is not a JSON object"},
    Row{Errc::expectation_bad_field, "expectation_bad_field", reject_data,
        "the description of an expected tensor is invalid"},
    Row{Errc::model_mismatch, "model_mismatch", reject_data, "the checkpoint is not what the model expects"},
    Row{Errc::zip_bad_directory, "zip_bad_directory", reject_data, "the zip directory is missing or invalid"},
    Row{Errc::zip_bad_record, "zip_bad_record", reject_data, "a zip record is invalid"},
    Row{Errc::zip_overlap, "zip_overlap", reject_data, "two zip records overlap"},
    Row{Errc::zip_duplicate, "zip_duplicate", reject_data, "two zip records have the same name"},
    Row{Errc::zip_missing_record, "zip_missing_record", reject_data, "a zip record is missing"},
    Row{Errc::zip_unsupported, "zip_unsupported", reject_data, "unsupported zip feature"},
    Row{Errc::checksum_mismatch, "checksum_mismatch", reject_data, "the data does not match its stored checksum"},
    Row{Errc::inflate_failed, "inflate_failed", reject_data, "compressed data does not decompress"},
    Row{Errc::pickle_truncated, "pickle_truncated", reject_data, "the pickle ends too early"},
    Row{Errc::pickle_bad_opcode, "pickle_bad_opcode", reject_data, "unknown pickle opcode"},
    Row{Errc::pickle_bad_memo, "pickle_bad_memo", reject_data, "invalid pickle memo entry"},
    Row{Errc::pickle_bad_stack, "pickle_bad_stack", reject_data, "a pickle opcode lacks its operands"},
    Row{Errc::pickle_bad_key, "pickle_bad_key", reject_data, "invalid dictionary key"},
    Row{Errc::pickle_bad_count, "pickle_bad_count", reject_data, "a length exceeds the pickle"},
    Row{Errc::pickle_bad_text, "pickle_bad_text", reject_data, "invalid text or number"},
    Row{Errc::pickle_too_large, "pickle_too_large", reject_data, "the pickle exceeds a limit of length or memory"},
    Row{Errc::pickle_unsupported, "pickle_unsupported", reject_data, "unsupported pickle feature"},
    Row{Errc::unknown_global, "unknown_global", reject_data, "unknown class or function"},
    Row{Errc::bad_tensor, "bad_tensor", reject_data, "the description of a tensor is invalid"},
    Row{Errc::storage_too_short, "storage_too_short", reject_data, "a tensor reaches past the end of its storage"},
    Row{Errc::bad_structure, "bad_structure", reject_data, "the structure document is damaged"},
    Row{Errc::structure_too_large, "structure_too_large", reject_data,
        "the tree is too deep or too large for a structure document"},

    Row{Errc::unsupported_layout, "unsupported_layout", reject_data, "unsupported layout"},
    Row{Errc::unfinished_checkpoint, "unfinished_checkpoint", reject_data, "the checkpoint is not complete"},
    Row{Errc::bad_tag, "bad_tag", reject_data, "the folder names a checkpoint that it does not have"},
    Row{Errc::rank_missing, "rank_missing", reject_data, "the file of a rank is missing"},
    Row{Errc::rank_repeated, "rank_repeated", reject_data, "two files are of the same rank"},
    Row{Errc::world_mismatch, "world_mismatch", reject_data, "the files disagree on the number of ranks"},
    Row{Errc::ranks_differ, "ranks_differ", reject_data, "the files of two ranks contradict each other"},
    Row{Errc::field_missing, "field_missing", reject_data, "the file of a rank lacks a field"},
    Row{Errc::piece_mismatch, "piece_mismatch", reject_data, "a part of a tensor has another dtype or size"},
    Row{Errc::piece_outside, "piece_outside", reject_data, "a part of a tensor reaches past the tensor"},
    Row{Errc::pieces_overlap, "pieces_overlap", reject_data, "two parts of a tensor overlap"},
    Row{Errc::not_covered, "not_covered", reject_data, "no part holds some elements of a tensor"},
    Row{Errc::piece_missing, "piece_missing", reject_data, "a part of a tensor is not in the files"},
    Row{Errc::partial_placement, "partial_placement", reject_data, "the ranks hold terms of a sum"},
    Row{Errc::manifest_missing, "manifest_missing", reject_data, "the layout needs a manifest"},
    Row{Errc::manifest_mismatch, "manifest_mismatch", reject_data, "the manifest contradicts the files"},
    Row{Errc::optimizer_unnamed, "optimizer_unnamed", reject_data, "no file names the parameters of the state"},
    Row{Errc::unknown_transform, "unknown_transform", reject_data, "a part went through an unknown extension"},
    Row{Errc::unsafe_call, "unsafe_call", reject_data, "the pickle would run code"},

    Row{Errc::permission_denied, "permission_denied", check_system, "permission denied"},
    Row{Errc::no_space, "no_space", free_space, "no space left"},
    Row{Errc::too_many_open_files, "too_many_open_files", check_system, "too many open files"},
    Row{Errc::out_of_memory, "out_of_memory", free_space, "out of memory"},
    Row{Errc::io_error, "io_error", check_system, "input or output error"},
    Row{Errc::device_failed, "device_failed", check_system, "the device failed"},
    Row{Errc::file_changed, "file_changed", retry, "the file changed after it was opened"},
    Row{Errc::busy, "busy", retry, "another process is writing there"},
    Row{Errc::deadline_passed, "deadline_passed", retry, "the deadline passed"},

    Row{Errc::cancelled, "cancelled", none, "cancelled"},
};

constexpr bool complete() {
    for (std::size_t i = 0; i < table.size(); ++i)
        if (table[i].code != static_cast<Errc>(i)) return false;
    return table.size() == static_cast<std::size_t>(Errc::cancelled) + 1;
}
static_assert(complete(), "every Errc has its row, in the order of the enum");

/// Returns true if `operation` ends in `path`, as "save out/" ends in "out". Then the path is not printed again.
bool names_last(std::string_view operation, std::string_view path) noexcept {
    const auto without_slash = [](std::string_view text) { return text.substr(0, text.find_last_not_of('/') + 1); };
    operation = without_slash(operation);
    path = without_slash(path);
    return !path.empty() && operation.ends_with(path) &&
           operation.substr(0, operation.size() - path.size()).ends_with(' ');
}

const Row& row(Errc code) noexcept { return table[static_cast<std::size_t>(code)]; }

}  // namespace

std::string_view name(Errc code) noexcept { return row(code).name; }
std::string_view describe(Errc code) noexcept { return row(code).text; }
Remedy remedy(Errc code) noexcept { return row(code).remedy; }

int exit_code(Errc code) noexcept {
    switch (remedy(code)) {
        case reject_data: return 1;
        case fix_call: return 2;
        case free_space:
        case check_system:
        case retry: return 3;
        case none: break;
    }
    return 130;
}

Error::Error(Errc code, std::string message) : code_(code), message_(std::move(message)) { compose(); }

Error::Error(const Error&) = default;
Error::Error(Error&&) noexcept = default;
Error& Error::operator=(const Error&) = default;
Error& Error::operator=(Error&&) noexcept = default;
Error::~Error() = default;

Error& Error::with_path(std::string_view path) {
    if (path_.empty()) path_ = path;
    compose();
    return *this;
}

Error& Error::with_tensor(std::string_view tensor) {
    if (tensor_.empty()) tensor_ = tensor;
    compose();
    return *this;
}

Error& Error::with_hint(std::string_view hint) {
    if (hint_.empty()) hint_ = hint;
    return *this;
}

Error& Error::during(std::string_view operation) {
    operation_ = operation_.empty() ? std::string(operation) : std::string(operation) + ": " + operation_;
    compose();
    return *this;
}

void Error::compose() {
    text_.clear();
    if (!operation_.empty()) text_ += operation_ + ": ";
    if (!path_.empty() && !names_last(operation_, path_)) text_ += path_ + ": ";
    if (!tensor_.empty()) text_ += "tensor " + safemap::quoted(tensor_) + ": ";
    text_ = printable(text_ + message_);
}

}  // namespace safemap::SAFEMAP_ABI
