"""safemap.load(), tree() and state_dict(), beside torch.load."""

import argparse
import collections
import io
import os
import pathlib
import pickle
import subprocess
import sys
import threading
import warnings
import zipfile

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


def stays_opaque(ours, theirs):
    """safemap reads tensors, not storages that are values by themselves, and tensors of other ranks are opaque, too."""
    classes = (torch.TypedStorage, torch.UntypedStorage)
    distributed = type(theirs).__module__.startswith("torch.distributed.")
    return isinstance(ours, safemap.Opaque) and (distributed or isinstance(theirs, classes))


# Files that torch reads, and safemap refuses.
REFUSED = {
    "dims_10000.pt": "bad_tensor",
    "duplicate_record.pt": "zip_duplicate",
    "memo_huge.pt": "pickle_bad_memo",
    "offset_other.pt": "zip_bad_record",
    "parent_name.pt": "zip_bad_record",
    "protocol_9.pt": "pickle_bad_opcode",
    "two.pt": "bad_tensor",
}

# Names of functions and classes that safemap reads, and torch with weights_only does not.
KNOWN = ("GLOBAL numpy", "GLOBAL torch.storage._load_from_bytes")


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
        require_same(ours, theirs[0], stands_for=stays_opaque)
    elif "Unsupported global" in theirs and not any(name in theirs for name in KNOWN):
        # Only a class is unknown to torch: what it would make is opaque, or a value of Python.
        assert any(isinstance(one, (safemap.Opaque, frozenset, collections.defaultdict)) for one in parts_of(ours))


def parts_of(root):
    """Yields the objects of nested objects, each once."""
    left, seen = [root], {}
    while left:
        one = left.pop()
        if id(one) in seen:
            continue
        seen[id(one)] = one
        yield one
        inner = one.children if isinstance(one, safemap.Opaque) else one
        left += inner if isinstance(inner, (dict, list, tuple, set)) else ()
        left += inner.values() if isinstance(inner, dict) else ()


def plain_value(rng):
    return rng.choice([0, -1, 255, 2**40, -(2**70), True, None, "", "a", "é名", "x" * 300, 0.5, -0.0, float("inf"), 1j])


def nested(rng, depth, pool):
    """Returns nested objects of what torch reads with weights_only; some occur in several places."""
    kind = rng.randrange(14 if depth else 8)
    if kind < 4:
        shape = [rng.choice([0, 1, 2, 3, 5]) for _ in range(rng.randrange(4))]
        dtype = rng.choice([torch.float32, torch.bfloat16, torch.int64, torch.bool, torch.complex128])
        pool.append(torch.randint(0, 2, shape).to(dtype))
        return pool[-1]
    if kind == 4 and pool:
        return view(rng, rng.choice(pool))
    if kind < 8:
        constants = [torch.Size([1, 2]), torch.float16, torch.device("cpu"), torch.strided, bytearray(b"ab"), b"\xff"]
        return rng.choice(constants) if rng.random() < 0.3 else plain_value(rng)
    if kind == 8:
        return tuple(nested(rng, depth - 1, pool) for _ in range(rng.randrange(4)))
    if kind == 9:
        return {plain_value(rng) for _ in range(rng.randrange(4))}
    if kind == 10:
        return collections.Counter(rng.choices("abc", k=4))
    if kind == 11:
        return [nested(rng, depth - 1, pool) for _ in range(rng.randrange(5))]
    made = {} if kind == 12 else collections.OrderedDict()
    for _ in range(rng.randrange(6)):
        made[plain_value(rng)] = nested(rng, depth - 1, pool)
    if kind == 13:
        made._metadata = {"": {"version": rng.randrange(3)}}
    return made


def view(rng, tensor):
    """Returns the tensor, a part of it, or a Parameter with its values."""
    kind = rng.randrange(5)
    if kind == 0 and tensor.dim() > 1:
        return tensor.transpose(0, rng.randrange(tensor.dim()))
    if kind == 1 and tensor.dim() and tensor.shape[0] > 1:
        return tensor[1:: rng.randrange(1, 3)]
    if kind == 2:
        return torch.nn.Parameter(tensor, requires_grad=tensor.is_floating_point() and rng.random() < 0.5)
    if kind == 3 and tensor.is_complex():
        return tensor.conj()
    return tensor.view(tensor.shape)


def saved(objects, **options):
    file = io.BytesIO()
    torch.save(objects, file, **options)
    return file.getvalue()


@pytest.mark.parametrize("old", [False, True])
def test_random_objects_are_read_as_torch_reads_them(rng, tmp_path, old):
    for _ in range(int(os.environ.get("SAFEMAP_RANDOM_OBJECTS", 60))):
        pool = []
        objects = [nested(rng, 4, pool) for _ in range(4)]
        objects += rng.choices(objects, k=2)
        (tmp_path / "x.pt").write_bytes(saved(objects, _use_new_zipfile_serialization=not old))
        wanted = torch.load(tmp_path / "x.pt", weights_only=True)
        require_same(safemap.load(tmp_path / "x.pt"), wanted)
        require_same(safemap.load((tmp_path / "x.pt").read_bytes()), wanted)
        require_same(safemap.load(safemap.Checkpoint.of(objects)), objects, values=True)


def archive(pickled, compression=zipfile.ZIP_STORED, storages=()):
    """Returns a file of torch.save made by hand."""
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w", compression) as made:
        made.writestr("archive/data.pkl", pickled)
        made.writestr("archive/version", "3\n")
        for name, data in storages:
            made.writestr(name, data)
    return file.getvalue()


def depth_of(nested):
    depth = 0
    while nested:
        nested, depth = nested[0], depth + 1
    return depth


def test_any_depth():
    depth = 100_000
    lists = archive(b"\x80\x02" + b"]" * depth + b"a" * (depth - 1) + b".")
    tuples = archive(b"\x80\x02)" + b"\x85" * (depth - 1) + b".")
    for file in (lists, tuples):
        assert depth_of(safemap.load(file)) == depth_of(safemap.open(file).tree()) == depth - 1
        again = safemap.Checkpoint.of({"deep": safemap.load(file), "w": torch.ones(1)})
        assert depth_of(again.tree()["deep"]) == depth - 1


def test_keys_that_python_cannot_hash():
    key = b"\x80\x02}]\x85K\x01s."  # {([],): 1}
    with pytest.raises(safemap.SafemapError) as error:
        safemap.load(archive(key))
    assert error.value.code == "pickle_bad_key"


def deflated(objects):
    with zipfile.ZipFile(io.BytesIO(saved(objects))) as stored:
        records = [(info.filename, stored.read(info)) for info in stored.infolist()]
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as made:
        for name, data in records:
            made.writestr(name, data)
    return file.getvalue()


@pytest.fixture
def views():
    base = torch.arange(12.0).reshape(3, 4)
    return {"base": base, "columns": base.t(), "row": base[1], "other": torch.ones(3)}


@pytest.mark.parametrize("make", [saved, deflated])
def test_tensors_of_one_storage_share_memory_and_no_file_changes(tmp_path, views, make):
    path = tmp_path / "views.pt"
    path.write_bytes(make(views))
    before, wanted = path.read_bytes(), torch.load(io.BytesIO(saved(views)), weights_only=True)
    for source in (path, before, io.BytesIO(before)):
        ours = safemap.load(source)
        require_same(ours, wanted)
        ours["base"].add_(1)
        assert torch.equal(ours["columns"], (views["base"] + 1).t()) and torch.equal(ours["row"], views["base"][1] + 1)
        assert torch.equal(ours["other"], views["other"])
        assert path.read_bytes() == before
        require_same(safemap.load(source), wanted)


def test_progress_of_what_is_read(views):
    file, seen = deflated(views), []
    safemap.load(file, progress=lambda stage, done, total: seen.append((stage, done, total)))
    assert seen[-1] == ("loading", 60, 60)
    with pytest.raises(safemap.SafemapError) as error:
        safemap.load(file, progress=lambda *now: False)
    assert error.value.code == "cancelled" and error.value.exit_code == 130
    with pytest.raises(ZeroDivisionError):
        safemap.load(file, progress=lambda *now: 1 // 0)
    with pytest.raises(TypeError):
        safemap.load(file, progress=5)


def test_unknown_objects_are_opaque(tmp_path):
    inner = argparse.Namespace(rate=0.5, weight=torch.ones(2))
    inner.me = inner
    torch.save({"args": inner, "module": torch.nn.Linear(2, 1), "class": argparse.Namespace}, tmp_path / "x.pt")
    for get in (safemap.load, lambda path: safemap.open(path).tree()):
        found = get(tmp_path / "x.pt")
        args = found["args"]
        assert isinstance(args, safemap.Opaque) and args.type == "argparse.Namespace" and args.why
        assert args.children["rate"] == 0.5 and args.children["me"] is args
        assert found["module"].type == "torch.nn.modules.linear.Linear"
        assert found["module"].children["_parameters"]["weight"].shape == (1, 2)
    loaded = safemap.load(tmp_path / "x.pt")
    assert loaded["class"].type == "argparse.Namespace"
    again = safemap.load(safemap.Checkpoint.of(loaded))
    assert again["args"].children["me"] is again["args"] and again["class"].type == "argparse.Namespace"
    assert torch.equal(again["args"].children["weight"], torch.ones(2))


def test_attributes_cannot_run_code(tmp_path):
    tensor = torch.nn.Parameter(torch.ones(2))
    tensor.__dict__.update(note=[tensor], data=3, requires_grad="no")
    torch.save(tensor, tmp_path / "x.pt")
    ours = safemap.load(tmp_path / "x.pt")
    assert ours.note[0] is ours and ours.requires_grad is True and torch.equal(ours.data, torch.ones(2))


def test_a_tree_needs_no_torch(tmp_path, views):
    torch.save({"model": collections.OrderedDict(views), "step": 3, "dtype": torch.bfloat16}, tmp_path / "x.pt")
    code = (
        "import sys, safemap; tree = safemap.open(sys.argv[1]).tree();"
        "print(type(tree['model']).__name__, tree['step'], tree['dtype'].text, tree['model']['row'].shape,"
        "'torch' in sys.modules, 'numpy' in sys.modules)"
    )
    run = subprocess.run([sys.executable, "-c", code, tmp_path / "x.pt"], capture_output=True, text=True, check=True)
    assert run.stdout.split("\n")[0] == "OrderedDict 3 bfloat16 (4,) False False"
    row = pickle.loads(pickle.dumps(safemap.open(tmp_path / "x.pt").tree()["model"]["row"]))
    assert torch.equal(row.torch(), views["row"])


def test_threads(tmp_path, views):
    path, failed = tmp_path / "x.pt", []
    torch.save({str(i): {"deep": [views]} for i in range(50)}, path)
    wanted = torch.load(path, weights_only=True)
    shared = safemap.open(path)

    def work():
        try:
            require_same(safemap.load(path), wanted)
            require_same(safemap.load(shared), wanted)
            assert shared.tree()["7"]["deep"][0]["row"].shape == (4,)
        except Exception as error:  # pylint: disable=broad-except
            failed.append(error)

    threads = [threading.Thread(target=work) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failed


def test_flat_dicts(tmp_path, views):
    torch.save({"a": views["base"], "b": views["base"], "c": views["row"]}, tmp_path / "x.pt")
    state = safemap.state_dict(tmp_path / "x.pt")
    assert list(state) == ["a", "b", "c"] and state["a"] is state["b"]
    state["a"].zero_()
    assert not state["c"].any()
    with safemap.open(tmp_path / "x.pt") as checkpoint:
        assert list(safemap.state_dict(checkpoint.select("c").renamed(lambda name: "x." + name))) == ["x.c"]
        with pytest.raises(TypeError, match="root"):
            safemap.state_dict(checkpoint, root="a")
    with pytest.raises(safemap.SafemapError, match="closed"):
        safemap.load(checkpoint)
    with pytest.raises(TypeError, match="no option"):
        safemap.load(tmp_path / "x.pt", weights_only=True)


def test_a_dtype_that_torch_lacks_is_named(tmp_path):
    header = b'{"w":{"dtype":"F6_E2M3","shape":[4],"data_offsets":[0,3]}}'
    (tmp_path / "x.safetensors").write_bytes(len(header).to_bytes(8, "little") + header + b"abc")
    for function in (safemap.load, safemap.state_dict):
        with pytest.raises(BufferError, match="F6_E2M3") as error:
            function(tmp_path / "x.safetensors")
        assert error.value.code == "no_dlpack" and error.value.tensor == "w"


def test_folders_of_distributed_checkpoints_are_read_as_torch_reads_them(tmp_path, views):
    dcp = pytest.importorskip("torch.distributed.checkpoint")
    state = {"model": views, "optimizer": {"state": {"w": {"exp_avg": torch.randn(5, 3), "step": torch.tensor(3.0)}}}}
    dcp.save(state, checkpoint_id=tmp_path / "dcp", no_dist=True)
    into = {"model": {k: torch.empty_like(v) for k, v in views.items()}}
    dcp.load(into, checkpoint_id=tmp_path / "dcp", no_dist=True)
    ours = safemap.state_dict(tmp_path / "dcp", root="")
    require_same({name: ours["model." + name] for name in views}, into["model"], values=True)
    assert torch.equal(ours["optimizer.state.w.exp_avg"], state["optimizer"]["state"]["w"]["exp_avg"])


ZERO = sorted((FOLDERS[1] / "zero").glob("z*/latest"))


@pytest.mark.skipif(not ZERO, reason="no folders of DeepSpeed beside the checkout")
def test_folders_of_deepspeed_are_read_as_its_script_reads_them(rng):
    os.environ.setdefault("DS_ACCELERATOR", "cpu")
    script = pytest.importorskip("deepspeed.utils.zero_to_fp32")
    read = 0
    for latest in rng.sample(ZERO, 8):
        try:
            theirs = script.get_fp32_state_dict_from_zero_checkpoint(str(latest.parent))
        except Exception:  # pylint: disable=broad-except  # it refuses some of them, and so does safemap
            continue
        ours = safemap.state_dict(latest.parent, deepspeed_compat=True)
        theirs = {name: tensor.detach() for name, tensor in sorted(theirs.items())}
        require_same(dict(sorted(ours.items())), theirs, values=True)
        read += 1
    assert read


def test_threads_that_need_torch_first_do_not_wait_for_each_other(data):
    code = """
import sys, threading, safemap
checkpoint = safemap.open(sys.argv[1], root="")
tensors = []
threads = [threading.Thread(target=lambda t: tensors.append(t.torch()), args=(t,)) for t in checkpoint.values()[:8]]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()
assert len(tensors) == 8 and "torch" in sys.modules
"""
    subprocess.run([sys.executable, "-c", code, data / "pt" / "train_gpt.pt"], check=True, timeout=120)
