"""Wrong programs: none of them ends the interpreter, hangs it, or gets the values of another tensor."""

import gc
import io
import os
import pickle
import subprocess
import sys
import threading
import time
import weakref

import pytest

import safemap

np = pytest.importorskip("numpy")


@pytest.fixture
def path(tmp_path):
    safemap.save(tmp_path / "a.safetensors", {"a": np.arange(6, dtype="f4"), "b": np.arange(10, dtype="i8")})
    return tmp_path / "a.safetensors"


def run(code: str, *arguments) -> str:
    """Returns what a program prints, which has to end by itself."""
    done = subprocess.run(
        [sys.executable, "-c", "import io, sys, threading, time, safemap\n" + code, *map(str, arguments)],
        capture_output=True,
        text=True,
        timeout=60,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.parametrize("name", ["prefetch", "residency", "evict", "extras", "optimizer", "training", "items", "tree"])
def test_closed_checkpoint(path, name):
    checkpoint = safemap.open(path)
    checkpoint.close()
    with pytest.raises(ValueError, match="the checkpoint is closed"):
        getattr(checkpoint, name)()


def test_closed_by_a_callback(path):
    checkpoint = safemap.open(path)

    def rename(name):
        checkpoint.close()
        return "x." + name

    assert sorted(checkpoint.renamed(rename)) == ["x.a", "x.b"]
    checkpoint = safemap.open(path)
    checkpoint.prefetch(progress=lambda *_: checkpoint.close())


def test_closed_by_another_thread(path):
    shared, end, wrong = [safemap.open(path)], time.monotonic() + 0.5, []
    uses = ["keys", "items", "residency", "prefetch", "extras", "training", "optimizer", "tree", "_repr_html_", "evict"]

    def use():
        while time.monotonic() < end:
            checkpoint = shared[0]
            for name in uses:
                try:
                    getattr(checkpoint, name)()
                except safemap.SafemapError as error:
                    if str(error) != "the checkpoint is closed":
                        wrong.append(error)

    threads = [threading.Thread(target=use) for _ in range(3)]
    for thread in threads:
        thread.start()
    while time.monotonic() < end:
        time.sleep(0.001)
        shared[0].close()
        shared[0] = safemap.open(path)
    for thread in threads:
        thread.join()
    assert not wrong


@pytest.mark.filterwarnings("ignore:nanobind")
def test_objects_without_init(path):
    for kind in vars(safemap._core).values():
        if not isinstance(kind, type):
            continue
        made = kind.__new__(kind)
        for use in (memoryview, safemap.open, safemap.Uploader, safemap.verify):
            with pytest.raises((TypeError, BufferError, RuntimeError)):
                use(made)


def test_function_that_holds_its_checkpoint_is_collected(path):
    class Rename:
        def __call__(self, name):
            return "x." + name

    rename = Rename()
    rename.checkpoint = safemap.open(path).renamed(rename)
    gone = weakref.ref(rename)
    del rename
    gc.collect()
    assert gone() is None


class Lying(io.BytesIO):
    """A file object whose methods give what `answers` has for them."""

    answers = {}

    def __getattribute__(self, name):
        answers = object.__getattribute__(self, "answers")
        return (lambda *_: answers[name]) if name in answers else super().__getattribute__(name)


@pytest.mark.parametrize("position", [None, "x", 1.5, b"1"])
def test_positions_that_are_none(path, position):
    file = Lying(path.read_bytes())
    file.answers = {"tell": position}
    with pytest.raises(TypeError):
        safemap.open(file)
    with pytest.raises(TypeError, match=r"an int from tell\(\) of a file object"):
        safemap.save(file, {"a": np.zeros(3)})


@pytest.mark.parametrize("position", [-1, 1 << 70])
def test_positions_out_of_range(position):
    file = Lying()
    file.answers = {"tell": position}
    with pytest.raises(ValueError, match=r"tell\(\) of the file object returned no position"):
        safemap.save(file, {"a": np.zeros(3)})


def test_answers_that_are_neither_true_nor_false():
    class Neither:
        def __bool__(self):
            raise ZeroDivisionError

    file = Lying()
    file.answers = {"seekable": Neither()}
    with pytest.raises(ZeroDivisionError):
        safemap.save(file, {"a": np.zeros(3)})


def test_file_that_reads_from_its_checkpoint(path):
    class File(io.BytesIO):
        checkpoint = None

        def read(self, size=-1):
            if self.checkpoint is not None:
                self.checkpoint["b"].numpy()
            return super().read(size)

    file = File(path.read_bytes())
    file.checkpoint = checkpoint = safemap.open(file)
    with pytest.raises(safemap.SafemapError, match="must not read from the checkpoint"):
        checkpoint["a"].numpy()
    file.checkpoint = None
    assert checkpoint["a"].numpy().tolist() == [0, 1, 2, 3, 4, 5]


def test_order_in_its_own_progress(path):
    def again(*_):
        for use in (order.next, order.reset, order.end):
            with pytest.raises(ValueError, match="progress of an order"):
                use()

    with safemap.Uploader(path) as uploader, uploader.follow(["a", "b"]) as order:
        assert order.next(progress=again).keys() == ["a"]


def test_lease_that_a_finalizer_ends(path):
    class Ends:
        def __init__(self, lease):
            self.lease, self.cycle = lease, self

        def __del__(self):
            self.lease.keys()
            self.lease.release()

    before = gc.get_threshold()
    with safemap.Uploader(path) as uploader:
        try:
            gc.set_threshold(1, 1, 1)
            for _ in range(100):
                lease = uploader.acquire("a")
                Ends(lease)
                try:
                    lease.keys(), lease["a"].shape
                except safemap.SafemapError as error:
                    assert str(error) == "the lease has ended"
        finally:
            gc.set_threshold(*before)


class Rename:
    """Two of them look alike."""

    def __init__(self, names):
        self.names = names

    def __repr__(self):
        return "Rename()"

    def __call__(self, name):
        return self.names[name]


def test_pickles_of_checkpoints_that_look_alike(path):
    one = safemap.open(path).renamed(Rename({"a": "w", "b": "v"}))["w"]
    other = safemap.open(path).renamed(Rename({"a": "v", "b": "w"}))["w"]
    assert [pickle.loads(pickle.dumps(x)).shape for x in (one, other)] == [(6,), (10,)]


def test_pickle_of_a_file_that_was_replaced(path):
    kept = pickle.dumps(safemap.open(path)["a"])
    assert pickle.loads(kept).numpy().sum() == 15
    safemap.save(path, {"a": np.ones(6, "f4")}, overwrite=True)
    assert pickle.loads(kept).numpy().sum() == 6


def test_subinterpreter(path):
    interpreters = pytest.importorskip("_xxsubinterpreters")
    del interpreters
    code = """
import _xxsubinterpreters as interpreters
other = interpreters.create()
try:
    interpreters.run_string(other, "import sys; sys.path[:] = %r; import safemap" % (sys.path,))
except interpreters.RunFailedError as error:
    print(error)
interpreters.destroy(other)
print(safemap.open(sys.argv[1]).keys())
"""
    printed = run(code, path)
    assert "cannot be used in a subinterpreter" in printed
    assert "['b', 'a']" in printed


@pytest.mark.parametrize(
    "work",
    [
        "safemap.open(sys.argv[1]).prefetch()",
        "safemap.open(io.BytesIO(data))['a'].tobytes()",
        "safemap.save(io.BytesIO(), safemap.open(sys.argv[1]))",
        "up = safemap.Uploader(io.BytesIO(data)); up.acquire('a').release()",
    ],
)
def test_exit_while_daemon_threads_work(path, work):
    code = f"""
data = open(sys.argv[1], "rb").read()
def loop():
    while True:
        {work}
for _ in range(3):
    threading.Thread(target=loop, daemon=True).start()
time.sleep(0.3)
"""
    run(code, path)


def test_exit_while_uploads_are_under_way(path):
    code = """
import builtins
up = safemap.Uploader(io.BytesIO(open(sys.argv[1], "rb").read()))
builtins.kept = [up, up.acquire("a"), up.follow(["a", "b"])]
builtins.kept.append(builtins.kept)
"""
    for _ in range(3):
        run(code, path)


def test_values_that_run_backwards(path):
    torch = pytest.importorskip("torch")
    checkpoint = safemap.open(path)
    backwards = {"l": checkpoint["b"][::-1], "n": np.arange(6, dtype=">i4").reshape(2, 3)[::-1, ::-2]}
    expected = {"l": list(range(9, -1, -1)), "n": [[5, 3], [2, 0]]}
    made = safemap.Checkpoint.of(backwards)
    assert {name: one.tolist() for name, one in safemap.state_dict(made).items()} == expected
    assert {name: one.tolist() for name, one in safemap.load(made).items()} == expected
    nested = safemap.load(safemap.Checkpoint.of({"x": [backwards["l"]], "y": backwards["l"]}))
    assert nested["x"][0].tolist() == nested["y"].tolist() == expected["l"]
    weight = safemap.Checkpoint.of({"weight": np.arange(3, dtype="f4")[::-1].reshape(3, 1)})
    for assign in (True, False):
        module = torch.nn.Linear(1, 3, bias=False)
        safemap.load_state_dict(module, weight, assign=assign)
        assert module.weight.flatten().tolist() == [2, 1, 0]


def test_tensors_whose_storage_was_freed():
    torch = pytest.importorskip("torch")
    tensor = torch.ones(1000)
    part = torch.ones(1000)[10:20]
    tensor.untyped_storage().resize_(0)
    part.untyped_storage().resize_(64)
    for freed in (tensor, part):
        for value in ({"x": freed}, {"x": [freed]}):
            with pytest.raises(ValueError, match="too few"):
                safemap.Checkpoint.of(value)
    with pytest.raises(ValueError, match="not strided"):
        safemap.Checkpoint.of({"x": torch.zeros(3, 3).to_mkldnn()})


def test_memory_at_address_0(tmp_path):
    spec = safemap.safetensors.TensorSpec(dtype="float32", shape=[2], data_ptr=0, data_len=8)
    with pytest.raises(safemap.safetensors.SafetensorError, match="no memory"):
        safemap.safetensors.serialize({"x": spec})
    with pytest.raises(safemap.safetensors.SafetensorError, match="no memory"):
        safemap.safetensors.serialize_file({"x": spec}, tmp_path / "x")


def test_options_that_are_no_text(path):
    with pytest.raises(TypeError, match="has no option"):
        safemap.open(path, **{"\udcff": 1})
