// Tested by tests/torch/numpy_test.cpp.
#include "torch/numpy_nodes.hpp"

#include "torch/python_values.hpp"

#include <string>
#include <utility>

namespace safemap::SAFEMAP_ABI::torch {

namespace {

using Node = StateTree::Node;
using Opaque = StateTree::Opaque;

/// Of texts, records, dates, objects.
Opaque array_parts(const NumpyArray& array, const std::optional<NumpyDtype>& dtype, std::string type,
                   ObjectParts& parts) {
    Opaque out{.type = std::move(type),
               .why = "a NumPy array of " + (dtype ? dtype->text : std::string("records")) +
                      ", which no tensor can be; its parts are kept"};
    parts.add(out, "dtype", array.dtype);
    parts.add(out, "shape", array.shape);
    parts.add_value(out, "fortran", array.fortran);
    parts.add(out, "data", array.data);
    return out;
}

/// (dtype, bytes), or of objects the object itself.
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

}  // namespace

std::optional<Node> numpy_call(TensorContext& context, PickleGraph::Id id, std::string_view function,
                               const PickleGraph::Call& said, ObjectParts& parts) {
    const PickleGraph& pickle = context.draft.pickle();
    if (const auto dtype = numpy_dtype(pickle, id))
        return StateTree::Constant{.kind = StateTree::Constant::Kind::numpy_dtype, .text = dtype->text};
    if (const auto array = numpy_array(pickle, said))
        return context.guarded(parts.self(), [&] { return numpy_array_node(context, *array, parts); });
    if (function == "numpy._core.multiarray.scalar")
        return context.guarded(parts.self(), [&] { return scalar(context.draft, said, parts); });
    return std::nullopt;
}

Node numpy_array_node(TensorContext& context, const NumpyArray& array, ObjectParts& parts) {
    const PickleGraph& pickle = context.draft.pickle();
    std::string type = array.type == PickleGraph::nothing ? "numpy.ndarray" : class_name(pickle, array.type);
    const auto dtype = numpy_dtype(pickle, array.dtype);
    if (!dtype || !dtype->dtype) return array_parts(array, dtype, std::move(type), parts);
    Node tensor = StateTree::Tensor{
        .tensor = numpy_tensor(pickle, array, *dtype, context.storages, context.draft.allowance()), .numpy = true};
    if (type == "numpy.ndarray") return tensor;
    Opaque out{.type = std::move(type), .why = "a NumPy array of a class of its own; it is kept as a plain one"};
    parts.add_itself(out, std::move(tensor));
    return out;
}

}  // namespace safemap::SAFEMAP_ABI::torch
