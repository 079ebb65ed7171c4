"""The reports of safemap, as tuples with names."""

from __future__ import annotations

from collections import namedtuple

Skipped = namedtuple("Skipped", "name type why quantized")
Finding = namedtuple("Finding", "name why severity record")
Residency = namedtuple("Residency", "resident total")
Layout = namedtuple("Layout", "kind stage world_size tag version dtype optimizer mesh mesh_names chunks")
Training = namedtuple("Training", "step epoch learning_rate loss_scale world_size")
SaveCount = namedtuple("SaveCount", "tensors bytes")
SaveFile = namedtuple("SaveFile", "tensors bytes")
Cast = namedtuple("Cast", "from_ to tensors values overflowed non_finite")
Unsupported = namedtuple("Unsupported", "dtype tensors")
SaveReading = namedtuple("SaveReading", "copied gathered scaled views unreferenced_bytes")
SaveLayout = namedtuple("SaveLayout", "files unaligned_tensors buffer_bytes")


def _shortened(value, most: int = 4) -> str:
    """Returns repr(value), of a long list with the first elements and their number."""
    if not isinstance(value, list) or len(value) <= most:
        return repr(value)
    shown = ", ".join(repr(one) for one in value[: most - 1])
    return f"[{shown}, ... {len(value)} in all]"


def _report(name: str, fields: str, brief: str) -> type:
    """Returns a namedtuple whose repr has the fields of `brief`, and the others that are not empty."""
    base = namedtuple(name, fields)

    def __repr__(self) -> str:
        shown = (field for field in self._fields if field in brief.split() or isinstance(getattr(self, field), list))
        pairs = ((field, getattr(self, field)) for field in shown)
        return f"{name}({', '.join(f'{key}={_shortened(value)}' for key, value in pairs if value or key in brief)})"

    return type(name, (base,), {"__slots__": (), "__repr__": __repr__, "__module__": __name__})


SaveReport = _report(
    "SaveReport",
    "files tensors bytes_read bytes_written notes resumed extras skipped unsupported casts reading layout",
    "files tensors bytes_written",
)

Side = namedtuple("Side", "dtype shape value")
Difference = namedtuple("Difference", "name what a b index max_abs")
Close = namedtuple("Close", "name max_abs")


class DiffReport(_report("DiffReport", "only_in_a only_in_b different close notes tensors bytes", "tensors")):
    """The differences of two checkpoints."""

    __slots__ = ()

    @property
    def equal(self) -> bool:
        """True if the checkpoints are equal. Close tensors count as equal."""
        return not (self.only_in_a or self.only_in_b or self.different)

    def __repr__(self) -> str:
        return super().__repr__().replace("DiffReport(", f"DiffReport(equal={self.equal}, ", 1)

    def __bool__(self):
        raise TypeError("a DiffReport is neither true nor false: use .equal")


class VerifyReport(
    _report(
        "VerifyReport",
        "tensors bytes checked_bytes faults notes asks_for_code verdict findings",
        "tensors bytes checked_bytes verdict",
    )
):
    """The faults of a checkpoint, as exceptions; true if there is no fault."""

    __slots__ = ()

    @property
    def ok(self) -> bool:
        """True if there is no fault."""
        return not self.faults

    def __bool__(self) -> bool:
        return self.ok


Digests = namedtuple("Digests", "algorithm checkpoint tensors bytes")
Examined = _report("Examined", "verdict findings not_listed", "verdict")
Scanned = namedtuple("Scanned", "path checkpoint fault files file_bytes verdict findings")
ScanReport = _report("ScanReport", "found not_opened", "found not_opened")
EditReport = _report("EditReport", "changed renamed metadata notes", "changed renamed")
RepairReport = _report("RepairReport", "repairs saved", "repairs saved")
Expected = namedtuple("Expected", "name dtype shape alias_of")
Mismatch = namedtuple("Mismatch", "expected found")
Extras = namedtuple("Extras", "files notes")
UploadStats = namedtuple(
    "UploadStats",
    "uploaded_bytes bytes_from_host resident_bytes peak_device_bytes peak_staging_bytes evictions stalled bytes_pread "
    "bytes_direct time_pread time_direct",
)
