// Writes trees of Python objects as files of torch.save.
#include "forge/value.hpp"

#include <bit>
#include <map>
#include <stdexcept>

namespace pt {

std::size_t element_bytes(Dtype dtype) {
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

std::uint64_t elements(const Shape& shape) {
    std::uint64_t count = 1;
    for (const std::uint64_t dimension : shape) count *= dimension;
    return count;
}

bool Value::has(std::string_view key) const {
    for (const std::string& held : keys)
        if (held == key) return true;
    return false;
}

void Value::set(std::string key, Value value) {
    if (has(key)) {
        (*this)[key] = std::move(value);
        return;
    }
    keys.push_back(std::move(key));
    items.push_back(std::move(value));
}

void Value::erase(std::string_view key) {
    const auto at = static_cast<std::ptrdiff_t>(place(key));
    keys.erase(keys.begin() + at);
    items.erase(items.begin() + at);
}

std::size_t Value::place(std::string_view key) const {
    for (std::size_t i = 0; i < keys.size(); ++i)
        if (keys[i] == key) return i;
    throw std::out_of_range("no key " + std::string(key));
}

Value dict(std::vector<std::pair<std::string, Value>> entries) {
    Value out = {.kind = Value::Kind::dict};
    for (auto& [key, value] : entries) out.set(key, std::move(value));
    return out;
}

Value object(std::string_view module, std::string_view name, std::vector<std::pair<std::string, Value>> attributes) {
    Value out = dict(std::move(attributes));
    out.kind = Value::Kind::object;
    out.text = forge::global(module, name);
    return out;
}

Value integers(const std::vector<std::uint64_t>& numbers) {
    Value out = list();
    for (const std::uint64_t number : numbers) out.push(integer(number));
    return out;
}

Value texts(const std::vector<std::string>& words) {
    Value out = list();
    for (const std::string& word : words) out.push(text(word));
    return out;
}

Value size(const Shape& shape) {
    return raw(forge::call("torch", "Size", {forge::numbers({shape.begin(), shape.end()})}));
}

namespace {

/// Pickles values, and collects their storages.
class Pickler {
public:
    explicit Pickler(Container container, std::string root = "archive")
        : root_(std::move(root)), container_(container) {}

    std::string zip(const std::string& pickle) const {
        std::vector<forge::Zip::Record> records = {{root_ + "/data.pkl", pickle}, {root_ + "/byteorder", "little"}};
        for (std::size_t i = 0; i < storages_.size(); ++i)
            records.push_back({root_ + "/data/" + std::to_string(i), storages_[i]->bytes});
        records.push_back({root_ + "/version", "3\n"});
        return forge::zip(std::move(records));
    }

    std::string legacy(const std::string& object) const {
        forge::Legacy file{.object = object, .keys = "]("};
        for (std::size_t i = 0; i < storages_.size(); ++i) {
            file.keys += forge::text(std::to_string(i));
            const std::string& bytes = storages_[i]->bytes;
            file.storages += forge::little(bytes.size() / element_bytes(storages_[i]->dtype), 8) + bytes;
        }
        file.keys += "e";
        return file.join();
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

private:
    std::size_t number(const StoragePtr& storage) {
        const auto [found, added] = numbers_.emplace(storage.get(), storages_.size());
        if (added) storages_.push_back(storage);
        return found->second;
    }

    std::string tensor(const Value& value) {
        const std::string key = std::to_string(number(value.storage));
        const auto count = static_cast<std::int64_t>(value.storage->bytes.size() / element_bytes(value.storage->dtype));
        const std::string id = forge::storage(forge::storage_class(value.storage->dtype), key, count, "cpu",
                                              container_ == Container::legacy ? "N" : "");
        const forge::Numbers sizes(value.shape.begin(), value.shape.end());
        const std::string plain =
            forge::view(id, static_cast<std::int64_t>(value.offset), sizes,
                        value.strides.empty() ? forge::strides_of(sizes)
                                              : forge::Numbers(value.strides.begin(), value.strides.end()));
        if (!value.derived) return plain;
        // The function, and its arguments.
        const std::string rebuild = forge::global("torch._utils", "_rebuild_tensor_v2");
        const std::string arguments = plain.substr(rebuild.size(), plain.size() - rebuild.size() - 1);
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

    static std::string big_endian(double value) {
        std::string bytes = forge::little(std::bit_cast<std::uint64_t>(value), 8);
        return {bytes.rbegin(), bytes.rend()};
    }

    std::string root_;
    Container container_;
    std::vector<StoragePtr> storages_ = {};
    std::map<const Storage*, std::size_t> numbers_ = {};
};

}  // namespace

std::string Writer::file(const Value& value, Container container, const std::string& root) {
    Pickler pickler(container, root);
    const std::string object = pickler.pickled(value);
    return container == Container::zip ? pickler.zip(forge::pickle(object)) : pickler.legacy(object);
}

std::string Writer::pickle(const Value& value) { return forge::pickle(Pickler(Container::zip).pickled(value)); }

std::string Writer::file_with(const Value& value, const std::string& pickle) {
    Pickler pickler(Container::zip);
    static_cast<void>(pickler.pickled(value));
    return pickler.zip(pickle);
}

}  // namespace pt
