"""Tells the builder of a tree what objects are that shall be saved; it knows Python's plain values itself."""

from __future__ import annotations

import sys
from collections import Counter, OrderedDict, defaultdict

from ._core import LazyTensor
from ._tree import Constant, Opaque, factories

_plain = (type(None), bool, int, float, complex, str, bytes)
_classes = ("collections.Counter", "collections.OrderedDict", "torch.Size", "torch.Tensor", "torch.device")
_plain_tensors = ("torch.Tensor", "torch.nn.parameter.Parameter", "torch.nn.parameter.Buffer")


def is_flat(value) -> bool:
    """Returns true for a dict of names and tensors that need no more than their elements, and for other mappings.

    Raises TypeError for a value that holds nothing."""
    if type(value) not in (dict, OrderedDict):
        if value is None or isinstance(value, (*_plain, type)):
            raise TypeError(f"expected a dict of tensors or nested objects, not {type(value).__name__}")
        return hasattr(value, "keys") and type(value) not in (Counter, defaultdict)
    scalars = not any(hasattr(one, "is_nested") for one in value.values())
    return all(type(key) is str and key and _is_plain(one, scalars) for key, one in value.items())


def _is_plain(value, scalars: bool) -> bool:
    """Returns true for a tensor that needs no more than its elements. Among tensors of torch, scalars of NumPy are
    plain values."""
    if type(value) is LazyTensor:
        return True
    numpy = sys.modules.get("numpy")
    if numpy is not None and isinstance(value, (numpy.ndarray, numpy.generic)):
        return _is_number(value.dtype) and (scalars or isinstance(value, numpy.ndarray))
    if hasattr(value, "is_nested"):  # of torch
        strided = str(value.layout) == "torch.strided" and not value.is_nested
        return strided and not (value.is_quantized or value.is_meta or value.requires_grad or vars(value))
    return hasattr(value, "__dlpack__") and not isinstance(value, type)


def _is_number(dtype) -> bool:
    """Returns true for the dtypes of tensors, and of ml_dtypes, which are of no kind of NumPy."""
    return dtype.kind in "biufc" or dtype.type.__module__ == "ml_dtypes"


def decimal(value: int) -> str:
    """Returns the decimal digits of an integer of any size; str() refuses more than 4300."""
    digits, rest, part = [], abs(value), 10**4000
    while rest >= part:
        rest, last = divmod(rest, part)
        digits.append(f"{last:04000d}")
    return ("-" if value < 0 else "") + str(rest) + "".join(reversed(digits))


def described(value):
    """Returns the kind of an object and what its node is made of, or None if it cannot be saved."""
    kind = type(value)
    if kind is bytearray:
        return "bytearray", bytes(value)
    if kind is Opaque:
        return _opaque(value)
    if kind is Constant:
        return "constant", *value
    if kind is _Numbers:
        return "numbers", value.plain, value.dtype
    if kind in (OrderedDict, Counter, defaultdict):
        return _dictionary(value, kind)
    if value is ...:
        return "constant", "other", "builtins.Ellipsis"
    if isinstance(value, type):
        name = f"{value.__module__}.{value.__qualname__}"
        return ("constant", "other", name) if name in (*_classes, *_plain_tensors) else None
    for package, describe in (("torch", _of_torch), ("numpy", _of_numpy)):
        module = sys.modules.get(package)
        found = describe(module, value, kind) if module is not None else None
        if found is not None:
            return found
    return None


def _opaque(value: Opaque):
    if value._form == "constant":
        return "constant", "other", value.type
    return "opaque", value.type, value.why, value._form, value._arguments, value.children


def _dictionary(value, kind):
    attributes = dict(vars(value)) if kind is not defaultdict else {}
    if kind is not OrderedDict:
        attributes["__class__"] = Constant("other", "collections." + kind.__name__)
    if kind is defaultdict and value.default_factory is not None:
        names = [name for name, factory in factories.items() if factory is value.default_factory]
        if not names:
            return None
        attributes["default_factory"] = Constant("other", names[0])
    return "dict", kind is OrderedDict, attributes or None


def _of_torch(torch, value, kind):
    if isinstance(value, torch.Tensor):
        return _tensor(torch, value, kind)
    if kind is torch.Size:
        return "size", tuple(value)
    if kind is torch.device:
        return "constant", "device", str(value)
    if kind in (torch.dtype, torch.layout):
        return "constant", kind.__name__, str(value).removeprefix("torch.")
    if kind in (torch.memory_format, torch.qscheme):
        return "constant", "other", str(value)
    return None


def _tensor(torch, value, kind):
    parameter = isinstance(value, torch.nn.Parameter)
    if kind.__torch_dispatch__ is not torch.Tensor.__torch_dispatch__ and value.layout != torch.jagged:
        return "tensor", parameter, False, False, None  # which has no memory of its own, and is refused for that
    attributes = vars(value) if value.layout != torch.jagged else {}
    made = _by_parts(torch, value, kind)
    if made is None:
        name = f"{kind.__module__}.{kind.__qualname__}"
        name = "torch.nn.parameter.Parameter" if parameter else name
        plain = name in _plain_tensors and all(isinstance(one, _plain) for one in attributes.values())
        if plain:
            return "tensor", parameter, value.requires_grad, False, dict(attributes) or None
        why = "a tensor of a subclass or with attributes; it is kept as a plain tensor"
        made = name, why, "object", {"": _bare(torch, value, parameter)}
    name, why, form, children = made
    if form != "object" or name == "torch.Tensor" and "" not in children:
        flags = {"parameter": True} if parameter else {}
        children = {**children, **flags, "requires_grad": value.requires_grad}
    return "opaque", name, why, form, 0, {**children, **{str(key): one for key, one in attributes.items()}}


def _bare(torch, value, parameter: bool):
    """Returns the tensor without attributes, over the same memory."""
    bare = value.detach().as_subclass(torch.Tensor)
    return torch.nn.Parameter(bare, value.requires_grad) if parameter else bare.requires_grad_(value.requires_grad)


class _Numbers:
    """The numbers of a quantised tensor: a plain tensor, and the dtype that they are of."""

    def __init__(self, plain, dtype):
        self.plain, self.dtype = plain, dtype


def _by_parts(torch, value, kind):
    """Returns the type, the reason, the form and the children of a tensor that is more than its elements."""
    layout = value.layout
    if layout == torch.jagged:
        parts = {"values": value.values(), "offsets": value.offsets(), "lengths": value.lengths()}
        # torch keeps notes for its compiler on them.
        parts = {key: one if one is None else _bare(torch, one, False) for key, one in parts.items()}
        name = f"{kind.__module__}.{kind.__qualname__}"
        parts["_ragged_idx"] = value._ragged_idx
        return name, "a nested tensor (jagged); its parts are kept", "object", parts
    if value.is_nested:
        names = ("_nested_tensor_size", "_nested_tensor_strides", "_nested_tensor_storage_offsets")
        parts = dict(zip(("sizes", "strides", "offsets"), (getattr(value, name)() for name in names)))
        why = "a nested tensor; its parts are kept"
        return "torch.Tensor", why, "nested", {"buffer": value.detach().values(), **parts}
    if layout in _sparse_layouts(torch):
        text = str(layout).removeprefix("torch.")
        parts = {"layout": layout, **_sparse(torch, value.detach()), "size": value.shape}
        return "torch.Tensor", f"a sparse tensor ({text}); its parts are kept", "sparse", parts
    if value.is_quantized:
        return "torch.Tensor", "a quantized tensor; its parts are kept", "quantized", _quantized(torch, value)
    if value.is_meta:
        parts = {"dtype": value.dtype, "size": tuple(value.shape), "stride": value.stride(), "device": value.device}
        return "torch.Tensor", "a tensor on the meta device, which has no data", "object", parts
    return None


def _sparse_layouts(torch) -> tuple:
    return torch.sparse_coo, torch.sparse_csr, torch.sparse_csc, torch.sparse_bsr, torch.sparse_bsc


def _sparse(torch, value) -> dict:
    if value.layout == torch.sparse_coo:
        parts = {"indices": value._indices(), "values": value._values()}
        return {**parts, "is_coalesced": value.is_coalesced()}
    rows = value.layout in (torch.sparse_csr, torch.sparse_bsr)
    compressed = value.crow_indices() if rows else value.ccol_indices()
    plain = value.col_indices() if rows else value.row_indices()
    return {"compressed_indices": compressed, "plain_indices": plain, "values": value.values()}


def _quantized(torch, value) -> dict:
    dtype = str(value.dtype).removeprefix("torch.")
    if dtype in ("quint4x2", "quint2x4"):
        plain = torch.empty(0, dtype=torch.uint8).set_(value.untyped_storage())
        place = {"offset": value.storage_offset(), "size": tuple(value.shape), "stride": value.stride()}
    else:
        plain, place = value.int_repr().contiguous(), {}
    scheme = value.qscheme()
    if scheme == torch.per_tensor_affine:
        parts = {"scheme": scheme, "scale": value.q_scale(), "zero_point": value.q_zero_point()}
    else:
        names = {"scales": value.q_per_channel_scales(), "zero_points": value.q_per_channel_zero_points()}
        parts = {"scheme": scheme, **names, "axis": value.q_per_channel_axis()}
    return {"": _Numbers(plain, dtype), **parts, **place}


def _of_numpy(numpy, value, kind):
    if isinstance(value, numpy.dtype):
        return None if value.hasobject or value.fields else ("constant", "numpy_dtype", value.str)
    if isinstance(value, numpy.generic):
        return _scalar(numpy, value)
    if kind is not numpy.ndarray or value.dtype.hasobject or value.dtype.fields:
        return None
    if _is_number(value.dtype):
        return "tensor", False, False, True, None
    fortran = value.flags.f_contiguous and not value.flags.c_contiguous
    parts = {
        "dtype": Constant("numpy_dtype", value.dtype.str),
        "shape": value.shape,
        "fortran": fortran,
        "data": value.tobytes("F" if fortran else "C"),
    }
    why = f"a NumPy array of {value.dtype.str}, which no tensor can have; its parts are kept"
    return "opaque", "numpy.ndarray", why, "object", 0, parts


def _scalar(numpy, value):
    kind = value.dtype.kind
    if kind in "mM":
        return "scalar", value.dtype.str, value.view(numpy.int64).item()
    if kind == "V":
        return None
    name = value.dtype.str if kind in "SU" else value.dtype.name
    plain = value.item()
    return "scalar", name, plain if isinstance(plain, _plain) else value.tobytes()
