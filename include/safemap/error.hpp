// Error, the exception type of safemap, and Errc, its codes.
// The table of texts, exit codes and remedies is lib/base/error.cpp.
#pragma once

#include <safemap/api.hpp>

#include <cstdint>
#include <exception>
#include <string>
#include <string_view>

namespace safemap::SAFEMAP_ABI {

/// The code of an error, one for each kind of fault. Compare codes, never texts: the names are stable, and `--json`
/// prints them.
enum class Errc : std::uint8_t {
    // The call is wrong.
    invalid_argument,    ///< an option or argument with an invalid value, or options that contradict each other
    path_not_found,      ///< a path of the caller that does not exist
    already_exists,      ///< the output or the hidden folder beside it exists, and the call does not overwrite it
    several_models,      ///< a folder holds more than one model and the call names none of them
    tensor_not_found,    ///< no tensor with this name
    wrong_dtype,         ///< as<T>() with a T that is not the tensor's dtype
    misaligned,          ///< as<T>() of data that is not aligned for T
    not_contiguous,      ///< a contiguous span of a strided view
    no_view,             ///< view() of a tensor whose value is not in one mapped range
    read_only,           ///< mutable access to a view that is not writable()
    index_out_of_range,  ///< an integer index outside the dimension
    too_many_indices,    ///< more indices than dimensions, or a second ellipsis
    partial_byte_slice,  ///< a slice of a sub-byte dtype that does not start and end at whole bytes
    unsupported_cast,    ///< a cast to or from integers, booleans, complex, F8_E8M0, sub-byte or opaque; a second cast
    quantized_cast,      ///< a cast of quantised numbers without their scales, or of scales without the numbers
    unnamed_dtype,       ///< a dtype that has no name in safetensors
    no_dlpack,           ///< a tensor that DLPack cannot express, or that only another kind of device can read
    name_collision,      ///< two tensors with the same name, or a tensor with the reserved name `__metadata__`
    budget_exceeded,     ///< more memory leased, or requested at once, than the budget allows
    no_such_device,      ///< no device with this name
    written_twice,       ///< bytes of a tensor written to a ShardWriter a second time
    not_written,         ///< commit() of a ShardWriter before every byte was written
    writer_closed,       ///< a write or commit() of a ShardWriter after commit(), or after a write that failed

    // The data is wrong.
    unknown_format,    ///< a file of no format that safemap knows
    not_a_checkpoint,  ///< a folder without a checkpoint in it
    file_truncated,    ///< a file that ends before the data that it declares

    header_too_short,      ///< a safetensors file of fewer than eight bytes
    header_too_large,      ///< a header over the limit (max_header_bytes, by default 100,000,000 bytes)
    header_past_end,       ///< a header length that reaches past the end of the file
    header_not_utf8,       ///< a header that is not UTF-8
    header_not_json,       ///< a header that is not JSON, or not an object
    header_bad_field,      ///< a field that is missing, duplicate, or of the wrong JSON type
    header_bad_metadata,   ///< a `__metadata__` that is duplicate or not a map of strings; wrong or incomplete digests
    header_not_canonical,  ///< under the strict policy: a form that the written specification does not allow
    duplicate_name,        ///< a name in two files; twice in a header, if bytes then belong to no tensor, or if strict
    bad_name,              ///< a name with a NUL: in a save, and under the strict policy
    unknown_dtype,         ///< a dtype name that the format does not have
    offsets_reversed,      ///< data_offsets that end before they begin
    offsets_overlap,       ///< two tensors that share bytes of the file
    offsets_leave_gap,     ///< bytes that belong to no tensor, before or between tensors
    shape_overflow,        ///< a shape whose size does not fit in 64 bits
    partial_byte,          ///< a sub-byte tensor that does not fill whole bytes
    size_mismatch,         ///< data_offsets that do not match shape × dtype
    trailing_bytes,        ///< bytes after the last tensor; with `--strict-globals`, after a plain pickle

    index_not_json,        ///< an index file that is not JSON, or is larger than 512 MiB
    index_bad_field,       ///< an index without a `weight_map` that is a map of strings
    commit_list_damaged,   ///< an invalid list of an interrupted save (`.safemap-tmp/commit`), which cannot be finished
    shard_outside_folder,  ///< a shard name that is empty, absolute, or has `..`, a drive, a backslash or a NUL
    shard_missing,         ///< a shard that the index or the number of shards asks for: missing, or not a file
    shard_lacks_tensor,    ///< a tensor that is missing from the shard that the index names for it
    index_lacks_tensor,    ///< a tensor of a shard that the index does not name; only `verify` reports it
    no_tensors,            ///< an output with neither a tensor nor a structure document, where SaveOptions refuse it

    expectation_not_json,   ///< a file of expected tensors that is not JSON, not an object, or larger than 32 MiB
    expectation_bad_field,  ///< an expected tensor that is duplicate, or has an invalid dtype, shape or alias
    model_mismatch,         ///< names, shapes or dtypes that differ from the ones that a model expects

    zip_bad_directory,   ///< a zip without an end record, with a directory that contradicts the file, or with two
    zip_bad_record,      ///< a record whose header, size, offset or name is invalid
    zip_overlap,         ///< two records that share bytes
    zip_duplicate,       ///< two records with the same name
    zip_missing_record,  ///< a required record that is missing
    zip_unsupported,     ///< encryption, or a compression method other than stored and deflate
    checksum_mismatch,   ///< data that does not match its checksum; for a deflated record, when it is read to its end
    inflate_failed,      ///< compressed data that does not decompress to the declared bytes

    pickle_truncated,     ///< a pickle that ends before STOP
    pickle_bad_opcode,    ///< an unknown opcode, or a protocol above 5
    pickle_bad_memo,      ///< a memo entry that was never stored, or a memo index that is too large
    pickle_bad_stack,     ///< an opcode whose operands are missing from the stack, or of the wrong kind
    pickle_bad_key,       ///< a dictionary key that Python cannot hash
    pickle_bad_count,     ///< a count, length or frame beyond the pickle, or a frame that ends inside an opcode
    pickle_bad_text,      ///< text that is not UTF-8, or an invalid number
    pickle_too_large,     ///< a pickle, number or name over its limit, or more memory than its size allows
    pickle_unsupported,   ///< extension codes, out-of-band buffers, text persistent ids
    unknown_global,       ///< a class or function that safemap does not know, if only known ones are allowed
    bad_tensor,           ///< a tensor description that is invalid
    storage_too_short,    ///< a tensor that reaches past its storage, or a storage past its record
    bad_structure,        ///< a structure document that is invalid, or names a missing tensor
    structure_too_large,  ///< a nested state dict that is too deep or too large for a structure document

    unsupported_layout,     ///< a layout of files that is recognised but not supported
    unfinished_checkpoint,  ///< a checkpoint whose save was interrupted, or that was copied in part
    bad_tag,                ///< a file such as `latest` that names no checkpoint in its folder
    rank_missing,           ///< a missing file of a rank
    rank_repeated,          ///< two files for one rank
    world_mismatch,         ///< names and contents of files that disagree on the number of ranks
    ranks_differ,           ///< files of two ranks that contradict each other
    field_missing,          ///< a file of a rank without a field that its layout needs
    piece_mismatch,         ///< a part with another dtype or size than expected, or that is not a tensor
    piece_outside,          ///< a part of a tensor that reaches past the tensor
    pieces_overlap,         ///< two parts of a tensor that hold the same element
    not_covered,            ///< elements of a tensor that no part holds
    piece_missing,          ///< a part or object without a place in the files, or with one that reaches past its file
    partial_placement,      ///< a tensor whose ranks hold the terms of a sum that was never computed
    manifest_missing,       ///< flat parameters without a manifest that has their names and shapes
    manifest_mismatch,      ///< a manifest that contradicts the files
    optimizer_unnamed,      ///< parts of the state of an optimizer, in files that do not say of which parameters
    unknown_transform,      ///< a part that was stored through an unknown extension
    unsafe_call,            ///< a pickle of a training checkpoint that would run code

    // The system failed while working.
    permission_denied,    ///< EACCES, EPERM, EROFS
    no_space,             ///< ENOSPC, EDQUOT, EFBIG
    too_many_open_files,  ///< EMFILE, ENFILE
    out_of_memory,        ///< an allocation failed
    io_error,             ///< any other failed system call
    device_failed,        ///< a device that failed; everything it held is lost
    file_changed,         ///< a file that changed after it was opened
    busy,                 ///< a path that another process is writing to
    deadline_passed,      ///< tensors that were not on a device at the caller's deadline

    cancelled,  ///< stopped by the caller's progress function or stop token
};

/// The action that a caller can take after an error.
enum class Remedy : std::uint8_t {
    fix_call,      ///< correct the call
    reject_data,   ///< reject the data
    free_space,    ///< free disk space or memory
    check_system,  ///< check permissions, limits and devices
    retry,         ///< try again later
    none           ///< nothing: the caller cancelled
};

/// Returns the name of the enumerator, as `--json` prints it: "header_too_large".
[[nodiscard]] SAFEMAP_API std::string_view name(Errc code) noexcept;
/// Returns one sentence that explains the code.
[[nodiscard]] SAFEMAP_API std::string_view describe(Errc code) noexcept;
/// Returns the remedy for the code.
[[nodiscard]] SAFEMAP_API Remedy remedy(Errc code) noexcept;
/// Returns the exit code of the command line:
///
/// | exit code | meaning |
/// | --- | --- |
/// | 1 | the data is wrong |
/// | 2 | the call is wrong |
/// | 3 | the system failed |
/// | 130 | cancelled |
[[nodiscard]] SAFEMAP_API int exit_code(Errc code) noexcept;

/// The only exception type that safemap throws, besides std::bad_alloc. Exceptions of the caller's functions (of a
/// callback_source, Monitor::on_progress) pass through unchanged.
///
/// The message says what was found and what was expected. Each layer that the error passes through adds context: the
/// tensor, the file, the operation. The innermost file and tensor are kept.
///
/// Example:
///     try { safemap::save("out/", checkpoint); } catch (const safemap::Error& error) {
///         if (error.code() == safemap::Errc::already_exists) std::cerr << error.path() << " exists\n"; else throw;
///     }
class SAFEMAP_API Error : public std::exception {
public:
    Error(Errc code, std::string message);
    Error(const Error&);
    Error(Error&&) noexcept;
    Error& operator=(const Error&);
    Error& operator=(Error&&) noexcept;
    ~Error() override;

    Errc code() const noexcept { return code_; }
    /// Returns what was found and what was expected, without context.
    const std::string& message() const noexcept { return message_; }
    /// Returns the path of the file concerned; empty if no file is concerned.
    const std::string& path() const noexcept { return path_; }
    /// Returns the name of the tensor concerned; empty if no tensor is concerned.
    const std::string& tensor() const noexcept { return tensor_; }
    /// Returns one sentence that says what the user can try; may be empty.
    const std::string& hint() const noexcept { return hint_; }
    /// Returns operation, path, tensor and message in one printable line.
    const char* what() const noexcept override { return text_.c_str(); }

    /// Adds context. Does not overwrite a path or tensor that is already set.
    Error& with_path(std::string_view path);
    Error& with_tensor(std::string_view tensor);
    Error& with_hint(std::string_view hint);
    /// Puts the operation, such as "save out/", before all other context.
    Error& during(std::string_view operation);

private:
    void compose();

    Errc code_;
    std::string message_;
    std::string operation_;
    std::string path_;
    std::string tensor_;
    std::string hint_;
    std::string text_;
};

}  // namespace safemap::SAFEMAP_ABI
