// Writes folders of torch.distributed.checkpoint, right and wrong: a description that a test builds and changes at one
// place, and the pickles and zips of it. Checks nothing.
#pragma once

#include "forge/files.hpp"
#include "forge/pickle.hpp"
#include "forge/zip.hpp"
#include "reference/random_boxes.hpp"

#include <safemap/dtype.hpp>
#include <safemap/shape.hpp>

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <random>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

namespace dcp_forge {

using forge::Numbers;
using forge::numbers;
using forge::random_bytes;
using safemap::Box;
using safemap::Dtype;
using safemap::Shape;
using Step = std::variant<std::string, std::int64_t>;

inline Numbers signed_of(const Shape& shape) { return {shape.begin(), shape.end()}; }

// ---- Items

/// How the storage of an item holds the elements of its tensor.
struct Layout {
    Numbers strides;           ///< in elements of the storage
    std::int64_t offset = 0;   ///< offset of the first element
    std::size_t elements = 0;  ///< size of the storage
    bool big_endian = false;
    bool deflated = false;
    std::size_t alignment = 64;
};

Layout contiguous(const Shape& shape);

/// Returns a random layout: dimensions in any order, with gaps, in a larger storage, sometimes deflated.
Layout random_layout(std::mt19937& random, const Shape& shape);

/// Returns a zip of torch.save with these records, some deflated.
std::string zip_of(const std::string& pickle, std::string_view byteorder, const std::vector<std::string>& storages,
                   bool deflated, std::size_t alignment);

std::string tensor_pickle(Dtype dtype, const Shape& shape, const Layout& layout);

/// Returns the item of a tensor whose elements are given row-major.
std::string tensor_item(Dtype dtype, const Shape& shape, const std::string& elements,
                        std::optional<Layout> layout = {});

/// Returns the item of an object that is written as these opcodes.
std::string object_item(const std::string& opcodes, const std::vector<std::string>& storages = {});

// ---- Metadata

struct Item {
    std::string file = {};
    std::int64_t offset = 0;
    std::int64_t length = 0;
    std::vector<std::string> transforms = {};
    bool listed = true;  ///< false: left out of storage_data
};

struct Chunk {
    Numbers offsets;
    Numbers sizes;
    Item item;
};

struct Entry {
    std::string name;
    std::optional<std::vector<Step>> path = {};
    std::string dtype = {};  ///< torch's name, such as "float32"; empty for an object
    Numbers shape = {};
    std::vector<Chunk> chunks = {};
    Item item = {};  ///< only for an object
};

/// Which version of torch writes the pickle.
enum class Era : std::uint8_t { torch_1_13, torch_2_2, torch_2_13, megatron };

struct Metadata {
    std::vector<Entry> entries = {};
    Era era = Era::torch_2_13;
    bool has_paths = true;                                    ///< false: None in place of planner_data
    std::string planner = {};                                 ///< opcodes in place of the paths
    std::vector<std::pair<std::string, Numbers>> mcore = {};  ///< for Megatron: names and shapes
    std::string more = {};                                    ///< keys and values of further attributes

    Entry& operator[](std::string_view name);

    std::string pickle() const;

    static std::string object(std::string_view module, std::string_view name, const std::string& fields);
    static std::string size(const Numbers& values);

    std::string_view module() const;
    std::string chunk(const Chunk& chunk) const;
    std::string info(const Item& item) const;
    std::string index(const std::string& name, const Numbers* offset, std::int64_t number) const;

private:
    std::string properties(const std::string& dtype) const;
    std::string described(const Entry& entry) const;
    std::string stored(const Entry& entry) const;
    std::string paths() const;
    std::string storage_meta() const;
};

// ---- Folders

/// A checkpoint in the making.
struct Save {
    Metadata metadata = {};
    std::map<std::string, std::string> files = {};

    /// Appends an item to a file.
    Item put(const std::string& file, const std::string& bytes);
    void add_object(std::string name, const std::string& opcodes, std::optional<std::vector<Step>> path = {},
                    const std::string& file = "__0_0.distcp");
    /// Returns the files of the folder.
    std::map<std::string, std::string> all() const;
    std::shared_ptr<const safemap::Folder> folder() const;
};

/// Returns the elements of a box of a tensor, row-major.
std::string elements_of(const std::string& whole, std::size_t size, const Shape& shape, const Box& box);

/// Adds a tensor in boxes, each in the file of a random rank. Sometimes all of them are big-endian.
void add_tensor(Save& save, std::mt19937& random, const std::string& name, Dtype dtype, const Shape& shape,
                const std::string& whole, const reference::Places& boxes, std::size_t ranks);

}  // namespace dcp_forge
