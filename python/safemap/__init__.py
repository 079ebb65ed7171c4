"""Weights of neural networks: every checkpoint as lazy, memory-mapped tensors."""

from __future__ import annotations

from collections.abc import Mapping as _Mapping

from ._core import (
    Checkpoint,
    LazyTensor,
    LoadPlan,
    ShardWriter,
    Uploader,
    __version__,
    diff,
    digests,
    edit,
    examine,
    open,
    plan,
    repair,
    save,
    scan,
    verify,
)
from ._errors import SafemapError

_Mapping.register(Checkpoint)

# Names that are imported when they are first used, and their modules: `import safemap` takes milliseconds.
_later = {
    "Opaque": "_tree",
    "load": "_loading",
    "load_state_dict": "_loading",
    "patch_safetensors": "_patch",
    "state_dict": "_loading",
}
_submodules = ("safetensors", "transformers", "vllm")

__all__ = [
    "Checkpoint",
    "LazyTensor",
    "LoadPlan",
    "SafemapError",
    "ShardWriter",
    "Uploader",
    "__version__",
    "diff",
    "digests",
    "edit",
    "examine",
    "open",
    "plan",
    "repair",
    "safetensors",
    "save",
    "scan",
    "verify",
    *_later,
]


TYPE_CHECKING = False  # a type checker takes it for true
if TYPE_CHECKING:
    from . import safetensors, transformers, vllm
    from ._loading import load, load_state_dict, state_dict
    from ._patch import patch_safetensors
    from ._tree import Opaque
else:

    def __getattr__(name: str):
        if name not in _later and name not in _submodules:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        from importlib import import_module

        module = import_module(f".{_later.get(name, name)}", __name__)
        found = globals()[name] = module if name in _submodules else getattr(module, name)
        return found

    def __dir__():
        return sorted({*__all__, *_submodules, *(name for name in globals() if name.startswith("__"))})
