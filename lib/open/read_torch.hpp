// Reads files that torch wrote into the contents of a checkpoint.
#pragma once

#include "open/read.hpp"
#include "torch/archive.hpp"
#include "torch/named_globals.hpp"

#include <memory>
#include <string>

namespace safemap::SAFEMAP_ABI::open {

/// Adds the globals that a file's pickles name, with `prefix` before each record's name, and the note on unknown
/// globals.
void add_globals(const torch::NamedGlobals& globals, const std::string& prefix, Contents& contents);

/// Returns the contents of a checkpoint that an archive holds.
Contents contents_of(torch::Archive archive, const torch::NamedGlobals& globals);

/// Reads a file with `read`, one of the readers of torch files.
template <torch::Archive read(const std::shared_ptr<const Source>&, FaultSink&, torch::NamedGlobals*)>
Contents read_torch(const std::shared_ptr<const Source>& source, const OpenOptions& options, FaultSink& faults) {
    torch::NamedGlobals globals(options.strict_globals);
    torch::Archive archive = read(source, faults, &globals);
    return contents_of(std::move(archive), globals);
}

}  // namespace safemap::SAFEMAP_ABI::open
