// SHA-256 (FIPS 180-4) for tests, to compare with digests of other programs. Slow and short.
#pragma once

#include <cstddef>
#include <span>
#include <string>

std::string sha256(std::span<const std::byte> data);
