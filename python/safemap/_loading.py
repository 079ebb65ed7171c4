"""safemap.load(), state_dict() and load_state_dict(). torch is imported when one of them is called."""

from __future__ import annotations

from . import _core

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    import torch


def load(path: Any, *, progress: Any = None, **options: Any) -> Any:
    """Returns what torch.load(path, weights_only=True) gives, over the mapped file. No pickle is run.

    Tensors of one storage share its memory, which is mapped: loading reads nothing. What is written to a tensor changes
    no file. Storages that cannot be mapped, such as compressed ones, are read once.

    Objects of classes that safemap does not know are safemap.Opaque. For a path that is not a file of torch.save, the
    result is a dict of names and tensors, or the nested dict that a structure document describes.

    Args:
        path: whatever safemap.open() takes, or a Checkpoint.
        progress: None, True, or a callable (stage, done, total) that cancels by returning False; for storages that are
            read.
        options: options of safemap.open().

    Example:
        state = safemap.load("checkpoint.pt")
        model.load_state_dict(state["model"])
    """
    if not isinstance(path, _core.Checkpoint):
        options.setdefault("as_parts", True)
    return _core._load_tree(_opened(path, options), progress)


def state_dict(path: Any, *, progress: Any = None, **options: Any) -> dict[str, torch.Tensor]:
    """Returns a dict of all names of a checkpoint and their tensors of torch, over the mapped files.

    Tied names have one tensor. Arguments are those of load(). Names in a nested state dict have its keys before them,
    "model/fc.weight": `root="model"` gives one part, and `root_auto=True` the model.

    Example:
        model.load_state_dict(safemap.state_dict("zero_run/"), assign=True)
    """
    return _core._state_dict(_opened(path, options), progress)


def load_state_dict(
    model: torch.nn.Module,
    path: Any,
    *,
    strict: bool = True,
    assign: bool = True,
    device: Any = None,
    dtype: Any = None,
    progress: Any = None,
    **options: Any,
) -> Any:
    """Loads a checkpoint into a module, as model.load_state_dict(torch.load(path), strict, assign) does.

    Only what the module needs is read, and with `assign` nothing: its Parameters become views of the mapped file, and
    what is written to them changes no file. A module on the device meta needs `assign`. Tied Parameters stay tied, and
    one name of them is enough. Of a file with more than a model in it, the model is taken, as trainers name it.

    Args:
        path: whatever safemap.open() takes, or a Checkpoint.
        strict: raises unless the names of the module and of the checkpoint are the same.
        assign: the module gets the tensors of the checkpoint, with their dtypes; otherwise their values are copied.
        device: where the tensors go before they are assigned; None: the host.
        dtype: what floating-point tensors are cast to, such as "bf16" or torch.bfloat16; None: they keep theirs.
        progress: None, True, or a callable (stage, done, total); for what has to be read.
        options: options of safemap.open().

    Returns:
        What torch returns: missing_keys and unexpected_keys.

    Raises:
        SafemapError: code `model_mismatch`, with names and shapes; also for other shapes without `strict`. If torch can
            tell by the names alone, the module has not changed.

    Example:
        with torch.device("meta"):
            model = Model(config)
        safemap.load_state_dict(model, "model.safetensors")
    """
    import torch

    if not isinstance(model, torch.nn.Module):
        raise TypeError(f"expected a torch.nn.Module, not {type(model).__name__}")
    if not isinstance(path, _core.Checkpoint) and not {"root", "stored_names"} & set(options):
        options.setdefault("root_auto", True)
    from ._model import load_into

    return load_into(model, _opened(path, options), strict, assign, device, dtype, progress)


def _opened(path: Any, options: dict[str, Any]) -> _core.Checkpoint:
    if not isinstance(path, _core.Checkpoint):
        return _core.open(path, **options)
    if options:
        raise TypeError(f"{next(iter(options))}: options are those of open(), and the checkpoint is open already")
    return path
