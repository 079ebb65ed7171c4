"""safemap.safetensors against safetensors 0.8: the same calls to both give the same results, exceptions and files.

Different on purpose, each with a test below:
- messages of SafetensorError begin as the reference's, and go on with the file, the tensor and what was expected;
  those of TypeError and OverflowError are Python's own;
- frameworks other than pt and np are refused by safe_open(), which names them;
- BF16 and F8 in NumPy are arrays of ml_dtypes; load() takes F8_E8M0 and F4; F4 is read with "pread", too;
- a range that ends before it begins is empty: the reference raises SystemError or panics;
- arrays of NumPy from one safe_open share memory, as tensors of torch do;
- NumPy arrays that are not contiguous, and conjugate tensors, are saved with their values: the reference writes others;
- dtypes that the format lacks, names with a NUL and the name __metadata__ are refused by a SafetensorError in a save;
- a file with metadata and no tensors has a valid header; where an index has two faults, messages may name either;
- a folder or an unreadable file raises the OSError that it is;
- a device that this torch lacks raises what torch raises;
- files get the mode of the umask, and are on the disk when save_file() returns, unless durable=False.
"""

import gc
import json
import os
import pathlib
import shutil
import struct
import subprocess
import sys
import threading

import pytest

np = pytest.importorskip("numpy")
torch = pytest.importorskip("torch")
ref = pytest.importorskip("safetensors")
ml_dtypes = pytest.importorskip("ml_dtypes")
import safetensors.numpy
import safetensors.torch

import safemap
from safemap import safetensors as our

pytestmark = pytest.mark.filterwarnings("ignore")

BITS = {"F64": 64, "F32": 32, "F16": 16, "BF16": 16, "I64": 64, "I32": 32, "I16": 16, "I8": 8, "U8": 8, "BOOL": 8,
        "U64": 64, "U32": 32, "U16": 16, "C64": 64, "F8_E4M3": 8, "F8_E5M2": 8, "F8_E8M0": 8, "F8_E4M3FNUZ": 8,
        "F8_E5M2FNUZ": 8, "F4": 4, "F6_E2M3": 6, "F6_E3M2": 6}
ONLY_ML_DTYPES = {"BF16", "F8_E4M3", "F8_E5M2", "F8_E8M0", "F8_E4M3FNUZ", "F8_E5M2FNUZ"}
PACKED = {"F4", "F6_E2M3", "F6_E3M2"}
NAMES = ["a", "b", "model.embed.weight", "x" * 40, "ü€", "", "a b", "\"\\", "__meta", "0"]


def file_of(header, body=b"") -> bytes:
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    return struct.pack("<Q", len(text)) + text + body


def random_file(rng, most=6) -> bytes:
    """A file of tensors of any dtypes and small shapes, in any order."""
    header, body = {}, b""
    pairs = rng.choice([None, {}, {"format": "pt"}, {"a": "b", "ü": "", "b": "a"}])
    if pairs is not None:
        header["__metadata__"] = pairs
    for name in rng.sample(NAMES, rng.randrange(most)):
        dtype = rng.choice(list(BITS))
        shape = [rng.randrange(5) if rng.random() < 0.2 else rng.randrange(1, 5) for _ in range(rng.randrange(4))]
        if dtype in PACKED:
            shape.append(rng.choice([4, 8]))
        size = int(np.prod(shape)) * BITS[dtype] // 8
        value = bytes(rng.randrange(2) for _ in range(size)) if dtype == "BOOL" else rng.randbytes(size)
        header[name] = {"dtype": dtype, "shape": shape, "data_offsets": [len(body), len(body) + size]}
        body += value
    return file_of(header, body)


def strides(given, shape):
    """The strides that elements are found by."""
    return [stride for stride, size in zip(given, shape) if size > 1] if 0 not in shape else None


def bits(value):
    """The tensor as a value that can be compared: NaN equals NaN."""
    if isinstance(value, torch.Tensor):
        plain = torch.empty(value.shape, dtype=value.dtype).copy_(value.detach())
        raw = plain.reshape(-1).view(torch.uint8).numpy().tobytes() if plain.numel() else b""
        shape, where = tuple(value.shape), str(value.device)
        return "torch", str(value.dtype), shape, strides(value.stride(), shape), where, raw
    if isinstance(value, np.ndarray):
        shape, writable = value.shape, value.flags.writeable
        return "numpy", str(value.dtype), shape, strides(value.strides, shape), writable, value.tobytes()
    if isinstance(value, dict):
        return {key: bits(one) for key, one in value.items()}
    return value


def outcome(call):
    try:
        return "value", bits(call())
    except BaseException as error:
        return type(error).__name__, str(error)


def same_text(kind, wanted, got) -> bool:
    if kind == "value":
        return False
    if kind in ("TypeError", "OverflowError", "UnicodeEncodeError", "AttributeError") or got.startswith(wanted):
        return True
    if "subbytes" in wanted:
        return True  # of several faults, or of a dtype that is refused as well
    # Behind these words the reference quotes its JSON parser and the system.
    for words in ("invalid JSON in header", "invalid UTF-8 in header", "I/O error"):
        if words in wanted:
            return got.startswith(wanted[: wanted.index(words) + len(words)])
    return sorted(wanted) == sorted(got)  # sets are printed in any order


def check(what, theirs, ours):
    """Calls both, and requires the same outcome."""
    wanted, got = outcome(theirs), outcome(ours)
    same = wanted[0] == got[0] and (wanted[1] == got[1] or same_text(wanted[0], wanted[1], got[1]))
    assert same, f"{what}: safetensors {wanted}, safemap {got}"
    return wanted


def check_both(what, call):
    """Requires the same outcome of call(package) for both packages."""
    return check(what, lambda: call(ref), lambda: call(our))


# Opening and reading.


def random_bound(rng, size):
    return rng.choice([None, rng.randrange(size + 2), rng.randrange(size + 1), -rng.randrange(1, size + 2)])


def random_range(rng, size):
    start, stop = random_bound(rng, size), random_bound(rng, size)
    if start is not None and stop is not None and 0 <= stop < start:
        start, stop = stop, start
    return slice(start, stop, rng.choice([None, None, 1, 2, 3, 100, 0, -1]) if rng.random() < 0.5 else None)


def random_key(rng, size):
    odd = [None, 1.5, "a", True, [], [0], np.int64(0), 2**40, slice("a"), slice(2**70)]
    return rng.choice([random_range(rng, size)] * 6 + [rng.randrange(-size - 1, size + 1)] * 3 + [..., rng.choice(odd)])


def random_index(rng, shape):
    if rng.random() < 0.3:
        return random_key(rng, shape[0] if shape else 0)
    sizes = (list(shape) + [1, 1])[: rng.randrange(len(shape) + 2)]
    return tuple(random_key(rng, size) for size in sizes)


def is_different(framework, backend, dtype) -> bool:
    """True for what the list above has about single dtypes."""
    return (framework == "np" and dtype in ONLY_ML_DTYPES | {"F4"}) or (dtype == "F4" and backend == "pread")


def test_random_files(tmp_path, rng):
    path = tmp_path / "x.safetensors"
    for number in range(60):
        path.write_bytes(random_file(rng))
        framework, backend = rng.choice(["pt", "np"]), rng.choice(["mmap", "pread"])
        about = f"{framework} {backend} {path.read_bytes()!r}"
        theirs, ours = (package.safe_open(path, framework, backend=backend) for package in (ref, our))
        for method in ("keys", "metadata"):
            check(f"{method} {about}", getattr(theirs, method), getattr(ours, method))
        assert sorted(theirs.offset_keys()) == sorted(ours.offset_keys())
        for name in theirs.keys() + ["missing"]:
            check_tensor(rng, about, theirs, ours, name, framework, backend)
        with theirs, ours:
            pass
        for method in ("keys", "offset_keys", "metadata", "get_tensors"):
            check(method, getattr(theirs, method), getattr(ours, method))
        check("closed", lambda: theirs.get_slice("a"), lambda: ours.get_slice("a"))


def check_tensor(rng, about, theirs, ours, name, framework, backend):
    kind, _ = check(f"get_slice {name} {about}", lambda: str(type(theirs.get_slice(name)).__name__),
                    lambda: type(ours.get_slice(name)).__name__)
    if kind != "value":
        return check(f"get_tensor {name} {about}", lambda: theirs.get_tensor(name), lambda: ours.get_tensor(name))
    wanted, got = theirs.get_slice(name), ours.get_slice(name)
    assert wanted.get_shape() == got.get_shape() and wanted.get_dtype() == got.get_dtype()
    if is_different(framework, backend, wanted.get_dtype()):
        return None
    check(f"get_tensor {name} {about}", lambda: theirs.get_tensor(name), lambda: ours.get_tensor(name))
    for _ in range(8):
        index = random_index(rng, wanted.get_shape())
        check(f"{name}[{index}] {wanted.get_dtype()} {wanted.get_shape()} {about}", lambda: wanted[index],
              lambda: got[index])
    return None


def test_offset_keys(tmp_path, rng):
    """By offset; the reference gives tensors without bytes in any order."""
    path = tmp_path / "x.safetensors"
    path.write_bytes(file_of({n: {"dtype": "U8", "shape": [1], "data_offsets": [i, i + 1]}
                              for i, n in enumerate(rng.sample(NAMES, len(NAMES)))}, bytes(len(NAMES))))
    assert ref.safe_open(path, "np").offset_keys() == our.safe_open(path, "np").offset_keys()
    assert list(our.numpy.load_file(path)) == our.safe_open(path, "np").offset_keys()


@pytest.mark.parametrize("framework", ["pt", "np"])
def test_load_file_of_every_dtype(data, framework):
    path = data / "safetensors" / "every_dtype.safetensors"
    theirs, ours = ref.safe_open(path, framework), our.safe_open(path, framework)
    for name in theirs.keys():
        if not is_different(framework, "mmap", theirs.get_slice(name).get_dtype()):
            check(name, lambda: theirs.get_tensor(name), lambda: ours.get_tensor(name))


@pytest.mark.parametrize("name", ["names", "no_metadata", "empty"])
def test_files_of_the_reference(data, name):
    path = data / "safetensors" / f"{name}.safetensors"
    for backend in ("mmap", "pread"):
        check_both(name, lambda package: package.torch.load_file(path, backend=backend))
        check_both(name, lambda package: package.numpy.load_file(path, backend=backend))
    check_both(name, lambda package: package.torch.load(path.read_bytes()))
    check_both(name, lambda package: package.numpy.load(path.read_bytes()))
    check_both(name, lambda package: sorted(package.deserialize(path.read_bytes()), key=lambda item: item[0]))


def opened(package, path):
    with package.safe_open(path, "np") as f:
        slices = {name: f.get_slice(name) for name in f.keys()}
        return f.metadata(), {name: (one.get_dtype(), one.get_shape()) for name, one in slices.items()}


def header_cases(data):
    for line in (data / "safetensors" / "header_cases.tsv").read_bytes().splitlines()[1:]:
        label, size, _verdict, _variant, header = line.split(b"\t")
        parts = header.split(b"~")
        text = parts[0] + b"".join(bytes([int(part[:2], 16)]) + part[2:] for part in parts[1:])
        yield label.decode(), file_of(text, bytes(int(size)))


def test_verdicts_about_headers(tmp_path, data):
    for number, (label, file) in enumerate(header_cases(data)):
        path = tmp_path / ("x.safetensors" if number % 2 else "x.bin")
        path.write_bytes(file)
        for opens in (lambda package: opened(package, path), lambda package: len(package.deserialize(file))):
            wanted, got = outcome(lambda: opens(ref)), outcome(lambda: opens(our))
            assert wanted[0] == got[0], f"{label}: safetensors {wanted}, safemap {got}"
            if wanted[0] == "value" or path.suffix == ".safetensors":
                check_both(label, opens)


def test_damaged_files(tmp_path, rng):
    path = tmp_path / "x.safetensors"
    for _ in range(150):
        file = bytearray(random_file(rng, 4))
        for _ in range(rng.randrange(1, 3)):
            end = 8 + struct.unpack_from("<Q", file)[0] if len(file) >= 8 else len(file)
            place = rng.randrange(min(end, len(file)) or 1)
            change = rng.randrange(4)
            if change == 0:
                del file[place:]
            elif change == 1:
                file[place : place + 1] = rng.randbytes(1)
            elif change == 2:
                file[place : place + 1] = rng.choice(b'{}[]",:0123456789abcFI').to_bytes(1, "little")
            else:
                file += rng.randbytes(rng.randrange(1, 9))
            if len(file) < 8:
                break
        path.write_bytes(file)
        wanted, got = outcome(lambda: opened(ref, path)), outcome(lambda: opened(our, path))
        assert wanted[0] == got[0] and (wanted[0] != "value" or wanted == got), f"{bytes(file)!r}: {wanted}, {got}"


BAD_CALLS = [
    lambda p, f: p.safe_open(f.parent / "none", "pt"),
    lambda p, f: p.safe_open(f / "x", "pt"),
    lambda p, f: p.safe_open(str(f) + "\0", "pt"),
    lambda p, f: p.safe_open(os.fsencode(f), "pt"),
    lambda p, f: p.safe_open(3, "pt"),
    lambda p, f: p.safe_open(None, "pt"),
    lambda p, f: p.safe_open(f),
    lambda p, f: p.safe_open(f, "pt", "cpu", "mmap"),
    lambda p, f: p.safe_open(f, "pt", what=1),
    lambda p, f: p.safe_open(f, "PT"),
    lambda p, f: p.safe_open(f, ""),
    lambda p, f: p.safe_open(f, None),
    lambda p, f: p.safe_open(f, "pt", backend="x"),
    lambda p, f: p.safe_open(f, "pt", backend=None),
    lambda p, f: p.safe_open(f, "pt").get_tensor(1),
    lambda p, f: p.safe_open(f, "pt").get_tensor(b"a"),
    lambda p, f: p.safe_open(f, "pt").get_tensor("a\udc80"),
    lambda p, f: p.safe_open(f, "pt").get_slice(None),
    lambda p, f: p.safe_open(f, "pt").get_tensor(),
    lambda p, f: p.safe_open(f, "pt").other,
    lambda p, f: setattr(p.safe_open(f, "pt"), "other", 1),
    lambda p, f: len(p.safe_open(f, "pt").get_slice("a")),
    lambda p, f: p.safe_open(f, "np").get_slice("a")[:: 2**70],
    lambda p, f: p._safe_open_handle(3, "pt"),
    lambda p, f: p._safe_open_handle(str(f), "pt"),
    lambda p, f: p._safe_open_handle(f.open("rb"), "foo"),
    lambda p, f: p.deserialize(b"123"),
    lambda p, f: p.deserialize(b""),
    lambda p, f: p.deserialize(1),
    lambda p, f: p.deserialize(bytearray(f.read_bytes())),
    lambda p, f: p.torch.load(memoryview(b"")),
    lambda p, f: p.numpy.load(f.read_bytes()[:-1]),
    lambda p, f: p.torch.load_file(f, backend="x"),
]


@pytest.fixture
def small(tmp_path):
    path = tmp_path / "small.safetensors"
    ref.torch.save_file({"a": torch.arange(6.0).reshape(2, 3), "e": torch.zeros(0, 3), "s": torch.tensor(1)}, path)
    return path


@pytest.mark.parametrize("number", range(len(BAD_CALLS)))
def test_bad_calls(small, number):
    kind, _ = check_both(f"call {number}", lambda package: BAD_CALLS[number](package, small))
    assert kind != "value"
    gc.collect()


@pytest.mark.parametrize("device", ["cpu", None, "foo", "meta", "cpu:0", "CPU", "cuda:x", "cuda:", "cuda:-1",
                                    "cuda:0:1", "mps:1", -1, 1.5, torch.device("cpu"), b"cpu"])
def test_devices(small, device):
    check_both(device, lambda package: package.safe_open(small, "pt", device).get_tensor("a"))
    check_both(device, lambda package: package.torch.load_file(small, device))


@pytest.mark.parametrize("device", ["cuda", "cuda:1", "xpu", "npu", "mps", "mps:0", 0, True])
def test_devices_are_of_torch(small, device):
    check_both(device, lambda package: package.safe_open(small, "np", device))
    f = our.safe_open(small, "pt", device)
    if str(device).startswith("cuda") and torch.cuda.device_count() > int(str(device)[5:] or 0):
        for tensor in (f.get_tensor("a"), f.get_slice("a")[:], our.torch.load_file(small, device)["a"]):
            assert tensor.is_cuda and tensor.tolist() == [[0, 1, 2], [3, 4, 5]]
        return
    with pytest.raises(Exception):
        torch.zeros(1).to("npu:0" if device == "npu" else device)
        raise RuntimeError("this machine has the device")


@pytest.mark.parametrize("framework", ["tf", "tensorflow", "jax", "flax", "mlx", "paddle"])
def test_other_frameworks_are_named(small, framework):
    with pytest.raises(our.SafetensorError, match=f"framework {framework} is not supported"):
        our.safe_open(small, framework)


def test_a_folder_is_an_os_error(tmp_path):
    check_both("folder", lambda package: outcome(lambda: package.safe_open(tmp_path, "pt"))[0])
    with pytest.raises(OSError, match="regular file"):
        our.safe_open(tmp_path, "pt")


def test_files_of_torch_are_refused(tmp_path):
    for name in ("x.pt", "x.safetensors"):
        torch.save({"a": torch.zeros(2)}, tmp_path / name)
        kind, _ = outcome(lambda: our.safe_open(tmp_path / name, "pt"))
        assert kind == outcome(lambda: ref.safe_open(tmp_path / name, "pt"))[0] == "SafetensorError"


def test_file_objects(small):
    for mode in ("rb", "r"):
        with small.open(mode) as file:
            if mode == "rb":
                file.seek(3)
            check_both(mode, lambda package: package._safe_open_handle(file, "pt", device="cpu").get_tensors())
            assert mode == "r" or file.tell() == 3


def test_other_names_are_refused(tmp_path):
    """Names of tied tensors that only the metadata has."""
    path = tmp_path / "tied.safetensors"
    shared = torch.nn.Linear(2, 2)
    our.torch.save_model(torch.nn.ModuleDict({"a": shared, "b": shared}), path)
    check_both("metadata", lambda package: package.safe_open(path, "pt").metadata())
    kind, text = check_both("alias", lambda package: package.safe_open(path, "pt").get_tensor("b.weight"))
    assert (kind, text) == ("SafetensorError", "File does not contain tensor b.weight")
    assert safemap.open(path)["b.weight"].shape == (2, 2)


def test_files_of_safemap_are_as_stored(tmp_path):
    """A structure document and parts of tensors mean nothing to safetensors."""
    save = getattr(safemap, "save", None)
    if save is None:
        pytest.skip("safemap.save() is missing")
    nested = {"model": {"w": torch.arange(12.0).reshape(4, 3)}, "epoch": 3, "list": [torch.zeros(2, dtype=torch.int8)]}
    save(tmp_path / "nested.safetensors", nested)
    save(tmp_path / "ranks", {"w": torch.arange(12.0).reshape(4, 3)}, ranks=2)
    paths = [tmp_path / "nested.safetensors", *sorted((tmp_path / "ranks").glob("*.safetensors"))]
    assert len(paths) == 3
    for path in paths:
        check_both(path.name, lambda package: opened(package, path))
        check_both(path.name, lambda package: package.torch.load_file(path))


# Memory.


@pytest.mark.parametrize("backend", ["mmap", "pread"])
@pytest.mark.parametrize("framework", ["pt", "np"])
def test_tensors_are_writable_and_outlive_the_file(small, framework, backend):
    before = small.read_bytes()
    with our.safe_open(small, framework, backend=backend) as f:
        tensors = [f.get_tensor(name) for name in ("a", "e", "s")]
        tensors += [f.get_slice("a")[index] for index in (..., slice(1), (slice(None), slice(2)), (1, 1))]
        tensors += [f.get_slice("s")[()], f.get_slice("e")[()], *f.get_tensors().values()]
    del f
    gc.collect()
    for tensor in tensors:
        tensor += 1
    assert small.read_bytes() == before and tensors[4].tolist()[0][0] >= 1


def test_slices_of_numpy_are_contiguous(small):
    assert our.safe_open(small, "np").get_slice("a")[:, :2].flags.c_contiguous


def test_a_range_that_ends_before_it_begins_is_empty(small):
    for backend, framework in (("mmap", "np"), ("pread", "np"), ("pread", "pt"), ("mmap", "pt")):
        part = our.safe_open(small, framework, backend=backend).get_slice("a")
        assert tuple(part[2:1].shape) == (0, 3) if framework == "pt" and backend == "mmap" else True
        assert tuple(part[1:0].shape) == (0, 3) and tuple(part[0, 2:1].shape) == (0,)


def test_tensors_of_one_file_share_memory(small):
    f = our.safe_open(small, "pt")
    f.get_tensor("a").zero_()
    assert f.get_tensor("a").sum() == 0 and our.safe_open(small, "pt").get_tensor("a").sum() == 15
    arrays = our.safe_open(small, "np")
    arrays.get_tensor("a")[:] = 0
    assert arrays.get_tensor("a").sum() == 0 and our.numpy.load_file(small)["a"].sum() == 15


def test_bytes_are_not_shared(small):
    file = small.read_bytes()
    for load in (our.torch.load, our.numpy.load):
        loaded = load(file)
        loaded["a"] += 1
        assert load(file)["a"].sum() == 15


def test_dtypes_of_ml_dtypes(tmp_path, rng):
    """In NumPy: the bits of what torch has."""
    for dtype in sorted(ONLY_ML_DTYPES):
        path = tmp_path / "x.safetensors"
        size = 6 * BITS[dtype] // 8
        header = {"x": {"dtype": dtype, "shape": [2, 3], "data_offsets": [0, size]}}
        path.write_bytes(file_of(header, rng.randbytes(size)))
        arrays = [our.numpy.load_file(path)["x"], our.numpy.load_file(path, backend="pread")["x"],
                  our.numpy.load(path.read_bytes())["x"], our.safe_open(path, "np").get_slice("x")[:]]
        tensor = our.torch.load_file(path)["x"]
        for array in arrays:
            assert array.shape == (2, 3) and str(array.dtype) == str(tensor.dtype).removeprefix("torch.")
            assert array.tobytes() == tensor.view(torch.uint8).numpy().tobytes()
        assert our.numpy.save({"x": array}) == ref.torch.save({"x": tensor})


def test_float4(tmp_path):
    path = tmp_path / "x.safetensors"
    pairs = torch.arange(6, dtype=torch.uint8).reshape(2, 3).view(torch.float4_e2m1fn_x2)
    assert our.torch.save({"x": pairs}) == ref.torch.save({"x": pairs})
    our.torch.save_file({"x": pairs}, path)
    read = our.torch.load_file(path), our.torch.load_file(path, backend="pread"), our.torch.load(path.read_bytes())
    for tensors in read:
        assert bits(tensors["x"]) == bits(pairs)
    for backend in ("mmap", "pread"):
        check_both(backend, lambda package: package.safe_open(path, "pt", backend=backend).get_slice("x")[:1])
    path.write_bytes(file_of({"x": {"dtype": "F4", "shape": [2, 3], "data_offsets": [0, 3]}}, bytes(3)))
    check_both("odd", lambda package: package.torch.load_file(path))


def test_threads(tmp_path):
    path = tmp_path / "x.safetensors"
    our.torch.save_file({str(i): torch.full((100,), i) for i in range(50)}, path)
    faults = []

    def work(backend):
        try:
            for _ in range(10):
                f = our.safe_open(path, "pt", backend=backend)
                closing = threading.Thread(target=f.__exit__, args=(None, None, None))
                part = f.get_slice("7")
                closing.start()
                for i in range(50):
                    try:
                        assert f.get_tensor(str(i)).sum() == 100 * i
                    except our.SafetensorError as error:
                        assert str(error) == "File is closed"
                closing.join()
                assert part[:2].tolist() == [7, 7]
        except Exception as error:
            faults.append(error)

    threads = [threading.Thread(target=work, args=(backend,)) for backend in ("mmap", "pread") * 4]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert faults == []


@pytest.mark.usefixtures("measured")
def test_many_opens_leave_nothing(small):
    def resident():
        return int(pathlib.Path("/proc/self/statm").read_text().split()[1]) * 4096

    def files():
        return len(os.listdir("/proc/self/fd"))

    for rounds in (200, 2000):
        for _ in range(rounds):
            with our.safe_open(small, "pt") as f:
                f.get_tensor("a")
        before = (resident(), files()) if rounds == 200 else before
    assert resident() - before[0] < 4 << 20 and files() <= before[1] + 1


# Saving.

TORCH_DTYPES = [torch.float64, torch.float32, torch.float16, torch.bfloat16, torch.int64, torch.int32, torch.int16,
                torch.int8, torch.uint8, torch.bool, torch.uint16, torch.uint32, torch.uint64, torch.complex64,
                torch.float8_e4m3fn, torch.float8_e5m2, torch.float8_e8m0fnu, torch.float8_e4m3fnuz,
                torch.float8_e5m2fnuz, torch.float4_e2m1fn_x2]
NUMPY_DTYPES = ["f8", "f4", "f2", "i8", "i4", "i2", "i1", "u8", "u4", "u2", "u1", "?", "c8", ">f4", ">i2", ">u8"]


def random_tensor(rng, dtype):
    least = 1 if dtype == torch.float4_e2m1fn_x2 else 0  # a pair has a dimension
    shape = [rng.randrange(4) for _ in range(rng.randrange(least, 4))]
    size = int(np.prod(shape)) * dtype.itemsize
    raw = torch.frombuffer(bytearray(rng.randbytes(size + 1)), dtype=torch.uint8)[:size]
    if dtype == torch.bool:
        raw = raw & 1
    return raw.clone().view(dtype).reshape(shape)


def random_metadata(rng):
    return rng.choice([None, {}, {"format": "pt"}, {"ü\n\"": "€\0"}])


def test_random_saves_of_torch(tmp_path, rng):
    for _ in range(40):
        tensors = {name: random_tensor(rng, rng.choice(TORCH_DTYPES)) for name in rng.sample(NAMES, rng.randrange(6))}
        metadata = random_metadata(rng) if tensors else None
        _, file = check_both("save", lambda package: package.torch.save(tensors, metadata))
        our.torch.save_file(tensors, tmp_path / "x", metadata=metadata, durable=False)
        assert (tmp_path / "x").read_bytes() == file
        if not any(tensor.dtype in (torch.float4_e2m1fn_x2, torch.float8_e8m0fnu) for tensor in tensors.values()):
            check_both("load", lambda package: dict(sorted(package.torch.load(file).items())))
        check_both("load_file", lambda package: dict(sorted(package.torch.load_file(tmp_path / "x").items())))


def test_random_saves_of_numpy(tmp_path, rng):
    for _ in range(40):
        arrays = {}
        for name in rng.sample(NAMES, rng.randrange(6)):
            dtype, shape = np.dtype(rng.choice(NUMPY_DTYPES)), [rng.randrange(4) for _ in range(rng.randrange(4))]
            raw = rng.randbytes(int(np.prod(shape)) * dtype.itemsize)
            arrays[name] = np.frombuffer(raw, dtype).reshape(shape) if dtype.kind != "b" else np.ones(shape, "?")
        metadata = random_metadata(rng) if arrays else None
        _, file = check_both("save", lambda package: package.numpy.save(arrays, metadata))
        our.numpy.save_file(arrays, tmp_path / "x", metadata, durable=False)
        assert (tmp_path / "x").read_bytes() == file
        check_both("load", lambda package: dict(sorted(package.numpy.load(file).items())))
        check_both("load_file", lambda package: dict(sorted(package.numpy.load_file(tmp_path / "x").items())))


def test_metadata_without_tensors(tmp_path):
    """The reference writes "{}," before the metadata."""
    for pairs in ({}, {"a": "b"}):
        file = our.serialize({}, pairs)
        assert our.deserialize(file) == ref.deserialize(file) == []
        our.torch.save_file({}, tmp_path / "x", pairs)
        assert ref.safe_open(tmp_path / "x", "pt").metadata() == pairs


def test_several_pairs_of_metadata(tmp_path):
    """Their order is the only difference: the reference's varies."""
    pairs = {name: name * 2 for name in "cab"}
    theirs, ours = (package.torch.save({"x": torch.ones(3)}, pairs) for package in (ref, our))
    assert len(theirs) == len(ours) and sorted(theirs) == sorted(ours)
    (tmp_path / "x").write_bytes(ours)
    assert ref.safe_open(tmp_path / "x", "pt").metadata() == pairs == our.safe_open(tmp_path / "x", "pt").metadata()


BASE = torch.arange(12.0).reshape(3, 4)
REFUSED = [
    [BASE], {"a": 1}, {"a": np.zeros(2)}, {"a": None}, {"a": BASE.to_sparse(), "b": BASE.to_sparse_csr()},
    {"a": BASE.T}, {"a": BASE[:, :2]}, {"a": BASE, "b": BASE}, {"a": BASE, "b": BASE[1]}, {"a": BASE[0], "b": BASE[:2]},
    {"a": BASE, "b": BASE.view(-1), "c": torch.zeros(2), "d": BASE[0]}, {"a": BASE, "b": BASE.T},
    {1: torch.zeros(2)}, {"a\udc80": torch.zeros(2)}, {"a": torch.zeros(2, device="meta")},
]  # fmt: skip


@pytest.mark.parametrize("number", range(len(REFUSED)))
def test_refused_saves_of_torch(tmp_path, number):
    tensors = REFUSED[number]
    before = list(tmp_path.iterdir())
    if number != 11:  # the reference fails before it finds that the memory is shared
        kind, _ = check_both(number, lambda package: package.torch.save(tensors))
        check_both(number, lambda package: package.torch.save_file(tensors, tmp_path / "x"))
    else:
        kind, text = outcome(lambda: our.torch.save(tensors))
        assert outcome(lambda: ref.torch.save(tensors))[0] == kind and "share memory" in text
    assert kind != "value" and list(tmp_path.iterdir()) == before


ACCEPTED = [
    {"a": BASE[0], "b": BASE[1:]}, {"a": BASE[2], "b": BASE[0], "c": BASE[1]},
    {"a": torch.zeros(0), "b": torch.zeros(0, 3)},
    {"a": BASE.requires_grad_(False), "b": torch.nn.Parameter(torch.ones(2))}, {"a": BASE[1:2].T.contiguous()}, {},
    {"a": torch.zeros(1, 1).T, "b": torch.zeros(0, 3).T},
]  # fmt: skip


@pytest.mark.parametrize("number", range(len(ACCEPTED)))
def test_accepted_saves_of_torch(number):
    assert check_both(number, lambda package: package.torch.save(ACCEPTED[number]))[0] == "value"


def test_conjugate_and_strided_values_are_saved():
    tensor = torch.tensor([1 + 2j, 3 - 4j])
    assert our.torch.load(our.torch.save({"x": tensor.conj()}))["x"].tolist() == [1 - 2j, 3 + 4j]
    array = np.arange(6, dtype=">i4").reshape(2, 3)
    for one in (array.T, array[::-1], array[:, ::2], np.asfortranarray(array), array.astype("i4")[:, 1]):
        assert our.numpy.load(our.numpy.save({"x": one}))["x"].tolist() == one.tolist()


def test_dtypes_and_names_without_a_place_in_the_format():
    for save in (lambda: our.torch.save({"x": torch.zeros(2, dtype=torch.complex128)}),
                 lambda: our.numpy.save({"x": np.zeros(2, np.longdouble)})):
        assert outcome(save)[0] == "SafetensorError" and "Unknown dtype" in outcome(save)[1]
    for name in ("__metadata__", "a\0b"):
        with pytest.raises(our.SafetensorError, match="Error while serializing"):
            our.torch.save({name: torch.zeros(2)})


@pytest.mark.parametrize("value", [np.array(["x"]), np.zeros(2, np.complex128), [1], 3, np.zeros(2, [("a", "i4")]),
                                   np.float32(1), np.zeros(2, ml_dtypes.int4)])
def test_refused_saves_of_numpy(value):
    assert check_both("save", lambda package: package.numpy.save({"x": value}))[0] != "value"


MEMORY = np.arange(8, dtype=np.float32)


def spec(package, **changes):
    arguments = {"dtype": "float32", "shape": [2, 4], "data_ptr": MEMORY.ctypes.data, "data_len": 32} | changes
    return package.TensorSpec(**arguments)


SPECS = [
    {}, {"shape": (8,)}, {"shape": torch.Size([8])}, {"shape": np.array([8])}, {"shape": [9]}, {"shape": []},
    {"shape": [2**63, 4]}, {"shape": [-1]}, {"shape": [1.5]}, {"shape": 3}, {"shape": "ab"}, {"shape": iter([8])},
    {"shape": None}, {"dtype": "F32"}, {"dtype": 'f"o\n'}, {"dtype": 1}, {"dtype": "complex128"}, {"dtype": "int64"},
    {"dtype": "int64", "shape": [4]}, {"data_len": 31}, {"data_len": -1}, {"data_ptr": -1}, {"data_ptr": 2**70},
    {"data_len": 4, "dtype": "float4_e2m1fn_x2", "shape": [2, 2]}, {"dtype": "float4_e2m1fn_x2", "shape": [2**63]},
    {"dtype": "F6_E2M3"}, {"data_len": 0, "shape": [0], "data_ptr": 0}, {"other": 1}, {"data_ptr": None},
]  # fmt: skip


@pytest.mark.parametrize("changes", SPECS, ids=str)
def test_specs(changes):
    read = lambda one: (one.dtype, one.shape, one.data_ptr, one.data_len, repr(one))
    check_both("spec", lambda package: read(spec(package, **changes)))
    check_both("serialize", lambda package: package.serialize({"x": spec(package, **changes)}))


@pytest.mark.parametrize("arguments", [
    (None,), ([],), ({1: None},), ({"x": {"dtype": "float32"}},), ({}, []), ({}, {1: "a"}), ({}, {"a": 1}), ({}, 3),
    (), ({}, None, 3),
])  # fmt: skip
def test_bad_calls_of_serialize(tmp_path, arguments):
    check_both("serialize", lambda package: package.serialize(*arguments))
    if arguments and len(arguments) < 3:
        check_both("file", lambda package: package.serialize_file(arguments[0], tmp_path / "x", *arguments[1:]))


def test_bad_paths_of_saves(tmp_path):
    for path in (tmp_path / "none" / "x", tmp_path, 3, os.fsencode(tmp_path / "x"), None):
        check_both(path, lambda package: package.serialize_file({}, path))
    assert outcome(lambda: our.serialize_file({}, ""))[0] == outcome(lambda: ref.serialize_file({}, ""))[0]
    assert list(tmp_path.iterdir()) == []


def test_a_save_replaces_links_and_files(tmp_path):
    (tmp_path / "link").symlink_to("target")
    (tmp_path / "target").write_bytes(b"old")
    our.torch.save_file({"x": torch.ones(2)}, tmp_path / "link")
    assert not (tmp_path / "link").is_symlink() and (tmp_path / "target").read_bytes() == b"old"
    our.torch.save_file({"x": torch.zeros(2)}, tmp_path / "link")
    assert our.torch.load_file(tmp_path / "link")["x"].tolist() == [0, 0]


def test_a_save_over_the_file_that_is_read(small):
    tensors = our.torch.load_file(small)
    our.torch.save_file({"a": tensors["a"] + 1, "b": tensors["s"]}, small)
    assert tensors["a"].sum() == 15 and our.torch.load_file(small)["a"].sum() == 21


@pytest.mark.parametrize("umask", [0o022, 0o007])
def test_files_get_the_mode_of_the_umask(tmp_path, umask):
    before = os.umask(umask)
    try:
        our.torch.save_file({"x": torch.zeros(2)}, tmp_path / "x")
        our.numpy.save_file({"x": np.zeros(2)}, tmp_path / "y", durable=False)
    finally:
        os.umask(before)
    assert [(tmp_path / name).stat().st_mode & 0o777 for name in "xy"] == [0o666 & ~umask] * 2


@pytest.mark.skipif(shutil.which("cc") is None, reason="a C compiler counts calls of fsync")
def test_saves_are_durable_unless_told(tmp_path):
    (tmp_path / "count.c").write_text(
        "#include <fcntl.h>\n#include <unistd.h>\n"
        "static int count(void) {\n"
        "    int fd = open(\"calls\", O_WRONLY | O_APPEND | O_CREAT, 0600);\n"
        "    return (int)write(fd, \"x\", 1) - 1 + close(fd);\n"
        "}\n"
        "int fsync(int fd) { (void)fd; return count(); }\n"
        "int fdatasync(int fd) { (void)fd; return count(); }\n"
    )
    subprocess.run(["cc", "-shared", "-fPIC", "-o", tmp_path / "count.so", tmp_path / "count.c"], check=True)
    preload = f"{os.environ.get('LD_PRELOAD', '')} {tmp_path / 'count.so'}"  # a sanitizer wants to be first
    environment = os.environ | {"LD_PRELOAD": preload, "PYTHONPATH": os.pathsep.join(sys.path)}
    for call in ("numpy.save_file({'x': np.zeros(2)}, 'x'", "serialize_file({}, 'x'"):
        for argument, syncs in (("", True), (", durable=True", True), (", durable=False", False)):
            (tmp_path / "calls").unlink(missing_ok=True)
            code = "import numpy as np; from safemap.safetensors import numpy, serialize_file; " + call + argument + ")"
            subprocess.run([sys.executable, "-c", code], check=True, env=environment, cwd=tmp_path)
            assert (tmp_path / "calls").exists() == syncs, call + argument


# Models.


class Tied(torch.nn.Module):
    def __init__(self, extra=False, slices=False):
        super().__init__()
        self.a = torch.nn.Linear(3, 3)
        self.b = self.a
        self.c = torch.nn.Linear(3, 3)
        self.c.weight = self.a.weight
        self.d = torch.nn.Parameter(torch.ones(2, 3).t())
        if slices:
            self.c.weight = torch.nn.Parameter(self.a.weight.data[:2])
        if extra:
            self.e = torch.nn.Linear(1, 2)


def test_models(tmp_path):
    saved = Tied()
    for force in (True, False):
        check_both("save", lambda package: package.torch.save_model(saved, tmp_path / "x", {"a.weight": "kept"}, force))
    for package in (ref, our):
        path = tmp_path / package.__name__
        package.torch.save_model(saved, path, {"own": "pair"})
        check_both("metadata", lambda reader: reader.safe_open(path, "pt").metadata())
        check_both("keys", lambda reader: reader.safe_open(path, "pt").keys())
    for model in (Tied(), Tied(extra=True), torch.nn.Linear(3, 3), Tied(slices=True)):
        for strict in (True, False):
            check_both("load", lambda package: package.torch.load_model(model, path, strict))
            text = str(path)
            check_both("pread", lambda package: package.torch.load_model(model, text, strict, "cpu", backend="pread"))
    loaded = Tied()
    assert our.torch.load_model(loaded, path) == (set(), [])
    assert bits(dict(loaded.state_dict())) == bits(dict(saved.state_dict()))


def test_names_to_remove(rng):
    for _ in range(50):
        storage = torch.zeros(12)
        tensors = {}
        for name in rng.sample("abcdefgh", rng.randrange(1, 6)):
            begin = rng.randrange(10)
            part = storage[begin : begin + rng.randrange(1, 6)]
            tensors[name] = rng.choice([storage, part, storage.view(3, 4), torch.ones(2)])
        names = rng.sample("abcdefgh", 3)
        for keywords in ({}, {"preferred_names": names}, {"discard_names": names}):
            check_both(tensors, lambda p: dict(p.torch._remove_duplicate_names(tensors, **keywords)))
        found = lambda package: sorted(sorted(names) for names in package.torch._find_shared_tensors(tensors))
        check_both(tensors, found)
        for tensor in tensors.values():
            for function in ("storage_ptr", "storage_size", "_is_complete", "_end_ptr"):
                check_both(function, lambda package: getattr(package.torch, function)(tensor))


def test_public_names():
    for theirs, ours in ((ref, our), (ref.torch, our.torch), (ref.numpy, our.numpy)):
        public = {name for name, value in vars(theirs).items()
                  if not name.startswith("_") and getattr(value, "__module__", None) != "typing"}
        assert public - set(dir(ours)) - {"os", "sys", "np", "torch", "defaultdict"} == set(), ours
    assert our.__version__ == ref.__version__
    for name in ("F32", "BOOL", "U16"):
        for kind in ("torch", "numpy"):
            assert getattr(our, kind)._getdtype(name) == getattr(ref, kind)._getdtype(name)
    assert our.torch._SIZE == {dtype: size for dtype, size in ref.torch._SIZE.items() if dtype is not None}


# patch_safetensors().

PATCHING = """
import sys
BEFORE
import safemap
names = ("safetensors", "safetensors.torch", "safetensors.numpy", "safetensors._safetensors_rust")
def state():
    modules = {name: sys.modules.get(name) for name in names}
    return modules, {name: dict(vars(module)) for name, module in modules.items() if module is not None}
before = state()
undo = safemap.patch_safetensors()
import safetensors, safetensors.torch, safetensors.numpy
from safetensors import safe_open, SafetensorError
from safetensors.torch import save_file
from safemap import safetensors as ours
assert safe_open is ours.safe_open and SafetensorError is ours.SafetensorError and save_file is ours.torch.save_file
assert safetensors.numpy.load_file is ours.numpy.load_file and safetensors.torch.load is ours.torch.load
if before[0]["safetensors"] is not None:
    old = before[0]["safetensors"]
    assert old.safe_open is ours.safe_open and old.torch.load_file is ours.torch.load_file
assert "numpy" not in sys.modules or BEFORE_IMPORTS
inner = safemap.patch_safetensors()
inner()
assert sys.modules["safetensors"].safe_open is ours.safe_open
undo()
undo()
assert state() == before
with safemap.patch_safetensors() as undo:
    assert sys.modules["safetensors"].safe_open is ours.safe_open
assert state() == before
"""


@pytest.mark.parametrize("before", ["", "import safetensors", "import safetensors.torch, safetensors.numpy"])
def test_patch(before):
    code = PATCHING.replace("BEFORE_IMPORTS", str(bool(before))).replace("BEFORE", before)
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}
    subprocess.run([sys.executable, "-c", code], check=True, env=environment)
