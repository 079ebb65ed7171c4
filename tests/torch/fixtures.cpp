// Reads expected.tsv, the table of the files, and opens a file of each container.
#include "torch/fixtures.hpp"

#include "state/contents.hpp"
#include "state/flat_dict.hpp"
#include "torch/legacy.hpp"
#include "torch/plain.hpp"
#include "torch/tar.hpp"

#include <safemap/state_tree.hpp>

#include <algorithm>
#include <cstddef>
#include <cstring>
#include <fstream>
#include <span>
#include <sstream>
#include <stdexcept>
#include <utility>

namespace fixtures {
namespace {

std::string decoded(const std::string& text) {
    std::string out;
    for (std::size_t i = 0; i < text.size(); ++i) {
        if (text[i] == '%') {
            out += static_cast<char>(std::stoi(text.substr(i + 1, 2), nullptr, 16));
            i += 2;
        } else {
            out += text[i];
        }
    }
    return out;
}

}  // namespace

std::shared_ptr<const safemap::Source> source(std::string_view bytes, std::string name) {
    std::vector<std::byte> exact(bytes.size());
    if (!bytes.empty()) std::memcpy(exact.data(), bytes.data(), bytes.size());
    return safemap::memory_source(std::move(name), std::move(exact));
}

safemap::ZipDirectory zip_of(std::string_view bytes) {
    safemap::ThrowFirst faults;
    return safemap::ZipDirectory::read(source(bytes), faults);
}

std::string data_of(const safemap::ZipDirectory& zip, std::string_view name) {
    const auto* record = zip.find(name);
    if (record == nullptr) throw std::out_of_range("no record " + std::string(name));
    const auto data = zip.open(*record);
    std::string out(data.extent.size, '\0');
    data.source->read_at(data.extent.offset, std::as_writable_bytes(std::span(out)));
    return out;
}

safemap::torch::Archive with_tree(safemap::torch::Archive archive) {
    if (!archive.flat) return archive;
    safemap::state::Contents contents;
    safemap::state::set_flat(contents, std::move(*archive.flat));
    archive.tree = contents.tree.late->tree(contents.tensors);
    archive.flat.reset();
    return archive;
}

safemap::torch::Archive read(std::string_view bytes, safemap::FaultSink& faults,
                             safemap::torch::NamedGlobals* unknown) {
    namespace torch = safemap::torch;
    if (torch::is_legacy(bytes)) return torch::read_legacy(source(bytes), faults, unknown);
    if (bytes.size() > 1 && bytes.starts_with('\x80')) return torch::read_plain(source(bytes), faults, unknown);
    if (bytes.substr(std::min<std::size_t>(bytes.size(), 257)).starts_with("ustar"))
        return torch::read_tar(source(bytes), faults, unknown);
    return with_tree(torch::read_archive(source(bytes), faults, unknown));
}

safemap::torch::Archive open(std::string_view bytes) {
    safemap::ThrowFirst faults;
    return read(bytes, faults);
}

Tensor described(const safemap::LazyTensor& tensor) {
    std::string shape;
    for (const auto size : tensor.shape()) shape += (shape.empty() ? "" : "x") + std::to_string(size);
    if (shape.empty()) shape = "-";
    const auto value = tensor.load();
    return {tensor.name(), std::string(name(tensor.dtype())), shape, sha256(value.bytes())};
}

std::vector<File> table() {
    std::vector<File> files;
    std::ifstream in(folder() / "expected.tsv");
    for (std::string line; std::getline(in, line);) {
        std::vector<std::string> fields;
        std::istringstream parts(line);
        for (std::string field; std::getline(parts, field, '\t');) fields.push_back(decoded(field));
        if (fields[0] == "file") files.push_back({.file = fields[1], .error = {}, .tensors = {}, .aliases = {}});
        if (fields[0] == "error") files.back().error = fields[1];
        if (fields[0] == "tensor") files.back().tensors.push_back({fields[1], fields[2], fields[3], fields[4]});
        if (fields[0] == "alias") files.back().aliases.emplace_back(fields.begin() + 1, fields.end());
    }
    return files;
}

}  // namespace fixtures
