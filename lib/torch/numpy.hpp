// NumPy in pickles: arrays, scalars and dtypes, as ndarray.__reduce__, generic.__reduce__ and dtype.__reduce__ of NumPy
// 1 and 2 write them (numpy/_core/src/multiarray).
#pragma once

#include "pickle/pickle.hpp"
#include "torch/rebuild.hpp"

#include <safemap/lazy_tensor.hpp>
#include <safemap/state_tree.hpp>

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace safemap::SAFEMAP_ABI::torch {

/// A dtype that one text tells: not one of records.
struct NumpyDtype {
    std::string text;        ///< of NumPy's array protocol: "<f4", "|S3", "<M8[ns]"
    char kind = 0;           ///< 'f'
    std::uint64_t size = 0;  ///< bytes of an element
    bool big_endian = false;
    std::optional<Dtype> dtype = {};  ///< nothing where no tensor has such elements
};
/// Nothing where the node is none, or one of records, which no text tells.
std::optional<NumpyDtype> numpy_dtype(const PickleGraph& pickle, PickleGraph::Id id);
/// As numpy.dtype() takes it: "float32" where the machine has such numbers, else the text.
std::string numpy_class(const NumpyDtype& dtype);

/// What an array was made of; `data` are bytes, or a list of objects.
struct NumpyArray {
    PickleGraph::Id type;  ///< its class: numpy.ndarray, or one derived from it
    PickleGraph::Id dtype;
    PickleGraph::Id shape;
    PickleGraph::Id data;
    bool fortran = false;  ///< column by column
};
std::optional<NumpyArray> numpy_array(const PickleGraph& pickle, const PickleGraph::Call& call);

/// The array as a tensor, without a name. `dtype` has a Dtype. Throws bad_tensor, shape_overflow, storage_too_short.
LazyTensor numpy_tensor(const PickleGraph& pickle, const NumpyArray& array, const NumpyDtype& dtype,
                        const Storages& storages, Allowance& allowance);

/// The Python value of one element, which `bytes` are; these themselves where there is none. Throws bad_tensor where
/// they are of another size.
StateTree::Node numpy_value(const NumpyDtype& dtype, std::string_view bytes);

}  // namespace safemap::SAFEMAP_ABI::torch
