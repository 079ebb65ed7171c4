"""What checkpoints say of themselves, as tuples with names."""

from __future__ import annotations

from collections import namedtuple

Skipped = namedtuple("Skipped", "name type why quantized")
Finding = namedtuple("Finding", "name why severity record")
Residency = namedtuple("Residency", "resident total")
Layout = namedtuple("Layout", "kind stage world_size tag version dtype optimizer mesh mesh_names chunks")
Training = namedtuple("Training", "step epoch learning_rate loss_scale world_size")
