// Writes pickles opcode by opcode, of protocol 2 where there is a choice, and files of torch.save. Checks nothing.
#pragma once

#include "forge/zip.hpp"

#include <safemap/dtype.hpp>

#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace forge {

using Numbers = std::vector<std::int64_t>;

/// Returns the low `size` bytes of `value`, little-endian.
std::string little(std::uint64_t value, std::size_t size);

inline std::string text(std::string_view value) { return "X" + little(value.size(), 4) + std::string(value); }
inline std::string integer(std::int64_t value) { return "\x8a\x08" + little(static_cast<std::uint64_t>(value), 8); }
inline std::string global(std::string_view module, std::string_view name) {
    return "c" + std::string(module) + "\n" + std::string(name) + "\n";
}
std::string tuple(std::initializer_list<std::string> items);
std::string numbers(const Numbers& values);  ///< a tuple
std::string call(std::string_view module, std::string_view name, std::initializer_list<std::string> arguments);
std::string dict(std::initializer_list<std::string> keys_and_values);
inline std::string ordered() { return call("collections", "OrderedDict", {}); }
inline std::string pickle(const std::string& value) { return "\x80\x02" + value + "."; }

/// Returns torch's class of storages of a dtype.
std::string_view storage_class(safemap::Dtype dtype);

/// Returns a storage as a zip names it, with more opcodes at the end of its id.
std::string storage(std::string_view type, std::string_view key, std::int64_t count, std::string_view location = "cpu",
                    std::string_view more = {});
std::string tensor(const std::string& storage, std::int64_t offset, std::initializer_list<std::string> size,
                   std::initializer_list<std::string> stride);
/// Returns a tensor whose sizes and strides are numbers.
std::string view(const std::string& storage, std::int64_t offset, const Numbers& size, const Numbers& stride);
/// Returns a tensor of a storage without a type.
std::string untyped_view(const std::string& storage, std::string_view dtype, const Numbers& size, const Numbers& stride,
                         std::string_view more = {});

/// Returns the strides of a contiguous tensor.
Numbers strides_of(const Numbers& size);

/// Returns a file of torch.save with this pickle and these storages.
std::string archive(const std::string& value, const std::vector<std::pair<std::string, std::string>>& storages = {});

/// Returns the list of storages of a file of torch.save before 1.6.
std::string list_of(const std::vector<std::string>& keys);

/// The parts of a file of torch.save before 1.6, which a test can change before they are joined.
struct Legacy {
    std::string object;
    std::string keys = "]";
    std::string storages = {};
    std::string machine = dict({text("little_endian"), "\x88"});
    std::string magic = std::string("\x8a\x0a\x6c\xfc\x9c\x46\xf9\x20\x6a\xa8\x50\x19");
    std::string version = integer(1001);
    std::string trailing = {};

    std::string join() const;
};

/// Returns what is in a file of torch.save that is in the pickle.
std::string load_from_bytes(const std::string& file);

/// A contiguous float32 tensor of a state dict, with a storage of its own.
struct PtTensor {
    std::string name = {};
    std::vector<std::uint32_t> shape = {};
    std::vector<float> values = {};
};

/// Returns the records of a file of torch.save; storage i has the key "i".
std::vector<Zip::Record> pt_records(std::span<const PtTensor> tensors);
inline std::string pt(std::initializer_list<PtTensor> tensors) {
    return zip(pt_records(std::span(tensors.begin(), tensors.size())));
}

}  // namespace forge
