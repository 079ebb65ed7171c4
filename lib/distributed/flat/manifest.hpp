// The manifest of flat parameters: a JSON file that says which parameters are in which flat tensor, for layouts whose
// files do not. docs/fsdp.md describes it.
#pragma once

#include <safemap/dtype.hpp>
#include <safemap/shape.hpp>
#include <safemap/source.hpp>

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace safemap::SAFEMAP_ABI::distributed {

/// The name of the manifest in the folder of the files.
inline constexpr std::string_view manifest_name = "manifest.json";

/// A parameter in a flat tensor.
struct FlatParameter {
    std::string name = {};
    Shape shape = {};
    std::uint64_t numel = 0;   ///< the product of the shape
    std::uint64_t offset = 0;  ///< elements before it
};

/// A flat parameter of FSDP1.
struct FlatGroup {
    std::string key = {};  ///< in the state dict: "blocks.0._flat_param"
    std::optional<Dtype> dtype = {};
    std::uint64_t numel = 0;  ///< with the padding between parameters
    std::vector<FlatParameter> parameters = {};
};

/// A layer that each rank holds as a chunk of its trainable parameters and a chunk of its frozen ones.
struct ChunkedLayer {
    struct Chunk {
        std::uint64_t size = 0;  ///< elements for each rank
        std::vector<FlatParameter> parameters = {};

        std::uint64_t numel() const noexcept {
            return parameters.empty() ? 0 : parameters.back().offset + parameters.back().numel;
        }
    };
    Chunk trainable = {};
    Chunk frozen = {};
};

struct Manifest {
    std::string path = {};
    std::vector<FlatGroup> groups = {};
    std::vector<ChunkedLayer> layers = {};
};

/// Reads a manifest. Throws manifest_mismatch, with the path of the manifest, if it is not JSON, lacks a field, or
/// contradicts itself: a numel that is not the product of the shape, parameters that overlap or reach past their
/// group, a name or key that occurs twice.
Manifest read_manifest(const Source& source);

/// Returns the number of ranks that makes the chunks of all layers as large as the manifest says; nothing if none does.
std::optional<std::uint64_t> ranks_wanted(const Manifest& manifest);

}  // namespace safemap::SAFEMAP_ABI::distributed
