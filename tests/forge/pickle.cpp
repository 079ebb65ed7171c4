// Writes pickles opcode by opcode, and files of torch.save.
#include "forge/pickle.hpp"

#include <algorithm>

namespace forge {
namespace {

std::string tensor_of(const std::string& storage, std::int64_t offset, const std::string& size,
                      const std::string& stride) {
    return call("torch._utils", "_rebuild_tensor_v2", {storage, integer(offset), size, stride, "\x89", ordered()});
}

}  // namespace

std::string little(std::uint64_t value, std::size_t size) {
    std::string bytes;
    for (std::size_t i = 0; i < size; ++i, value >>= 8) bytes += static_cast<char>(static_cast<unsigned char>(value));
    return bytes;
}

std::string tuple(std::initializer_list<std::string> items) {
    std::string out = "(";
    for (const std::string& item : items) out += item;
    return out + "t";
}

std::string numbers(const Numbers& values) {
    std::string out = "(";
    for (const std::int64_t value : values) out += integer(value);
    return out + "t";
}

std::string call(std::string_view module, std::string_view name, std::initializer_list<std::string> arguments) {
    return global(module, name) + tuple(arguments) + "R";
}

std::string dict(std::initializer_list<std::string> keys_and_values) {
    std::string out = "}(";
    for (const std::string& item : keys_and_values) out += item;
    return out + "u";
}

std::string_view storage_class(safemap::Dtype dtype) {
    using safemap::Dtype;
    switch (dtype) {
        case Dtype::boolean: return "BoolStorage";
        case Dtype::u8: return "ByteStorage";
        case Dtype::i16: return "ShortStorage";
        case Dtype::i32: return "IntStorage";
        case Dtype::i64: return "LongStorage";
        case Dtype::f16: return "HalfStorage";
        case Dtype::bf16: return "BFloat16Storage";
        case Dtype::f64: return "DoubleStorage";
        case Dtype::c64: return "ComplexFloatStorage";
        default: return "FloatStorage";
    }
}

std::string storage(std::string_view type, std::string_view key, std::int64_t count, std::string_view location,
                    std::string_view more) {
    return tuple(
               {text("storage"), global("torch", type), text(key), text(location), integer(count), std::string(more)}) +
           "Q";
}

std::string tensor(const std::string& storage, std::int64_t offset, std::initializer_list<std::string> size,
                   std::initializer_list<std::string> stride) {
    return tensor_of(storage, offset, tuple(size), tuple(stride));
}

std::string view(const std::string& storage, std::int64_t offset, const Numbers& size, const Numbers& stride) {
    return tensor_of(storage, offset, numbers(size), numbers(stride));
}

std::string untyped_view(const std::string& storage, std::string_view dtype, const Numbers& size, const Numbers& stride,
                         std::string_view more) {
    return call("torch._utils", "_rebuild_tensor_v3",
                {storage, integer(0), numbers(size), numbers(stride), "\x89", ordered(), global("torch", dtype),
                 std::string(more)});
}

Numbers strides_of(const Numbers& size) {
    Numbers strides(size.size(), 1);
    for (std::size_t d = size.size(); d-- > 1;) strides[d - 1] = strides[d] * std::max<std::int64_t>(size[d], 1);
    return strides;
}

std::string archive(const std::string& value, const std::vector<std::pair<std::string, std::string>>& storages) {
    Zip zip;
    zip.add("a/data.pkl", pickle(value));
    zip.add("a/byteorder", "little");
    for (const auto& [key, data] : storages) zip.add("a/data/" + key, data);
    return zip.join();
}

std::string list_of(const std::vector<std::string>& keys) {
    std::string items;
    for (const std::string& key : keys) items += text(key);
    return "](" + items + "e";
}

std::string Legacy::join() const {
    return pickle(magic) + pickle(version) + pickle(machine) + pickle(object) + pickle(keys) + storages + trailing;
}

std::string load_from_bytes(const std::string& file) {
    return global("torch.storage", "_load_from_bytes") + "B" + little(file.size(), 4) + file + "\x85R";
}

std::vector<Zip::Record> pt_records(std::span<const PtTensor> tensors) {
    std::string dict = "}(";
    std::vector<Zip::Record> storages;
    for (const PtTensor& one : tensors) {
        const std::string key = std::to_string(storages.size());
        const Numbers size(one.shape.begin(), one.shape.end());
        const auto count = static_cast<std::int64_t>(one.values.size());
        dict += text(one.name) + view(storage("FloatStorage", key, count), 0, size, strides_of(size));
        const auto bytes = std::as_bytes(std::span(one.values));
        storages.push_back(
            {"archive/data/" + key, std::string(reinterpret_cast<const char*>(bytes.data()), bytes.size())});
    }
    std::vector<Zip::Record> records = {{"archive/data.pkl", pickle(dict + "u")}, {"archive/byteorder", "little"}};
    records.insert(records.end(), storages.begin(), storages.end());
    records.push_back({"archive/version", "3\n"});
    return records;
}

}  // namespace forge
