"""Objects of torch and NumPy for safemap.load(): the functions that make what is neither a plain value nor a view of a
storage. Nothing here calls what a file names: names are looked up in closed lists."""

from __future__ import annotations

import collections

try:
    import torch
except ImportError as error:
    raise ImportError("safemap.load() gives tensors of torch: pip install torch, or use open() and tree()") from error

from . import _core
from ._tree import Opaque, mapping, opaque

__all__ = ["mapping", "opaque"]

_other = {
    "builtins.Ellipsis": ...,
    "collections.Counter": collections.Counter,
    "collections.OrderedDict": collections.OrderedDict,
    "torch.Size": torch.Size,
    "torch.Tensor": torch.Tensor,
    "torch.device": torch.device,
    "torch.nn.parameter.Parameter": torch.nn.Parameter,
}
_kinds = (torch.dtype, torch.layout, torch.memory_format, torch.qscheme)


def _of_torch(name: str):
    """Returns torch's constant of this name: a dtype, a layout, a memory format or a scheme."""
    found = getattr(torch, name.removeprefix("torch."), None)
    return found if isinstance(found, _kinds) else None


def constant(kind: str, text: str):
    """Returns a constant of torch or NumPy, or an opaque object."""
    if kind == "device":
        try:
            return torch.device(text)
        except RuntimeError:
            return Opaque("torch.device", f"torch has no device {text!r}")
    if kind == "numpy_dtype":
        try:
            return _numpy().dtype(text)
        except (TypeError, ValueError):
            return Opaque("numpy.dtype", f"NumPy has no dtype {text!r}")
    found = _other.get(text) if kind == "other" else None
    found = _of_torch(text) if found is None else found
    return _unknown(text) if found is None else found


def _unknown(name: str) -> Opaque:
    made = Opaque(name, "a class or function, which was not imported")
    made._form = "constant"
    return made


def _numpy():
    try:
        import numpy
    except ImportError as error:
        raise ImportError("the file has values of NumPy: pip install numpy, or use tree()") from error
    return numpy


def scalar(dtype: str, value):
    """Returns a scalar of NumPy. If no value of Python is equal, `value` is its bytes."""
    numpy = _numpy()
    try:
        kind = numpy.dtype(dtype)
        if kind.kind in "mM":
            return numpy.array(value, numpy.int64).view(kind)[()]
        if isinstance(value, bytes) and kind.kind != "S":
            return numpy.frombuffer(value, kind, 1)[0]
        return kind.type(value)
    except (TypeError, ValueError, OverflowError):
        return Opaque("numpy.generic", f"NumPy makes no {dtype} of the value", {"value": value})


def size(numbers: tuple):
    """Returns a torch.Size; of other values than integers, the tuple."""
    try:
        return torch.Size(numbers)
    except (TypeError, OverflowError):
        return numbers


def parameter(data, requires_grad: bool):
    """Returns a Parameter; torch refuses a gradient of integers."""
    return torch.nn.Parameter(data, requires_grad and (data.is_floating_point() or data.is_complex()))


def with_grad(tensor):
    if tensor.is_floating_point() or tensor.is_complex():
        tensor.requires_grad_()
    return tensor


def rebuilt(kind: str, parts: dict):
    """Returns an object that torch or NumPy makes of parts, or None if these do not fit."""
    try:
        made = _makers[kind](parts)
        if parts.get("requires_grad") and not parts.get("parameter"):
            made = with_grad(made)
        return parameter(made, bool(parts.get("requires_grad"))) if parts.get("parameter") else made
    except (ArithmeticError, LookupError, TypeError, ValueError, RuntimeError, AttributeError, AssertionError):
        return None


def _quantized(parts: dict):
    storage, dtype, offset, size, stride = parts[""]
    if "offset" in parts:  # elements share bytes
        offset, size, stride = parts["offset"], parts["size"], parts["stride"]
    per_tensor = "scale" in parts
    names = ("scheme", "scale", "zero_point") if per_tensor else ("scheme", "scales", "zero_points", "axis")
    if not per_tensor:
        _require_axis(parts["axis"], size, parts["scales"], parts["zero_points"])
    typed = torch.storage.TypedStorage(wrap_storage=storage, dtype=dtype, _internal=True)
    return torch._utils._rebuild_qtensor(
        typed, offset, size, stride, tuple(parts[name] for name in names), False, collections.OrderedDict()
    )


def _require_axis(axis, size, scales, zero_points):
    # Older versions of torch do not check this, and would read other memory.
    if not 0 <= axis < len(size) or {len(scales), len(zero_points)} != {size[axis]}:
        raise ValueError("scales and zero points do not fit the axis")


def _sparse(parts: dict):
    if "indices" in parts:
        coalesced = parts.get("is_coalesced")
        three = (parts[name] for name in ("indices", "values", "size"))
        return torch.sparse_coo_tensor(*three, check_invariants=True, is_coalesced=coalesced)
    names = ("compressed_indices", "plain_indices", "values", "size")
    layout = parts["layout"]
    return torch.sparse_compressed_tensor(*(parts[name] for name in names), layout=layout, check_invariants=True)


def _nested(parts: dict):
    buffer, sizes, strides, offsets = (parts[name] for name in ("buffer", "sizes", "strides", "offsets"))
    shapes_fit = sizes.dim() == 2 and sizes.shape == strides.shape and offsets.shape == sizes.shape[:1]
    if not (shapes_fit and buffer.dim() == 1 and buffer.is_contiguous()):
        raise ValueError("sizes, strides and offsets do not fit each other")
    # torch does not check this, and would read other memory.
    for size, stride, offset in zip(sizes.tolist(), strides.tolist(), offsets.tolist()):
        last = offset + sum((n - 1) * step for n, step in zip(size, stride))
        if min(*size, *stride, offset) < 0 or (0 not in size and last >= buffer.numel()):
            raise ValueError("a tensor reaches outside the buffer")
    return torch._nested_view_from_buffer(buffer, sizes, strides, offsets)


def _jagged(parts: dict):
    values, offsets, lengths = parts["values"], parts["offsets"], parts.get("lengths")
    ragged = parts.get("_ragged_idx", 1)
    begins = offsets.tolist()
    ends = begins[1:] if lengths is None else [begin + n for begin, n in zip(begins, lengths.tolist())]
    rows = zip(begins, ends)
    if offsets.dim() != 1 or not all(0 <= begin <= end <= values.shape[ragged - 1] for begin, end in rows):
        raise ValueError("a row reaches outside the values")
    return torch.nested.nested_tensor_from_jagged(values, offsets, lengths, jagged_dim=ragged)


def _meta(parts: dict):
    if not isinstance(parts["dtype"], torch.dtype):
        raise TypeError("no dtype")
    stride = parts.get("stride")
    stride = torch.empty(parts["size"], device="meta").stride() if stride is None else stride
    return torch.empty_strided(parts["size"], stride, dtype=parts["dtype"], device="meta")


def _array(parts: dict):
    numpy = _numpy()
    kind = parts["dtype"]
    if not isinstance(kind, numpy.dtype) or kind.hasobject:
        return None
    flat = numpy.frombuffer(parts["data"], kind)
    return flat.reshape(parts["shape"], order="F" if parts["fortran"] else "C").copy(order="K")


_makers = {
    "quantized": _quantized,
    "sparse": _sparse,
    "nested": _nested,
    "jagged": _jagged,
    "meta": _meta,
    "array": _array,
}
