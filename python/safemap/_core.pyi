from collections.abc import (
    Callable,
    Iterable,
    Iterator,
    Mapping,
    Sequence
)
import os
from typing import Any, BinaryIO, Self

import numpy
import torch

import safemap._records


class LazyTensor:
    """
    A tensor of a checkpoint that has not been read.

    It has a name, a dtype and a shape. Slices and casts of it are lazy, too. Only torch(), numpy() and the protocols of
    arrays read its bytes, or map them without reading. It may outlive its checkpoint. All threads may use it.

    Example:
        rows = checkpoint["wte.weight"][0:4096, ::2].to("f32").torch()
    """

    @property
    def name(self, /) -> str: ...

    @property
    def dtype(self, /) -> str:
        """
        The name in safetensors, "BF16", or torch's for other dtypes, "complex128".
        """

    @property
    def shape(self, /) -> tuple[int, ...]: ...

    @property
    def ndim(self, /) -> int: ...

    @property
    def size(self, /) -> int:
        """The number of elements."""

    @property
    def nbytes(self, /) -> int:
        """The size of the value in bytes."""

    def torch(self, *, copy: bool = False) -> torch.Tensor:
        """
        Returns the value as a torch.Tensor on the CPU.

        Without `copy`, the tensor is the mapped file: nothing is read before its elements are touched. Writing to it changes
        no file. Memory is copied where torch needs that: casts, values in several pieces, negative strides, compressed
        records, and sources that may not be written to.
        """

    def numpy(self, *, copy: bool = False) -> numpy.ndarray:
        """
        Returns the value as a numpy.ndarray. Without `copy`, it is a view of the mapped file where possible.

        NumPy has no BF16 and F8: their dtypes are those of the package ml_dtypes. Raises ImportError without it.
        """

    def to(self, dtype: object) -> LazyTensor:
        """
        Returns a lazy tensor that is cast when it is read: "bf16", torch.bfloat16, numpy.float16.

        Floating-point dtypes can be cast to each other, rounding to nearest even. Raises SafemapError (unsupported_cast).
        """

    def __getitem__(self, index: object, /) -> LazyTensor:
        """
        Returns a lazy part: integers, slices (also with negative steps) and `...`. Reads nothing.
        """

    def __len__(self) -> int: ...

    def __iter__(self) -> Iterator[LazyTensor]: ...

    def __repr__(self) -> str: ...

    def __array__(self, dtype: object = None, copy: bool | None = None) -> Any: ...

    def __dlpack__(self, *, stream: object = None, max_version: tuple[int, int] | None = None, dl_device: tuple[int, int] | None = None, copy: bool | None = None) -> object: ...

    def __dlpack_device__(self) -> tuple[int, int]: ...

    def __reduce__(self) -> object: ...

    def digest(self, algorithm: str = "xxh3-128") -> str:
        """Returns the digest of the value as hex digits: "xxh3-128" or "sha256"."""

    def as_bytes(self) -> LazyTensor:
        """
        Returns the value as U8, for dtypes that torch or NumPy lack. The last dimension counts bytes.

        It shares the mapped file; a value that is not mapped is read.
        """

    def tobytes(self) -> bytes:
        """Returns a copy of the row-major little-endian value."""

    def read(self, offset: int = 0, size: int | None = None) -> bytes:
        """
        Returns `size` bytes of the row-major value from byte `offset` on; all that follow for None.

        Reads no others. Raises IndexError for bytes outside the value, and SafemapError for a range that cuts an element.
        """

    def residency(self) -> safemap._records.Residency:
        """
        Returns how many of its bytes are in memory: a record (resident, total).
        """

    def prefetch(self, *, progress: Any = None, threads: int = 0) -> None:
        """
        Reads its bytes into the page cache of the kernel, and returns when they are there.
        """

    def evict(self) -> None:
        """
        Evicts its bytes from the page cache of the kernel. Views of it stay valid.
        """

def open(path: str | os.PathLike | bytes | BinaryIO | Sequence, *, root: str | None = None, root_auto: bool = False, ema: bool = False, access: str = "private_copy", policy: str = "compatible", strict_globals: bool = False, weights: str = "automatic", deepspeed_compat: bool = False, manifest: str | os.PathLike = "", as_parts: bool = False, stored_names: bool = False, olmo_names: bool = True, max_header_bytes: int | str = 100_000_000, threads: int = 0) -> Checkpoint:
    """
    Opens a checkpoint of any format: a file, folder, index, list of shards, bytes, or binary file object.

    Reads headers, indexes and pickles, and no tensor. Executes nothing of a pickle.

    - root: the part of a nested state dict whose tensors are given, "" for all of it
    - root_auto: take the model, by the names that trainers give to it
    - ema: averages of weights in the place of the weights
    - access: "private_copy" (tensors may be written to, files never change), "mapped" (read-only; a write by torch ends the
      process), "copied" (files are read, never mapped), "automatic" (files of local disks are mapped)
    - policy: "compatible" accepts what the package safetensors accepts, "strict", "lenient"
    - strict_globals: refuse a pickle that names an unknown class or function
    - weights, deepspeed_compat: of a folder of DeepSpeed
    - manifest, as_parts: of files of ranks
    - threads: for the headers of many files; 0 is one for each processor

    Raises SafemapError, and FileNotFoundError for a path that does not exist. Ctrl-C ends it.
    """

class Checkpoint(Mapping[str, LazyTensor]):
    """
    An open checkpoint: a mapping of names to lazy tensors.

    All names are keys, those of tied tensors too. Tensors may outlive it. All threads may use it. It can be pickled if it
    was opened from a path: another process opens it again.

    Example:
        with safemap.open("model/") as checkpoint:
            weight = checkpoint["model.embed_tokens.weight"].torch()
    """

    def __init__(self, *args: object, **options: object) -> None: ...

    @staticmethod
    def of(tensors: Any, *, metadata: Mapping[str, str] | None = None) -> Checkpoint:
        """
        Returns a checkpoint of tensors in memory: of a dict of tensors of torch or NumPy or of
        LazyTensors, of a module, or of what load() and tree() give: dicts, lists, tuples, sets, plain values, tensors and
        Parameters, at any depth.

        Shares the memory of tensors, which must not change while it is read. Tensors of torch with the same storage, offset,
        shape and strides are tied, and objects in several places stay one. A tensor on a GPU is copied to the host when it is
        read, block by block. With `metadata`, takes a dict of tensors only.

        Raises TypeError for other values, with their path.

        Example:
            trained = safemap.Checkpoint.of({"model": model.state_dict(), "step": 3})
            print(safemap.digests(trained).checkpoint)
        """

    def __getitem__(self, name: str, /) -> LazyTensor: ...

    def __contains__(self, arg: object, /) -> bool: ...

    def __len__(self) -> int:
        """
        Returns the number of names, which counts tied tensors once for each name.
        """

    def __iter__(self) -> Iterator[str]: ...

    def keys(self) -> list[str]: ...

    def values(self) -> list[LazyTensor]: ...

    def items(self) -> list[tuple[str, LazyTensor]]: ...

    def get(self, name: str, default: Any = None) -> LazyTensor | Any: ...

    @property
    def format(self, /) -> str:
        """"safetensors", "torch", "zero", "dcp" or "fsdp"."""

    @property
    def files(self, /) -> list[str]: ...

    @property
    def metadata(self, /) -> dict[str, str]:
        """The pairs of `__metadata__`, without the structure document."""

    @property
    def notes(self, /) -> list[str]:
        """Sentences about what was unusual, or skipped."""

    @property
    def verdict(self, /) -> str:
        """
        What unpickling the files would do: "ok", "needs classes", "unknown" or "runs code".
        """

    @property
    def findings(self, /) -> list[safemap._records.Finding]:
        """The reasons for the verdict."""

    @property
    def skipped(self, /) -> list[safemap._records.Skipped]:
        """Contents that are not among the tensors."""

    @property
    def ties(self, /) -> list[list[str]]:
        """The names of each tied tensor, the stored name first."""

    @property
    def root(self, /) -> str:
        """The path of the part that names are relative to."""

    @property
    def parts(self, /) -> list[str]:
        """Arguments for below()."""

    @property
    def layout(self, /) -> safemap._records.Layout | None:
        """What the folder of a training framework says of the run."""

    @property
    def total_bytes(self, /) -> int:
        """The size of all values; a tied tensor counts once."""

    def select(self, patterns: str | list[str]) -> Checkpoint:
        """
        Returns a checkpoint of the tensors whose names match one of the patterns of a shell, "*.attn.*".
        """

    def renamed(self, function: Callable[[str], str]) -> Checkpoint:
        """
        Returns a checkpoint of the same tensors under the names that `function` gives.
        """

    def below(self, path: str) -> Checkpoint:
        """
        Returns a checkpoint of one part of a nested state dict, "state_dict"; names are relative to it.
        """

    def stored_as(self, names: str | Iterable[str] | None = None) -> Checkpoint:
        """
        Returns a checkpoint in which each tied tensor is stored under one of `names`.

        A tensor without one of them is stored under the name that the base class of a model loads.
        """

    def extras(self) -> safemap._records.Extras:
        """
        Lists the small files that belong to the model: configuration, tokenizer, licence. Reads none of them.

        Returns a record with the fields files, a dict of names and paths, and notes. save(..., extras=True) copies them.
        """

    def optimizer(self) -> Checkpoint | None:
        """
        Returns the state of the optimizer, of a training folder or beside the model.
        """

    def training(self) -> safemap._records.Training:
        """Returns how far the training had come."""

    def tree(self) -> Any:
        """
        Returns the nested state dict, with lazy tensors in the place of tensors; else a dict of all tensors.
        """

    def residency(self, patterns: str | list[str] | None = None) -> safemap._records.Residency:
        """
        Returns how many bytes of the selected tensors are in memory, and of how many that is known.
        """

    def prefetch(self, patterns: str | list[str] | None = None, *, progress: object = None, threads: int = 0) -> None:
        """
        Reads the selected tensors into the page cache, and returns when they are there.
        """

    def evict(self, patterns: str | list[str] | None = None) -> None:
        """Evicts the selected tensors from the page cache."""

    def close(self) -> None:
        """Lets go of the files. Tensors of the checkpoint stay valid."""

    def __enter__(self) -> Checkpoint: ...

    def __exit__(self, *error: object) -> None: ...

    def __repr__(self) -> str: ...

    def __reduce__(self) -> object: ...

def save(out: str | os.PathLike | BinaryIO, tensors: Any, *, dtype: Any = None, dtype_of: Mapping[str, Any] = {}, keep_dtype: str | Iterable[str] | None = None, optimizer_dtype: Any = None, apply_scales: bool = False, one_file: bool = False, stem: str = "model", max_shard_size: int | str = "5GB", max_header_bytes: int | str = 100_000_000, metadata: Mapping[str, str] | None = None, exact_metadata: bool = False, empty_metadata: bool = False, alignment: int = 8, align_tensors: bool = False, strategy: str = "greedy", index_style: str = "hub", structure: str = "automatic", untie: bool = False, checksums: bool = False, extras: Any = False, folders: Mapping[str, Any] = {}, ranks: int = 0, rank_dimension: int = 0, overwrite: bool = False, resume: bool = False, durable: bool = True, drop_cache: bool = False, plan_only: bool = False, allow_empty: bool = True, on_plan: Callable[[safemap._records.SaveReport], object] | None = None, progress: Any = None, threads: int = 0) -> safemap._records.SaveReport:
    """
    Saves tensors as safetensors, all or nothing, and returns a report.

    `tensors` is a Checkpoint, a path that safemap.open() takes, a dict of tensors of torch or NumPy (a state dict), a list
    of LazyTensors, or a module of torch. Tied tensors are stored once, with their other names in the metadata; `untie=True`
    stores each.

    `out` is one file if it ends in .safetensors or .sft, else a folder of shards with an index, as huggingface_hub names
    them. Until all is written, it holds what it held before. It may be a binary file object, which gets one file from its
    position on; the file object is written by several threads, one at a time.

    Options are those of SaveOptions in C++. The most used ones:

    - dtype: "bf16", torch.float16, ...: casts floating-point tensors; or a dict of patterns and dtypes
    - max_shard_size: bytes, or a text such as "5GB"
    - checksums: stores a digest of each tensor, which verify() checks
    - extras: True copies the configuration, tokenizer and licence beside the checkpoint; another checkpoint copies its own
    - folders: other checkpoints to save in the same commit, such as {"optimizer": optimizer.state_dict()}
    - overwrite: replaces what is at `out`
    - durable: False returns before the bytes are on the disk
    - progress: True shows a bar (tqdm, where it is installed); a callable (stage, done, total) cancels by returning False

    Raises SafemapError: FileExistsError if `out` exists, code `cancelled`, and so on; then nothing is left. Ctrl-C ends it
    in the same way.

    Example:
        safemap.save("out/", model.state_dict(), dtype="bf16", max_shard_size="2GB")
    """

class ShardWriter:
    """
    Writes a checkpoint piece by piece, in any order and from any thread.

    `tensors` declares what will be written: a dict of names and (dtype, shape), or tensors that have them. `options` are
    those of safemap.save() for contents and layout, without casts, and `overwrite`, `durable` and `drop_cache`. Until the
    commit, `out` holds what it held before.

    Each byte is written once, and is checked: writing twice, outside a tensor, or too little is a SafemapError. A value is
    a tensor of torch or NumPy, a LazyTensor, or bytes in row-major order. A tensor of another dtype is cast.

    Leaving the block commits; leaving it by an exception removes everything.

    Example:
        with safemap.ShardWriter("out/", {"w": ("F32", (2, 3)), "b": ("BF16", (3,))}) as writer:
            writer["w"] = torch.ones(2, 3)
            writer.write_range("b", 0, b"\\0\\0" * 3)
    """

    def __init__(self, out: str | os.PathLike, tensors: Mapping[str, Any], **options: Any) -> None: ...

    def write(self, name: str, value: Any) -> None:
        """Writes a whole tensor."""

    def __setitem__(self, name: str, value: Any, /) -> None: ...

    def write_range(self, name: str, offset: int, data: Any) -> None:
        """
        Writes bytes, or the elements of a tensor, from byte `offset` of the row-major tensor on.
        """

    def write_box(self, name: str, start: Sequence[int], value: Any) -> None:
        """
        Writes a tensor as the box that begins at the indices `start`: `w[start:start + value.shape] = value`.
        """

    def commit(self) -> safemap._records.SaveReport:
        """
        Makes the checkpoint appear, and returns the report of a save. Raises SafemapError, code `not_written`, if bytes are missing; then more can be written.
        """

    def close(self) -> None:
        """Removes everything, unless it was committed."""

    @property
    def report(self, /) -> safemap._records.SaveReport | None:
        """The report of the commit; None before it."""

    def __enter__(self) -> ShardWriter: ...

    def __exit__(self, type: object, value: object, traceback: object, /) -> None: ...

    def __repr__(self) -> str: ...

def diff(a: Any, b: Any, *, atol: float | None = None, rtol: float | None = None, cast: bool = False, patterns: str | Iterable[str] | None = None, rename: Any = None, progress: Any = None, threads: int = 0) -> safemap._records.DiffReport:
    """
    Compares two checkpoints, whatever their formats, and returns a DiffReport; `.equal` says if they are equal.

    `a` and `b` are what safemap.save() takes: a Checkpoint, a path, a dict of tensors, a module. Tensors match by name, and
    are equal if their bytes are. With `atol` or `rtol` they are compared as numbers: |a - b| <= atol + rtol * |b|. With
    `cast`, tensors of different floating-point dtypes are compared, too. `rename` maps names of `a`: a dict or a function.
    `patterns` selects names.

    Memory does not grow with the size of a tensor. Ctrl-C ends it.

    Example:
        report = safemap.diff("model/", model.state_dict(), atol=1e-6)
        assert report.equal, report.different
    """

def digests(checkpoint: Any, *, algorithm: str = "xxh3-128", patterns: str | Iterable[str] | None = None, progress: Any = None, threads: int = 0) -> safemap._records.Digests:
    """
    Returns the digest of each tensor, and one of them all, which do not depend on format and shards.

    `checkpoint` is what safemap.save() takes. The algorithm is "xxh3-128", which detects accidents, or "sha256", for data
    of an adversary. The result has the fields algorithm, checkpoint (hex digits), tensors (a dict of names and hex digits)
    and bytes.

    Example:
        assert safemap.digests("model/").checkpoint == safemap.digests("model.pt").checkpoint
    """

def verify(path: str | os.PathLike, *, progress: Any = None, **options: Any) -> safemap._records.VerifyReport:
    """
    Checks a whole checkpoint, and returns a VerifyReport with every fault; true if it is ok.

    Checks headers, indexes and directories, that every byte can be read, the CRC-32 of zip records, and the digests that
    save(..., checksums=True) stores. Faults are SafemapErrors in a list. Options are those of safemap.open(), and
    `progress`.

    Example:
        report = safemap.verify("model/")
        for fault in report.faults:
            print(fault.code, fault)
    """

def examine(path: str | os.PathLike, **options: Any) -> safemap._records.Examined:
    """
    Says what unpickling the files of a path would do, also if they cannot be opened. Executes nothing.

    Returns a record with the fields verdict ("ok", "needs classes", "unknown" or "runs code"), findings and
    not_listed.
    """

def scan(paths: str | os.PathLike | Iterable[str | os.PathLike], *, includes: Iterable[str] = (), excludes: Iterable[str] = (), hidden: bool = False, **options: Any) -> safemap._records.ScanReport:
    """
    Opens every checkpoint that is one of the paths or below them.

    Returns a record with the fields found, a list of records (path, checkpoint, fault, files, file_bytes, verdict,
    findings), and not_opened, the number of files that hold no checkpoint. A checkpoint that cannot be opened has its
    fault, a SafemapError. `includes` and `excludes` are patterns of files; `hidden` enters hidden folders. Other options
    are those of safemap.open().
    """

def edit(path: str | os.PathLike, *, set: Mapping[str, str] | None = None, unset: Iterable[str] | None = None, rename: Any = None, progress: Any = None, **options: Any) -> safemap._records.EditReport:
    """
    Changes the metadata and the tensor names of a safetensors file, which is replaced by a new one at once.

    `set` adds pairs to the metadata, `unset` removes keys, `rename` changes names of tensors: a dict, or a function of all
    names. Returns a record with the fields changed, renamed, metadata and notes.

    Example:
        safemap.edit("model.safetensors", set={"license": "mit"}, rename=lambda name: name.removeprefix("module."))
    """

def repair(path: str | os.PathLike, out: str | os.PathLike, *, progress: Any = None, **options: Any) -> safemap._records.RepairReport:
    """
    Writes a conforming copy of safetensors that the reference implementation refuses or would not have written.

    Options are those of safemap.save() and safemap.open(). Missing bytes and unreadable headers raise, as in open().
    Returns a record with the fields repairs, a list of sentences, and saved, a SaveReport.
    """

class LoadPlan:
    """
    The differences between a checkpoint and what a model expects; true if it is ok.
    """

    @property
    def missing(self, /) -> list[safemap._records.Expected]:
        """
        Expected tensors that the checkpoint lacks: records (name, dtype, shape, alias_of).
        """

    @property
    def unexpected(self, /) -> list[LazyTensor]:
        """Tensors that the model does not expect."""

    @property
    def shape(self, /) -> list[safemap._records.Mismatch]:
        """Tensors of another shape: records (expected, found)."""

    @property
    def dtype(self, /) -> list[safemap._records.Mismatch]:
        """Tensors of another dtype: records (expected, found)."""

    @property
    def tied(self, /) -> list[list[str]]:
        """The names of each used tensor that has several."""

    @property
    def checkpoint_prefix(self, /) -> str:
        """A prefix that only names of the checkpoint have."""

    @property
    def model_prefix(self, /) -> str:
        """A prefix that only names of the model have."""

    @property
    def notes(self, /) -> list[str]: ...

    @property
    def ok(self) -> bool: ...

    @property
    def text(self, /) -> str:
        """The differences as lines of text."""

    def tensors(self) -> list[LazyTensor]:
        """
        Returns the tensors to load, under the names of the model. Raises SafemapError, code `model_mismatch`, unless ok.
        """

    def require(self) -> None:
        """Raises SafemapError, code `model_mismatch`, unless ok."""

    def __bool__(self) -> bool: ...

    def __repr__(self) -> str: ...

def plan(checkpoint: Any, model: Any, *, fill: str = "error", ignore_unexpected: bool = False, patterns: str | Iterable[str] | None = None) -> LoadPlan:
    """
    Compares a checkpoint with the tensors that a model expects. Reads no tensor.

    `checkpoint` is what safemap.save() takes. `model` is a module of torch, which may be on the device meta, a state dict,
    a dict of names and (dtype, shape), a Checkpoint, or the path of one or of JSON. `fill` says what missing tensors
    become: "error", "none" (the model keeps its own), "zeros" or "nan".

    Example:
        plan = safemap.plan("model.pt", model, fill="none", ignore_unexpected=True)
        print(plan.text)
        model.load_state_dict({t.name: t.torch() for t in plan.tensors()}, strict=False, assign=True)
    """

class DeviceTensor:
    """
    A tensor on a device. It keeps its lease, and raises SafemapError once that was released.
    """

    @property
    def name(self, /) -> str: ...

    @property
    def dtype(self, /) -> str: ...

    @property
    def shape(self, /) -> tuple[int, ...]: ...

    @property
    def nbytes(self, /) -> int: ...

    @property
    def device(self, /) -> str: ...

    @property
    def address(self, /) -> int | None:
        """The address on the device; None where memory has no address (OpenCL)."""

    def torch(self) -> torch.Tensor:
        """
        Returns the value as torch.Tensor on its device, without a copy.

        The lease lasts as long as the tensor, whatever release() says. Its memory is shared: do not write to it. On CUDA, work
        of torch's current stream comes after the copies.
        """

    def numpy(self) -> numpy.ndarray:
        """
        Returns the value as numpy.ndarray, which is read-only and keeps the lease. Only where the host can read.
        """

    def digest(self) -> str:
        """Returns the XXH3-128 digest of the bytes on the device."""

    def __dlpack__(self, *, stream: object = None, max_version: tuple[int, int] | None = None, dl_device: tuple[int, int] | None = None, copy: bool | None = None) -> object: ...

    def __dlpack_device__(self) -> tuple[int, int]: ...

    def __repr__(self) -> str: ...

class Bundle:
    """
    Tensors that come to a device and leave it together. Made by Uploader.bundle().
    """

    def __len__(self) -> int: ...

    @property
    def device_bytes(self, /) -> int:
        """The device memory that a lease holds."""

    def keys(self) -> list[str]: ...

class Lease:
    """
    The tensors of a bundle, which stay on the device until it is released.

    It is a context manager, and a mapping of names to DeviceTensors. Tensors of torch and NumPy that were made of it share
    it: memory is not used again before they are gone.
    """

    def keys(self) -> list[str]: ...

    def __iter__(self) -> Iterator[str]: ...

    def __len__(self) -> int: ...

    def __contains__(self, arg: object, /) -> bool: ...

    def __getitem__(self, name: str, /) -> DeviceTensor: ...

    @property
    def ready(self, /) -> bool:
        """False while the tensors of a request() are on their way."""

    def wait(self, stream: object = None) -> None:
        """Waits for the tensors of a request(). Raises what acquire() would."""

    def release(self, stream: object = None) -> None:
        """Ends the lease; with a stream, when the work that is in it is done."""

    def __enter__(self) -> Lease: ...

    def __exit__(self, *args: object) -> None: ...

    def __repr__(self) -> str: ...

class UploadOrder:
    """
    An order in which bundles are used again and again. Iterating gives the leases of one pass.

    Release a lease before the step after the next one: until then, its memory is not free.
    """

    def next(self, stream: object = None, *, deadline: float | None = None, progress: Any = None) -> Lease:
        """Waits for the bundle of the next step, and returns a lease of it."""

    def __len__(self) -> int: ...

    @property
    def upcoming(self) -> int:
        """The number of the step that comes next."""

    def __iter__(self) -> UploadOrder: ...

    def __next__(self) -> Lease: ...

    def reset(self) -> None:
        """Goes back to the first step."""

    def end(self) -> None:
        """Ends the order, so that the uploader can follow another one."""

    def __enter__(self) -> UploadOrder: ...

    def __exit__(self, *args: object) -> None: ...

class Uploader:
    """
    Brings tensors of a checkpoint to a device on demand, and evicts them to stay within a budget.

    `checkpoint` is what safemap.save() takes. `device` is "host" (or "cpu"), "cuda:N" or "opencl:N", or a torch.device.
    `budget` is the device memory that it may use, bytes or a text such as "8GB"; None takes nine tenths of what is free.
    `host_bytes` keeps evicted weights in memory of the host. Options are those of UploadOptions in C++.

    Methods take a name, a prefix ("model.layers.1"), a pattern, a list of names or LazyTensors, or a bundle().

    Example:
        with safemap.Uploader("model/", "cuda:0", budget="8GB") as uploader:
            for lease in uploader.follow([f"model.layers.{i}" for i in range(80)]):
                weight = lease[lease.keys()[0]].torch()
    """

    def __init__(self, checkpoint: Any, device: str | torch.device = "host", *, budget: int | str | None = None, staging_bytes: int | str | None = None, host_bytes: int | str | None = None, readers: int = 0, direct_reads: bool = True, keep_addresses: bool = False) -> None: ...

    def bundle(self, what: Any) -> Bundle:
        """
        Makes a bundle, which is found at once by later calls. Its tensors stay as long as it is kept.
        """

    def acquire(self, what: Any, *, stream: object = None, deadline: float | None = None, priority: int = 0, progress: Any = None) -> Lease:
        """
        Leases tensors, and uploads those that are not on the device.

        With a stream (an int or a torch.cuda.Stream), later work of the stream comes after the copies. `deadline` is in
        seconds: TimeoutError after that, while the upload goes on. Raises SafemapError, code `budget_exceeded`, if leases leave
        no room.
        """

    def try_acquire(self, what: Any, *, stream: object = None) -> Lease | None:
        """Leases tensors if they are on the device; returns None otherwise."""

    def request(self, what: Any, *, deadline: float | None = None, priority: int = 0, progress: Any = None) -> Lease:
        """
        Starts to acquire tensors, and returns at once. Lease.wait() waits for them.
        """

    def prefetch(self, *what: Any) -> None:
        """
        Starts to upload tensors in this order, as far as there is room, and returns at once.
        """

    def follow(self, bundles: Iterable[Any], *, once: bool = False) -> UploadOrder:
        """
        Follows an order in which bundles are used again and again, or once: what comes next is uploaded ahead.
        """

    def evict(self, what: Any) -> None:
        """Gives memory back to the device, unless a lease holds it."""

    def sleep(self) -> int:
        """
        Gives all memory without a lease back to the device. Returns how many bytes leases keep.
        """

    def wake(self) -> None:
        """Starts to upload what sleep() took from the device."""

    def stats(self) -> safemap._records.UploadStats:
        """Returns counters; times are in seconds."""

    @property
    def device(self, /) -> str: ...

    def close(self) -> None:
        """Stops uploads. Leases stay valid."""

    def __enter__(self) -> Uploader: ...

    def __exit__(self, *args: object) -> None: ...

    def __repr__(self) -> str: ...

def run_command_line(program: list[str], words: list[str]) -> int:
    """
    Runs a command with these words, and returns the exit code. `program` is what started it, for messages.
    Meanwhile signals do what they do to the program `safemap`: Ctrl-C ends the process.
    """

class PySafeSlice:
    """A tensor of a file, of which only parts are read."""

    def get_shape(self) -> list[int]:
        """Returns the shape of the whole tensor."""

    def get_dtype(self) -> str:
        """Returns the dtype as the file names it, such as "F32"."""

    def __getitem__(self, key: Any) -> Any:
        """
        Returns a part of the tensor. With "pt" and "mmap", torch takes the index. Otherwise integers, ranges with positive bounds and steps, an ellipsis, and tuples of them are taken.
        """

class safe_open:
    """
    An open safetensors file, whose tensors are read when they are requested.

        with safe_open("model.safetensors", framework="pt") as f:
            tensor = f.get_tensor("embedding")
    """

    def __init__(self, filename: str | os.PathLike[str], framework: str, device: str | int | None = "cpu", *, backend: str = "mmap") -> None:
        """
        Args:
            filename: path of the file.
            framework: "pt" for tensors of torch, "np" for arrays of NumPy.
            device: where tensors of torch go.
            backend: "mmap" maps the file; "pread" reads tensors into memory.

        Raises FileNotFoundError, OSError, SafetensorError.
        """

    def keys(self) -> list[str]:
        """Returns the names of the tensors, sorted."""

    def offset_keys(self) -> list[str]:
        """
        Returns the names of the tensors in the order of their bytes in the file.
        """

    def metadata(self) -> dict[str, str] | None:
        """Returns the pairs of `__metadata__`, or None if the file has none."""

    def get_tensor(self, name: str) -> Any:
        """
        Returns the tensor. With the backend "mmap" it is a view of a private copy of the file: it may be written to, the file never changes, and all tensors of this object share the copy. With "pread", and on another device than the cpu, it has memory of its own. It may outlive this object.

        Raises SafetensorError if the file has no tensor of this name; other names of tied tensors count as missing.
        """

    def get_tensors(self) -> dict[str, Any]:
        """
        Returns all tensors by name, in the order of their bytes in the file. Each is what get_tensor() gives.
        """

    def get_slice(self, name: str) -> PySafeSlice:
        """
        Returns an object that is indexed like the tensor, and reads only what the index selects: `f.get_slice("w")[:, :4]`.
        """

    def __enter__(self) -> Self: ...

    def __exit__(self, exc_type: object, exc_value: object, traceback: object) -> None:
        """Closes the file. Tensors and slices stay usable."""

class TensorSpec:
    """
    Memory that serialize() and serialize_file() write as a tensor. It is not kept alive.
    """

    def __init__(self, *, dtype: str, shape: Sequence[int], data_ptr: int, data_len: int) -> None:
        """
        Args:
            dtype: torch's or NumPy's name, such as "float32".
            shape: the dimensions; of "float4_e2m1fn_x2", the last one counts pairs.
            data_ptr: the address of the row-major elements.
            data_len: their size in bytes.
        """

    @property
    def dtype(self) -> str:
        """The name of the dtype in the file, such as "F32"."""

    @property
    def shape(self) -> list[int]:
        """The dimensions in the file."""

    @property
    def data_ptr(self) -> int:
        """The address of the elements."""

    @property
    def data_len(self) -> int:
        """The size of the elements in bytes."""

    def __repr__(self) -> str: ...

def serialize(tensor_dict: dict[str, TensorSpec], metadata: dict[str, str] | None = None) -> bytes:
    """
    Returns the bytes of a safetensors file with these tensors. Raises SafetensorError.
    """

def serialize_file(tensor_dict: dict[str, TensorSpec], filename: str | os.PathLike[str], metadata: dict[str, str] | None = None, *, durable: bool = True) -> None:
    """
    Writes a safetensors file with these tensors. It appears complete, or not at all, and replaces an older one. Raises SafetensorError.

    Args:
        durable: returns when the file is on the disk. If False, the kernel writes it later.
    """

def deserialize(bytes: bytes) -> list[tuple[str, dict[str, Any]]]:
    """
    Returns the tensors in the bytes of a file: (name, {"shape", "dtype", "data"}), in the order of their bytes. `data` is a bytearray. Raises SafetensorError.
    """
