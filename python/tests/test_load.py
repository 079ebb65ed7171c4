"""safemap.load(), tree() and state_dict(), beside torch.load."""

import pathlib
import warnings

import pytest

import safemap

torch = pytest.importorskip("torch")

import torch.nested  # noqa: E402  for files with jagged tensors

from same_objects import require_same  # noqa: E402

warnings.filterwarnings("ignore")
ROOT = pathlib.Path(__file__).resolve().parents[2]
FOLDERS = [ROOT / "tests/data", ROOT.parent / "shared/fixtures"]
FILES = sorted(
    file
    for folder in FOLDERS
    for file in folder.rglob("*")
    if file.suffix in (".pt", ".pth", ".bin", ".ckpt", ".pkl") and file.is_file()
)


def read_by_torch(file):
    """Returns what torch gives, in a list; or a text that says why it refuses the file."""
    try:
        return [torch.load(file, weights_only=True, map_location="cpu")]
    except Exception as error:  # any error: files of the tests are broken in many ways
        return str(error)


def is_storage(ours, theirs):
    """safemap reads tensors, not storages that are values by themselves."""
    return isinstance(ours, safemap.Opaque) and isinstance(theirs, (torch.TypedStorage, torch.UntypedStorage))

# What torch reads, and safemap refuses.
REFUSED = {
    "dims_10000.pt": "bad_tensor",
    "duplicate_record.pt": "zip_duplicate",
    "memo_huge.pt": "pickle_bad_memo",
    "offset_other.pt": "zip_bad_record",
    "parent_name.pt": "zip_bad_record",
    "protocol_9.pt": "pickle_bad_opcode",
    "two.pt": "bad_tensor",
}


@pytest.mark.parametrize("file", FILES, ids=lambda file: "/".join(file.parts[-3:]))
def test_files_are_read_as_torch_reads_them(file):
    theirs = read_by_torch(file)
    try:
        ours = safemap.load(file)
    except safemap.SafemapError as error:
        if isinstance(theirs, list):
            assert REFUSED[file.name] == error.code
        return
    if isinstance(theirs, list):
        require_same(ours, theirs[0], stands_for=is_storage)
