// Implements the seeded hash of names.
#include "base/name_index.hpp"

#include <sys/auxv.h>

#include <cstring>

namespace safemap::SAFEMAP_ABI {

namespace {

/// Returns a random seed: the kernel gives every process sixteen random bytes.
std::uint64_t process_seed() noexcept {
    std::uint64_t seed = 0x9e3779b97f4a7c15;  // 2^64 / golden ratio
    if (const auto* random = reinterpret_cast<const void*>(::getauxval(AT_RANDOM)); random != nullptr)
        std::memcpy(&seed, random, sizeof seed);
    return seed;
}

/// Returns both halves of the 128-bit product, folded by xor.
std::uint64_t multiply_and_fold(std::uint64_t a, std::uint64_t b) noexcept {
    __extension__ using Product = unsigned __int128;
    const Product product = static_cast<Product>(a) * b;
    return static_cast<std::uint64_t>(product) ^ static_cast<std::uint64_t>(product >> 64);
}

}  // namespace

std::uint64_t name_hash(std::string_view name) noexcept {
    static const std::uint64_t seed = process_seed();
    constexpr std::uint64_t prime_a = 0xa0761d6478bd642f;  // the primes of wyhash
    constexpr std::uint64_t prime_b = 0xe7037ed1a0b428db;
    std::uint64_t hash = seed ^ name.size() * prime_a;
    while (name.size() >= 8) {
        std::uint64_t word = 0;
        std::memcpy(&word, name.data(), 8);
        hash = multiply_and_fold(hash ^ word ^ prime_a, seed | prime_b);
        name.remove_prefix(8);
    }
    std::uint64_t rest = 0;
    if (!name.empty()) std::memcpy(&rest, name.data(), name.size());
    return multiply_and_fold(hash ^ rest ^ prime_b, seed ^ prime_a);
}

}  // namespace safemap::SAFEMAP_ABI
