// Included by every public header: the export macro, the version, and a check of the platform.
#pragma once

#include <bit>
#include <climits>

#define SAFEMAP_API [[gnu::visibility("default")]]

#define SAFEMAP_VERSION "0.1.0"
#define SAFEMAP_VERSION_MAJOR 0
#define SAFEMAP_VERSION_MINOR 1
#define SAFEMAP_VERSION_PATCH 0

// Everything is in an inline namespace that is named after the ABI, so that two versions in one process do not call
// each other's functions. Programs write `safemap::`.
#define SAFEMAP_ABI inline v0_1

static_assert(std::endian::native == std::endian::little && sizeof(void*) == 8 && CHAR_BIT == 8,
              "safemap is for little-endian 64-bit Linux");
