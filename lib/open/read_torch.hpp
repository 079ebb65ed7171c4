// Files that torch wrote, as a checkpoint tells of them.
#pragma once

#include "open/readers.hpp"
#include "torch/archive.hpp"
#include "torch/named_globals.hpp"

#include <memory>
#include <string>

namespace safemap::SAFEMAP_ABI::open {

/// Adds the names that a file's pickles have, each record behind `prefix`, and the note of the unknown ones.
void add_globals(const torch::NamedGlobals& globals, const std::string& prefix, Contents& contents);

Contents contents_of(torch::Archive archive, const torch::NamedGlobals& globals);

/// Reads a file with one of the readers of torch.
template <torch::Archive read(const std::shared_ptr<const Source>&, FaultSink&, torch::NamedGlobals*)>
Contents read_torch(const std::shared_ptr<const Source>& source, const OpenOptions& options, FaultSink& faults) {
    torch::NamedGlobals globals(options.strict_globals);
    torch::Archive archive = read(source, faults, &globals);
    return contents_of(std::move(archive), globals);
}

}  // namespace safemap::SAFEMAP_ABI::open
