// Everything that can go wrong: one code for each fault, and the one exception that carries it.
// The table of texts, exit codes and remedies is lib/base/error.cpp.
#pragma once

#include <safemap/api.hpp>

#include <cstdint>
#include <exception>
#include <string>
#include <string_view>

namespace safemap::SAFEMAP_ABI {

/// One value per fault. Compare codes, never texts. The names are stable: `--json` prints them.
enum class Errc : std::uint8_t {
    // The call is wrong.
    invalid_argument,    ///< an option or argument that has no meaning
    path_not_found,      ///< the path given by the caller does not exist
    already_exists,      ///< the output exists, or what stands where it is begun; nothing is overwritten unasked
    several_models,      ///< a folder holds more than one model and the call names none of them
    tensor_not_found,    ///< no tensor of that name
    wrong_dtype,         ///< as<T>() with a T that is not the tensor's dtype
    misaligned,          ///< as<T>() where the data is not aligned for T
    not_contiguous,      ///< a contiguous span was asked of a strided view
    no_view,             ///< view() of a tensor whose value does not stand in one mapped place
    read_only,           ///< writing was asked of a view whose bytes are not private memory
    index_out_of_range,  ///< an integer index outside the dimension
    too_many_indices,    ///< more indices than dimensions, or a second ellipsis
    partial_byte_slice,  ///< a slice of a sub-byte dtype that does not start and end at whole bytes
    unsupported_cast,    ///< a cast to or from integers, booleans, complex, F8_E8M0, sub-byte or opaque; a second cast
    unnamed_dtype,       ///< safetensors has no name for this dtype
    no_dlpack,           ///< a tensor that DLPack cannot express, or that only another kind of device can read
    name_collision,      ///< two tensors would have the same name, or a tensor the reserved name `__metadata__`
    budget_exceeded,     ///< more memory is leased, or asked for at once, than the budget holds
    no_such_device,      ///< no device of that name
    written_twice,       ///< a ShardWriter was given bytes of a tensor a second time
    not_written,         ///< commit() of a ShardWriter that lacks bytes of a tensor
    writer_closed,       ///< a ShardWriter that was committed, or a write of which has failed

    // The data is wrong.
    unknown_format,    ///< not a checkpoint of any kind that safemap knows
    not_a_checkpoint,  ///< a folder without a checkpoint in it
    file_truncated,    ///< the file ends before what it promises

    header_too_short,      ///< under eight bytes
    header_too_large,      ///< a header over the limit (100,000,000 bytes; for reading, max_header_bytes)
    header_past_end,       ///< the header length points past the end of the file
    header_not_utf8,       ///< the header is not UTF-8
    header_not_json,       ///< the header is not JSON, or not an object
    header_bad_field,      ///< a field is missing, twice there, or of the wrong JSON type
    header_bad_metadata,   ///< `__metadata__` is duplicate or no map of strings, or its digests are wrong or incomplete
    header_not_canonical,  ///< the strict policy: a form that the written specification does not have
    duplicate_name,        ///< a name in two files that are opened as a list; under the strict policy, twice in one map
    bad_name,              ///< a name with a NUL in it: under the strict policy, and in what is saved
    unknown_dtype,         ///< a dtype name that the format does not have
    offsets_reversed,      ///< data_offsets end before they begin
    offsets_overlap,       ///< two tensors share bytes
    offsets_leave_gap,     ///< bytes that belong to no tensor, before or between tensors
    shape_overflow,        ///< the size of a shape does not fit in 64 bits
    partial_byte,          ///< a sub-byte tensor that does not fill whole bytes
    size_mismatch,         ///< data_offsets and shape × dtype disagree
    trailing_bytes,        ///< bytes after the last tensor; with `--strict-globals`, after a plain pickle

    index_not_json,        ///< an index file that is not JSON, or is larger than 128 MiB
    index_bad_field,       ///< an index without `weight_map`, or with one that is no map of strings
    commit_list_damaged,   ///< what an interrupted save left to be finished (`.safemap-tmp/commit`) cannot be read
    shard_outside_folder,  ///< a shard's name that is empty, absolute, or has `..`, a drive, a backslash or a NUL
    shard_missing,         ///< a shard that the index names and the folder lacks, or that is no file
    shard_lacks_tensor,    ///< a tensor that the index places in a shard which does not hold it

    expectation_not_json,   ///< what a model expects, in a file that is not JSON, no object, or larger than 32 MiB
    expectation_bad_field,  ///< a tensor expected twice, with no or a wrong dtype or shape, or as an alias of none
    model_mismatch,         ///< a checkpoint that is not what a model expects: names, shapes or dtypes

    zip_bad_directory,   ///< no end record, a directory that contradicts the file, or two directories
    zip_bad_record,      ///< a record whose header, size, place or name is wrong
    zip_overlap,         ///< two records share bytes
    zip_duplicate,       ///< two records of one name
    zip_missing_record,  ///< a record that has to be there is not
    zip_unsupported,     ///< encryption, or a compression method other than stored and deflate
    checksum_mismatch,   ///< stored checksum and data disagree; also when a deflated record is read to its end
    inflate_failed,      ///< compressed data that does not decompress to what was promised

    pickle_truncated,    ///< the pickle ends before STOP
    pickle_bad_opcode,   ///< not an opcode, or a protocol above 5
    pickle_bad_memo,     ///< a memo entry that was never put, or an absurd memo index
    pickle_bad_stack,    ///< an opcode whose operands are not on the stack, or of the wrong kind
    pickle_bad_key,      ///< a dictionary key that Python could not hash
    pickle_bad_count,    ///< a count, length or frame beyond the pickle, or a frame that ends inside an opcode
    pickle_bad_text,     ///< text that is not UTF-8, or an invalid number
    pickle_too_large,    ///< a pickle, number or name over its limit, or more memory than a pickle of its size may take
    pickle_unsupported,  ///< extension codes, out-of-band buffers, text persistent ids
    unknown_global,      ///< a class or function that safemap does not know, where only known ones are allowed
    bad_tensor,          ///< a tensor description that no tensor can have
    storage_too_short,   ///< a tensor that reaches past its storage, or a storage past its record
    bad_structure,       ///< a structure document that is damaged, or names a tensor that is not there
    structure_too_large,  ///< a nested state dict too deep or too large for a structure document

    unsupported_layout,     ///< a layout of files that is recognised and cannot be read
    unfinished_checkpoint,  ///< a checkpoint whose save was interrupted, or which was copied in part
    bad_tag,                ///< a file such as `latest` that names no checkpoint in its folder
    rank_missing,           ///< the file of a rank is missing

    // The system failed while working.
    permission_denied,    ///< EACCES, EPERM, EROFS
    no_space,             ///< ENOSPC, EDQUOT, EFBIG
    too_many_open_files,  ///< EMFILE, ENFILE
    out_of_memory,        ///< an allocation failed
    io_error,             ///< any other failed system call
    file_changed,         ///< a file shrank or changed after it was opened
    busy,                 ///< another process is writing to the same place

    cancelled,  ///< the caller's progress function or stop token said so
};

/// What a caller can do about a fault.
enum class Remedy : std::uint8_t { fix_call, reject_data, free_space, check_system, retry, none };

/// The enumerator's name, as printed by `--json`: "header_too_large".
SAFEMAP_API std::string_view name(Errc code) noexcept;
/// One sentence that says what the code means.
SAFEMAP_API std::string_view describe(Errc code) noexcept;
/// What can be done about it.
SAFEMAP_API Remedy remedy(Errc code) noexcept;
/// 1: the data is wrong · 2: the call is wrong · 3: the system failed · 130: cancelled.
SAFEMAP_API int exit_code(Errc code) noexcept;

/// The only exception type that safemap throws, besides std::bad_alloc. What functions of the caller's throw (a
/// callback_source's, Monitor::on_progress) passes through.
///
/// The message says what was found and what was wanted. Each layer that the error passes adds what it
/// knows: the tensor, the file, the operation. The innermost file and tensor stay.
class SAFEMAP_API Error : public std::exception {
public:
    Error(Errc code, std::string message);

    Errc code() const noexcept { return code_; }
    /// What was found and what was wanted, without context.
    const std::string& message() const noexcept { return message_; }
    /// The file it is about; empty where none is.
    const std::string& path() const noexcept { return path_; }
    /// The tensor it is about; empty where none is.
    const std::string& tensor() const noexcept { return tensor_; }
    /// What the user can try, in a sentence; empty where there is nothing to say.
    const std::string& hint() const noexcept { return hint_; }
    /// Operation, path, tensor and message in one line, printable.
    const char* what() const noexcept override { return text_.c_str(); }

    /// Adds context while the error passes; a path or tensor that is already there stays.
    Error& with_path(std::string_view path);
    Error& with_tensor(std::string_view tensor);
    Error& with_hint(std::string_view hint);
    /// Puts "save out/" before all context there is.
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
