"""safemap.open(), Checkpoint and LazyTensor, without torch where that is possible."""

import io
import json
import os
import pickle
import struct
import subprocess
import sys
import threading

import pytest

import safemap

np = pytest.importorskip("numpy")

NUMPY_OF = {"F64": "<f8", "F32": "<f4", "F16": "<f2", "I64": "<i8", "I32": "<i4", "I16": "<i2", "I8": "i1", "U8": "u1",
            "U16": "<u2", "U32": "<u4", "U64": "<u8", "BOOL": "?", "C64": "<c8"}


def file_of(tensors: dict, metadata=None) -> bytes:
    """A safetensors file: the obvious writer."""
    header, body = {}, b""
    if metadata is not None:
        header["__metadata__"] = metadata
    for name, (dtype, shape, value) in tensors.items():
        header[name] = {"dtype": dtype, "shape": list(shape), "data_offsets": [len(body), len(body) + len(value)]}
        body += value
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    return struct.pack("<Q", len(text)) + text + body


def arrays(rng) -> dict:
    made = {}
    for number, (dtype, code) in enumerate(NUMPY_OF.items()):
        shape = tuple(rng.randrange(0, 5) for _ in range(rng.randrange(0, 4)))
        value = np.frombuffer(rng.randbytes(int(np.prod(shape)) * np.dtype(code).itemsize), code)
        if dtype == "BOOL":
            value = (value.view("u1") & 1).view("?")
        made[f"layer.{number}.{dtype}"] = value.reshape(shape)
    return made


@pytest.fixture
def model(tmp_path, rng):
    values = arrays(rng)
    names = {np.dtype(code): dtype for dtype, code in NUMPY_OF.items()}
    path = tmp_path / "model.safetensors"
    path.write_bytes(file_of({n: (names[v.dtype], v.shape, v.tobytes()) for n, v in values.items()}, {"a": "b"}))
    return path, values


def same(array, wanted):
    return array.dtype == wanted.dtype and array.shape == wanted.shape and array.tobytes() == wanted.tobytes()


def test_mapping(model):
    path, values = model
    with safemap.open(path) as checkpoint:
        assert sorted(checkpoint.keys()) == sorted(values) and checkpoint.keys() == list(checkpoint)
        assert len(checkpoint) == len(values)
        assert checkpoint.metadata == {"a": "b"} and checkpoint.format == "safetensors"
        assert all(same(checkpoint[name].numpy(), value) for name, value in values.items())
        assert [t.name for t in checkpoint.values()] == checkpoint.keys() == [n for n, _ in checkpoint.items()]
        assert "x" not in checkpoint and 3 not in checkpoint and checkpoint.get("x", 7) == 7
        assert dict(checkpoint).keys() == values.keys()
        from collections.abc import Mapping
        assert isinstance(checkpoint, Mapping)
        tensor = checkpoint[list(values)[0]]
    with pytest.raises(ValueError, match="closed"):
        checkpoint.keys()
    assert "closed" in repr(checkpoint)
    assert same(tensor.numpy(), values[tensor.name])


def test_sources(model):
    path, values = model
    whole = path.read_bytes()
    for source in (str(path), whole, bytearray(whole), memoryview(whole), io.BytesIO(whole), [path],
                   [whole], path.open("rb")):
        checkpoint = safemap.open(source)
        assert all(same(checkpoint[name].numpy(), value) for name, value in values.items())
    for wrong in (3, None, 2.5, object(), {"a": 1}):
        with pytest.raises(TypeError):
            safemap.open(wrong)
    with pytest.raises(TypeError):
        safemap.open([path, whole])
    with pytest.raises(TypeError, match="binary"):
        safemap.open(io.StringIO("text"))


def test_memory_of_a_source_is_kept():
    whole = bytearray(file_of({"w": ("F32", (4,), bytes(16))}))
    array = safemap.open(whole)["w"].numpy()
    with pytest.raises(BufferError):
        whole.append(0)
    del array
    whole.append(0)


def test_slices(model, rng):
    path, values = model
    checkpoint = safemap.open(path)
    for _ in range(400):
        name, value = rng.choice(list(values.items()))
        index = tuple(rng.choice([..., slice(None, None, -1), slice(rng.randrange(-6, 6), rng.randrange(-6, 6)),
                                  rng.randrange(-5, 5), slice(None, None, rng.choice([1, 2, 3, -2])),
                                  np.int64(rng.randrange(3))])
                      for _ in range(rng.randrange(0, 4)))
        index = index[0] if len(index) == 1 else index
        try:
            wanted = value[index]
        except IndexError:
            with pytest.raises(IndexError):
                checkpoint[name][index]
            continue
        found = checkpoint[name][index]
        assert found.shape == wanted.shape
        assert np.asarray(wanted).tobytes() == found.numpy().tobytes()
        assert found.nbytes == wanted.nbytes and found.ndim == wanted.ndim and found.size == wanted.size
    for wrong in (True, None, [0], 1.5, "a", np.array([0])):
        with pytest.raises(TypeError):
            checkpoint["layer.1.F32"][wrong]


def test_private_copy(tmp_path):
    path = tmp_path / "m.safetensors"
    path.write_bytes(file_of({"w": ("F32", (4,), np.arange(4, dtype="<f4").tobytes())}))
    array = safemap.open(path)["w"].numpy()
    array += 1
    assert list(array) == [1, 2, 3, 4]
    assert list(safemap.open(path)["w"].numpy()) == [0, 1, 2, 3]
    read_only = safemap.open(path, access="mapped")["w"].numpy()
    with pytest.raises(ValueError):
        read_only += 1
    assert not safemap.open(path.read_bytes())["w"].numpy().flags.writeable
    assert safemap.open(path.read_bytes())["w"].numpy(copy=True).flags.writeable


def test_casts(tmp_path):
    path = tmp_path / "m.safetensors"
    value = np.array([1.5, -2.25, 65536.0, np.nan], "<f4")
    path.write_bytes(file_of({"w": ("F32", (4,), value.tobytes()), "i": ("I32", (1,), b"\0" * 4)}))
    tensor = safemap.open(path)["w"]
    for dtype in ("f16", "F16", "float16", "half", np.float16, np.dtype("float16")):
        assert tensor.to(dtype).dtype == "F16"
        with np.errstate(over="ignore"):
            assert same(tensor.to(dtype).numpy(), value.astype("<f2"))
    assert tensor.to("f64")[1:].shape == (3,)
    with pytest.raises(safemap.SafemapError) as refused:
        safemap.open(path)["i"].to("f32")
    assert refused.value.code == "unsupported_cast" and refused.value.exit_code == 2
    for wrong in (3, None, object()):
        with pytest.raises(TypeError):
            tensor.to(wrong)


def test_protocols(model):
    path, values = model
    checkpoint = safemap.open(path)
    for name, value in values.items():
        tensor = checkpoint[name]
        assert same(np.asarray(tensor), value) and np.asarray(tensor).dtype == value.dtype
        assert same(np.from_dlpack(tensor), value)
        assert tensor.__dlpack_device__() == (1, 0)
        assert (len(tensor) == value.shape[0]) if value.shape else pytest.raises(TypeError, len, tensor)
    first = checkpoint["layer.1.F32"]
    assert np.asarray(first, dtype="f8").dtype == np.float64
    with pytest.raises(ValueError):
        np.asarray(first, dtype="f8", copy=False)
    assert np.shares_memory(np.asarray(first), np.asarray(first)) or first.nbytes == 0
    assert not np.shares_memory(np.array(first), np.array(first))
    with pytest.raises(BufferError):
        first.__dlpack__(dl_device=(2, 0))


def test_unversioned_capsule_of_read_only_memory_is_a_copy(tmp_path):
    path = tmp_path / "m.safetensors"
    path.write_bytes(file_of({"w": ("F32", (4,), np.arange(4, dtype="<f4").tobytes())}))
    tensor = safemap.open(path, access="mapped")["w"]
    tensor.__dlpack__()
    with pytest.raises(BufferError):
        tensor.__dlpack__(copy=False)


def test_pickle(model, tmp_path, monkeypatch):
    path, values = model
    monkeypatch.chdir(tmp_path)
    checkpoint = safemap.open(path.name)
    derived = checkpoint.select(["layer.1.*", "layer.0.*"])
    part = derived["layer.1.F32"].to("f16")
    monkeypatch.chdir("/")
    assert list(pickle.loads(pickle.dumps(derived))) == list(derived)
    assert same(pickle.loads(pickle.dumps(part)).numpy(), part.numpy())
    if values["layer.0.F64"].shape:
        sliced = checkpoint["layer.0.F64"][::-1, ...]
        assert same(pickle.loads(pickle.dumps(sliced)).numpy(), values["layer.0.F64"][::-1])
    for memory in (safemap.open(path.read_bytes()), safemap.open(path.read_bytes())["layer.1.F32"]):
        with pytest.raises(ValueError, match="memory"):
            pickle.dumps(memory)


def test_spawn(model):
    path, _ = model
    import multiprocessing
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        checkpoint = safemap.open(path)
        assert pool.map(len, [checkpoint]) == [len(checkpoint)]
        assert pool.map(np.sum, [checkpoint["layer.3.I64"]]) == [np.sum(checkpoint["layer.3.I64"].numpy())]


def test_fork_and_exit_with_live_tensors(model):
    path, values = model
    code = f"""
import os, safemap
checkpoint = safemap.open({str(path)!r})
tensors = [t.numpy() for t in checkpoint.values()]
child = os.fork()
if child == 0:
    assert all(t.numpy().tobytes() == a.tobytes() for t, a in zip(checkpoint.values(), tensors))
    os._exit(0)
assert os.waitpid(child, 0)[1] == 0
source = safemap.open({str(path)!r}, access="copied"), safemap.open(open({str(path)!r}, "rb"))
"""
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)


def test_threads(model):
    path, values = model
    failures = []

    def work():
        try:
            for _ in range(20):
                checkpoint = safemap.open(io.BytesIO(path.read_bytes()))
                assert all(same(checkpoint[name].numpy(), value) for name, value in values.items())
        except BaseException as error:  # noqa: BLE001
            failures.append(error)

    threads = [threading.Thread(target=work) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures


def test_derived(model):
    path, values = model
    checkpoint = safemap.open(path)
    assert checkpoint.select("*.F32").keys() == ["layer.1.F32"]
    assert checkpoint.select([]).keys() == []
    renamed = checkpoint.renamed(lambda name: "model." + name)
    assert renamed.keys() == ["model." + name for name in checkpoint]
    with pytest.raises(ValueError) as collision:
        checkpoint.renamed(lambda name: "x")
    assert collision.value.code == "name_collision"
    with pytest.raises(ZeroDivisionError):
        checkpoint.renamed(lambda name: 1 / 0)
    with pytest.raises(TypeError):
        checkpoint.renamed(lambda name: 3)
    assert checkpoint.residency().total >= 0 and checkpoint.layout is None and checkpoint.optimizer() is None
    checkpoint.prefetch()
    assert checkpoint.residency().resident == checkpoint.residency().total


def test_training_file(data):
    checkpoint = safemap.open(data / "pt" / "train_gpt.pt", root="")
    assert checkpoint.training().step == 3
    assert ["model/tokens.weight", "model/head.weight"] in checkpoint.ties
    assert len(checkpoint) == len(checkpoint.keys()) > len({t.name for t in checkpoint.values()})
    assert checkpoint.below("model").keys()[0] == "positions" and "model" in checkpoint.parts


def test_options(data):
    path = data / "pt" / "train_gpt.pt"
    with pytest.raises(TypeError, match="no option 'colour'"):
        safemap.open(path, colour="red")
    for option, wrong in {"root": 3, "ema": "yes", "threads": "two", "policy": 1, "max_header_bytes": 1.5}.items():
        with pytest.raises(TypeError):
            safemap.open(path, **{option: wrong})
    for option, wrong in {"policy": "kind", "access": "now", "weights": "heavy", "max_header_bytes": "5 elephants",
                          "threads": 1 << 70}.items():
        with pytest.raises(safemap.SafemapError) as refused:
            safemap.open(path, **{option: wrong})
        assert refused.value.code == "invalid_argument"


def test_names_that_are_not_utf8(tmp_path):
    path = tmp_path / os.fsdecode(b"caf\xe9")
    with pytest.raises(FileNotFoundError) as missing:
        safemap.open(path)
    assert missing.value.path == os.fspath(path)
