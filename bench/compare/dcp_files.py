"""Makes folders in the layout of torch.distributed.checkpoint 2.13. Needs no torch.

A folder has a `.metadata` with the classes and fields of torch's, and a file for each rank; each item of a file is a
zip of torch.save. Tensors are cut into boxes of equal parts, as DTensors with Shard placements on a mesh are. Elements
are those of zero_files.Weights, so a reader that takes the wrong offset gets other values. With `data=False` the
elements are holes with the checksum 0.
"""

import collections
import itertools
import math
import pathlib
import pickle
import struct
import zlib

from zero_files import (ALIGNMENT, STORAGE_TYPES, Parameter, Weights, pickled_as, rebuild_tensor, stub,
                        torch_size)

VERSION = "1.0.0"
SAVE_ID = "00000000-0000-4000-8000-000000000000"

# ---- What is pickled


def metadata_class(name, module="torch.distributed.checkpoint.metadata"):
    def init(self, **fields):
        self.__dict__.update(fields)
    return pickled_as(module, type(name, (), {"__init__": init}), name)


Metadata = metadata_class("Metadata")
TensorStorageMetadata = metadata_class("TensorStorageMetadata")
BytesStorageMetadata = metadata_class("BytesStorageMetadata")
ChunkStorageMetadata = metadata_class("ChunkStorageMetadata")
MetadataIndex = metadata_class("MetadataIndex")
StorageMeta = metadata_class("StorageMeta")
TensorProperties = metadata_class("TensorProperties")
StorageInfo = metadata_class("_StorageInfo", "torch.distributed.checkpoint.filesystem")
MemFormat = stub("torch.distributed.checkpoint.metadata", "_MEM_FORMAT_ENCODING")
get_layout = stub("torch.serialization", "_get_layout")


class Call:
    def __init__(self, function, *arguments):
        self.function, self.arguments = function, arguments

    def __reduce__(self):
        return self.function, self.arguments


class Name:
    """A value that is pickled as a name of torch, such as torch.float32."""

    def __init__(self, name):
        self.name = name
        pickled_as("torch", self, name)

    def __reduce__(self):
        return self.name


FLOAT32 = Name("float32")
STRIDED, CONTIGUOUS = Call(get_layout, "torch.strided"), Call(MemFormat, 0)
TensorProperties.__getstate__ = lambda self: (self.dtype, STRIDED, False, CONTIGUOUS, False)


def size_of(numbers):
    return Call(torch_size, tuple(numbers))


# ---- Items


class Storage:
    def __init__(self, count):
        self.count = count


class Tensor:
    def __init__(self, storage, shape):
        self.storage, self.shape = storage, shape

    def __reduce__(self):
        strides = tuple(itertools.accumulate(self.shape[:0:-1], int.__mul__, initial=1))[::-1] if self.shape else ()
        return rebuild_tensor, (self.storage, 0, self.shape, strides, False, collections.OrderedDict())


class Pickler(pickle.Pickler):
    def persistent_id(self, value):
        return ("storage", STORAGE_TYPES[4], "0", "cpu", value.count) if isinstance(value, Storage) else None


class Sink:
    def __init__(self):
        self.bytes = bytearray()

    def write(self, data):
        self.bytes += data


def pickle_of(value):
    sink = Sink()
    Pickler(sink, protocol=2).dump(value)
    return bytes(sink.bytes)


class Item:
    """Writes one zip of torch.save at the end of a file, whose offsets begin at 0."""

    def __init__(self, file):
        self.file, self.begin, self.directory = file, file.tell(), []

    def record(self, name, size, chunks):
        """Writes a record of `size` bytes; without `chunks` it is a hole."""
        name = f"archive/{name}".encode()
        at = self.file.tell() - self.begin
        assert at + size < 2**32 - 1
        flags = 0x808 if size else 0x800
        padding = -(at + 30 + len(name) + 4) % ALIGNMENT
        self.file.write(struct.pack("<IHHHHHIIIHH", 0x04034B50, 0, flags, 0, 0, 0, 0, 0, 0, len(name), 4 + padding)
                        + name + b"FB" + struct.pack("<H", padding) + b"Z" * padding)
        crc = 0
        for chunk in chunks or ():
            self.file.write(chunk)
            crc = zlib.crc32(chunk, crc)
        if chunks is None:
            self.file.seek(size, 1)
        if size:
            self.file.write(struct.pack("<IIII", 0x08074B50, crc, size, size))
        self.directory.append((name, flags, crc, size, at))

    def save(self, data_pkl, size=None, chunks=None):
        self.record("data.pkl", len(data_pkl), [data_pkl])
        for name, text in ((".format_version", b"1"), (".storage_alignment", b"64"), ("byteorder", b"little")):
            self.record(name, len(text), [text])
        if size is not None:
            self.record("data/0", size, chunks)
        self.record("version", 2, [b"3\n"])
        self.record(".data/serialization_id", 40, [b"0" * 40])
        at = self.file.tell() - self.begin
        for name, flags, crc, size, header in self.directory:
            self.file.write(struct.pack("<IHHHHHHIIIHHHHHII", 0x02014B50, 0, 0, flags, 0, 0, 0, crc, size, size,
                                        len(name), 0, 0, 0, 0, 0, header) + name)
        end, count = self.file.tell() - self.begin, len(self.directory)
        self.file.write(struct.pack("<IQHHIIQQQQ", 0x06064B50, 44, 0x31E, 0x2D, 0, 0, count, count, end - at, at))
        self.file.write(struct.pack("<IIQI", 0x07064B50, 0, end, 1))
        self.file.write(struct.pack("<IHHHHIIH", 0x06054B50, 0, 0, count, count, end - at, at, 0))
        return self.begin, self.file.tell() - self.begin


# ---- Boxes


def cuts(size, parts):
    """Returns (start, size) of each part along a dimension, as torch.chunk cuts it; those without elements too."""
    step = -(-size // parts)
    return [(min(size, step * i), max(0, min(size, step * (i + 1)) - step * i)) for i in range(parts)]


def box_chunks(weights, parameter, starts, sizes):
    """Yields the bytes of a box of a parameter."""
    inner = math.prod(parameter.shape[len(sizes):])
    if len(sizes) == 1 or sizes[1:] == parameter.shape[1:]:
        row = math.prod(parameter.shape[1:])
        yield from weights.chunks(parameter.begin + starts[0] * row, parameter.begin + (starts[0] + sizes[0]) * row)
        return
    assert len(sizes) == 2 and inner == 1
    for row in range(starts[0], starts[0] + sizes[0]):
        begin = parameter.begin + row * parameter.shape[1] + starts[1]
        yield b"".join(weights.chunks(begin, begin + sizes[1]))


def boxes_of(parameter, grid):
    """Returns (rank, starts, sizes) of the boxes of a parameter on a grid of ranks: rows, then columns."""
    rows, columns = grid
    if len(parameter.shape) == 1:
        parts = enumerate(cuts(parameter.shape[0], rows * columns))
        placed = [(rank, (start,), (size,)) for rank, (start, size) in parts]
    else:
        rest = parameter.shape[2:]
        placed = [(r * columns + c, (a, b, *[0] * len(rest)), (m, n, *rest))
                  for r, (a, m) in enumerate(cuts(parameter.shape[0], rows))
                  for c, (b, n) in enumerate(cuts(parameter.shape[1], columns))]
    return [box for box in placed if math.prod(box[2])]


# ---- Folders


def write(folder, model, grid, weights=None, objects=(), root="model."):
    """Writes a checkpoint with the parameters under the key `root`, one file for each rank of the grid. Without
    `weights`, elements are holes. Returns the number of chunks and the size of the metadata."""
    folder.mkdir(parents=True)
    by_rank = collections.defaultdict(list)
    described, stored = {}, {}
    for name in objects:
        described[name] = BytesStorageMetadata()
    chunks = 0
    for parameter in model:
        name, boxes = root + parameter.name, boxes_of(parameter, grid)
        described[name] = TensorStorageMetadata(
            properties=TensorProperties(dtype=FLOAT32), size=size_of(parameter.shape),
            chunks=[ChunkStorageMetadata(offsets=size_of(starts), sizes=size_of(sizes)) for _, starts, sizes in boxes])
        for index, (rank, starts, sizes) in enumerate(boxes):
            by_rank[rank].append((name, index, parameter, starts, sizes))
        chunks += len(boxes)
    pickles = {}
    for rank in sorted(by_rank):
        file_name = f"__{rank}_0.distcp"
        with open(folder / file_name, "wb") as file:
            for name in objects if rank == 0 else ():
                offset, length = Item(file).save(pickle_of(1000))
                stored[MetadataIndex(fqn=f"{name}", index=None)] = StorageInfo(
                    relative_path=file_name, offset=offset, length=length)
            for name, index, parameter, starts, sizes in by_rank[rank]:
                if sizes not in pickles:
                    pickles[sizes] = pickle_of(Tensor(Storage(math.prod(sizes)), sizes))
                data = box_chunks(weights, parameter, starts, sizes) if weights else None
                offset, length = Item(file).save(pickles[sizes], 4 * math.prod(sizes), data)
                # torch makes each name anew for each item.
                stored[MetadataIndex(fqn="".join(name), index=index, offset=size_of(starts))] = StorageInfo(
                    relative_path=file_name, offset=offset, length=length)
    metadata = pickle.dumps(Metadata(
        state_dict_metadata=described,
        planner_data={name: tuple(name.split(".", 1)) for name in described},
        storage_data=stored,
        storage_meta=StorageMeta(checkpoint_id=pathlib.PurePosixPath(folder.name), save_id=SAVE_ID, load_id=None,
                                 modules=[]),
        version=VERSION), protocol=4)
    (folder / ".metadata").write_bytes(metadata)
    return chunks, len(metadata)


def many_small(count, rows, columns=16):
    """Returns parameters of `rows` × `columns`, with names as a transformer has them."""
    kinds = ["self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj", "self_attn.o_proj", "mlp.gate_proj",
             "mlp.up_proj", "mlp.down_proj"]
    return [Parameter(f"layers.{i // len(kinds)}.{kinds[i % len(kinds)]}.weight", (rows, columns), i * rows * columns)
            for i in range(count)]


def matrices(elements, side):
    """Returns square matrices with about so many elements together."""
    return [Parameter(f"layers.{i}.weight", (side, side), i * side * side)
            for i in range(max(1, elements // side**2))]


__all__ = ["Weights", "many_small", "matrices", "write"]
