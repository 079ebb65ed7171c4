// The files in tests/data/pt, with their expected content.
#pragma once

#include "base/faults.hpp"
#include "pickle/zip.hpp"
#include "sha256.hpp"
#include "temp_dir.hpp"
#include "torch/archive.hpp"

#include <safemap/lazy_tensor.hpp>
#include <safemap/source.hpp>

#include <compare>
#include <filesystem>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

namespace fixtures {

inline std::filesystem::path folder() { return std::filesystem::path(SAFEMAP_TEST_DATA) / "pt"; }

/// Returns a source in memory of exactly this size, so that a sanitizer sees a read past the end.
std::shared_ptr<const safemap::Source> source(std::string_view bytes, std::string name = "test.pt");

/// Reads the directory of a zip, and a record of it.
safemap::ZipDirectory zip_of(std::string_view bytes);
std::string data_of(const safemap::ZipDirectory& zip, std::string_view name);

inline std::string content(const std::string& file) { return TempDir::read(folder() / file); }

/// Adds the tree if the archive has none: that of a flat state dict.
safemap::torch::Archive with_tree(safemap::torch::Archive archive);
/// Reads the file in the format that its content shows.
safemap::torch::Archive read(std::string_view bytes, safemap::FaultSink& faults,
                             safemap::torch::NamedGlobals* unknown = nullptr);
safemap::torch::Archive open(std::string_view bytes);

struct Tensor {
    std::string name, dtype, shape, sha256;
    friend auto operator<=>(const Tensor&, const Tensor&) = default;
};

Tensor described(const safemap::LazyTensor& tensor);

struct File {
    std::string file, error;
    std::vector<Tensor> tensors;
    std::vector<std::vector<std::string>> aliases;
};

/// Reads expected.tsv.
std::vector<File> table();

}  // namespace fixtures
