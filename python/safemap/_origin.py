"""Where a checkpoint comes from: what pickle keeps of it, so that another process opens it again.

An origin is a tuple: ("open", path or paths, options), or (method, origin, argument) for a checkpoint that a method of
another one made.
"""

from __future__ import annotations

import os
import pickle
from collections import OrderedDict

_most_opened = 16
_opened: OrderedDict = OrderedDict()


def of_path(path, options: dict) -> tuple:
    """Returns the origin of what open(path, **options) gives."""
    if isinstance(path, (list, tuple)):
        return "open", tuple(_absolute(one) for one in path), dict(options)
    return "open", _absolute(path), dict(options)


def _absolute(path):
    path = os.fspath(path)
    # With the slash at its end, which says that a folder is meant.
    slash = path[-1:] if path[-1:] in ("/", b"/") else path[:0]
    return os.path.abspath(path) + slash


def checkpoint(origin: tuple):
    """Opens the checkpoint again."""
    from . import _core

    kind, first, second = origin
    if kind == "open":
        return _core.open(list(first) if isinstance(first, tuple) else first, **second)
    above = checkpoint(first)
    return above.optimizer() if kind == "optimizer" else getattr(above, kind)(second)


def tensor(origin: tuple, name: str, steps: list):
    """Finds the tensor in its checkpoint again. Tensors of one checkpoint open it once."""
    found = _checkpoint_of(origin)[name]
    for step in steps:
        found = found.to(step) if isinstance(step, str) else found[step]
    return found


def _checkpoint_of(origin: tuple):
    """Returns the checkpoint, which the next tensors of it find open, unless its files have changed since."""
    key = pickle.dumps(origin), _state_of(origin)
    found = _opened.get(key)
    if found is None:
        found = _opened[key] = checkpoint(origin)
        if len(_opened) > _most_opened:
            _opened.popitem(last=False)
    return found


def _state_of(origin: tuple) -> tuple:
    """Returns what changes when another file takes the place of an opened one."""
    while origin[0] != "open":
        origin = origin[1]
    paths = origin[1] if isinstance(origin[1], tuple) else (origin[1],)
    states = (os.stat(path) for path in paths if os.path.exists(path))
    return tuple((one.st_dev, one.st_ino, one.st_size, one.st_mtime_ns) for one in states)
