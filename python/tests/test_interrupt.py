"""Ctrl-C, threads, fork, spawn, the end of the process, many opens, and damaged files."""

from __future__ import annotations

import json
import multiprocessing
import os
import pathlib
import random
import signal
import subprocess
import sys
import threading
import time

import pytest

import safemap

np = pytest.importorskip("numpy")

WHOLE = os.environ.get("SAFEMAP_SOAK") == "whole"

# Ctrl-C. Each operation takes seconds: the file is sparse, so it is large and costs no space.

SIZE = 6 << 30

CHILD = """
import os, signal, sys, time
signal.signal(signal.SIGINT, signal.default_int_handler)
import numpy, safemap
folder, operation = sys.argv[1:]
big, other, many = (os.path.join(folder, name) for name in ("big.safetensors", "other.safetensors", "many"))
out = os.path.join(folder, "out")
os.makedirs(out, exist_ok=True)
checkpoint = safemap.open(big)
whole, part = checkpoint["whole"], checkpoint["whole"][: 2 << 30]
shards = [os.path.join(many, "s", name) for name in os.listdir(many + "/s")]
array = numpy.memmap(big, "u1", "c", 4096, (5 << 30,))

def writer():
    with safemap.ShardWriter(out + "/w", {"w": ("U8", array.shape)}, durable=False) as shards:
        shards["w"] = array

def many_times(function):
    while True:
        function()

operations = {
    "open one file": lambda: many_times(lambda: safemap.open(many + "/names.safetensors")),
    "open shards": lambda: many_times(lambda: safemap.open(shards)),
    "open a file object": lambda: many_times(lambda: safemap.open(open(many + "/names.safetensors", "rb"))),
    "verify": lambda: safemap.verify(big),
    "examine": lambda: many_times(lambda: safemap.examine(many)),
    "scan": lambda: many_times(lambda: safemap.scan(many)),
    "diff": lambda: safemap.diff(big, other),
    "diff numbers": lambda: safemap.diff(big, other, atol=1),
    "digests": lambda: safemap.digests(big),
    "digests sha256": lambda: safemap.digests(checkpoint, algorithm="sha256"),
    "digest": lambda: whole.digest(),
    "load": lambda: many_times(lambda: part.numpy(copy=True)),
    "cast": lambda: many_times(lambda: checkpoint["half"][: 1 << 28].to("f32").numpy()),
    "bytes": lambda: many_times(lambda: part.tobytes()),
    "read": lambda: many_times(lambda: whole.read(5, 1 << 30)),
    "prefetch": lambda: many_times(lambda: (checkpoint.evict(), checkpoint.prefetch())),
    "prefetch a tensor": lambda: many_times(lambda: (whole.evict(), whole.prefetch())),
    "save": lambda: safemap.save(out + "/s", checkpoint, durable=False),
    "save one file": lambda: safemap.save(out + "/s.safetensors", big, durable=False, dtype="f16", checksums=True),
    "save an array": lambda: safemap.save(out + "/a.safetensors", {"w": array}, durable=False),
    "save to a file object": lambda: safemap.save(open(os.devnull, "wb"), checkpoint),
    "writer": writer,
    "repair": lambda: safemap.repair(big, out + "/r.safetensors", durable=False),
    "acquire": lambda: safemap.Uploader(checkpoint, "host", budget="4GB").acquire([part]),
}
print("go", flush=True)
try:
    operations[operation]()
    print("done", flush=True)
except KeyboardInterrupt:
    print("interrupted", flush=True)
"""


def sparse(path, size, tensors):
    """Writes a safetensors file with a hole for its data."""
    header = json.dumps(tensors).encode()
    header += b" " * (-len(header) % 8)
    with open(path, "wb") as file:
        file.write(len(header).to_bytes(8, "little") + header)
        file.truncate(8 + len(header) + size)


@pytest.fixture(scope="module")
def large(tmp_path_factory):
    folder = tmp_path_factory.mktemp("large")
    half = 1 << 29
    tensors = {"whole": {"dtype": "U8", "shape": [SIZE - half], "data_offsets": [0, SIZE - half]},
               "half": {"dtype": "F16", "shape": [half // 2], "data_offsets": [SIZE - half, SIZE]}}
    for name in ("big", "other"):
        sparse(folder / f"{name}.safetensors", SIZE, tensors)
    many = folder / "many"
    (many / "s").mkdir(parents=True)
    sparse(many / "names.safetensors", 0, {f"model.layers.{i}.w": {"dtype": "U8", "shape": [0], "data_offsets": [0, 0]}
                                           for i in range(50_000)})
    for i in range(200):
        sparse(many / "s" / f"{i}.safetensors", 8, {f"w{i}": {"dtype": "U8", "shape": [8], "data_offsets": [0, 8]}})
    return folder


def run_child(folder, operation, delay):
    """Interrupts an operation after `delay` seconds. Returns its last line, and how long it went on."""
    child = subprocess.Popen([sys.executable, "-c", CHILD, str(folder), operation], stdout=subprocess.PIPE, text=True,
                             stderr=subprocess.PIPE)
    assert child.stdout.readline() == "go\n", child.stderr.read()
    time.sleep(delay)
    child.send_signal(signal.SIGINT)
    begin = time.monotonic()
    last = child.stdout.readline().strip()
    took = time.monotonic() - begin
    rest, error = child.communicate(timeout=120)
    return last + rest, took, error


OPERATIONS = """open one file|open shards|open a file object|verify|examine|scan|diff|diff numbers|digests
digests sha256|digest|load|cast|bytes|read|prefetch|prefetch a tensor|save|save one file|save an array
save to a file object|writer|repair|acquire""".replace("\n", "|").split("|")


@pytest.mark.parametrize("operation", OPERATIONS if WHOLE else random.sample(OPERATIONS, 8))
def test_ctrl_c_ends_it_within_a_second_and_leaves_nothing(large, operation):
    for _ in range(5 if WHOLE else 1):
        delay = random.uniform(0, 0.4)
        last, took, error = run_child(large, operation, delay)
        assert last == "interrupted", (operation, delay, last, error)
        # A second, and what a busy machine adds.
        assert took < 2.5, (operation, delay, took)
        assert os.listdir(large / "out") == [], operation


# Threads.


def test_eight_threads_do_everything_at_once(tmp_path):
    tensors = {f"t{i}": np.full((100, 10), i, "f4") for i in range(20)}
    safemap.save(tmp_path / "m", tensors, checksums=True)
    shared = safemap.open(tmp_path / "m")
    expected = safemap.digests(tensors)
    faults = []

    def work(number):
        try:
            for step in range(5):
                assert safemap.digests(shared) == expected
                assert safemap.diff(shared, tensors).equal
                assert safemap.verify(tmp_path / "m").ok
                assert safemap.plan(shared, tensors).ok
                assert (shared[f"t{number}"][1:].numpy() == number).all()
                safemap.save(tmp_path / f"{number}-{step}", shared, durable=False)
                assert len(safemap.open(tmp_path / f"{number}-{step}")) == 20
                shared.prefetch()
                with safemap.Uploader(shared, budget="1MB") as uploader:
                    assert len(uploader.acquire("*")) == 20
        except BaseException as error:  # shown by the test
            faults.append(error)

    threads = [threading.Thread(target=work, args=(i,)) for i in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert faults == []


USES = [
    lambda checkpoint: checkpoint["t"].numpy(copy=True), safemap.digests, lambda checkpoint: checkpoint.prefetch(),
    safemap.Checkpoint.residency, safemap.Checkpoint.evict, safemap.Checkpoint.items, safemap.Checkpoint.extras,
    lambda checkpoint: checkpoint.renamed(str.upper), safemap.Checkpoint.tree, safemap.Checkpoint.optimizer,
    safemap.Checkpoint.training, safemap.Checkpoint._repr_html_,
]


def test_a_checkpoint_closed_by_another_thread(tmp_path):
    safemap.save(tmp_path / "m", {"t": np.zeros(1 << 16, "u1"), **{f"x{i}": np.zeros(1) for i in range(100)}})
    for _ in range(20 if WHOLE else 3):
        checkpoint = safemap.open(tmp_path / "m")
        faults = []

        def work(use, checkpoint=checkpoint, faults=faults):
            try:
                while True:
                    use(checkpoint)
            except safemap.SafemapError as error:
                faults.append(str(error))

        threads = [threading.Thread(target=work, args=(use,)) for use in USES]
        for thread in threads:
            thread.start()
        time.sleep(0.05)
        checkpoint.close()
        for thread in threads:
            thread.join()
        assert faults == ["the checkpoint is closed"] * len(USES)


def test_a_checkpoint_closed_by_a_function_that_it_calls(tmp_path):
    safemap.save(tmp_path / "m", {f"x{i}": np.zeros(1) for i in range(100)})
    checkpoint = safemap.open(tmp_path / "m")

    def closing(name):
        checkpoint.close()
        return name + "."

    assert checkpoint.renamed(closing)["x7."].numpy() == [0]
    checkpoint = safemap.open(tmp_path / "m")
    assert safemap.diff(checkpoint, checkpoint, rename=closing).tensors == 0
    checkpoint = safemap.open(tmp_path / "m")
    checkpoint.prefetch(progress=lambda *_: checkpoint.close())
    checkpoint = safemap.open(tmp_path / "m")
    safemap.save(tmp_path / "n", checkpoint, on_plan=lambda _: checkpoint.close())


GARBAGE = """
import os, random, sys
import numpy, safemap
os.chdir(sys.argv[1])
seed = int(sys.argv[2])
dice = random.Random(seed)
safemap.save("m.safetensors", {"t": numpy.arange(6.0).reshape(2, 3), "u": numpy.zeros(0)})
checkpoint = safemap.open("m.safetensors")
closed = safemap.open("m.safetensors")
closed.close()
uploader = safemap.Uploader(checkpoint)
lease = uploader.acquire("t")
ended = uploader.acquire("u")
held = ended["u"]
ended.release()
cycle = []
cycle.append(cycle)
deep = []
for _ in range(10_000):
    deep = [deep]

class Hostile:
    def __getattr__(self, name):
        raise ZeroDivisionError

class Odd:
    shape = dtype = "x"
    __fspath__ = __array__ = __dlpack__ = tell = seek = read = write = items = keys = lambda self, *a, **k: 7

values = [None, True, 0, -1, 1, 7, 2**63, -(2**70), 0.5, float("nan"), "", "t", "x", "m.safetensors", chr(0xDCFF),
          b"", b"x" * 99, [], [1], ["t"], (), ("F32", (2, 3)), {}, {"t": 1}, {"t": numpy.zeros(3)}, {1: 2}, object(),
          int, len, lambda *a: a, lambda *a: 1 // 0, numpy.zeros((2, 3)), numpy.float32(1), numpy.dtype("f4"),
          numpy.array([object()]), slice(None), slice(2**65, None, -(2**65)), slice("a"), ..., checkpoint, closed,
          checkpoint["t"], checkpoint["t"][1], uploader, lease, held, lease["t"],
          uploader.bundle("t"), safemap.plan(checkpoint, checkpoint), Hostile(), Odd(), cycle, deep,
          memoryview(b"abc"), sys.stdout, safemap.SafemapError, range(3), iter([1]), {"t"}, 1j]
names = ["access", "threads", "progress", "dtype", "metadata", "patterns", "rename", "set", "unset", "copy", "stream",
         "deadline", "budget", "algorithm", "atol", "overwrite", "max_shard_size", "folders", "extras", "on_plan",
         "max_version", "dl_device", "once", "size", "offset", "nonsense", "includes", "policy", "durable"]
functions = [getattr(safemap, name) for name in "open save diff digests verify examine scan edit repair plan "
             "ShardWriter Uploader".split()]
functions += [safemap.Checkpoint.of]
owners = [checkpoint, closed, checkpoint["t"], checkpoint["t"].to("f16"), uploader, lease, ended, held, lease["t"],
          safemap.plan(checkpoint, checkpoint), uploader.bundle("t")]
skipped = {"__class__", "__new__", "__init__", "__getattribute__", "__setattr__", "__delattr__", "__init_subclass__",
           "__subclasshook__", "close", "__exit__", "release", "__reduce__", "__reduce_ex__"}
for owner in owners:
    for name in dir(owner):
        if name not in skipped and callable(getattr(type(owner), name, None)):
            functions.append(getattr(owner, name))
functions += [type(owner) for owner in owners]
for _ in range(int(sys.argv[3])):
    function = dice.choice(functions)
    arguments = [dice.choice(values) for _ in range(dice.choice((0, 1, 1, 2, 2, 3)))]
    options = {dice.choice(names): dice.choice(values) for _ in range(dice.choice((0, 0, 0, 0, 1, 2)))}
    try:
        function(*arguments, **options)
    except Exception as error:
        text = f"{type(error).__name__}: {error}"
        assert not isinstance(error, SystemError) and "bad_cast" not in text and "std::" not in text, (
            seed, function, arguments, options, text)
"""


def test_garbage_does_not_end_the_process(tmp_path):
    seed = random.randrange(1 << 32)
    done = subprocess.run([sys.executable, "-X", "faulthandler", "-c", GARBAGE, str(tmp_path), str(seed),
                           "100000" if WHOLE else "3000"], capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, (seed, done.stdout[-300:], done.stderr[-3000:])


# Processes.


def test_a_forked_child_uses_and_drops_what_its_parent_has(tmp_path):
    safemap.save(tmp_path / "m", {"t": np.arange(1000)})
    script = f"""
import os, sys, numpy, safemap
checkpoint = safemap.open({str(tmp_path / "m")!r})
array = checkpoint["t"].numpy()
memory = safemap.Checkpoint.of({{"a": numpy.arange(5)}})
uploader = safemap.Uploader(checkpoint)
lease = uploader.acquire("t")
writer = safemap.ShardWriter({str(tmp_path / "w")!r}, {{"a": ("I64", (5,))}})
for leave in (os._exit, sys.exit):
    child = os.fork()
    if child == 0:
        assert array[999] == 999 and memory["a"].numpy()[4] == 4 and lease["t"].numpy()[7] == 7
        assert safemap.diff(safemap.open({str(tmp_path / "m")!r}), checkpoint).equal
        safemap.save({str(tmp_path)!r} + f"/{{leave.__name__}}", checkpoint)
        for call in (lambda: writer.write("a", array), writer.commit):
            try:
                call()
            except ValueError:
                pass
        leave(0)
    assert os.waitpid(child, 0)[1] == 0
writer["a"] = numpy.arange(5)
writer.commit()
assert array[999] == 999
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=120)
    assert (done.returncode, done.stderr) == (0, "")
    assert sorted(os.listdir(tmp_path)) == ["_exit", "exit", "m", "w"]
    assert safemap.open(tmp_path / "w")["a"].numpy().tolist() == [0, 1, 2, 3, 4]


def read_of(tensor):
    return tensor.numpy().tolist()


def test_spawned_processes_get_handles_by_pickle(tmp_path):
    safemap.save(tmp_path / "m", {"t": np.arange(8)})
    checkpoint = safemap.open(tmp_path / "m")
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        assert pool.map(read_of, [checkpoint["t"][2:4], checkpoint.renamed(str.upper)["T"][::-4]]) == [[2, 3], [7, 3]]


def test_a_process_may_end_with_everything_alive(tmp_path):
    safemap.save(tmp_path / "m", {"t": np.arange(1000)})
    thread = "threading.Thread(target=lambda: safemap.digests(path)).start()"
    for last in ("", "raise SystemExit", "os._exit(0)", thread):
        script = f"""
import os, threading, numpy, safemap
path = {str(tmp_path / "m")!r}
checkpoint = safemap.open(path)
tensor, array = checkpoint["t"], checkpoint["t"].numpy()
memory = safemap.Checkpoint.of({{"a": array, "b": numpy.ones(3)}})
uploader = safemap.Uploader(memory)
lease = uploader.acquire("a")
held = lease["a"].numpy()
writer = safemap.ShardWriter({str(tmp_path / "w")!r}, {{"a": ("I64", (5,))}})
plan = safemap.plan(checkpoint, memory)
class Holder: pass
holder = Holder(); holder.me = holder; holder.all = dict(globals())
safemap.kept = holder
{last}
"""
        done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=120)
        assert (done.returncode, done.stderr) == (0, ""), last
        left = [name for name in os.listdir(tmp_path) if name != "m"]
        assert left == [] or "_exit" in last, last
        if left:
            # A process that was killed leaves a hidden folder, which the next save to the same place takes over.
            safemap.save(tmp_path / "w", {"a": np.zeros(1)})
            assert sorted(os.listdir(tmp_path)) == ["m", "w"]
            import shutil

            shutil.rmtree(tmp_path / "w")


def test_a_process_may_end_while_daemons_work(large, tmp_path):
    safemap.save(tmp_path / "m.safetensors", {f"w{i}": np.zeros(1 << 17) for i in range(40)})
    script = f"""
import io, threading, time, numpy, safemap
big, small = {str(large / "big.safetensors")!r}, {str(tmp_path / "m.safetensors")!r}

class Slow:
    def __init__(self):
        self.file, self.slow = open(small, "rb"), False
    def read(self, size=-1):
        if self.slow:
            time.sleep(0.01)
        return self.file.read(size)
    def __getattr__(self, name):
        return getattr(self.file, name)

def forever(function):
    def run():
        while True:
            function()
    threading.Thread(target=run, daemon=True).start()

source = Slow()
uploader = safemap.Uploader(source)
source.slow = True
lease = uploader.request("*")
other = safemap.Uploader(safemap.open(Slow()), budget="4MB")
forever(lambda: safemap.digests(big))
forever(lambda: safemap.digests(small, algorithm="sha256"))
forever(lambda: safemap.open(small)["w1"].numpy(copy=True))
forever(lambda: safemap.verify(small, progress=lambda *_: None))
forever(lambda: safemap.open(open(small, "rb"))["w3"].tobytes())
forever(lambda: safemap.save(io.BytesIO(), small))
forever(lambda: other.acquire("w2").release())
time.sleep({random.uniform(0.05, 0.3)})
"""
    for _ in range(10 if WHOLE else 1):
        done = subprocess.run([sys.executable, "-X", "faulthandler", "-c", script], capture_output=True, text=True,
                              timeout=60)
        assert (done.returncode, done.stderr) == (0, "")


# Memory and descriptors.


def status(key):
    for line in pathlib.Path("/proc/self/status").read_text().splitlines():
        if line.startswith(key):
            return int(line.split()[1])
    raise KeyError(key)


@pytest.mark.usefixtures("measured")
def test_many_opens_do_not_grow(tmp_path):
    safemap.save(tmp_path / "m.safetensors", {"t": np.arange(4), "u": np.arange(4.0)})
    (tmp_path / "bad.safetensors").write_bytes(b"12345678" * 2)
    content = (tmp_path / "m.safetensors").read_bytes()

    def rounds(count):
        for _ in range(count):
            with safemap.open(tmp_path / "m.safetensors") as checkpoint:
                checkpoint["t"][1:].numpy()
                checkpoint.select("t").renamed(str.upper)
            safemap.open(content)["u"].to("f32").numpy()
            safemap.Checkpoint.of({"a": checkpoint_array, "b": checkpoint_array}).items()
            for path in ("bad.safetensors", "nothing"):
                try:
                    safemap.open(tmp_path / path)
                except safemap.SafemapError:
                    pass

    checkpoint_array = np.zeros(10)
    rounds(300)
    before, descriptors = status("RssAnon"), len(os.listdir("/proc/self/fd"))
    rounds(100_000 if WHOLE else 2_000)
    assert status("RssAnon") - before < 2_000, "kB"
    assert len(os.listdir("/proc/self/fd")) <= descriptors


# Damaged files.


def code_of_command_line(path, capfd):
    """Returns the code that `safemap inspect --json` prints, or None."""
    capfd.readouterr()
    failed = safemap._core.run_command_line(["safemap"], ["inspect", "--json", str(path)])
    out = capfd.readouterr()
    return json.loads(out.out or out.err)["error"]["code"] if failed else None


def code_of_open(path):
    try:
        safemap.open(path)
        return None
    except safemap.SafemapError as error:
        assert str(error) and repr(error) and isinstance(error.exit_code, int)
        return error.code


def test_each_file_opens_or_fails_as_on_the_command_line(data, capfd):
    files = sorted(path for path in data.rglob("*") if path.is_file())
    assert len(files) > 100
    wrong = [(path, code_of_command_line(path, capfd), code_of_open(path)) for path in files
             if code_of_command_line(path, capfd) != code_of_open(path)]
    assert wrong == []


def test_damaged_copies_fail_with_codes(data, tmp_path, rng):
    files = sorted(path for path in data.rglob("*") if path.suffix in (".pt", ".safetensors", ".bin", ".pkl"))
    for path in files if WHOLE else rng.sample(files, 40):
        content = bytearray(path.read_bytes())
        if len(content) > 1 << 20 or not content:
            continue
        for _ in range(3):
            damaged = content[: rng.randrange(len(content) + 1)] if rng.random() < 0.4 else bytearray(content)
            for _ in range(rng.randrange(4)):
                if damaged:
                    damaged[rng.randrange(len(damaged))] = rng.randrange(256)
            copy = tmp_path / ("copy" + path.suffix)
            copy.write_bytes(damaged)
            try:
                checkpoint = safemap.open(copy)
                for tensor in checkpoint.values():
                    tensor.tobytes()
                safemap.digests(checkpoint)
                checkpoint._repr_html_()
            except (safemap.SafemapError, MemoryError):
                pass
            safemap.verify(copy)
            safemap.examine(copy)
