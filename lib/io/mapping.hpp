// Maps files into memory.
#pragma once

#include "io/file.hpp"

#include <safemap/advanced/file.hpp>
#include <safemap/source.hpp>

#include <memory>
#include <string>

namespace safemap::SAFEMAP_ABI::io {

/// Maps the whole `file`, read-only or as a private copy. The mapping lives as long as the returned owner; the file may
/// be closed before. Returns no bytes and a null address for an empty file. Throws out_of_memory, io_error.
SharedBytes map_whole(const File& file, Mapping mapping);

/// Returns a file as a Source. The first three parameters are those of File.
std::shared_ptr<const Source> file_source(Handle folder, std::string name, std::string path, Mapping mapping);

}  // namespace safemap::SAFEMAP_ABI::io
