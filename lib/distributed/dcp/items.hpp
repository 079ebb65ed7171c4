// Reads the items of a DCP folder: the tensor of each chunk, and the objects. Reads directories and pickles, and no
// byte of a tensor.
#pragma once

#include "base/faults.hpp"
#include "base/folder.hpp"
#include "distributed/dcp/dcp_metadata.hpp"
#include "distributed/pickles.hpp"
#include "state/stored_places.hpp"
#include "torch/one_tensor.hpp"

#include <safemap/lazy_tensor.hpp>
#include <safemap/progress.hpp>
#include <safemap/state_tree.hpp>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

namespace safemap::SAFEMAP_ABI::distributed {

/// The contents of all items.
struct DcpItems {
    /// The tensor of a chunk: its form, and where its storage begins.
    struct Local {
        std::uint64_t offset = 0;
        std::uint32_t source = no_source;  ///< number in `sources`
        std::uint32_t form = 0;            ///< number in `forms`
    };
    static constexpr std::uint32_t no_source = 0xFFFF'FFFF;
    static constexpr std::uint32_t no_tree = 0xFFFF'FFFF;

    /// The files, by number; then the streams of compressed items.
    std::vector<std::shared_ptr<const Source>> sources = {};
    std::unique_ptr<torch::TensorForms> forms = {};
    std::vector<Local> locals = {};           ///< by number of the item
    std::vector<Local> replicas = {};         ///< by number of the replica
    std::vector<StateTree> trees = {};        ///< the objects
    std::vector<std::uint32_t> tree_of = {};  ///< by number of the entry: a number in `trees`, or no_tree
    std::vector<bool> faulty = {};            ///< by number of the entry: true if a fault was reported
    StoredItems stored = {};                  ///< the places of all items that are inside their files
    std::size_t unchecked = 0;                ///< items with records without a checksum

    /// Returns the tensor of a chunk, without a name.
    LazyTensor value(const Local& local) const;
};

/// Opens the files and reads all items, several at a time; those that are near each other in a file are read together.
/// Compares each with what the metadata says. Reports every fault, with the path of the file and the name of the entry:
///
/// - rank_missing, with the names of all files that are missing
/// - piece_missing for an item that reaches past its file, zip_overlap for items that share bytes
/// - unknown_transform for an item that was stored through an extension other than zstd
/// - piece_mismatch for an item that holds no tensor, or one of another shape or dtype than its chunk
/// - unsafe_call for a pickle that names a function that runs code; unknown_global if `globals` is strict
/// - what reading a file of torch.save throws
DcpItems read_dcp_items(const Folder& folder, const DcpMetadata& metadata, const Work& work, FaultSink& faults,
                        FoundGlobals& globals);

}  // namespace safemap::SAFEMAP_ABI::distributed
