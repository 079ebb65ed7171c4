// Files in the address space.
#pragma once

#include "io/file.hpp"

#include <safemap/advanced/file.hpp>
#include <safemap/source.hpp>

#include <memory>
#include <string>

namespace safemap::SAFEMAP_ABI::io {

/// The whole of `file` as long as the owner lives, read-only or as a private copy. Nothing for an empty file, and no
/// address. Needs the file no longer once it returns. Throws out_of_memory, io_error.
SharedBytes map_whole(const File& file, Mapping mapping);

/// A file as a Source; the first three are File's.
std::shared_ptr<const Source> file_source(Handle folder, std::string name, std::string path, Mapping mapping);

}  // namespace safemap::SAFEMAP_ABI::io
