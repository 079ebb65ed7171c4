"""patch_safetensors(): code that imports safetensors gets safemap.safetensors."""

from __future__ import annotations

import sys

_missing = object()


class _Patch:
    """The changes of patch_safetensors(). Calling it, or leaving its `with`, undoes them."""

    def __init__(self):
        self._before = []

    def set(self, pairs: dict, name: str, value) -> None:
        self._before.append((pairs, name, pairs.get(name, _missing)))
        pairs[name] = value

    def __call__(self) -> None:
        while self._before:
            pairs, name, value = self._before.pop()
            if value is _missing:
                pairs.pop(name, None)
            else:
                pairs[name] = value

    def __enter__(self) -> _Patch:
        return self

    def __exit__(self, *exception) -> None:
        self()


def patch_safetensors() -> _Patch:
    """Makes `import safetensors`, `safetensors.torch` and `safetensors.numpy` give safemap's, for the whole process.

    Call it before importing what uses safetensors: a function that another module has already imported by name stays
    the old one. The attributes of modules of safetensors that are already imported are replaced. The package
    safetensors need not be installed.

    Returns a function that undoes it exactly, which is a context manager, too:

        undo = safemap.patch_safetensors()
        import transformers
        ...
        undo()
    """
    from . import safetensors

    patch = _Patch()
    modules = {"safetensors": safetensors, "safetensors._safetensors_rust": safetensors}
    modules |= {"safetensors.torch": safetensors.torch, "safetensors.numpy": safetensors.numpy}
    for name, module in modules.items():
        old = sys.modules.get(name)
        if old is not None and old is not module:
            _replace_attributes(patch, vars(old), vars(module))
        patch.set(sys.modules, name, module)
    return patch


def _replace_attributes(patch: _Patch, old: dict, new: dict) -> None:
    for name, value in new.items():
        is_ours = getattr(value, "__module__", "").startswith("safemap.") or name in ("torch", "numpy")
        if is_ours:
            patch.set(old, name, value)
