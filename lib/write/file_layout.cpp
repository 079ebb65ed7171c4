// Lays checkpoints out. The Planner turns the caller's tensors and metadata into the files of a Layout. From top to
// bottom:
// - require_text(), require_distinct_names(): refuse duplicate names and text that is not UTF-8 before anything else.
// - with_own_digests(): the metadata without the digests of the files that were read.
// - choose(), skip_other_names(): the dtype of each tensor. Tensors that cannot be saved are skipped. Casts that would
//   separate quantised numbers from their scales are refused before (write/quantized.hpp).
// - split_tensors(), header_bytes(), sized(), number_layers(): sizes, bytes in headers, storages and layers, which
//   split() turns into shards.
// - note_large_layers(), note_order(): notes for the report.
// - rank_shards(), rank_metadata(): a file for each rank, with slices of tensors.
// - add_file(), add_index(): the order in each file, its header, and the index. Places for digests stay zero in the
//   headers, and are filled when the digests are known.
// - lay_out(): runs a Planner for one file, for shards or for ranks.
// - put_digests(): computes the checkpoint's digest and puts digests into heads, once they are known.
#include "write/file_layout.hpp"

#include "base/checked.hpp"
#include "base/faults.hpp"
#include "base/name_index.hpp"
#include "base/text.hpp"
#include "lazy/scaled.hpp"
#include "lazy/stored_tensor.hpp"
#include "names/file_names.hpp"
#include "safetensors/digests.hpp"
#include "safetensors/format.hpp"
#include "safetensors/header.hpp"
#include "safetensors/index.hpp"
#include "safetensors/sharding_info.hpp"
#include "state/structure.hpp"
#include "tensor/raw_dtype.hpp"
#include "write/quantized.hpp"
#include "write/reshard.hpp"
#include "write/shards.hpp"

#include <safemap/advanced/dtypes.hpp>
#include <safemap/advanced/stored_tensor.hpp>
#include <safemap/advanced/strides.hpp>

#include <algorithm>
#include <deque>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

namespace safemap::SAFEMAP_ABI::write {

namespace {

using safetensors::TensorSpec;
using Pairs = std::vector<std::pair<std::string, std::string>>;

// The metadata key that huggingface_hub's loader requires in a file that has any metadata.
constexpr const char* format_key = "format";
constexpr const char* format_default = "pt";

std::uint64_t bytes_as(const LazyTensor& tensor, Dtype dtype) {
    const auto bytes = byte_size(dtype, tensor.element_count());
    if (!bytes) {
        Error error(Errc::shape_overflow,
                    "invalid size: shape " + to_string(tensor.shape()) + " of " + std::string(name(dtype)));
        throw error.with_tensor(tensor.name());
    }
    return *bytes;
}

void require_text(std::string_view text, const char* what) {
    if (is_utf8(text)) return;
    throw Error(Errc::invalid_argument, std::string(what) + " is not UTF-8: " + excerpt(text));
}

void require_distinct_names(std::span<const LazyTensor> tensors) {
    for (const LazyTensor& tensor : tensors) {
        require_text(tensor.name(), "a tensor's name");
        if (tensor.name() == "__metadata__") throw Error(Errc::name_collision, "the name '__metadata__' is reserved");
        // The reference implementation writes and reads such a name. Strict readers do not, and neither does code that
        // passes names on as C strings.
        if (tensor.name().find('\0') != std::string::npos)
            throw Error(Errc::bad_name, "the name has a NUL byte: " + safemap::quoted(tensor.name()))
                .with_hint("safemap convert IN OUT --rename 's/RE/TEXT/' gives it another name");
    }
    NameIndex().add_all(NamesOf(tensors), [&](std::uint32_t, std::uint32_t again) {
        throw Error(Errc::name_collision, "two tensors have the name " + safemap::quoted(tensors[again].name()));
    });
}

/// Returns the metadata without the digests of the files that were read: they do not apply to what is written. If
/// `wanted`, adds the digest of the structure document, which is known now because the document is written as given.
Metadata with_own_digests(const Metadata& metadata, bool wanted) {
    Metadata own;
    for (const auto& entry : metadata)
        if (!safetensors::is_digest_key(entry.first)) own.insert(own.end(), entry);
    const auto structure = own.find(std::string(state::structure_key));
    if (!wanted || structure == own.end()) return own;
    if (auto digest = state::structure_digest(structure->second))
        own.emplace(safetensors::structure_digest_key, std::move(*digest));
    return own;
}

void put_sorted(Pairs& metadata, std::string_view key, std::string value) {
    std::pair<std::string, std::string> entry(key, std::move(value));
    metadata.insert(std::upper_bound(metadata.begin(), metadata.end(), entry), std::move(entry));
}

/// The planner of one save, which lays out its tensors.
class Planner {
public:
    Planner(const Input& input, const SaveOptions& options)
        : input_(input),
          metadata_(options.exact_metadata ? input.metadata : with_own_digests(input.metadata, options.checksums)),
          options_(options) {
        require_distinct_names(input.tensors);
        for (const auto& [key, value] : input.metadata) {
            require_text(key, "a metadata key");
            require_text(value, "a metadata value");
        }
        std::string note_on_scales = require_whole_casts(input, options);
        layout_.skipped = input.skipped;
        for (std::uint32_t i = 0; i < input.tensors.size(); ++i) choose(i);
        skip_other_names();
        note_fp8();
        if (!note_on_scales.empty()) layout_.notes.push_back(std::move(note_on_scales));
    }

    Layout one_file(const std::string& name) && {
        single_file_ = true;
        std::vector<std::uint32_t> all(layout_.chosen.size());
        for (std::uint32_t i = 0; i < all.size(); ++i) all[i] = i;
        add_only_file(name, all);
        note_order();
        return std::move(layout_);
    }

    Layout shards() && {
        Split split = split_tensors();
        if (split.shards.empty()) split.shards.emplace_back();  // an empty checkpoint is one file without tensors
        const std::size_t count = split.shards.size();
        if (count == 1) {
            add_only_file(shard_name(options_.stem, 0, 1), split.shards.front());
        } else {
            for (std::size_t i = 0; i < count; ++i)
                add_file(shard_name(options_.stem, i, count), stored(split.shards[i]), shard_metadata());
            add_index(split);
            if (options_.stem == "adapter_model" || options_.stem == "pytorch_lora_weights")
                layout_.notes.push_back("PEFT and diffusers read an adapter from one file, " +
                                        shard_name(options_.stem, 0, 1) + "; a larger max_shard_size gives one");
        }
        note_large_layers(split);
        note_order();
        return std::move(layout_);
    }

    /// Lays out a file for each rank that gets a part of any tensor, as torch writes none for the others: its
    /// consolidation refuses files without tensors. The first file also has what is said of the whole.
    Layout rank_shards() && {
        const auto is_structure = [this](const LazyTensor& tensor) {
            return tensor.name() == state::structure_tensor && has_structure_tensor(input_);
        };
        const std::uint32_t dimension = options_.rank_dimension;
        RankParts cut = cut_for_ranks(input_.tensors, layout_.chosen, options_.ranks, dimension, is_structure);
        std::uint32_t first = 0;
        for (std::uint32_t rank = 0; rank < options_.ranks; ++rank) {
            std::vector<Stored> members;
            for (; first < cut.ends[rank]; ++first)
                members.push_back({&cut.tensors[first], first, layout_.chosen[cut.chosen[first]].dtype});
            if (members.empty() && rank > 0) break;  // nor have the ranks after it any
            sort_for_file(members);                  // so that the same tensors give the same metadata
            std::vector<std::uint32_t> numbers;
            for (const Stored& member : members) numbers.push_back(member.number);
            Pairs metadata = rank_metadata(rank == 0);
            put_sorted(metadata, safetensors::sharding_info_key,
                       sharding_info_of(cut, numbers, input_.tensors, layout_.chosen, dimension));
            add_file(names::spelled({.kind = names::NameKind::hf_shard, .shard = rank + 1, .file = 1, .files = 1}),
                     std::move(members), std::move(metadata));
        }
        layout_.files.front().has_checkpoint_digest = options_.checksums;
        for (const std::uint32_t from : cut.chosen) layout_.part_of.push_back(layout_.chosen[from].number);
        layout_.parts = std::move(cut.tensors);
        layout_.wholes = input_.tensors;
        note_order();
        return std::move(layout_);
    }

private:
    /// A tensor to store, and its number in the list of tensors that are written.
    struct Stored {
        const LazyTensor* tensor;
        std::uint32_t number;
        Dtype dtype;
    };

    const LazyTensor& tensor(const ChosenTensor& chosen) const { return input_.tensors[chosen.number]; }

    std::vector<Stored> stored(std::span<const std::uint32_t> members) const {
        std::vector<Stored> all;
        all.reserve(members.size());
        for (const std::uint32_t member : members)
            all.push_back(
                {&tensor(layout_.chosen[member]), layout_.chosen[member].number, layout_.chosen[member].dtype});
        return all;
    }

    void choose(std::uint32_t number) {
        const LazyTensor& tensor = input_.tensors[number];
        const Dtype dtype = written_dtype(tensor, options_);
        if (!in_safetensors(dtype) && !input_.as_raw.contains(tensor.name())) {
            layout_.skipped.push_back({.name = tensor.name(),
                                       .type = "torch." + std::string(torch_name(dtype)),
                                       .why = "safetensors has no name for this dtype; only a structure document "
                                              "keeps it (convert --structure keep)"});
            return;
        }
        layout_.chosen.push_back({number, dtype});
        ++layout_.tensors;
        // An unsupported cast throws now, not when half of the files are written.
        if (dtype != tensor.dtype()) static_cast<void>(tensor.cast(dtype));
        if (dtype != tensor.dtype() && state::is_fp8(tensor.dtype())) ++fp8_cast_;
        layout_.data_bytes = sum_of_sizes(layout_.data_bytes, bytes_as(tensor, dtype));
        layout_.read_bytes = sum_of_sizes(layout_.read_bytes, stored_bytes(tensor));
        if (tensor.stored()->dtype() != dtype) ++cast_of(layout_.casts, stored_dtype(tensor), dtype).tensors;
    }

    /// Also skips the other names of each skipped tensor, so that no pair of the metadata names a missing tensor.
    void skip_other_names() {
        std::unordered_map<std::string_view, std::vector<std::string>, NameHash> others;
        for (const SkippedObject& skipped : layout_.skipped) others.try_emplace(skipped.name);
        if (others.empty()) return;
        for (const AliasGroup& group : input_.ties) {
            const auto found = others.find(group.front());
            if (found == others.end()) continue;
            for (std::size_t i = 1; i < group.size(); ++i)
                if (options_.exact_metadata || erase_pair(group[i], group.front())) found->second.push_back(group[i]);
            std::sort(found->second.begin(), found->second.end());
        }
        std::vector<SkippedObject> all;
        for (const SkippedObject& skipped : layout_.skipped) {
            all.push_back(skipped);
            for (std::string& other : others.at(skipped.name))
                all.push_back({std::move(other), skipped.type, skipped.why});
        }
        layout_.skipped = std::move(all);
    }

    bool erase_pair(const std::string& key, const std::string& value) {
        const auto pair = metadata_.find(key);
        if (pair == metadata_.end() || pair->second != value) return false;
        metadata_.erase(pair);
        return true;
    }

    void note_fp8() {
        if (fp8_cast_ > 0)
            layout_.notes.push_back(counted(fp8_cast_, "F8 tensor is", "F8 tensors are") +
                                    " cast without scales, because none are beside them; if other files have the "
                                    "scales, convert all files together");
        for (const SaveReport::Cast& cast : layout_.casts)
            if (state::is_fp8(cast.to) && !state::is_fp8(cast.from)) {
                std::string note = note_on_fp8(cast.to);  // products may have it already
                if (std::find(input_.notes.begin(), input_.notes.end(), note) == input_.notes.end())
                    layout_.notes.push_back(std::move(note));
                return;
            }
    }

    Split split_tensors() {
        std::uint64_t most = header_for_tensors(shard_metadata());
        const std::vector<Sized> tensors = sized(most);
        Split split = write::split(tensors, {options_.max_shard_size, most}, options_.strategy);
        if (split.shards.size() != 1) return split;
        // The only file also has the metadata of the whole, which is otherwise in the index.
        std::uint64_t all = 0;
        std::uint64_t largest = 0;
        for (const Sized& each : tensors) {
            all += each.header;
            largest = std::max(largest, each.header);
        }
        if (all <= header_for_tensors(whole_metadata())) return split;
        return write::split(tensors, {options_.max_shard_size, std::min(most, all / 2 + largest)}, options_.strategy);
    }

    /// Returns the bytes that the header of a shard has left for tensors. A higher limit than the usual one is for
    /// files that cannot be cut: shards are for every reader.
    std::uint64_t header_for_tensors(const Pairs& metadata) const {
        const std::uint64_t most = std::min(options_.max_header_bytes, safetensors::usual_max_header);
        return most - std::min(safetensors::bytes_around_tensors(metadata, options_.alignment), most);
    }

    /// Returns the bytes that each chosen tensor takes in a header, or no numbers if all of them fit into one header.
    std::vector<std::uint64_t> header_bytes() {
        constexpr std::uint64_t most_in_name = 24;  // the most that JSON makes of one byte, also in a list of digests
        constexpr std::uint64_t most_beside = 512;
        constexpr std::uint64_t most_digits = 21;
        std::uint64_t at_most = 0;
        for (const ChosenTensor& chosen : layout_.chosen)
            at_most +=
                most_in_name * tensor(chosen).name().size() + most_digits * tensor(chosen).shape().size() + most_beside;
        if (at_most <= header_for_tensors(whole_metadata())) return {};
        std::vector<std::uint64_t> bytes;
        bytes.reserve(layout_.chosen.size());
        std::string buffer;
        for (const ChosenTensor& chosen : layout_.chosen) {
            bytes.push_back(safetensors::bytes_in_header(spec({&tensor(chosen), chosen.number, chosen.dtype}),
                                                         layout_.data_bytes, options_.checksums, buffer));
            raw_shapes_.clear();
        }
        return bytes;
    }

    /// Returns what split() needs to know of each tensor, for headers with so many bytes for tensors. Contiguous views
    /// of one storage stay together, as in huggingface_hub, if the shard then stays within its maximum. Sizes are of
    /// what is written: for a storage, the parts that are saved.
    std::vector<Sized> sized(std::uint64_t most_in_header) {
        const std::vector<std::uint64_t> headers = header_bytes();
        std::vector<Sized> sized;
        sized.reserve(layout_.chosen.size());
        struct Group {
            std::uint32_t first;
            std::uint32_t members;
            std::uint64_t size;
            std::uint64_t header;
        };
        std::unordered_map<const StoredTensor*, Group> groups;
        // In huggingface_hub, all tensors without elements share one storage, whose address is 0 (here null). For
        // by_prefix they share none: that would join all layers that have such tensors.
        const auto storage_of = [this](const LazyTensor& t, Dtype dtype) -> std::optional<const StoredTensor*> {
            const StridedView& view = t.strided_view();
            const bool as_stored = t.stored()->dtype() == dtype && is_contiguous(view.shape, view.strides);
            if (t.element_count() == 0 && (!as_stored || t.stored()->element_count() == 0)) {
                if (options_.strategy == ShardStrategy::by_prefix) return std::nullopt;
                return nullptr;
            }
            return as_stored ? std::optional(t.stored().get()) : std::nullopt;
        };
        for (std::uint32_t i = 0; i < layout_.chosen.size(); ++i) {
            const LazyTensor& t = tensor(layout_.chosen[i]);
            sized.push_back({.size = bytes_as(t, layout_.chosen[i].dtype), .header = headers.empty() ? 0 : headers[i]});
            const auto storage = storage_of(t, layout_.chosen[i].dtype);
            if (!storage) continue;
            Group& group = groups.try_emplace(*storage, Group{i, 0, 0, 0}).first->second;
            ++group.members;
            group.header += sized.back().header;
            group.size += sized.back().size;  // at most data_bytes, so it fits
        }
        for (std::uint32_t i = 0; i < layout_.chosen.size(); ++i) {
            const LazyTensor& t = tensor(layout_.chosen[i]);
            const auto storage = storage_of(t, layout_.chosen[i].dtype);
            if (!storage) continue;
            const Group& group = groups.at(*storage);
            if (group.members == 1 || group.size > options_.max_shard_size || group.header > most_in_header) continue;
            sized[i].storage = std::uint64_t{group.first} + 1;
            if (i == group.first) sized[i].size = group.size;
        }
        if (options_.strategy == ShardStrategy::by_prefix) number_layers(sized);
        return sized;
    }

    void number_layers(std::vector<Sized>& sized) const {
        std::unordered_map<std::string_view, std::uint64_t, NameHash> numbers;
        for (std::uint32_t i = 0; i < layout_.chosen.size(); ++i) {
            const std::string_view layer = layer_of(tensor(layout_.chosen[i]).name());
            if (!layer.empty()) sized[i].layer = numbers.try_emplace(layer, numbers.size() + 1).first->second;
        }
    }

    void note_large_layers(const Split& split) {
        for (const LargeLayer& large : split.large_layers) {
            const std::string_view name = tensor(layout_.chosen[large.tensor]).name();
            const std::string_view layer = layer_of(name);
            layout_.notes.push_back("the layer of " + safemap::quoted(layer.empty() ? name : layer) + " takes " +
                                    bytes_text(large.size) + ", more than " + bytes_text(options_.max_shard_size) +
                                    "; it is stored whole in " + layout_.files[large.shard].name);
        }
    }

    void note_order() {
        if (input_.note_order && !keeps_order()) layout_.notes.emplace_back(order_is_lost);
    }
    bool keeps_order() const {
        std::uint32_t before = 0;
        for (const PlannedFile& file : layout_.files)
            for (const PlannedTensor& planned : file.tensors)
                if (std::exchange(before, planned.number) > planned.number) return false;
        return true;
    }

    Pairs whole_metadata() const {
        Metadata whole = metadata_;
        if (!options_.exact_metadata) whole.try_emplace(format_key, format_default);
        return {whole.begin(), whole.end()};
    }

    /// Returns the metadata of the file of a rank, without the places of its tensors. What safemap says of the whole
    /// checkpoint is in the first file only.
    Pairs rank_metadata(bool first) {
        Pairs metadata;
        for (const auto& entry : whole_metadata())
            if (!safetensors::is_sharding_key(entry.first) && (first || !entry.first.starts_with("safemap.")))
                metadata.push_back(entry);
        put_sorted(metadata, safetensors::sharding_version_key, std::string(safetensors::sharding_version));
        if (first && options_.checksums) add_identity(metadata);
        return metadata;
    }

    Pairs shard_metadata() const {
        if (options_.exact_metadata) return {};
        return {{format_key, format_default}};
    }

    void add_only_file(const std::string& name, std::span<const std::uint32_t> members) {
        Pairs metadata = whole_metadata();
        if (options_.checksums) add_identity(metadata);
        add_file(name, stored(members), std::move(metadata));
        layout_.files.back().has_checkpoint_digest = options_.checksums;
    }

    std::vector<TensorSpec> specs_of(const std::vector<Stored>& members) {
        std::vector<TensorSpec> specs;
        specs.reserve(members.size());
        for (const Stored& member : members) specs.push_back(spec(member));
        return specs;
    }

    /// Sorts by the order in the file.
    void sort_for_file(std::vector<Stored>& members) {
        const std::vector<std::uint32_t> order = file_order(specs_of(members));
        std::vector<Stored> sorted;
        sorted.reserve(members.size());
        for (const std::uint32_t i : order) sorted.push_back(members[i]);
        members = std::move(sorted);
    }

    void add_file(const std::string& name, std::vector<Stored> members, Pairs metadata) {
        sort_for_file(members);
        PlannedFile file{.name = name,
                         .head = adding([this](Error& error) { add_hint(error); },
                                        [&] { return header_of(members, std::move(metadata)); }),
                         .tensors = {},
                         .size = 0,
                         .lists_digests = options_.checksums};
        if (file.head.size() - safetensors::length_bytes > safetensors::usual_max_header)
            layout_.notes.push_back(name + " has a header of " +
                                    bytes_text(file.head.size() - safetensors::length_bytes) +
                                    "; readers that keep to the limit of the reference, " +
                                    std::to_string(safetensors::usual_max_header) + ", refuse it");
        file.tensors.reserve(members.size());
        std::uint64_t offset = file.head.size();
        for (const Stored& member : members) {
            file.tensors.push_back({.offset = offset, .number = member.number, .dtype = member.dtype});
            if (offset % options_.alignment != 0) ++layout_.unaligned_tensors;
            const auto end = checked_add(offset, bytes_as(*member.tensor, member.dtype));
            if (!end) throw Error(Errc::shape_overflow, "the file would have more than 2^64 bytes").with_path(name);
            offset = *end;
        }
        file.size = offset;
        layout_.files.push_back(std::move(file));
    }

    /// Returns the header of a file with these tensors, in this order.
    std::string header_of(const std::vector<Stored>& members, Pairs metadata) {
        const std::vector<TensorSpec> specs = specs_of(members);
        if (options_.checksums) put_sorted(metadata, safetensors::digests_key, list_of_zeros(specs));
        const bool has_metadata = !metadata.empty() || options_.empty_metadata;
        return safetensors::write_header(specs, metadata, has_metadata, options_.alignment, options_.max_header_bytes);
    }

    void add_hint(Error& error) const {
        if (error.code() != Errc::header_too_large) return;
        constexpr const char* longer =
            "--max-header-size (SaveOptions::max_header_bytes) allows a longer header, which other readers may refuse";
        error.with_hint(std::string(single_file_ ? "save shards, to a folder (--max-shard-size), or " : "") + longer);
    }

    std::vector<std::uint32_t> file_order(std::span<const TensorSpec> specs) const {
        std::vector<std::uint32_t> order = safetensors::file_order(specs);
        if (options_.align_tensors)
            std::stable_partition(order.begin(), order.end(), [&](std::uint32_t i) {
                return safetensors::value_bytes(specs[i].dtype, *specs[i].shape) % options_.alignment == 0;
            });
        return order;
    }

    static std::string list_of_zeros(std::span<const TensorSpec> tensors) {
        std::vector<std::pair<std::string_view, Digest>> list;
        list.reserve(tensors.size());
        for (const TensorSpec& tensor : tensors) list.emplace_back(tensor.name, Digest());
        return safetensors::write_digests(list);
    }

    /// Adds a place for the checkpoint's digest, and lists the other names that a reader of this metadata will see.
    void add_identity(Pairs& metadata) {
        const auto name_of = [this](std::uint32_t i) -> std::string_view { return tensor(layout_.chosen[i]).name(); };
        NameIndex names;
        names.add_all(static_cast<std::uint32_t>(layout_.chosen.size()), name_of, [](auto, auto) {});
        safetensors::for_each_alias(
            metadata, [&](std::string_view name) { return names.find(name, name_of); },
            [this](const std::string& dropped, std::uint32_t i) {
                layout_.aliases.emplace_back(dropped, layout_.chosen[i].number);
            });
        put_sorted(metadata, safetensors::checkpoint_digest_key, hex(Digest()));
    }

    TensorSpec spec(const Stored& member) {
        const LazyTensor& t = *member.tensor;
        const Dtype dtype = raw_dtype(member.dtype);
        if (dtype == member.dtype) return {.name = t.name(), .dtype = dtype, .shape = &t.shape()};
        return {
            .name = t.name(), .dtype = dtype, .shape = &raw_shapes_.emplace_back(raw_shape(member.dtype, t.shape()))};
    }

    void add_index(const Split& split) {
        std::vector<std::pair<std::string_view, std::string_view>> weight_map;
        weight_map.reserve(layout_.chosen.size());
        for (std::size_t i = 0; i < split.shards.size(); ++i)
            for (const std::uint32_t member : split.shards[i])
                weight_map.emplace_back(tensor(layout_.chosen[member]).name(), layout_.files[i].name);
        Pairs metadata = index_metadata();
        if (options_.checksums) add_identity(metadata);
        PlannedFile file{.name = index_name(options_.stem),
                         .head = options_.index_style == IndexStyle::hub
                                     ? safetensors::write_index(split.total_size, metadata, weight_map)
                                     : safetensors::write_transformers_index(split.total_size, total_parameters(),
                                                                             metadata, weight_map),
                         .tensors = {},
                         .size = 0,
                         .has_checkpoint_digest = options_.checksums};
        file.size = file.head.size();
        layout_.files.push_back(std::move(file));
    }

    /// Returns the metadata of the index. It has no format, which the shards state if they have metadata, and no
    /// totals, which the index adds itself.
    Pairs index_metadata() const {
        const bool parameters = options_.index_style == IndexStyle::transformers;
        Pairs metadata;
        for (const auto& entry : metadata_)
            if ((options_.exact_metadata || entry.first != format_key) && entry.first != "total_size" &&
                !(parameters && entry.first == "total_parameters"))
                metadata.push_back(entry);
        return metadata;
    }

    std::uint64_t total_parameters() const {
        std::uint64_t total = 0;
        for (const ChosenTensor& chosen : layout_.chosen) total = sum_of_sizes(total, tensor(chosen).element_count());
        return total;
    }

    const Input& input_;
    Metadata metadata_;
    const SaveOptions& options_;
    std::uint64_t fp8_cast_ = 0;  // F8 tensors that are cast and are not multiplied by scales
    bool single_file_ = false;
    std::deque<Shape> raw_shapes_;  // shapes that headers have instead of the tensors' own
    Layout layout_;
};

}  // namespace

Layout::Layout() = default;
Layout::Layout(const Layout&) = default;
Layout::Layout(Layout&&) noexcept = default;
Layout& Layout::operator=(const Layout&) = default;
Layout& Layout::operator=(Layout&&) noexcept = default;
Layout::~Layout() = default;

SaveReport::Cast& cast_of(std::vector<SaveReport::Cast>& casts, Dtype from, Dtype to) {
    auto known = std::find_if(casts.begin(), casts.end(),
                              [=](const SaveReport::Cast& cast) { return cast.from == from && cast.to == to; });
    if (known == casts.end()) known = casts.insert(casts.end(), {.from = from, .to = to});
    return *known;
}

bool has_structure_tensor(const Input& input) {
    const auto structure = input.metadata.find(std::string(state::structure_key));
    return structure != input.metadata.end() && state::is_structure_apart(structure->second);
}

Dtype stored_dtype(const LazyTensor& tensor) {
    const ScaledNumbers* const scaled = scaled_numbers(tensor);
    return scaled == nullptr ? tensor.stored()->dtype() : scaled->numbers.dtype();
}

std::uint64_t stored_bytes(const LazyTensor& tensor) { return bytes_as(tensor, stored_dtype(tensor)); }

Layout lay_out(const Input& input, const SaveOptions& options, const std::optional<std::string>& single_file) {
    Planner planner(input, options);
    Layout layout = single_file         ? std::move(planner).one_file(*single_file)
                    : options.ranks > 0 ? std::move(planner).rank_shards()
                                        : std::move(planner).shards();
    layout.has_structure_tensor = has_structure_tensor(input);
    return layout;
}

namespace {

/// Returns the digest of the checkpoint: over every name that a reader will see, with the dtype, shape and digest of
/// its tensor. `tensors` and `digests` are by the caller's numbers.
Digest digest_of(const Layout& layout, std::span<const LazyTensor> tensors, std::span<const Digest> digests) {
    std::vector<safetensors::NamedDigest> all;
    all.reserve(layout.tensors + layout.aliases.size());
    std::vector<Dtype> dtypes(tensors.size());
    const auto add = [&](std::string_view name, std::uint32_t number) {
        all.push_back({name, dtypes[number], &tensors[number].shape(), digests[number]});
    };
    for (const ChosenTensor& chosen : layout.chosen) {
        dtypes[chosen.number] = chosen.dtype;
        const std::string& name = tensors[chosen.number].name();
        if (!layout.has_structure_tensor || name != state::structure_tensor) add(name, chosen.number);
    }
    for (const auto& [name, number] : layout.aliases) add(name, number);
    return safetensors::digest_of_all(std::move(all));
}

}  // namespace

void put_digests(PlannedFile& file, const Layout& layout, std::span<const LazyTensor> tensors,
                 std::span<const Digest> digests) {
    if (file.lists_digests) {
        std::vector<std::pair<std::string_view, Digest>> list;
        list.reserve(file.tensors.size());
        for (const PlannedTensor& planned : file.tensors)
            list.emplace_back(tensors[planned.number].name(), digests[planned.number]);
        safetensors::put_digests(file.head, list);
    }
    if (!file.has_checkpoint_digest) return;
    const Digest digest = layout.wholes.empty() ? digest_of(layout, tensors, digests)
                                                : digest_of(layout, layout.wholes, layout.whole_digests);
    safetensors::put_metadata(file.head, safetensors::checkpoint_digest_key, hex(digest));
}

}  // namespace safemap::SAFEMAP_ABI::write
