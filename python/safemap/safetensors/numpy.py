"""safetensors.numpy: arrays of NumPy in safetensors files."""

from __future__ import annotations

from .._core import TensorSpec, _load_bytes, deserialize, safe_open, serialize, serialize_file

TYPE_CHECKING = False
if TYPE_CHECKING:
    import os

    from numpy import ndarray

__all__ = ["load", "load_file", "save", "save_file"]


def save(tensor_dict: dict[str, ndarray], metadata: dict[str, str] | None = None) -> bytes:
    """Returns the bytes of a safetensors file with these arrays, of any strides and byte order.

    Args:
        metadata: pairs of text for the header.

    Raises:
        SafetensorError: for a dtype that the format does not have.
    """
    specs, _kept = _specs(tensor_dict)
    return serialize(specs, metadata)


def save_file(
    tensor_dict: dict[str, ndarray],
    filename: str | os.PathLike[str],
    metadata: dict[str, str] | None = None,
    *,
    durable: bool = True,
) -> None:
    """Writes a safetensors file with these arrays, of any strides and byte order.

    The file appears complete or not at all, and replaces an older one.

    Args:
        metadata: pairs of text for the header.
        durable: returns when the file is on the disk. If False, the kernel writes it later.

    Raises:
        SafetensorError: for a dtype that the format does not have, and if writing fails.
    """
    specs, _kept = _specs(tensor_dict)
    serialize_file(specs, filename, metadata, durable=durable)


def load(data: bytes) -> dict[str, ndarray]:
    """Returns the arrays in the bytes of a safetensors file. Each has memory of its own.

    BF16 and the F8 dtypes need ml_dtypes.
    """
    return _load_bytes(data, False)


def load_file(filename: str | os.PathLike[str], *, backend: str = "mmap") -> dict[str, ndarray]:
    """Returns the arrays of a safetensors file.

    They are views of a private copy of the file: they may be written to, and the file never changes. BF16 and the F8
    dtypes need ml_dtypes.

    Args:
        backend: "mmap" maps the file; "pread" reads it into memory.
    """
    with safe_open(filename, framework="np", backend=backend) as f:
        return f.get_tensors()


def _specs(arrays: dict[str, ndarray]) -> tuple[dict[str, TensorSpec], list[ndarray]]:
    """Returns what serialize() takes, and the arrays whose memory it is."""
    specs, kept = {}, []
    for name, array in arrays.items():
        dtype, address = array.dtype, array.ctypes.data
        if not dtype.isnative:
            array = array.byteswap()
        if not array.flags.c_contiguous:
            array = array.copy(order="C")
        kept.append(array)
        specs[name] = TensorSpec(dtype=dtype.name, shape=array.shape, data_ptr=array.ctypes.data, data_len=array.nbytes)
    return specs, kept


_names = {
    "F64": "float64", "F32": "float32", "F16": "float16", "I64": "int64", "U64": "uint64", "I32": "int32",
    "U32": "uint32", "I16": "int16", "U16": "uint16", "I8": "int8", "U8": "uint8", "C64": "complex64",
}  # fmt: skip


def __getattr__(name: str):
    # Some packages use these, which need NumPy.
    if name != "_TYPES":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    import numpy

    return {"BOOL": bool} | {key: getattr(numpy, value) for key, value in _names.items()}


def _getdtype(dtype_str: str):
    return __getattr__("_TYPES")[dtype_str]
