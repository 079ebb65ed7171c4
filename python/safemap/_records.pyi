"""The fields of the reports, for type checkers; _records.py makes them."""

from typing import NamedTuple

from ._core import Checkpoint, LazyTensor
from ._errors import SafemapError

class Skipped(NamedTuple):
    name: str
    type: str
    why: str
    quantized: bool

class Finding(NamedTuple):
    name: str
    why: str
    severity: str
    record: str

class Residency(NamedTuple):
    resident: int
    total: int

class Layout(NamedTuple):
    kind: str
    stage: int | None
    world_size: int | None
    tag: str
    version: str
    dtype: str
    optimizer: list[str]
    mesh: tuple[int, ...]
    mesh_names: list[str]
    chunks: int | None

class Training(NamedTuple):
    step: int | None
    epoch: float | None
    learning_rate: float | None
    loss_scale: float | None
    world_size: int | None

class SaveCount(NamedTuple):
    tensors: int
    bytes: int

class SaveFile(NamedTuple):
    tensors: int
    bytes: int

class Cast(NamedTuple):
    from_: str
    to: str
    tensors: int
    values: int
    overflowed: int
    non_finite: int

class Unsupported(NamedTuple):
    dtype: str
    tensors: int

class SaveReading(NamedTuple):
    copied: SaveCount
    gathered: SaveCount
    scaled: SaveCount
    views: SaveCount
    unreferenced_bytes: int

class SaveLayout(NamedTuple):
    files: list[SaveFile]
    unaligned_tensors: int
    buffer_bytes: int

class SaveReport(NamedTuple):
    files: list[str]
    tensors: int
    bytes_read: int
    bytes_written: int
    notes: list[str]
    resumed: list[str]
    extras: list[str]
    skipped: list[Skipped]
    unsupported: list[Unsupported]
    casts: list[Cast]
    reading: SaveReading
    layout: SaveLayout

class Side(NamedTuple):
    dtype: str
    shape: tuple[int, ...]
    value: str

class Difference(NamedTuple):
    name: str
    what: str
    a: Side
    b: Side
    index: tuple[int, ...] | None  # type: ignore[assignment]
    max_abs: float | None

class Close(NamedTuple):
    name: str
    max_abs: float

class DiffReport(NamedTuple):
    only_in_a: list[str]
    only_in_b: list[str]
    different: list[Difference]
    close: list[Close]
    notes: list[str]
    tensors: int
    bytes: int
    @property
    def equal(self) -> bool: ...

class VerifyReport(NamedTuple):
    tensors: int
    bytes: int
    checked_bytes: int
    faults: list[SafemapError]
    notes: list[str]
    asks_for_code: bool
    verdict: str
    findings: list[Finding]
    @property
    def ok(self) -> bool: ...
    def __bool__(self) -> bool: ...

class Digests(NamedTuple):
    algorithm: str
    checkpoint: str
    tensors: dict[str, str]
    bytes: int

class Examined(NamedTuple):
    verdict: str
    findings: list[Finding]
    not_listed: int

class Scanned(NamedTuple):
    path: str
    checkpoint: Checkpoint | None
    fault: SafemapError | None
    files: list[str]
    file_bytes: int
    verdict: str
    findings: list[Finding]

class ScanReport(NamedTuple):
    found: list[Scanned]
    not_opened: int

class EditReport(NamedTuple):
    changed: bool
    renamed: int
    metadata: dict[str, str]
    notes: list[str]

class RepairReport(NamedTuple):
    repairs: list[str]
    saved: SaveReport

class Expected(NamedTuple):
    name: str
    dtype: str
    shape: tuple[int, ...]
    alias_of: str

class Mismatch(NamedTuple):
    expected: Expected
    found: LazyTensor

class Extras(NamedTuple):
    files: dict[str, str]
    notes: list[str]

class UploadStats(NamedTuple):
    uploaded_bytes: int
    bytes_from_host: int
    resident_bytes: int
    peak_device_bytes: int
    peak_staging_bytes: int
    evictions: int
    stalled: float
    bytes_pread: int
    bytes_direct: int
    time_pread: float
    time_direct: float
