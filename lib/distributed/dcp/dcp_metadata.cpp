// Reads the graph of a `.metadata` into tables. The parts of MetadataReader, from top to bottom:
//
//   entries   state_dict_metadata: tensors with their chunks, and objects
//   items     storage_data: where chunks and objects are, found by name and offset. The `index` of torch is a hint, and
//             is 0 in the files of all ranks that save without each other, so it is not used
//   paths     planner_data
//   Megatron  what its class adds
//
// Everything that is copied is charged to the allowance of the pickle, because a pickle can have one container in a
// million places. Tested by tests/distributed/dcp_metadata_test.cpp.
#include "distributed/dcp/dcp_metadata.hpp"

#include "base/checked.hpp"
#include "base/faults.hpp"
#include "base/name_index.hpp"
#include "base/text.hpp"
#include "distributed/dcp/objects.hpp"

#include <safemap/advanced/dtypes.hpp>
#include <safemap/error.hpp>

#include <algorithm>
#include <numeric>
#include <unordered_map>
#include <utility>

namespace safemap::SAFEMAP_ABI::distributed {

namespace {

using Id = PickleGraph::Id;
using Kind = PickleGraph::Kind;
using Integers = DcpObjects::Integers;

// Charges in bytes of memory.
constexpr std::uint64_t entry_cost = 1024;  // with its tensor
constexpr std::uint64_t chunk_cost = 128;
constexpr std::uint64_t stored_cost = 64;
constexpr std::uint64_t placing_cost = 64;  // no memory: bounds the time for many chunks and items at one offset
constexpr std::uint64_t step_cost = 256;    // with the node of the tree

/// Longest path of a file, as Linux has it.
constexpr std::size_t longest_path = 4096;

bool is_negative(std::int64_t number) { return number < 0; }

Shape unsigned_shape(const Integers& numbers) {
    Shape shape;
    for (const std::int64_t number : numbers) shape.push_back(static_cast<std::uint64_t>(number));
    return shape;
}

/// Doubles the last number of a shape or place of float4: torch counts pairs of elements. Numbers beyond 64 bits become
/// the largest one, which is too large for any shape.
void count_elements(Dtype dtype, Integers& numbers) {
    if (dtype != Dtype::f4 || numbers.empty() || numbers.back() < 0) return;
    numbers.back() = numbers.back() > INT64_MAX / 2 ? INT64_MAX : 2 * numbers.back();
}

/// Finds the chunks of one tensor by their offsets.
class ChunkIndex {
public:
    /// Returns the numbers of the chunks that begin at an offset.
    std::vector<std::uint32_t> at(const DcpMetadata& metadata, const DcpEntry& entry,
                                  std::span<const std::uint64_t> offset) {
        if (!std::exchange(looked_, true)) sort(metadata, entry);
        const auto start = [&](std::size_t i) { return metadata.start(entry, number(i)); };
        const auto begins_here = [&](std::size_t i) {
            const auto own = start(i);
            return std::equal(own.begin(), own.end(), offset.begin());
        };
        // Files of ranks name the chunks of a tensor in order.
        std::size_t i = next_;
        if (i >= entry.item_count || !begins_here(i) || (i > 0 && begins_here(i - 1))) {
            i = 0;
            for (std::size_t end = entry.item_count; i < end;) {
                const std::size_t middle = i + (end - i) / 2;
                if (is_before(start(middle), offset)) i = middle + 1;
                else end = middle;
            }
        }
        std::vector<std::uint32_t> found;
        for (; i < entry.item_count && begins_here(i); ++i) found.push_back(number(i));
        next_ = i;
        return found;
    }

private:
    static bool is_before(std::span<const std::uint64_t> a, std::span<const std::uint64_t> b) {
        return std::lexicographical_compare(a.begin(), a.end(), b.begin(), b.end());
    }

    void sort(const DcpMetadata& metadata, const DcpEntry& entry) {
        const auto before = [&](std::uint32_t a, std::uint32_t b) {
            return is_before(metadata.start(entry, a), metadata.start(entry, b));
        };
        bool sorted = true;
        for (std::uint32_t k = 1; k < entry.item_count && sorted; ++k) sorted = !before(k, k - 1);
        if (sorted) return;
        order_.resize(entry.item_count);
        std::iota(order_.begin(), order_.end(), 0U);
        std::stable_sort(order_.begin(), order_.end(), before);
    }
    std::uint32_t number(std::size_t i) const { return order_.empty() ? static_cast<std::uint32_t>(i) : order_[i]; }

    bool looked_ = false;
    std::vector<std::uint32_t> order_ = {};  ///< chunks by offset; empty if they are in this order
    std::size_t next_ = 0;
};

/// The reader of one graph.
class MetadataReader {
public:
    explicit MetadataReader(const PickleGraph& pickle)
        : pickle_(pickle), objects_(pickle), allowance_(pickle.allowance()) {
        out_.transforms.emplace_back();
    }

    DcpMetadata read() {
        const Id root = pickle_.root();
        if (objects_.class_of(root) != DcpClass::metadata)
            throw Error(Errc::not_a_checkpoint, "the pickle holds " + objects_.described(root) +
                                                    "; expected a Metadata of torch.distributed.checkpoint");
        read_entries(objects_.require(root, "state_dict_metadata"));
        if (const auto stored = objects_.attribute(root, "storage_data")) read_items(*stored);
        require_items();
        if (const auto planned = objects_.attribute(root, "planner_data")) read_paths(*planned);
        if (const auto version = objects_.attribute(root, "version"); version && pickle_.kind(*version) == Kind::text)
            out_.version = excerpt(pickle_.text(*version));
        if (const auto megatron = objects_.attribute(root, "mcore_data")) note_reformulated(*megatron);
        return std::move(out_);
    }

private:
    // Entries.

    std::span<const Id> dictionary(Id id, std::string_view name) const {
        if (const auto found = objects_.entries(id)) return *found;
        throw Error(Errc::field_missing,
                    std::string(name) + " is " + objects_.described(id) + "; expected a dictionary");
    }

    void read_entries(Id id) {
        const auto found = dictionary(id, "state_dict_metadata");
        for (std::size_t i = 0; i + 1 < found.size(); i += 2) {
            if (pickle_.kind(found[i]) != Kind::text)
                throw Error(Errc::field_missing, "a key of state_dict_metadata is " + objects_.described(found[i]));
            const std::string_view name = pickle_.text(found[i]);
            about_tensor(name, [&] { add_entry(name, found[i + 1]); });
        }
        indexes_.resize(out_.entries.size());
    }

    void add_entry(std::string_view name, Id value) {
        allowance_.spend(entry_cost + 4 * name.size());
        const auto number = static_cast<std::uint32_t>(out_.entries.size());
        out_.entries.push_back({.name = std::string(name)});
        if (by_name_.add(name, number, NamesOf(out_.entries)) != number)
            throw Error(Errc::duplicate_name, "state_dict_metadata has two entries of this name");
        DcpEntry& entry = out_.entries.back();
        const DcpClass is = objects_.class_of(value);
        if (is == DcpClass::tensor) return read_tensor(entry, value);
        if (is == DcpClass::bytes) return add_item(entry);
        throw Error(Errc::field_missing,
                    "expected the metadata of a tensor or an object, found " + objects_.described(value));
    }

    void add_item(DcpEntry& entry) {
        if (out_.items.size() >= DcpItem::not_needed) throw Error(Errc::pickle_too_large, "2^32 chunks or more");
        if (entry.item_count++ == 0) entry.first_item = static_cast<std::uint32_t>(out_.items.size());
        out_.items.push_back({.entry = static_cast<std::uint32_t>(out_.entries.size() - 1)});
    }

    void read_tensor(DcpEntry& entry, Id value) {
        entry.tensor = true;
        entry.dtype = dtype_of(objects_.require(value, "properties"));
        entry.shape = shape_of(objects_.require(value, "size"), entry.dtype);
        entry.first_place = out_.places.size();
        const Id chunks = objects_.require(value, "chunks");
        if (pickle_.kind(chunks) != Kind::list && pickle_.kind(chunks) != Kind::tuple)
            throw Error(Errc::field_missing, "expected a list of chunks, found " + objects_.described(chunks));
        for (const Id chunk : pickle_.items(chunks)) add_chunk(entry, chunk);
    }

    /// Reads the dtype: torch.float32 as the first part of the state, or as an attribute.
    Dtype dtype_of(Id properties) {
        if (objects_.class_of(properties) != DcpClass::properties)
            throw Error(Errc::field_missing,
                        "expected the properties of a tensor, found " + objects_.described(properties));
        const auto states = pickle_.call(properties).states;
        const bool in_tuple =
            !states.empty() && pickle_.kind(states.back()) == Kind::tuple && pickle_.items(states.back()).size() > 2;
        const Id said = in_tuple ? pickle_.items(states.back())[0] : objects_.require(properties, "dtype");
        if (pickle_.kind(said) != Kind::global || pickle_.global(said).module != "torch")
            throw Error(Errc::field_missing, "expected a dtype of torch, found " + objects_.described(said));
        if (const auto dtype = dtype_from_torch(pickle_.global(said).name)) return *dtype;
        throw Error(Errc::unknown_dtype, "unknown dtype " + safemap::quoted(pickle_.global(said).name));
    }

    Shape shape_of(Id id, Dtype dtype) {
        const auto too_large = [&](const std::string& shape) {
            throw Error(Errc::shape_overflow, "a shape " + shape + "of " + std::string(torch_name(dtype)) +
                                                  " is too large: its size does not fit in 64 bits");
        };
        Integers numbers = objects_.integers(id, [&] { too_large(""); });
        count_elements(dtype, numbers);
        if (std::any_of(numbers.begin(), numbers.end(), is_negative))
            throw Error(Errc::bad_tensor, "the shape " + shape_text(numbers) + " has a negative dimension");
        const Shape shape = unsigned_shape(numbers);
        const auto elements = element_count(shape);
        const auto bits = elements ? checked_mul(*elements, safemap::bits(dtype)) : std::nullopt;
        if (!bits || *elements > static_cast<std::uint64_t>(INT64_MAX)) too_large(shape_text(numbers) + ' ');
        return shape;
    }

    void add_chunk(DcpEntry& entry, Id chunk) {
        const std::size_t rank = entry.shape.size();
        allowance_.spend(chunk_cost + 4 * rank * sizeof(std::uint64_t));
        if (objects_.class_of(chunk) != DcpClass::chunk)
            throw Error(Errc::field_missing, "expected a chunk, found " + objects_.described(chunk));
        const auto outside = [&](const std::string& what) {
            throw Error(Errc::piece_outside, "a chunk " + what + " is outside the shape " + to_string(entry.shape));
        };
        const auto far = [&] { outside("beyond 64 bits"); };
        Integers offsets = objects_.integers(objects_.require(chunk, "offsets"), far);
        Integers sizes = objects_.integers(objects_.require(chunk, "sizes"), far);
        for (Integers* const numbers : {&offsets, &sizes}) count_elements(entry.dtype, *numbers);
        const auto what = [&] { return "of shape " + shape_text(sizes) + " at " + shape_text(offsets); };
        if (offsets.size() != rank || sizes.size() != rank)
            throw Error(Errc::piece_mismatch, "a chunk " + what() +
                                                  " has another number of dimensions than the shape " +
                                                  to_string(entry.shape) + " of the tensor");
        for (std::size_t d = 0; d < rank; ++d) {
            const Extent place{static_cast<std::uint64_t>(offsets[d]), static_cast<std::uint64_t>(sizes[d])};
            if (offsets[d] < 0 || sizes[d] < 0 || !place.inside(entry.shape[d])) outside(what());
        }
        for (const std::int64_t offset : offsets) out_.places.push_back(static_cast<std::uint64_t>(offset));
        for (const std::int64_t size : sizes) out_.places.push_back(static_cast<std::uint64_t>(size));
        add_item(entry);
    }

    // Items.

    void read_items(Id stored) {
        std::size_t unused = 0;
        const auto found = dictionary(stored, "storage_data");
        for (std::size_t i = 0; i + 1 < found.size(); i += 2) {
            allowance_.spend(stored_cost);
            if (!read_item(found[i], found[i + 1])) ++unused;
        }
        if (unused > 0)
            out_.notes.push_back(counted(unused, "item") +
                                 " of storage_data belong to no chunk or object and are not read");
    }

    /// Gives a chunk or object its item. Returns false if there is no such chunk or object.
    bool read_item(Id key, Id value) {
        if (objects_.class_of(key) != DcpClass::index)
            throw Error(Errc::field_missing,
                        "expected a key MetadataIndex in storage_data, found " + objects_.described(key));
        const Id name = objects_.require(key, "fqn");
        if (pickle_.kind(name) != Kind::text)
            throw Error(Errc::field_missing, "the fqn of a MetadataIndex is " + objects_.described(name));
        const auto number = entry_called(name);
        if (!number) return false;
        const std::string& about = out_.entries[*number].name;
        return about_tensor(about, [&] { return place_item(*number, key, value); });
    }

    std::optional<std::uint32_t> entry_called(Id name) {
        constexpr std::size_t longest_hashed = 256;
        const std::string_view text = pickle_.text(name);
        const auto look_up = [&] { return by_name_.find(text, NamesOf(out_.entries)); };
        if (text.size() <= longest_hashed) return look_up();
        const auto [known, unmet] = long_names_.try_emplace(name);
        if (unmet) known->second = look_up();
        return known->second;
    }

    bool place_item(std::uint32_t number, Id key, Id value) {
        const DcpEntry& entry = out_.entries[number];
        const auto said = objects_.attribute(key, "offset");
        const bool has_offset = said && pickle_.kind(*said) != Kind::none;
        if (has_offset != entry.tensor) return false;
        if (!entry.tensor) {
            out_.items[entry.first_item] = item_of(number, value);
            return true;
        }
        Integers offset = objects_.integers(*said, [] {});
        count_elements(entry.dtype, offset);
        if (offset.size() != entry.shape.size() || std::any_of(offset.begin(), offset.end(), is_negative)) return false;
        const Shape start = unsigned_shape(offset);
        const auto chunks = indexes_[number].at(out_, entry, {start.data(), start.size()});
        allowance_.spend(placing_cost * chunks.size());
        if (!chunks.empty()) place_chunks(entry, chunks, item_of(number, value));
        return !chunks.empty();
    }

    /// Gives chunks that begin at one offset their item. Chunks without elements need none if another chunk begins
    /// there.
    void place_chunks(const DcpEntry& entry, const std::vector<std::uint32_t>& chunks, const DcpItem& item) {
        const auto is_empty = [&](std::uint32_t chunk) {
            const auto size = out_.size(entry, chunk);
            return std::find(size.begin(), size.end(), 0U) != size.end();
        };
        const bool all_empty = std::all_of(chunks.begin(), chunks.end(), is_empty);
        for (const std::uint32_t chunk : chunks) {
            DcpItem& placed = out_.items[entry.first_item + chunk];
            placed = item;
            if (is_empty(chunk) && (!all_empty || chunk != chunks.front())) placed.file = DcpItem::not_needed;
        }
    }

    DcpItem item_of(std::uint32_t number, Id value) {
        if (objects_.class_of(value) != DcpClass::stored)
            throw Error(Errc::unsupported_layout, "its storage is described by " + objects_.described(value) +
                                                      "; expected a _StorageInfo of FileSystemWriter");
        return {.offset = number_of(value, "offset"),
                .length = number_of(value, "length"),
                .file = file_of(objects_.require(value, "relative_path")),
                .transform = transform_of(objects_.attribute(value, "transform_descriptors")),
                .entry = number};
    }

    std::uint64_t number_of(Id value, std::string_view name) const {
        const Id id = objects_.require(value, name);
        const std::string of = "the " + std::string(name) + " of its item in storage_data is ";
        if (pickle_.kind(id) == Kind::big_integer)
            throw Error(Errc::piece_missing, of + "past the end of any file: beyond 64 bits");
        if (pickle_.kind(id) != Kind::integer) throw Error(Errc::field_missing, of + objects_.described(id));
        const std::int64_t number = pickle_.integer(id);
        if (is_negative(number)) throw Error(Errc::piece_missing, of + "negative: " + std::to_string(number));
        return static_cast<std::uint64_t>(number);
    }

    std::uint32_t file_of(Id id) {
        if (pickle_.kind(id) != Kind::text)
            throw Error(Errc::field_missing, "the relative_path of its item is " + objects_.described(id));
        const std::string_view path = pickle_.text(id);
        const bool is_path = !path.empty() && path.size() <= longest_path && path.find('\0') == path.npos;
        if (!is_path || !stays_below(path))
            throw Error(Errc::shard_outside_folder, "the relative_path " + safemap::quoted(path) +
                                                        " of its item does not lead to a file below the folder");
        return interned(path, files_, out_.files);
    }

    std::uint32_t transform_of(std::optional<Id> id) {
        if (!id || pickle_.kind(*id) == Kind::none) return 0;
        constexpr std::size_t most = 8;
        std::string names;
        const auto items = pickle_.items(*id);
        const bool is_sequence = pickle_.kind(*id) == Kind::list || pickle_.kind(*id) == Kind::tuple;
        if (!is_sequence || items.size() > most)
            throw Error(Errc::field_missing, "the transform_descriptors of its item are " + objects_.described(*id));
        for (const Id item : items) {
            if (pickle_.kind(item) != Kind::text || pickle_.text(item).size() > longest_path)
                throw Error(Errc::field_missing, "a transform of its item is " + objects_.described(item));
            names += (names.empty() ? "" : ", ") + std::string(pickle_.text(item));
        }
        return names.empty() ? 0 : interned(names, transforms_, out_.transforms);
    }

    std::uint32_t interned(std::string_view text, NameIndex& index, std::vector<std::string>& texts) {
        if (const auto known = index.find(text, NamesOf(texts))) return *known;
        allowance_.spend(entry_cost + text.size());
        texts.emplace_back(text);
        return index.add(texts.back(), static_cast<std::uint32_t>(texts.size() - 1), NamesOf(texts));
    }

    void require_items() const {
        for (const DcpItem& item : out_.items) {
            if (item.file != DcpItem::not_stored) continue;
            const DcpEntry& entry = out_.entries[item.entry];
            const std::size_t k = static_cast<std::size_t>(&item - out_.items.data()) - entry.first_item;
            std::string what = "the object";
            if (entry.tensor) what = "the chunk at " + to_string(Shape(out_.start(entry, k)));
            throw Error(Errc::piece_missing, what + " has no entry in storage_data").with_tensor(entry.name);
        }
    }

    // Paths.

    void read_paths(Id planned) {
        if (pickle_.kind(planned) == Kind::none) return;
        const auto found = objects_.entries(planned);
        if (!found) {
            out_.notes.push_back("planner_data is " + objects_.described(planned) +
                                 " without paths, so names are the keys of the state dict");
            return;
        }
        std::size_t without = 0;
        for (std::size_t i = 0; i + 1 < found->size(); i += 2) {
            if (pickle_.kind((*found)[i]) != Kind::text) continue;
            const auto number = entry_called((*found)[i]);
            if (number && !read_path(out_.entries[*number], (*found)[i + 1])) ++without;
        }
        if (without > 0)
            out_.notes.push_back("planner_data has no path for " +
                                 counted(without, "name, which is a key", "names, which are keys") +
                                 " of the state dict");
    }

    /// Reads the path of an entry. Returns false if the value is something else.
    bool read_path(DcpEntry& entry, Id value) {
        const Kind kind = pickle_.kind(value);
        const auto items = pickle_.items(value);
        if ((kind != Kind::tuple && kind != Kind::list) || items.empty()) return false;
        allowance_.spend(step_cost * items.size());
        const auto is_step = [&](Id id) { return pickle_.kind(id) == Kind::text || pickle_.kind(id) == Kind::integer; };
        if (!std::all_of(items.begin(), items.end(), is_step)) return false;
        entry.first_step = out_.steps.size();
        entry.step_count = static_cast<std::uint32_t>(items.size());
        for (const Id item : items) {
            if (pickle_.kind(item) == Kind::integer) out_.steps.push_back({.place = pickle_.integer(item)});
            else out_.steps.push_back({.text = text_number(item)});
        }
        return true;
    }

    std::uint32_t text_number(Id id) {
        const auto [known, unmet] = text_numbers_.try_emplace(id);
        if (unmet) known->second = interned(pickle_.text(id), texts_, out_.texts);
        return known->second;
    }

    // Megatron.

    /// Notes the tensors that Megatron has stored flat, under another shape than their own.
    void note_reformulated(Id megatron) {
        const auto found = objects_.entries(megatron);
        std::size_t count = 0;
        std::string first;
        for (std::size_t i = 0; found && i + 1 < found->size(); i += 2) {
            const auto shape = own_shape((*found)[i + 1]);
            const auto number = pickle_.kind((*found)[i]) == Kind::text ? entry_called((*found)[i]) : std::nullopt;
            if (!shape || !number || count++ > 0) continue;
            const DcpEntry& entry = out_.entries[*number];
            first = excerpt(entry.name) + " of shape " + shape_text(*shape) + " as " + to_string(entry.shape);
        }
        if (count == 0) return;
        out_.notes.push_back("Megatron has stored " + counted(count, "tensor") + " as flattened ranges, for example " +
                             first + "; the values are given as they are stored");
    }

    /// Returns the shape that a tensor has in the model, from a value of mcore_data.
    std::optional<Integers> own_shape(Id about) {
        const auto found = objects_.entries(about);
        if (!found || found->size() > 2 * DcpObjects::most_attributes) return std::nullopt;
        for (std::size_t i = 0; i + 1 < found->size(); i += 2)
            if (pickle_.kind((*found)[i]) == Kind::text &&
                pickle_.text((*found)[i]) == "nd_reformulated_orig_global_shape")
                return objects_.integers((*found)[i + 1], [] {});
        return std::nullopt;
    }

    const PickleGraph& pickle_;
    DcpObjects objects_;
    Allowance allowance_;
    DcpMetadata out_;
    std::vector<ChunkIndex> indexes_;                                  ///< by number of the entry
    NameIndex by_name_;                                                ///< index of out_.entries
    NameIndex files_;                                                  ///< index of out_.files
    NameIndex transforms_;                                             ///< index of out_.transforms
    NameIndex texts_;                                                  ///< index of out_.texts
    std::unordered_map<Id, std::uint32_t> text_numbers_;               ///< by node
    std::unordered_map<Id, std::optional<std::uint32_t>> long_names_;  ///< by node
};

/// Returns the limits of one of several pickles, whose contents are in memory at the same time.
PickleLimits limits_of(std::uint64_t size, std::size_t files) {
    constexpr std::uint64_t for_classes = std::uint64_t{1} << 20;  // in a small pickle, too
    PickleLimits limits = PickleLimits::of_packed(size);
    const std::uint64_t for_size = PickleLimits::memory_per_byte * std::min(size, PickleLimits::most_bytes);
    const std::uint64_t share = PickleLimits::least_memory / std::max(files, std::size_t{1});
    limits.max_memory = std::max(share, for_classes + for_size);
    return limits;
}

}  // namespace

DcpMetadata read_dcp_metadata(const Source& source, torch::NamedGlobals& globals, std::size_t files) {
    return about_file(source.name(), [&] {
        const PickleLimits limits = limits_of(source.size(), files);
        if (source.size() > limits.max_bytes)
            throw Error(Errc::pickle_too_large, "the pickle has " + bytes_text(source.size()) + "; the limit is " +
                                                    bytes_text(limits.max_bytes));
        std::vector<char> bytes(source.size());
        source.read_at(0, std::as_writable_bytes(std::span(bytes)));
        const PickleGraph pickle = read_pickle(bytes, limits);
        globals.add(pickle, "the pickle", is_known_in_dcp);
        globals.refuse();
        globals.refuse_code();
        return MetadataReader(pickle).read();
    });
}

}  // namespace safemap::SAFEMAP_ABI::distributed
