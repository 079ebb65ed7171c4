// What a person types for sizes, dtypes and ranks, as values. Every function throws Errc::invalid_argument and says
// what would have been right.
#pragma once

#include <safemap/checkpoint.hpp>
#include <safemap/digest.hpp>
#include <safemap/dtype.hpp>
#include <safemap/save.hpp>

#include <cstdint>
#include <string_view>

namespace safemap::cli {

/// "5GB" and "5G" are 5·10^9, "5GiB" is 5·2^30, "512" is bytes. Upper and lower case; not 0.
std::uint64_t parse_size(std::string_view text);

/// "bf16", "BF16" or "bfloat16"; "fp16" and "half" are F16. "fp8" is refused: it may mean F8_E4M3 or F8_E5M2.
Dtype parse_dtype_name(std::string_view text);

Policy parse_policy(std::string_view text);
Access parse_access(std::string_view text);
ShardStrategy parse_strategy(std::string_view text);
IndexStyle parse_index_style(std::string_view text);
StructurePolicy parse_structure(std::string_view text);
DigestAlgorithm parse_digest_algorithm(std::string_view text);

/// "1e-5": finite and not negative.
double parse_tolerance(std::string_view text);

/// Returns true where `out` names one file, and not a folder of shards.
bool is_one_file(std::string_view out);
/// Refuses an OUT that means something else than safetensors: stdout, or a file of another format.
void require_out(std::string_view out);

/// One of several equal workers.
struct Rank {
    std::uint64_t rank = 0;
    std::uint64_t of = 1;
};

/// "3/8", the first rank being 0.
Rank parse_rank(std::string_view text);

/// The rows of `rows` that belong to a rank: [first, last), cut as torch.chunk cuts.
struct Rows {
    std::uint64_t first = 0;
    std::uint64_t last = 0;
};
Rows rows_of(Rank rank, std::uint64_t rows);

}  // namespace safemap::cli
