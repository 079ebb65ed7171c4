// A Python object as torch.save pickles it: a tree that a test builds, changes at one place, and writes to a file.
// Checks nothing, so that tests can write invalid files.
#pragma once

#include "forge.hpp"
#include "torch/forge.hpp"

#include <safemap/dtype.hpp>
#include <safemap/shape.hpp>

#include <bit>
#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <span>
#include <stdexcept>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace pt {

using safemap::Dtype;
using safemap::Shape;

/// The bytes that several tensors may share.
struct Storage {
    Dtype dtype;
    std::string bytes;
};
using StoragePtr = std::shared_ptr<Storage>;

inline std::size_t element_bytes(Dtype dtype) {
    switch (dtype) {
        case Dtype::boolean:
        case Dtype::u8: return 1;
        case Dtype::f16:
        case Dtype::bf16: return 2;
        case Dtype::f64:
        case Dtype::i64: return 8;
        default: return 4;
    }
}

inline std::string_view storage_type(Dtype dtype) {
    switch (dtype) {
        case Dtype::boolean: return "BoolStorage";
        case Dtype::u8: return "ByteStorage";
        case Dtype::f16: return "HalfStorage";
        case Dtype::bf16: return "BFloat16Storage";
        case Dtype::f64: return "DoubleStorage";
        case Dtype::i64: return "LongStorage";
        case Dtype::i32: return "IntStorage";
        default: return "FloatStorage";
    }
}

inline std::uint64_t elements(const Shape& shape) {
    std::uint64_t count = 1;
    for (const std::uint64_t dimension : shape) count *= dimension;
    return count;
}

/// A value. Only the members of its kind count.
struct Value {
    enum class Kind : std::uint8_t {
        none,
        boolean,
        integer,
        real,
        text,
        list,
        tuple,
        dict,
        ordered,
        tensor,
        object,
        call,
        raw
    };
    Kind kind = Kind::none;
    std::int64_t number = 0;
    double real = 0;
    std::string text = {};                ///< a text, the opcodes of `raw`, or those of a class or function
    std::vector<std::string> keys = {};   ///< keys of a dict, beside `items`
    bool number_keys = false;             ///< the keys are written as integers
    bool raw_keys = false;                ///< the keys are opcodes
    std::vector<Value> items = {};        ///< the items of a list, tuple or dict; attributes; arguments
    std::vector<std::string> paths = {};  ///< modules that the `_metadata` of an OrderedDict names
    StoragePtr storage = {};              ///< the members of a tensor
    std::uint64_t offset = 0;
    Shape shape = {};
    std::vector<std::uint64_t> strides = {};  ///< empty if the tensor is contiguous
    bool derived = false;                     ///< the tensor has attributes, and is wrapped in another call for them

    /// Returns the item with this key. Throws if it is missing, so that a test cannot change nothing.
    Value& operator[](std::string_view key) { return items[place(key)]; }
    Value& operator[](std::size_t i) { return items.at(i); }
    bool has(std::string_view key) const {
        for (const std::string& held : keys)
            if (held == key) return true;
        return false;
    }
    void set(std::string key, Value value) {
        if (has(key)) {
            (*this)[key] = std::move(value);
            return;
        }
        keys.push_back(std::move(key));
        items.push_back(std::move(value));
    }
    void erase(std::string_view key) {
        const auto at = static_cast<std::ptrdiff_t>(place(key));
        keys.erase(keys.begin() + at);
        items.erase(items.begin() + at);
    }
    void push(Value value) { items.push_back(std::move(value)); }

private:
    std::size_t place(std::string_view key) const {
        for (std::size_t i = 0; i < keys.size(); ++i)
            if (keys[i] == key) return i;
        throw std::out_of_range("no key " + std::string(key));
    }
};

inline Value none() { return {}; }
inline Value boolean(bool value) { return {.kind = Value::Kind::boolean, .number = value ? 1 : 0}; }
inline Value integer(std::uint64_t value) {
    return {.kind = Value::Kind::integer, .number = static_cast<std::int64_t>(value)};
}
inline Value real(double value) { return {.kind = Value::Kind::real, .real = value}; }
inline Value text(std::string_view value) { return {.kind = Value::Kind::text, .text = std::string(value)}; }
inline Value list(std::vector<Value> items = {}) { return {.kind = Value::Kind::list, .items = std::move(items)}; }
inline Value tuple(std::vector<Value> items = {}) { return {.kind = Value::Kind::tuple, .items = std::move(items)}; }
/// Returns a value that is written as these opcodes.
inline Value raw(std::string opcodes) { return {.kind = Value::Kind::raw, .text = std::move(opcodes)}; }
inline Value dict(std::vector<std::pair<std::string, Value>> entries = {}) {
    Value out = {.kind = Value::Kind::dict};
    for (auto& [key, value] : entries) out.set(key, std::move(value));
    return out;
}
inline Value ordered() { return {.kind = Value::Kind::ordered}; }
/// Returns an object whose class is made without arguments and gets its attributes from a dictionary.
inline Value object(std::string_view module, std::string_view name,
                    std::vector<std::pair<std::string, Value>> attributes = {}) {
    Value out = dict(std::move(attributes));
    out.kind = Value::Kind::object;
    out.text = forge::global(module, name);
    return out;
}
/// Returns what a function returns.
inline Value call(std::string_view module, std::string_view name, std::vector<Value> arguments = {}) {
    return {.kind = Value::Kind::call, .text = forge::global(module, name), .items = std::move(arguments)};
}
/// Returns a class or function.
inline Value global(std::string_view module, std::string_view name) { return raw(forge::global(module, name)); }
inline Value integers(const std::vector<std::uint64_t>& numbers) {
    Value out = list();
    for (const std::uint64_t number : numbers) out.push(integer(number));
    return out;
}
inline Value texts(const std::vector<std::string>& words) {
    Value out = list();
    for (const std::string& word : words) out.push(text(word));
    return out;
}

inline StoragePtr store(Dtype dtype, std::string bytes) {
    return std::make_shared<Storage>(Storage{dtype, std::move(bytes)});
}
/// Returns a view of a storage.
inline Value tensor(StoragePtr storage, Shape shape, std::uint64_t offset = 0) {
    return {.kind = Value::Kind::tensor, .storage = std::move(storage), .offset = offset, .shape = std::move(shape)};
}
inline Value tensor(Dtype dtype, Shape shape, std::string bytes) {
    return tensor(store(dtype, std::move(bytes)), std::move(shape));
}
/// Returns a torch.Size.
inline Value size(const Shape& shape) {
    std::string numbers = "(";
    for (const std::uint64_t dimension : shape) numbers += forge::integer(static_cast<std::int64_t>(dimension));
    return raw(forge::call("torch", "Size", {numbers + "t"}));
}

/// How a file of torch.save is packed.
enum class Container : std::uint8_t { zip, legacy };

/// Writes a value as a file of torch.save.
class Writer {
public:
    /// `root` is the folder of the records of a zip.
    static std::string file(const Value& value, Container container = Container::zip,
                            const std::string& root = "archive") {
        Writer writer(container);
        writer.root_ = root;
        const std::string object = writer.pickled(value);
        return container == Container::zip ? writer.zip(forge::pickle(object)) : writer.legacy(object);
    }
    /// Returns the pickle of a zip, without the storages.
    static std::string pickle(const Value& value) {
        Writer writer(Container::zip);
        return forge::pickle(writer.pickled(value));
    }
    /// Returns a zip with the storages of `value`, and another pickle.
    static std::string file_with(const Value& value, const std::string& pickle) {
        Writer writer(Container::zip);
        static_cast<void>(writer.pickled(value));
        return writer.zip(pickle);
    }

private:
    explicit Writer(Container container) : container_(container) {}

    std::string zip(const std::string& pickle) const {
        std::vector<forge::ZipRecord> records;
        records.push_back({.name = root_ + "/data.pkl", .bytes = pickle});
        records.push_back({.name = root_ + "/byteorder", .bytes = "little"});
        for (std::size_t i = 0; i < storages_.size(); ++i)
            records.push_back({.name = root_ + "/data/" + std::to_string(i), .bytes = storages_[i]->bytes});
        records.push_back({.name = root_ + "/version", .bytes = "3\n"});
        return forge::zip(records);
    }

    std::string legacy(const std::string& object) const {
        using namespace std::string_literals;
        std::string keys = "](";
        std::string data;
        for (std::size_t i = 0; i < storages_.size(); ++i) {
            keys += forge::text(std::to_string(i));
            const std::string& bytes = storages_[i]->bytes;
            data += forge::little(bytes.size() / element_bytes(storages_[i]->dtype), 8) + bytes;
        }
        return forge::pickle("\x8a\x0a\x6c\xfc\x9c\x46\xf9\x20\x6a\xa8\x50\x19"s) +
               forge::pickle(forge::integer(1001)) +
               forge::pickle(forge::dict({forge::text("little_endian"), "\x88"})) + forge::pickle(object) +
               forge::pickle(keys + "e") + data;
    }

    std::size_t number(const StoragePtr& storage) {
        const auto [found, added] = numbers_.emplace(storage.get(), storages_.size());
        if (added) storages_.push_back(storage);
        return found->second;
    }

    std::string tensor(const Value& value) {
        const std::string key = std::to_string(number(value.storage));
        const auto count = static_cast<std::int64_t>(value.storage->bytes.size() / element_bytes(value.storage->dtype));
        std::string id = "(" + forge::text("storage") + forge::global("torch", storage_type(value.storage->dtype)) +
                         forge::text(key) + forge::text("cpu") + forge::integer(count);
        id += container_ == Container::legacy ? "NtQ" : "tQ";
        std::string sizes = "(";
        std::string strides = "t";
        std::uint64_t stride = 1;
        for (const std::uint64_t dimension : value.shape) sizes += forge::integer(static_cast<std::int64_t>(dimension));
        for (std::size_t d = value.shape.size(); d-- > 0; stride *= value.shape[d] == 0 ? 1 : value.shape[d])
            strides =
                forge::integer(static_cast<std::int64_t>(value.strides.empty() ? stride : value.strides[d])) + strides;
        const std::string arguments =
            forge::tuple({id, forge::integer(static_cast<std::int64_t>(value.offset)), sizes + "t", "(" + strides,
                          "\x89", forge::call("collections", "OrderedDict", {})});
        const std::string rebuild = forge::global("torch._utils", "_rebuild_tensor_v2");
        if (!value.derived) return rebuild + arguments + "R";
        return forge::call("torch._tensor", "_rebuild_from_type_v2",
                           {rebuild, forge::global("torch", "Tensor"), arguments,
                            forge::dict({forge::text("ds_id"), forge::text("0_" + key)})});
    }

    std::string entries(const Value& value) {
        if (value.items.empty()) return {};
        std::string out = "(";
        for (std::size_t i = 0; i < value.items.size(); ++i) {
            out += value.raw_keys      ? value.keys[i]
                   : value.number_keys ? forge::integer(std::stoll(value.keys[i]))
                                       : forge::text(value.keys[i]);
            out += pickled(value.items[i]);
        }
        return out + "u";
    }

    std::string items(const Value& value) {
        std::string out = "(";
        for (const Value& item : value.items) out += pickled(item);
        return out;
    }

    static std::string metadata(const Value& value) {
        if (value.paths.empty()) return {};
        std::string out = forge::call("collections", "OrderedDict", {}) + "(";
        for (const std::string& path : value.paths)
            out += forge::text(path) + forge::dict({forge::text("version"), forge::integer(1)});
        return forge::dict({forge::text("_metadata"), out + "u"}) + "b";
    }

    std::string pickled(const Value& value) {
        switch (value.kind) {
            case Value::Kind::none: return "N";
            case Value::Kind::boolean: return value.number != 0 ? "\x88" : "\x89";
            case Value::Kind::integer: return forge::integer(value.number);
            case Value::Kind::real: return "G" + big_endian(value.real);
            case Value::Kind::text: return forge::text(value.text);
            case Value::Kind::list: return value.items.empty() ? "]" : "]" + items(value) + "e";
            case Value::Kind::tuple: return items(value) + "t";
            case Value::Kind::dict: return "}" + entries(value);
            case Value::Kind::ordered:
                return forge::call("collections", "OrderedDict", {}) + entries(value) + metadata(value);
            case Value::Kind::tensor: return tensor(value);
            case Value::Kind::object: return value.text + ")\x81}" + entries(value) + "b";
            case Value::Kind::call: return value.text + items(value) + "tR";
            case Value::Kind::raw: return value.text;
        }
        return {};
    }

    static std::string big_endian(double value) {
        std::string bytes = forge::little(std::bit_cast<std::uint64_t>(value), 8);
        return {bytes.rbegin(), bytes.rend()};
    }

    std::string root_ = "archive";
    Container container_;
    std::vector<StoragePtr> storages_ = {};
    std::map<const Storage*, std::size_t> numbers_ = {};
};

}  // namespace pt
