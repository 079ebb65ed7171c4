"""Weights of neural networks: every checkpoint as lazy, memory-mapped tensors."""

from __future__ import annotations

from collections.abc import Mapping as _Mapping

from ._core import Checkpoint, LazyTensor, __version__, open
from ._errors import SafemapError

_Mapping.register(Checkpoint)

__all__ = ["Checkpoint", "LazyTensor", "SafemapError", "__version__", "open"]
