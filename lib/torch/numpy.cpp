// Reads the calls that NumPy writes. From the top:
//
//   dtypes       the table of numbers that tensors have; other dtypes by their text, with the unit of times
//   numbers      bytes to numbers and texts, converted by hand: any width, either byte order
//   numpy_dtype  a dtype from the call that makes it
//   arrays       array_of() reads both ways of making an array, tensor_of() describes it as a tensor
//   values       one element as a Python value
//   nodes        an array becomes a tensor or, if no tensor has such elements, an object with the array's parts
//
// numpy_call() tries a dtype, an array and a scalar, in this order. Tested by tests/torch/numpy_test.cpp.
#include "torch/numpy.hpp"

#include <safemap/advanced/stored_tensor.hpp>
#include <safemap/advanced/strides.hpp>

#include "base/text.hpp"
#include "pickle/literals.hpp"
#include "torch/embedded.hpp"
#include "torch/globals.hpp"
#include "torch/python_values.hpp"
#include "torch/storage_id.hpp"

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <limits>
#include <span>
#include <utility>

namespace safemap::SAFEMAP_ABI::torch {

namespace {

using Id = PickleGraph::Id;
using Kind = PickleGraph::Kind;
using Node = StateTree::Node;
using Opaque = StateTree::Opaque;

/// A NumPy dtype that a text can describe. No text describes a record dtype.
struct NumpyDtype {
    std::string text;        ///< in NumPy's array protocol: "<f4", "|S3", "<M8[ns]"
    char kind = 0;           ///< 'f' in "<f4"
    std::uint64_t size = 0;  ///< bytes of an element
    bool big_endian = false;
    std::optional<Dtype> dtype = {};  ///< nothing if no tensor has such elements
};
/// The parts of an array. `data` is bytes, or a list of objects.
struct NumpyArray {
    PickleGraph::Id type;  ///< class: numpy.ndarray or a subclass
    PickleGraph::Id dtype;
    PickleGraph::Id shape;
    PickleGraph::Id data;
    bool fortran = false;  ///< stored column by column
};

struct NamedNumber {
    std::string_view code;
    std::string_view name;
    Dtype dtype;
};
constexpr std::array numbers{
    NamedNumber{"b1", "bool", Dtype::boolean},  NamedNumber{"i1", "int8", Dtype::i8},
    NamedNumber{"u1", "uint8", Dtype::u8},      NamedNumber{"i2", "int16", Dtype::i16},
    NamedNumber{"u2", "uint16", Dtype::u16},    NamedNumber{"i4", "int32", Dtype::i32},
    NamedNumber{"u4", "uint32", Dtype::u32},    NamedNumber{"i8", "int64", Dtype::i64},
    NamedNumber{"u8", "uint64", Dtype::u64},    NamedNumber{"f2", "float16", Dtype::f16},
    NamedNumber{"f4", "float32", Dtype::f32},   NamedNumber{"f8", "float64", Dtype::f64},
    NamedNumber{"c8", "complex64", Dtype::c64}, NamedNumber{"c16", "complex128", Dtype::c128},
};

const NamedNumber* number(std::string_view code) {
    const auto found =
        std::find_if(numbers.begin(), numbers.end(), [&](const NamedNumber& row) { return row.code == code; });
    return found == numbers.end() ? nullptr : &*found;
}

/// Length of the longest type code: "V4294967295".
constexpr std::size_t longest_code = 11;

/// Returns bytes of a pickle as text, in either spelling: as they are, or as the argument of _codecs.encode.
std::optional<std::string_view> short_bytes(const PickleGraph& pickle, Id id) {
    if (pickle.kind(id) == Kind::bytes || pickle.kind(id) == Kind::text) return pickle.text(id);
    if (!is_call_of(pickle, id, "_codecs.encode")) return std::nullopt;
    const auto arguments = pickle.items(pickle.call(id).arguments);
    if (arguments.empty() || pickle.kind(arguments[0]) != Kind::text) return std::nullopt;
    return pickle.text(arguments[0]);
}

/// Returns the unit of a dtype of dates or times, such as "[25ns]". The dtype's state ends with (metadata, (unit,
/// count, …)).
std::optional<std::string> unit(const PickleGraph& pickle, std::span<const Id> state) {
    if (state.size() < 9) return std::nullopt;
    const auto pair = pickle.items(state[8]);
    const auto parts = pair.size() == 2 ? pickle.items(pair[1]) : std::span<const Id>();
    if (parts.size() < 2 || pickle.kind(parts[1]) != Kind::integer) return std::nullopt;
    const auto name = short_bytes(pickle, parts[0]);
    if (!name || name->empty() || name->size() > 16) return std::nullopt;
    if (*name == "generic") return std::string();
    const std::int64_t count = pickle.integer(parts[1]);
    return "[" + (count == 1 ? std::string() : std::to_string(count)) + std::string(*name) + "]";
}

/// Converts a float of another width to a double; the bits of a NaN are kept.
double widened(std::uint64_t bits, int exponent_bits, int mantissa_bits) {
    const std::uint64_t mantissa = bits & ((std::uint64_t{1} << mantissa_bits) - 1);
    const std::uint64_t exponents = (std::uint64_t{1} << exponent_bits) - 1;
    const std::uint64_t exponent = bits >> mantissa_bits & exponents;
    const bool negative = (bits >> (mantissa_bits + exponent_bits) & 1) != 0;
    if (exponent == exponents) {
        const std::uint64_t sign = negative ? std::uint64_t{1} << 63 : 0;
        return std::bit_cast<double>(sign | 0x7FF0'0000'0000'0000U | mantissa << (52 - mantissa_bits));
    }
    const int bias = static_cast<int>(exponents >> 1);
    const std::uint64_t whole = exponent == 0 ? mantissa : mantissa | std::uint64_t{1} << mantissa_bits;
    const double magnitude =
        std::ldexp(static_cast<double>(whole), std::max(static_cast<int>(exponent), 1) - bias - mantissa_bits);
    return negative ? -magnitude : magnitude;
}

double real_of(std::uint64_t bits, std::uint64_t size) {
    if (size == 2) return widened(bits, 5, 10);
    return size == 4 ? widened(bits, 8, 23) : std::bit_cast<double>(bits);
}

std::uint64_t unsigned_of(std::string_view bytes, bool big_endian) {
    std::uint64_t value = 0;
    for (std::size_t i = 0; i < bytes.size(); ++i) {
        const auto byte = static_cast<unsigned char>(bytes[big_endian ? i : bytes.size() - 1 - i]);
        value = value << 8 | byte;
    }
    return value;
}

StateTree::Node integer_value(std::uint64_t bits, const NumpyDtype& dtype) {
    if (dtype.kind == 'u') {
        if (bits <= static_cast<std::uint64_t>(std::numeric_limits<std::int64_t>::max()))
            return static_cast<std::int64_t>(bits);
        return StateTree::BigInt{std::to_string(bits)};
    }
    const auto unused = static_cast<int>(64 - 8 * dtype.size);
    return static_cast<std::int64_t>(bits << unused) >> unused;
}

/// Converts characters of four bytes to text as pickles spell it, with surrogates as three bytes. Drops zeros at the
/// end.
std::optional<std::string> text_value(std::string_view bytes, bool big_endian) {
    std::string text;
    std::size_t kept = 0;
    for (std::size_t i = 0; i + 4 <= bytes.size(); i += 4) {
        const std::uint64_t code = unsigned_of(bytes.substr(i, 4), big_endian);
        if (code > 0x10FFFF) return std::nullopt;
        append_utf8(text, static_cast<std::uint32_t>(code));
        if (code != 0) kept = text.size();
    }
    text.resize(kept);
    return text;
}

/// Returns the dtype that a node makes. Returns nothing if the node is not a dtype, or is a record dtype, which no text
/// describes.
std::optional<NumpyDtype> numpy_dtype(const PickleGraph& pickle, Id id) {
    if (pickle.kind(id) != Kind::call) return std::nullopt;
    const auto call = pickle.call(id);
    const auto arguments = pickle.items(call.arguments);
    if (!is_global(pickle, call.callee, "numpy.dtype") || arguments.empty() || call.states.size() > 1)
        return std::nullopt;
    const auto code = short_bytes(pickle, arguments[0]);
    const auto state = call.states.empty() ? std::span<const Id>() : pickle.items(call.states[0]);
    if (!code || code->size() < 2 || code->size() > longest_code || (!call.states.empty() && state.size() < 5))
        return std::nullopt;
    for (std::size_t i = 2; i < std::min<std::size_t>(state.size(), 5); ++i)
        if (pickle.kind(state[i]) != Kind::none) return std::nullopt;  // subarray, names, fields
    const auto size = number_in<std::uint64_t>(code->substr(1));
    const std::string_view order = state.empty() ? "<" : short_bytes(pickle, state[1]).value_or(std::string_view());
    if (!size || *size > std::numeric_limits<std::uint32_t>::max() || order.size() != 1) return std::nullopt;

    NumpyDtype dtype{.text = {}, .kind = code->front(), .size = *size};
    if (dtype.kind == 'U') dtype.size *= 4;
    const NamedNumber* const row = number(*code);
    if (row != nullptr) dtype.dtype = row->dtype;
    const bool ordered =
        dtype.kind == 'U' || (dtype.kind != 'S' && dtype.kind != 'V' && dtype.kind != 'O' && *size > 1);
    dtype.big_endian = ordered && order == ">";
    dtype.text = (!ordered ? "|" : dtype.big_endian ? ">" : "<") + std::string(*code);
    if (dtype.kind != 'M' && dtype.kind != 'm') return dtype;
    const auto of_time = unit(pickle, state);
    if (!of_time) return std::nullopt;
    dtype.text += *of_time;
    return dtype;
}

/// Returns the dtype as numpy.dtype() takes it: a name such as "float32" for little-endian numbers, else the text.
std::string numpy_class(const NumpyDtype& dtype) {
    const NamedNumber* const row = number(std::string_view(dtype.text).substr(1));
    return row == nullptr || dtype.big_endian ? dtype.text : std::string(row->name);
}

/// Returns the parts of the array that a call makes, or nothing if the call makes no array.
std::optional<NumpyArray> array_of(const PickleGraph& pickle, const PickleGraph::Call& call) {
    if (pickle.kind(call.callee) != Kind::global) return std::nullopt;
    const auto arguments = pickle.items(call.arguments);
    if (is_global(pickle, call.callee, "numpy._core.numeric._frombuffer")) {
        // (buffer, dtype, shape, order)
        if (arguments.size() != 4 || !call.states.empty()) return std::nullopt;
        const auto order = short_bytes(pickle, arguments[3]);
        return NumpyArray{PickleGraph::nothing, arguments[1], arguments[2], arguments[0], order == "F"};
    }
    if (!is_global(pickle, call.callee, "numpy._core.multiarray._reconstruct")) return std::nullopt;
    if (arguments.empty() || call.states.size() != 1) return std::nullopt;
    // (version, shape, dtype, is Fortran, data); the oldest arrays have no version.
    auto state = pickle.items(call.states[0]);
    if (state.size() == 5) state = state.subspan(1);
    if (state.size() != 4) return std::nullopt;
    const bool fortran = pickle.kind(state[2]) == Kind::boolean && pickle.boolean(state[2]);
    return NumpyArray{arguments[0], state[1], state[0], state[3], fortran};
}

/// Describes an array as a tensor without a name. `dtype.dtype` must be set.
LazyTensor tensor_of(const PickleGraph& pickle, const NumpyArray& array, const NumpyDtype& dtype,
                     const Storages& storages, Allowance& allowance) {
    const auto items = pickle.items(array.shape);
    if (pickle.kind(array.shape) != Kind::tuple || items.size() > max_dimensions)
        throw Error(Errc::bad_tensor, "the shape of a NumPy array is not a tuple of at most " +
                                          std::to_string(max_dimensions) + " integers");
    Dims<std::int64_t> sizes;
    for (const Id item : items) sizes.push_back(integer_of(pickle, item, "dimension"));
    Geometry geometry = geometry_of(sizes, sizes, 0);  // placeholder strides; set below
    StridedView& view = geometry.view;
    view.strides = row_major(view.shape);
    if (array.fortran && geometry.elements > 0) {
        std::int64_t stride = 1;
        for (std::size_t i = 0; i < sizes.size(); ++i) {
            view.strides[i] = stride;
            stride *= sizes[i];
        }
    }
    const RecordData data = embedded_bytes(pickle, array.data, storages, allowance);
    const auto wanted = byte_size(*dtype.dtype, geometry.elements);
    if (!wanted) throw Error(Errc::shape_overflow, "the size of a NumPy array does not fit in 64 bits");
    if (data.extent.size != *wanted) {
        const Errc code = data.extent.size < *wanted ? Errc::storage_too_short : Errc::bad_tensor;
        throw Error(code, "a NumPy array of " + dtype.text + " of shape " + to_string(view.shape) + " takes " +
                              bytes_text(*wanted) + ", but has " + bytes_text(data.extent.size));
    }
    auto stored = stored_run(*dtype.dtype, Shape{geometry.elements}, data.source, data.extent.offset);
    return LazyTensor({}, std::move(stored), std::move(view), Decoding{.byte_swap = dtype.big_endian});
}

/// Converts the bytes of one element to a Python value. Returns the bytes themselves if there is no such value.
StateTree::Node numpy_value(const NumpyDtype& dtype, std::string_view bytes) {
    if (bytes.size() != dtype.size) {
        throw Error(Errc::bad_tensor, "a NumPy scalar of " + dtype.text + " takes " + bytes_text(dtype.size) +
                                          ", but has " + bytes_text(bytes.size()));
    }
    const auto integer = [&] { return integer_value(unsigned_of(bytes, dtype.big_endian), dtype); };
    const auto real = [&](std::string_view part) { return real_of(unsigned_of(part, dtype.big_endian), part.size()); };
    const std::size_t half = bytes.size() / 2;
    if (dtype.dtype == Dtype::boolean) return bytes.front() != 0;
    if (dtype.dtype && dtype.kind == 'f') return real(bytes);
    if (dtype.dtype && dtype.kind == 'c')
        return StateTree::Complex{real(bytes.substr(0, half)), real(bytes.substr(half))};
    if (dtype.dtype || ((dtype.kind == 'M' || dtype.kind == 'm') && dtype.size == 8)) return integer();
    if (dtype.kind == 'U')
        if (auto text = text_value(bytes, dtype.big_endian)) return std::move(*text);
    return StateTree::Bytes{.bytes = std::string(bytes)};
}

/// Returns an object with the parts of an array of texts, records, dates or objects.
Opaque array_parts(const NumpyArray& array, const std::optional<NumpyDtype>& dtype, std::string type,
                   ObjectParts& parts) {
    Opaque out{.type = std::move(type),
               .why = "a NumPy array of " + (dtype ? dtype->text : std::string("records")) +
                      ", which no tensor can have; its parts are kept"};
    parts.add(out, "dtype", array.dtype);
    parts.add(out, "shape", array.shape);
    parts.add_value(out, "fortran", array.fortran);
    parts.add(out, "data", array.data);
    return out;
}

/// Reads a scalar: (dtype, bytes), or (dtype, object) if the dtype is that of objects.
Node scalar(TreeDraft& draft, const PickleGraph::Call& said, ObjectParts& parts) {
    const PickleGraph& pickle = draft.pickle();
    const auto arguments = pickle.items(said.arguments);
    const auto dtype = arguments.size() == 2 ? numpy_dtype(pickle, arguments[0]) : std::nullopt;
    if (!dtype || dtype->kind == 'O')
        return parts.call("numpy.generic", "a NumPy scalar of records or objects; its parts are kept", said);
    const auto bytes = bytes_of(pickle, arguments[1], draft.allowance());
    if (!bytes) throw Error(Errc::bad_tensor, "a NumPy scalar that is not made of bytes");
    draft.spend(sizeof(Node) + bytes->size());
    return StateTree::NumpyScalar{.dtype = numpy_class(*dtype),
                                  .value = draft.add(numpy_value(*dtype, *bytes), {parts.self()})};
}

Node array_node(TensorContext& context, const NumpyArray& array, ObjectParts& parts) {
    const PickleGraph& pickle = context.draft.pickle();
    std::string type = array.type == PickleGraph::nothing ? "numpy.ndarray" : class_name(pickle, array.type);
    const auto dtype = numpy_dtype(pickle, array.dtype);
    if (!dtype || !dtype->dtype) return array_parts(array, dtype, std::move(type), parts);
    Node tensor = StateTree::Tensor{
        .tensor = tensor_of(pickle, array, *dtype, context.storages, context.draft.allowance()), .numpy = true};
    if (type == "numpy.ndarray") return tensor;
    Opaque out{.type = std::move(type), .why = "a NumPy array of a subclass; it is kept as a plain array"};
    parts.add_itself(out, std::move(tensor));
    return out;
}

}  // namespace

std::optional<Node> numpy_call(TensorContext& context, PickleGraph::Id id, std::string_view function,
                               const PickleGraph::Call& said, ObjectParts& parts) {
    const PickleGraph& pickle = context.draft.pickle();
    if (const auto dtype = numpy_dtype(pickle, id))
        return StateTree::Constant{.kind = StateTree::Constant::Kind::numpy_dtype, .text = dtype->text};
    if (const auto array = array_of(pickle, said))
        return context.guarded(parts.self(), [&] { return array_node(context, *array, parts); });
    if (function == "numpy._core.multiarray.scalar")
        return context.guarded(parts.self(), [&] { return scalar(context.draft, said, parts); });
    return std::nullopt;
}

std::optional<Node> numpy_array(TensorContext& context, const PickleGraph::Call& said, ObjectParts& parts) {
    const auto array = array_of(context.draft.pickle(), said);
    return array ? std::optional(array_node(context, *array, parts)) : std::nullopt;
}

}  // namespace safemap::SAFEMAP_ABI::torch
