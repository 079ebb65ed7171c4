"""The package safetensors, by safemap: the same functions, on the same files, in less time.

    from safemap import safetensors                 # in the place of: import safetensors
    from safemap.safetensors.torch import load_file

`safemap.patch_safetensors()` makes code that imports safetensors get this package. docs/python.md has the differences.
"""

from __future__ import annotations

from .._core import TensorSpec, _safe_open_handle, deserialize, safe_open, serialize, serialize_file
from ._errors import SafetensorError
from . import numpy, torch

__version__ = "0.8.0"  # the version of safetensors whose functions these are

__all__ = ["SafetensorError", "TensorSpec", "deserialize", "safe_open", "serialize", "serialize_file"]
