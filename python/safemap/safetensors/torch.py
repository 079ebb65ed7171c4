"""safetensors.torch: tensors of torch in safetensors files."""

from __future__ import annotations

from collections import defaultdict

from .._core import TensorSpec, _load_bytes, deserialize, safe_open, serialize, serialize_file

TYPE_CHECKING = False
if TYPE_CHECKING:
    import os

    from torch import Tensor, nn

__all__ = ["load", "load_file", "load_model", "save", "save_file", "save_model", "storage_ptr", "storage_size"]


def save(tensors: dict[str, Tensor], metadata: dict[str, str] | None = None) -> bytes:
    """Returns the bytes of a safetensors file with these tensors.

    Args:
        tensors: contiguous, dense tensors that share no memory.
        metadata: pairs of text for the header.

    Raises:
        ValueError: for a tensor that is sparse or not contiguous, and for any other object.
        RuntimeError: if tensors share memory.
        SafetensorError: for a dtype that the format does not have.
    """
    specs, _kept = _specs(tensors)
    return serialize(specs, metadata)


def save_file(
    tensors: dict[str, Tensor],
    filename: str | os.PathLike[str],
    metadata: dict[str, str] | None = None,
    *,
    durable: bool = True,
) -> None:
    """Writes a safetensors file with these tensors. It appears complete or not at all, and replaces an older one.

    No tensor may be changed meanwhile.

    Args:
        tensors: contiguous, dense tensors that share no memory.
        metadata: pairs of text for the header.
        durable: returns when the file is on the disk. If False, the kernel writes it later.

    Raises:
        ValueError, RuntimeError: as save() does.
        SafetensorError: for a dtype that the format does not have, and if writing fails.
    """
    specs, _kept = _specs(tensors)
    serialize_file(specs, filename, metadata, durable=durable)


def load_file(
    filename: str | os.PathLike[str], device: str | int = "cpu", *, backend: str = "mmap"
) -> dict[str, Tensor]:
    """Returns the tensors of a safetensors file.

    On the cpu they are views of a private copy of the file: they may be written to, and the file never changes.

    Args:
        device: where the tensors go.
        backend: "mmap" maps the file; "pread" reads it into memory.
    """
    with safe_open(filename, framework="pt", device=device, backend=backend) as f:
        return f.get_tensors()


def load(data: bytes) -> dict[str, Tensor]:
    """Returns the tensors in the bytes of a safetensors file. Each has memory of its own, on the cpu."""
    return _load_bytes(data, True)


def save_model(
    model: nn.Module,
    filename: str | os.PathLike[str],
    metadata: dict[str, str] | None = None,
    force_contiguous: bool = True,
    *,
    durable: bool = True,
) -> None:
    """Writes the state dict of a model, of tensors that share memory only one. load_model() reads it.

    Args:
        metadata: pairs of text for the header. For each name that is left out it gets a pair with the name that is
            kept, unless it has one already.
        force_contiguous: writes contiguous copies of tensors that are not contiguous.
        durable: as in save_file().

    Raises:
        RuntimeError: if no tensor covers a storage that several share.
        ValueError: for a tensor that is not contiguous, without `force_contiguous`.
    """
    tensors = model.state_dict()
    for kept, others in _remove_duplicate_names(tensors).items():
        metadata = dict.fromkeys(others, kept) | (metadata or {})
        for name in others:
            del tensors[name]
    if force_contiguous:
        tensors = {name: tensor.contiguous() for name, tensor in tensors.items()}
    try:
        save_file(tensors, filename, metadata, durable=durable)
    except ValueError as error:
        hint = "Or use save_model(..., force_contiguous=True), read the docs for potential caveats."
        raise ValueError(f"{error} {hint}") from error


def load_model(
    model: nn.Module,
    filename: str | os.PathLike[str],
    strict: bool = True,
    device: str | int = "cpu",
    *,
    backend: str = "mmap",
) -> tuple[set[str], list[str]]:
    """Copies the tensors of a file into a model, whatever names save_model() left out.

    Returns the names of the model that the file lacks, and the names of the file that the model lacks.

    Args:
        strict: raises RuntimeError if there are any.
        device, backend: as in load_file().
    """
    tensors = load_file(filename, device=device, backend=backend)
    shared = _remove_duplicate_names(model.state_dict(), preferred_names=tensors.keys())
    result = model.load_state_dict(tensors, strict=False)
    missing, unexpected = set(result.missing_keys), list(result.unexpected_keys)
    for name in (name for others in shared.values() for name in others):
        if name in missing:
            missing.remove(name)
        else:
            unexpected.append(name)
    if strict and (missing or unexpected):
        text = f"Error(s) in loading state_dict for {type(model).__name__}:"
        for what, names in (("Missing", missing), ("Unexpected", unexpected)):
            if names:
                text += f"\n    {what} key(s) in state_dict: " + ", ".join(f'"{name}"' for name in sorted(names))
        raise RuntimeError(text)
    return missing, unexpected


def storage_ptr(tensor: Tensor) -> int:
    """Returns the address of the tensor's storage; 0 if it has none."""
    try:
        return tensor.untyped_storage().data_ptr()
    except (RuntimeError, NotImplementedError):
        return 0


def storage_size(tensor: Tensor) -> int:
    """Returns the size of the tensor's storage in bytes."""
    return tensor.untyped_storage().nbytes()


def _end_ptr(tensor: Tensor) -> int:
    if tensor.numel() == 0:
        return tensor.data_ptr()
    last = sum((size - 1) * stride for size, stride in zip(tensor.shape, tensor.stride()))
    return tensor.data_ptr() + (last + 1) * tensor.element_size()


def _is_complete(tensor: Tensor) -> bool:
    whole = tensor.numel() * tensor.element_size() == storage_size(tensor)
    return whole and tensor.data_ptr() == storage_ptr(tensor)


def _find_shared_tensors(state_dict: dict[str, Tensor]) -> list[set[str]]:
    """Returns the names of tensors with memory, in sets of those that share some of it."""
    storages = defaultdict(list)
    for name, tensor in state_dict.items():
        if tensor.device.type == "meta":
            continue
        pointer, size = storage_ptr(tensor), storage_size(tensor)
        if pointer != 0 and size != 0:
            storages[tensor.device, pointer, size].append(name)
    groups = []
    for names in storages.values():
        groups += _overlapping(names, state_dict) if len(names) > 1 else [set(names)]
    return groups


def _overlapping(names: list[str], tensors: dict[str, Tensor]) -> list[set[str]]:
    """Divides tensors of one storage into sets: a tensor is in the set of the one before it if it begins inside."""
    groups, last_stop = [], 0
    for start, stop, name in sorted((tensors[name].data_ptr(), _end_ptr(tensors[name]), name) for name in names):
        if groups and start < last_stop:
            groups[-1].add(name)
        else:
            groups.append({name})
        last_stop = stop
    return groups


def _remove_duplicate_names(
    state_dict: dict[str, Tensor],
    *,
    preferred_names: list[str] | None = None,
    discard_names: list[str] | None = None,
) -> dict[str, list[str]]:
    """Returns, for each name to keep, the names of tensors in its memory that need not be stored."""
    to_remove = defaultdict(list)
    for shared in _find_shared_tensors(state_dict):
        complete = {name for name in shared if _is_complete(state_dict[name])}
        if not complete:
            raise RuntimeError(
                "Error while trying to find names to remove to save state dict, but found no suitable name to keep"
                f" for saving amongst: {shared}. None is covering the entire storage.Refusing to save/load the model"
                " since you could be storing much more memory than needed. Please refer to"
                " https://huggingface.co/docs/safetensors/torch_shared_tensors for more information. Or open an"
                " issue."
            )
        wishes = complete & set(preferred_names or ()), complete - set(discard_names or ()), complete
        kept = min(next(names for names in wishes if names))
        if len(shared) > 1:
            to_remove[kept] += sorted(shared - {kept})
    return to_remove


def _require_savable(tensors: dict[str, Tensor]) -> None:
    import torch

    if not isinstance(tensors, dict):
        raise ValueError(f"Expected a dict of [str, torch.Tensor] but received {type(tensors)}")
    for name, tensor in tensors.items():
        if not isinstance(tensor, torch.Tensor):
            raise ValueError(f"Key `{name}` is invalid, expected torch.Tensor but received {type(tensor)}")
    sparse = [name for name, tensor in tensors.items() if tensor.layout != torch.strided]
    if sparse:
        raise ValueError(
            f"You are trying to save a sparse tensors: `{sparse}` which this library does not support."
            " You can make it a dense tensor before saving with `.to_dense()` but be aware this might"
            " make a much larger file than needed."
        )
    shared = [names for names in _find_shared_tensors(tensors) if len(names) > 1]
    if shared:
        raise RuntimeError(
            f"""
            Some tensors share memory, this will lead to duplicate memory on disk and potential differences when \
loading them again: {shared}.
            A potential way to correctly save your model is to use `save_model`.
            More information at https://huggingface.co/docs/safetensors/torch_shared_tensors
            """
        )


def _specs(tensors: dict[str, Tensor]) -> tuple[dict[str, TensorSpec], list[Tensor]]:
    """Returns what serialize() takes, and the tensors whose memory it is."""
    _require_savable(tensors)
    specs, kept = {}, []
    for name, tensor in tensors.items():
        if not tensor.is_contiguous():
            raise ValueError(
                f"You are trying to save a non contiguous tensor: `{name}` which is not allowed. It either means you"
                " are trying to save tensors which are reference of each other in which case it's recommended to save"
                " only the full tensors, and reslice at load time, or simply call `.contiguous()` on your tensor to"
                " pack it before saving."
            )
        tensor = tensor.detach().to("cpu").resolve_conj().resolve_neg()
        kept.append(tensor)
        specs[name] = TensorSpec(
            dtype=str(tensor.dtype).rpartition(".")[2],
            shape=tensor.shape,
            data_ptr=tensor.data_ptr(),
            data_len=tensor.numel() * tensor.element_size(),
        )
    return specs, kept


_names = {
    "F64": "float64", "F32": "float32", "F16": "float16", "BF16": "bfloat16", "I64": "int64", "I32": "int32",
    "I16": "int16", "I8": "int8", "U8": "uint8", "BOOL": "bool", "F8_E4M3": "float8_e4m3fn",
    "F8_E4M3FNUZ": "float8_e4m3fnuz", "F8_E5M2": "float8_e5m2", "F8_E5M2FNUZ": "float8_e5m2fnuz", "C64": "complex64",
    "U64": "uint64", "U32": "uint32", "U16": "uint16", "F8_E8M0": "float8_e8m0fnu", "F4": "float4_e2m1fn_x2",
}  # fmt: skip


def __getattr__(name: str):
    # Some packages use these, which need torch.
    if name not in ("_TYPES", "_SIZE"):
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    import torch

    types = {key: getattr(torch, value) for key, value in _names.items() if hasattr(torch, value)}
    return types if name == "_TYPES" else {dtype: dtype.itemsize for dtype in types.values()}


def _getdtype(dtype_str: str):
    return __getattr__("_TYPES")[dtype_str]
