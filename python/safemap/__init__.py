"""Weights of neural networks: every checkpoint as lazy, memory-mapped tensors."""

from __future__ import annotations

from collections.abc import Mapping as _Mapping

from ._core import Checkpoint, LazyTensor, __version__, open
from ._errors import SafemapError

_Mapping.register(Checkpoint)

__all__ = ["Checkpoint", "LazyTensor", "SafemapError", "__version__", "open", "patch_safetensors", "safetensors"]

# Names that are imported when they are first used, and the modules that have them; "" is the module itself.
_later = {"patch_safetensors": "_patch", "safetensors": ""}


def __getattr__(name: str):
    if name not in _later:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    module = import_module(f".{_later[name] or name}", __name__)
    globals()[name] = module if _later[name] == "" else getattr(module, name)
    return globals()[name]
