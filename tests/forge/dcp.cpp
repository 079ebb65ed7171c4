// Writes folders of torch.distributed.checkpoint.
#include "forge/dcp.hpp"

#include <safemap/advanced/dtypes.hpp>

#include <algorithm>

namespace dcp_forge {
namespace {

/// Returns the storage of elements that are given row-major; bytes of no element are 0xAA.
std::string storage_bytes(Dtype dtype, const Shape& shape, const std::string& elements, const Layout& layout) {
    const std::size_t size = safemap::element_size(dtype);
    std::string out(layout.elements * size, '\xAA');
    const std::size_t count = *safemap::element_count(shape);
    for (std::size_t i = 0; i < count; ++i) {
        std::size_t rest = i;
        std::int64_t at = layout.offset;
        for (std::size_t d = shape.size(); d-- > 0;) {
            at += static_cast<std::int64_t>(rest % shape[d]) * layout.strides[d];
            rest /= shape[d];
        }
        std::string element = elements.substr(i * size, size);
        if (layout.big_endian) {
            const std::size_t half = dtype == Dtype::c64 ? size / 2 : size;
            for (std::size_t part = 0; part < size; part += half)
                std::reverse(element.begin() + static_cast<std::ptrdiff_t>(part),
                             element.begin() + static_cast<std::ptrdiff_t>(part + half));
        }
        out.replace(static_cast<std::size_t>(at) * size, size, element);
    }
    return out;
}

}  // namespace

Layout contiguous(const Shape& shape) {
    return {.strides = forge::strides_of(signed_of(shape)), .elements = *safemap::element_count(shape)};
}

Layout random_layout(std::mt19937& random, const Shape& shape) {
    Layout layout = contiguous(shape);
    if (random() % 3 == 0) return layout;
    std::vector<std::size_t> order(shape.size());
    for (std::size_t d = 0; d < order.size(); ++d) order[d] = d;
    std::shuffle(order.begin(), order.end(), random);
    std::int64_t step = 1;
    for (const std::size_t d : order) {
        step += static_cast<std::int64_t>(random() % 3 == 0 ? random() % 3 : 0);
        layout.strides[d] = step;
        step *= std::max<std::int64_t>(static_cast<std::int64_t>(shape[d]), 1);
    }
    layout.offset = static_cast<std::int64_t>(random() % 4);
    layout.elements = static_cast<std::size_t>(step + layout.offset + static_cast<std::int64_t>(random() % 3));
    layout.deflated = random() % 4 == 0;
    layout.alignment = random() % 2 == 0 ? 64 : 4096;
    return layout;
}

std::string zip_of(const std::string& pickle, std::string_view byteorder, const std::vector<std::string>& storages,
                   bool deflated, std::size_t alignment) {
    if (deflated) {
        forge::Zip zip;
        zip.add_deflated("archive/data.pkl", pickle);
        zip.add("archive/byteorder", std::string(byteorder));
        for (std::size_t i = 0; i < storages.size(); ++i)
            zip.add_deflated("archive/data/" + std::to_string(i), storages[i]);
        return zip.join();
    }
    std::vector<forge::Zip::Record> records = {{"archive/data.pkl", pickle},
                                               {"archive/byteorder", std::string(byteorder)}};
    for (std::size_t i = 0; i < storages.size(); ++i)
        records.push_back({"archive/data/" + std::to_string(i), storages[i]});
    records.push_back({"archive/version", "3\n"});
    return forge::zip(std::move(records), alignment);
}

std::string tensor_pickle(Dtype dtype, const Shape& shape, const Layout& layout) {
    const auto count = static_cast<std::int64_t>(layout.elements);
    return forge::view(forge::storage(forge::storage_class(dtype), "0", count), layout.offset, signed_of(shape),
                       layout.strides);
}

std::string tensor_item(Dtype dtype, const Shape& shape, const std::string& elements, std::optional<Layout> layout) {
    const Layout used = layout.value_or(contiguous(shape));
    return zip_of(forge::pickle(tensor_pickle(dtype, shape, used)), used.big_endian ? "big" : "little",
                  {storage_bytes(dtype, shape, elements, used)}, used.deflated, used.alignment);
}

std::string object_item(const std::string& opcodes, const std::vector<std::string>& storages) {
    return zip_of(forge::pickle(opcodes), "little", storages, false, 64);
}

Entry& Metadata::operator[](std::string_view name) {
    return *std::find_if(entries.begin(), entries.end(), [&](const Entry& entry) { return entry.name == name; });
}

std::string Metadata::pickle() const {
    std::string fields = forge::text("state_dict_metadata") + "}(";
    for (const Entry& entry : entries) fields += forge::text(entry.name) + described(entry);
    fields += "u" + forge::text("planner_data") + (planner.empty() ? paths() : planner);
    fields += forge::text("storage_data") + "}(";
    for (const Entry& entry : entries) fields += stored(entry);
    fields += "u" + more;
    if (era == Era::torch_2_13 || era == Era::megatron)
        fields += forge::text("storage_meta") + storage_meta() + forge::text("version") + forge::text("1.0.0");
    if (era != Era::megatron) return "\x80\x02" + object(module(), "Metadata", fields) + ".";
    fields += forge::text("mcore_data") + "}(";
    for (const auto& [name, shape] : mcore)
        fields += forge::text(name) + forge::dict({forge::text("nd_reformulated_orig_global_shape"), size(shape)});
    return "\x80\x02" + object("megatron.core.dist_checkpointing.strategies.torch", "MCoreMetadata", fields + "u") +
           ".";
}

std::string Metadata::object(std::string_view module, std::string_view name, const std::string& fields) {
    return forge::global(module, name) + ")\x81}(" + fields + "ub";
}

std::string Metadata::size(const Numbers& values) { return forge::call("torch", "Size", {numbers(values)}); }

std::string_view Metadata::module() const {
    return era == Era::torch_1_13 ? "torch.distributed._shard.checkpoint.metadata"
                                  : "torch.distributed.checkpoint.metadata";
}

std::string Metadata::chunk(const Chunk& chunk) const {
    return object(module(), "ChunkStorageMetadata",
                  forge::text("offsets") + size(chunk.offsets) + forge::text("sizes") + size(chunk.sizes));
}

std::string Metadata::info(const Item& item) const {
    std::string fields = forge::text("relative_path") + forge::text(item.file) + forge::text("offset") +
                         forge::integer(item.offset) + forge::text("length") + forge::integer(item.length);
    if (!item.transforms.empty()) {
        fields += forge::text("transform_descriptors") + "](";
        for (const std::string& transform : item.transforms) fields += forge::text(transform);
        fields += "e";
    }
    return object(era == Era::torch_1_13 ? "torch.distributed._shard.checkpoint.filesystem"
                                         : "torch.distributed.checkpoint.filesystem",
                  "_StorageInfo", fields);
}

std::string Metadata::index(const std::string& name, const Numbers* offset, std::int64_t number) const {
    std::string fields = forge::text("fqn") + forge::text(name) + forge::text("index");
    fields += offset == nullptr ? "N" : forge::integer(number);
    if (offset != nullptr) fields += forge::text("offset") + size(*offset);
    return object(module(), "MetadataIndex", fields);
}

std::string Metadata::properties(const std::string& dtype) const {
    const bool old = era == Era::torch_1_13 || era == Era::torch_2_2;
    const std::string_view module =
        old ? "torch.distributed._shard.sharded_tensor.metadata" : "torch.distributed.checkpoint.metadata";
    const std::string format =
        forge::call(module, old ? "MEM_FORMAT_ENCODING" : "_MEM_FORMAT_ENCODING", {forge::integer(0)});
    return forge::global(module, "TensorProperties") + ")\x81" +
           forge::tuple({forge::global("torch", dtype),
                         forge::call("torch.serialization", "_get_layout", {forge::text("torch.strided")}), "\x89",
                         format, "\x89"}) +
           "b";
}

std::string Metadata::described(const Entry& entry) const {
    if (entry.dtype.empty()) return forge::global(module(), "BytesStorageMetadata") + ")\x81";
    std::string chunks = "](";
    for (const Chunk& each : entry.chunks) chunks += chunk(each);
    return object(module(), "TensorStorageMetadata",
                  forge::text("properties") + properties(entry.dtype) + forge::text("size") + size(entry.shape) +
                      forge::text("chunks") + chunks + "e");
}

std::string Metadata::stored(const Entry& entry) const {
    std::string out;
    if (entry.dtype.empty() && entry.item.listed) out += index(entry.name, nullptr, 0) + info(entry.item);
    std::int64_t number = 0;
    for (const Chunk& each : entry.chunks)
        if (each.item.listed) out += index(entry.name, &each.offsets, number++) + info(each.item);
    return out;
}

std::string Metadata::paths() const {
    if (!has_paths) return "N";
    std::string out = "}(";
    for (const Entry& entry : entries) {
        if (!entry.path) continue;
        out += forge::text(entry.name) + "(";
        for (const Step& step : *entry.path)
            out += std::holds_alternative<std::string>(step) ? forge::text(std::get<std::string>(step))
                                                             : forge::integer(std::get<std::int64_t>(step));
        out += "t";
    }
    return out + "u";
}

std::string Metadata::storage_meta() const {
    return object(module(), "StorageMeta",
                  forge::text("checkpoint_id") + forge::call("pathlib", "PosixPath", {forge::text("run")}) +
                      forge::text("save_id") + forge::text("x") + forge::text("load_id") + "N" +
                      forge::text("modules") + "]");
}

Item Save::put(const std::string& file, const std::string& bytes) {
    std::string& held = files[file];
    const Item item{.file = file,
                    .offset = static_cast<std::int64_t>(held.size()),
                    .length = static_cast<std::int64_t>(bytes.size())};
    held += bytes;
    return item;
}

void Save::add_object(std::string name, const std::string& opcodes, std::optional<std::vector<Step>> path,
                      const std::string& file) {
    metadata.entries.push_back(
        {.name = std::move(name), .path = std::move(path), .item = put(file, object_item(opcodes))});
}

std::map<std::string, std::string> Save::all() const {
    std::map<std::string, std::string> out = files;
    out[".metadata"] = metadata.pickle();
    return out;
}

std::shared_ptr<const safemap::Folder> Save::folder() const { return std::make_shared<forge::Folder>(all()); }

std::string elements_of(const std::string& whole, std::size_t size, const Shape& shape, const Box& box) {
    std::string out;
    const std::size_t count = *safemap::element_count(box.extent);
    for (std::size_t i = 0; i < count; ++i) {
        std::size_t rest = i;
        std::size_t at = 0;
        std::size_t step = 1;
        for (std::size_t d = shape.size(); d-- > 0;) {
            at += (box.start[d] + rest % box.extent[d]) * step;
            rest /= box.extent[d];
            step *= shape[d];
        }
        out += whole.substr(at * size, size);
    }
    return out;
}

void add_tensor(Save& save, std::mt19937& random, const std::string& name, Dtype dtype, const Shape& shape,
                const std::string& whole, const reference::Places& boxes, std::size_t ranks) {
    Entry entry{.name = name, .dtype = std::string(safemap::torch_name(dtype)), .shape = signed_of(shape)};
    const bool big_endian = random() % 4 == 0;
    for (const Box& box : boxes) {
        Layout layout = random_layout(random, box.extent);
        layout.big_endian = big_endian;
        const std::string bytes = elements_of(whole, safemap::element_size(dtype), shape, box);
        const std::string file = "__" + std::to_string(random() % ranks) + "_0.distcp";
        entry.chunks.push_back({signed_of(box.start), signed_of(box.extent),
                                save.put(file, tensor_item(dtype, box.extent, bytes, layout))});
    }
    save.metadata.entries.push_back(std::move(entry));
}

}  // namespace dcp_forge
