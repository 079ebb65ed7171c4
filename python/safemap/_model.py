"""safemap.load_state_dict(): what needs torch. A checkpoint into a module of torch."""

from __future__ import annotations

import collections

import torch

from . import _core
from ._errors import SafemapError, exception_for

_floats = ("F64", "F32", "F16", "BF16", "F8_E4M3", "F8_E5M2", "F8_E4M3FNUZ", "F8_E5M2FNUZ")


def load_into(model, checkpoint, strict: bool, assign: bool, device, dtype, progress):
    """Does what load_state_dict() does, for an open checkpoint."""
    fit = _Fit(model, checkpoint)
    changes = _changes_names(model)
    if not changes:
        fit.require(strict)
    state = fit.state(device, dtype, assign, progress, rest=changes)
    found = model.load_state_dict(state, strict=False, assign=assign)
    found.unexpected_keys.extend(name for name in fit.unexpected if name not in state)
    if strict and (found.missing_keys or found.unexpected_keys):
        fit.require(strict)
        raise _mismatch(found)
    return found


def _mismatch(found):
    """Returns the error for names that only torch knows of: of extra state, and of hooks."""
    lists = (("missing", found.missing_keys), ("unexpected", found.unexpected_keys))
    text = "; ".join(f"{what}: {', '.join(names[:20])}" for what, names in lists if names)
    return exception_for("model_mismatch", f"model_mismatch: {text}", text, "", "", "", 1)


def _changes_names(model) -> bool:
    """Returns true if parts of the module may take other names than those of its state dict. Norms of torch only add
    a count of batches."""
    plain = torch.nn.Module._load_from_state_dict
    own = "torch.nn.modules."
    return any(
        part._load_state_dict_pre_hooks
        or (type(part)._load_from_state_dict is not plain and not type(part).__module__.startswith(own))
        for part in model.modules()
    )


def _shape(tensor) -> tuple:
    """Returns a shape as torch counts it: in pairs of float4."""
    shape = tuple(tensor.shape)
    return (*shape[:-1], shape[-1] // 2) if isinstance(tensor, _core.LazyTensor) and tensor.dtype == "F4" else shape


def _key(value):
    """Returns what two names of one Parameter or buffer have in common."""
    if not isinstance(value, torch.Tensor) or value.is_meta or _is_lazy(value) or not value.numel():
        return id(value)
    return type(value), value.data_ptr(), value.dtype, value.shape, value.stride(), value.requires_grad


def _is_lazy(value) -> bool:
    return isinstance(value, torch.nn.parameter.UninitializedTensorMixin)


def _fits(value, tensor) -> bool:
    if not isinstance(value, torch.Tensor) or _is_lazy(value):
        return True
    # torch takes the one value of a file from before 0.4 for a scalar.
    return _shape(value) == _shape(tensor) or (not value.shape and tuple(tensor.shape) == (1,))


def _as(value, tensor):
    if not isinstance(value, torch.nn.Parameter):
        return tensor
    numbers = tensor.is_floating_point() or tensor.is_complex()
    return torch.nn.Parameter(tensor, requires_grad=value.requires_grad and numbers)


class _Fit:
    """The tensors of a checkpoint for the names of a module, under the names that they are stored under."""

    def __init__(self, model, checkpoint):
        self.checkpoint = checkpoint
        self.wanted = model.state_dict(keep_vars=True)
        tied = collections.defaultdict(list)
        for name, value in self.wanted.items():
            tied[_key(value)].append(name)
        stored = {name: group[0] for group in checkpoint.ties for name in group}
        self.found = {}
        for name, value in self.wanted.items():
            held = next((one for one in (name, *tied[_key(value)]) if one in checkpoint), None)
            if held is not None:
                self.found[name] = checkpoint[stored.get(held, held)]
        used = {tensor.name for tensor in self.found.values()}
        self.unexpected = [name for name in checkpoint if stored.get(name, name) not in used]
        self.misshapen = {name for name, tensor in self.found.items() if not _fits(self.wanted[name], tensor)}

    def require(self, strict: bool):
        """Raises unless the plan of the load has no fault that names and shapes show."""
        if not self.misshapen and not (strict and (self.unexpected or len(self.found) < len(self.wanted))):
            return
        expected = {}
        for name, value in self.wanted.items():
            held = self.found.get(name)
            if held is not None and (name in self.checkpoint or name in self.misshapen):
                expected[name] = held.dtype, value.shape if name in self.misshapen else held.shape
            elif held is None and isinstance(value, torch.Tensor) and not name.endswith("num_batches_tracked"):
                expected[name] = str(value.dtype), () if _is_lazy(value) else value.shape
        fill = "error" if strict else "none"
        try:
            _core.plan(self.checkpoint, expected, fill=fill, ignore_unexpected=not strict).require()
        except SafemapError as error:
            if not self.misshapen and self.found:
                error.hint = error.hint or "strict=False loads the tensors that both have"
            raise

    def state(self, device, dtype, assign: bool, progress, rest: bool):
        """Returns the state dict to load, with one object for tied names; with `rest`, unexpected names too."""
        lazies = {tensor.name: tensor for tensor in self.found.values()}
        if rest:
            lazies.update((name, self.checkpoint[name]) for name in self.unexpected)
        if dtype is not None:
            lazies = {name: one.to(dtype) if one.dtype in _floats else one for name, one in lazies.items()}
        made = dict(zip(lazies, _core._tensors(list(lazies.values()), progress)))
        if device is not None:
            made = {name: tensor.to(device) for name, tensor in made.items()}
        state = collections.OrderedDict()
        state._metadata = self.metadata()
        owners, objects = {}, {}
        for name, held in self.found.items():
            value = self.wanted[name]
            key = _key(value)
            if key not in objects:
                tensor = made[held.name]
                # Names that the module does not tie must not share memory.
                alone = owners.setdefault(held.name, key) == key
                tensor = tensor if alone or not assign else tensor.clone()
                objects[key] = _as(value, tensor) if assign else tensor
            state[name] = objects[key]
        state.update((name, made[name]) for name in self.unexpected if rest)
        state.update(self.extra_state(state))
        return state

    def metadata(self):
        """Returns the versions of the parts of a module, which a state dict of torch has."""
        found = getattr(_at(self.checkpoint.tree(), self.checkpoint.root), "_metadata", None)
        return found if isinstance(found, dict) else None

    def extra_state(self, state) -> dict:
        """Returns what modules of the model keep beside their tensors."""
        names = [name for name in self.wanted if name not in state and name.endswith("_extra_state")]
        if not names:
            return {}
        held = _at(_core._load_tree(self.checkpoint), self.checkpoint.root)
        return {name: held[name] for name in names if isinstance(held, dict) and name in held}


def _at(tree, path: str):
    for key in path.split("/") if path else ():
        tree = tree.get(key) if isinstance(tree, dict) else None
    return tree
