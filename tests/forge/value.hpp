// A Python object as torch.save pickles it: a tree that a test builds, changes at one place, and writes to a file.
// Checks nothing, so that tests can write invalid files.
#pragma once

#include "forge/pickle.hpp"

#include <safemap/dtype.hpp>
#include <safemap/shape.hpp>

#include <cstddef>
#include <cstdint>
#include <memory>
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

std::size_t element_bytes(Dtype dtype);

std::uint64_t elements(const Shape& shape);

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
    bool has(std::string_view key) const;
    void set(std::string key, Value value);
    void erase(std::string_view key);
    void push(Value value) { items.push_back(std::move(value)); }

private:
    std::size_t place(std::string_view key) const;
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
Value dict(std::vector<std::pair<std::string, Value>> entries = {});
inline Value ordered() { return {.kind = Value::Kind::ordered}; }
/// Returns an object whose class is made without arguments and gets its attributes from a dictionary.
Value object(std::string_view module, std::string_view name,
             std::vector<std::pair<std::string, Value>> attributes = {});
/// Returns what a function returns.
inline Value call(std::string_view module, std::string_view name, std::vector<Value> arguments = {}) {
    return {.kind = Value::Kind::call, .text = forge::global(module, name), .items = std::move(arguments)};
}
/// Returns a class or function.
inline Value global(std::string_view module, std::string_view name) { return raw(forge::global(module, name)); }
Value integers(const std::vector<std::uint64_t>& numbers);
Value texts(const std::vector<std::string>& words);

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
Value size(const Shape& shape);

/// How a file of torch.save is packed.
enum class Container : std::uint8_t { zip, legacy };

/// Writes a value as a file of torch.save.
struct Writer {
    /// `root` is the folder of the records of a zip.
    static std::string file(const Value& value, Container container = Container::zip,
                            const std::string& root = "archive");
    /// Returns the pickle of a zip, without the storages.
    static std::string pickle(const Value& value);
    /// Returns a zip with the storages of `value`, and another pickle.
    static std::string file_with(const Value& value, const std::string& pickle);
};

}  // namespace pt
