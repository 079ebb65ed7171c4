// Parses the values of options: sizes, dtypes, ranks and so on. Every function throws Errc::invalid_argument with a
// message that says what is accepted.
#pragma once

#include <safemap/checkpoint.hpp>
#include <safemap/digest.hpp>
#include <safemap/dtype.hpp>
#include <safemap/ranks.hpp>
#include <safemap/save.hpp>

#include <cstdint>
#include <string>
#include <string_view>

namespace safemap::cli {

/// Returns a size in bytes: "5GB" and "5G" are 5·10^9, "5GiB" is 5·2^30, "512" is 512, "0.5GB" is 5·10^8. Rounds down
/// to whole bytes. Ignores case, refuses 0.
std::uint64_t parse_size(std::string_view text);
/// Parses a size of at most 4,294,967,295 bytes, the longest header that safemap reads or writes.
std::uint64_t parse_header_size(std::string_view text);

/// Returns a dtype: "bf16", "BF16" and "bfloat16" are BF16, "fp16" and "half" are F16. Refuses "fp8", which may mean
/// F8_E4M3 or F8_E5M2.
Dtype parse_dtype_name(std::string_view text);

/// Returns a hint that names the dtypes that a cast can give.
std::string castable();

Policy parse_policy(std::string_view text);
Access parse_access(std::string_view text);
Weights parse_weights(std::string_view text);
ShardStrategy parse_strategy(std::string_view text);
IndexStyle parse_index_style(std::string_view text);
StructurePolicy parse_structure(std::string_view text);
/// How a list of tensors is printed.
enum class ListFormat : std::uint8_t { text, markdown, csv, json };
ListFormat parse_list_format(std::string_view text);
DigestAlgorithm parse_digest_algorithm(std::string_view text);

/// Returns a whole number from 1 to `most`.
unsigned parse_count(std::string_view text, unsigned most);

/// Returns a number such as "1e-5", finite and not negative.
double parse_tolerance(std::string_view text);

/// Returns true if `out` names one file, not a folder of shards.
bool is_one_file(std::string_view out);
/// Throws if OUT is not for safetensors: stdout, or a file of another format.
void require_out(std::string_view out);

/// Returns the rank of "3/8". The first rank is 0.
Rank parse_rank(std::string_view text);

}  // namespace safemap::cli
