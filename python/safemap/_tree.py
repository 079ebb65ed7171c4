"""The parts of a nested state dict that are neither plain values nor tensors, and the functions that make them for
Checkpoint.tree(), without torch and NumPy."""

from __future__ import annotations

from collections import Counter, defaultdict, namedtuple

Constant = namedtuple("Constant", "kind text")
Constant.__doc__ = """A constant of torch or NumPy: kind is "dtype", "device", "layout", "numpy_dtype" or "other"."""


class Opaque:
    """An object of a class that safemap does not know. Its class was not imported, and nothing was called.

    Attributes:
        type: the name of the class, "argparse.Namespace".
        why: a sentence that says why it was not made.
        children: a dict of its arguments, attributes and items by name; the name "" is a tensor that it wraps.
    """

    __slots__ = ("type", "why", "children", "_form", "_arguments")

    def __init__(self, type: str, why: str = "", children: dict | None = None):
        self.type, self.why, self.children = type, why, {} if children is None else children
        self._form, self._arguments = "object", 0

    def __repr__(self) -> str:
        return f"<safemap.Opaque {self.type}: {', '.join(self.children) or 'empty'}>"


_kinds = (bool, bytes, complex, dict, float, int, list, set, str, tuple)
factories = {f"builtins.{kind.__name__}": kind for kind in _kinds}


def opaque(type, why, form, arguments):
    made = Opaque(type, why)
    made._form, made._arguments = form, arguments
    return made


def mapping(name, factory):
    """Returns an empty dictionary of a class by its name."""
    if name == "collections.Counter":
        return Counter()
    return defaultdict(factories.get(factory)) if name == "collections.defaultdict" else {}


constant = Constant


def scalar(dtype, value):
    return value


def size(numbers):
    return numbers
