"""safemap.save() and safemap.ShardWriter."""

from __future__ import annotations

import gc
import io
import json
import os
import subprocess
import sys
import threading

import pytest

import safemap

np = pytest.importorskip("numpy")


def tensors():
    return {"w": np.arange(12, dtype="f4").reshape(3, 4), "v": np.arange(12, dtype="i2").reshape(3, 4).T,
            "b": np.float64(3.5), "empty": np.zeros((0, 2), "u1")}


def assert_equal(checkpoint, expected):
    assert sorted(checkpoint.keys()) == sorted(expected)
    for name, array in expected.items():
        np.testing.assert_array_equal(checkpoint[name].numpy(), array)


def test_a_dict_is_saved_to_a_file_and_to_a_folder(tmp_path):
    report = safemap.save(tmp_path / "m.safetensors", tensors())
    assert report.files == ["m.safetensors"] and report.tensors == 4
    assert report.bytes_written == os.path.getsize(tmp_path / "m.safetensors")
    assert_equal(safemap.open(tmp_path / "m.safetensors"), tensors())
    report = safemap.save(str(tmp_path / "out") + "/", tensors(), max_shard_size=48)
    assert report.files[-1] == "model.safetensors.index.json" and len(report.layout.files) == len(report.files)
    assert_equal(safemap.open(tmp_path / "out"), tensors())


def test_saved_files_are_read_by_the_reference(tmp_path):
    reference = pytest.importorskip("safetensors.numpy")
    safemap.save(tmp_path / "m.safetensors", tensors(), metadata={"a": "b"}, exact_metadata=True)
    for name, array in reference.load_file(tmp_path / "m.safetensors").items():
        np.testing.assert_array_equal(array, tensors()[name])
    expected = reference.save({"w": tensors()["w"]}, metadata={"a": "b"})
    out = io.BytesIO()
    safemap.save(out, {"w": tensors()["w"]}, metadata={"a": "b"}, exact_metadata=True)
    assert out.getvalue() == expected


def test_checkpoints_paths_lists_and_modules_are_saved(tmp_path):
    safemap.save(tmp_path / "a.safetensors", tensors())
    checkpoint = safemap.open(tmp_path / "a.safetensors")
    safemap.save(tmp_path / "b.safetensors", checkpoint)
    safemap.save(tmp_path / "c.safetensors", tmp_path / "a.safetensors")
    safemap.save(tmp_path / "d.safetensors", list(checkpoint.values()))
    safemap.save(tmp_path / "e.safetensors", checkpoint.select("w").renamed(lambda name: "x." + name))
    for name in "bcd":
        assert safemap.diff(tmp_path / f"{name}.safetensors", checkpoint).equal
    assert safemap.open(tmp_path / "e.safetensors").keys() == ["x.w"]
    torch = pytest.importorskip("torch")
    model = torch.nn.Linear(4, 3)
    safemap.save(tmp_path / "f.safetensors", model)
    assert safemap.diff(tmp_path / "f.safetensors", model.state_dict()).equal


def test_casts(tmp_path):
    model = {"a.w": np.ones((2, 2), "f4"), "a.b": np.ones(2, "f4"), "n": np.ones(2, "i8")}

    def dtypes(**options):
        safemap.save(tmp_path / "m.safetensors", model, overwrite=True, **options)
        return {name: tensor.dtype for name, tensor in safemap.open(tmp_path / "m.safetensors").items()}

    assert dtypes(dtype="bf16") == {"a.w": "BF16", "a.b": "BF16", "n": "I64"}
    assert dtypes(dtype=np.float16, keep_dtype="*.b") == {"a.w": "F16", "a.b": "F32", "n": "I64"}
    assert dtypes(dtype={"a.*": "f16", "*.b": "f64"}) == {"a.w": "F16", "a.b": "F64", "n": "I64"}
    assert dtypes(dtype="f16", dtype_of={"*.b": "f8_e4m3"})["a.b"] == "F8_E4M3"
    torch = pytest.importorskip("torch")
    assert dtypes(dtype=torch.bfloat16)["a.w"] == "BF16"
    report = safemap.save(tmp_path / "x", model, dtype="f16", plan_only=True)
    assert [(cast.from_, cast.to, cast.tensors) for cast in report.casts] == [("F32", "F16", 2)]
    assert not os.path.exists(tmp_path / "x")


def test_options_reach_the_library(tmp_path):
    out = tmp_path / "m"
    plans = []
    report = safemap.save(
        out, tensors(), stem="adapter_model", metadata={"license": "mit"}, alignment=64, align_tensors=True,
        strategy="balanced", index_style="transformers", structure="drop", untie=True, checksums=True, durable=False,
        drop_cache=True, allow_empty=False, max_header_bytes="1MB", threads=2, optimizer_dtype="f32",
        empty_metadata=False, resume=True, on_plan=plans.append)
    assert report.files == ["adapter_model.safetensors"]
    assert plans[0].files == report.files
    checkpoint = safemap.open(out / "adapter_model.safetensors")
    assert checkpoint.metadata["license"] == "mit" and "safemap.xxh3_128" in checkpoint.metadata
    safemap.save(tmp_path / "ranks", tensors(), ranks=2, rank_dimension=0)
    assert len([name for name in os.listdir(tmp_path / "ranks") if name.startswith("shard-")]) == 2
    (out / "config.json").write_text("{}")
    safemap.save(tmp_path / "copy", safemap.open(out), extras=True, folders={"optimizer": {"step": np.ones(1)}})
    assert sorted(os.listdir(tmp_path / "copy")) == ["adapter_model.safetensors", "config.json", "optimizer"]
    safemap.save(tmp_path / "extras", tensors(), extras=safemap.open(out))
    assert (tmp_path / "extras" / "config.json").exists()


@pytest.mark.parametrize("options", [
    {"x": 1}, {"dtype": 1}, {"dtype": {"w": 3}}, {"threads": "2"}, {"overwrite": 1}, {"metadata": {"a": 1}},
    {"metadata": "text"}, {"max_shard_size": 1.5}, {"stem": 1}, {"progress": 3}, {"on_plan": 3}, {"folders": [1]},
    {"extras": 3}, {"alignment": "8"}, {"keep_dtype": 3}, {"strategy": None}])
def test_wrong_types_of_options(tmp_path, options):
    with pytest.raises(TypeError):
        safemap.save(tmp_path / "m", tensors(), **options)
    assert os.listdir(tmp_path) == []


@pytest.mark.parametrize("options", [
    {"dtype": "q7"}, {"strategy": "x"}, {"index_style": "x"}, {"structure": "x"}, {"alignment": 7}, {"threads": -1},
    {"max_shard_size": "5XB"}, {"stem": "a/b"}, {"one_file": True, "ranks": 2}])
def test_wrong_values_of_options(tmp_path, options):
    with pytest.raises(ValueError) as error:
        safemap.save(tmp_path / "m", tensors(), **options)
    assert isinstance(error.value, safemap.SafemapError)
    assert os.listdir(tmp_path) == []


def test_what_is_no_checkpoint_and_no_output(tmp_path):
    for what in (None, 3, object(), {"a": object()}, {"a": [dict]}, {"a": {"b": int}}, [1], lambda: 1):
        with pytest.raises(TypeError):
            safemap.save(tmp_path / "m", what)
    for out in (None, 3, b"m", object(), {"a": 1}):
        with pytest.raises(TypeError):
            safemap.save(out, tensors())


def test_names_of_other_formats_are_refused(tmp_path):
    out = tmp_path / "model.pt"
    for call in (safemap.save, safemap.ShardWriter):
        with pytest.raises(ValueError, match="ends in .pt, but safemap writes safetensors"):
            call(out, tensors())
    assert not out.exists()
    assert safemap.save(out, tensors(), one_file=True).files == ["model.pt"]
    with pytest.raises(ValueError, match="ends in .ckpt"):
        safemap.repair(out, tmp_path / "m.ckpt")


def test_nothing_is_replaced_unless_asked(tmp_path):
    out = tmp_path / "m.safetensors"
    safemap.save(out, tensors())
    with pytest.raises(FileExistsError) as error:
        safemap.save(out, {"other": np.zeros(1)})
    assert error.value.code == "already_exists"
    assert_equal(safemap.open(out), tensors())
    safemap.save(out, {"other": np.zeros(1)}, overwrite=True)
    assert safemap.open(out).keys() == ["other"]


def test_a_model_may_be_saved_over_the_file_that_it_is_mapped_from(tmp_path):
    out = tmp_path / "m.safetensors"
    safemap.save(out, tensors())
    checkpoint = safemap.open(out)
    safemap.save(out, {name: tensor.numpy() for name, tensor in checkpoint.items()}, overwrite=True)
    assert_equal(safemap.open(out), tensors())
    assert_equal(checkpoint, tensors())


def test_tied_tensors_are_stored_once(tmp_path):
    torch = pytest.importorskip("torch")
    weight = torch.ones(2, 3)
    state = {"lm_head.weight": weight, "model.embed_tokens.weight": weight, "other": weight[0]}
    report = safemap.save(tmp_path / "m.safetensors", state)
    assert report.tensors == 2
    checkpoint = safemap.open(tmp_path / "m.safetensors")
    assert checkpoint.metadata["lm_head.weight"] == "model.embed_tokens.weight"
    assert checkpoint["lm_head.weight"].torch().tolist() == weight.tolist()
    assert safemap.save(tmp_path / "u.safetensors", state, untie=True).tensors == 3


# File objects.


class Plain:
    """A binary file object that takes at most `most` bytes at once."""

    def __init__(self, file, most=1 << 30):
        self.file, self.most = file, most

    def write(self, part):
        return self.file.write(part[: self.most])

    def __getattr__(self, name):
        return getattr(self.file, name)


class Pipe:
    """A file object that cannot seek."""

    def __init__(self):
        self.parts = []

    def write(self, part):
        self.parts.append(bytes(part))
        return len(part)


def test_file_objects_get_one_file_from_their_position_on(tmp_path):
    expected = io.BytesIO()
    safemap.save(expected, tensors(), checksums=True)
    for make in (io.BytesIO, lambda: open(tmp_path / "f", "wb"), lambda: open(tmp_path / "g", "w+b", buffering=0),
                 lambda: Plain(io.BytesIO(), 7)):
        out = make()
        out.write(b"before")
        safemap.save(out, tensors(), checksums=True)
        out.write(b"after")
        out.flush()
        found = open(out.name, "rb").read() if hasattr(out, "name") else out.getvalue()
        assert found == b"before" + expected.getvalue() + b"after"
    pipe = Pipe()
    safemap.save(pipe, tensors(), checksums=True)
    assert b"".join(pipe.parts) == expected.getvalue()


def test_a_save_to_a_real_pipe():
    read, write = os.pipe()
    with open(read, "rb") as source, open(write, "wb") as sink:
        safemap.save(sink, tensors())
        sink.close()
        assert_equal(safemap.open(source.read()), tensors())


def test_faults_of_file_objects_pass_and_leave_nothing():
    class Broken(io.BytesIO):
        def write(self, part):
            raise RuntimeError("the disk is on fire")

    class Full(io.BytesIO):
        def write(self, part):
            return 0

    class Silent(io.BytesIO):
        def write(self, part):
            return None

    for kind, wanted in ((Broken, RuntimeError), (Full, OSError), (Silent, OSError)):
        out = kind()
        with pytest.raises(wanted):
            safemap.save(out, tensors())
        assert out.getvalue() == b"" and out.tell() == 0
    with pytest.raises(TypeError):
        safemap.save(io.StringIO(), tensors())
    closed = io.BytesIO()
    closed.close()
    with pytest.raises(ValueError):
        safemap.save(closed, tensors())


# Progress.


def test_progress_is_called_on_the_calling_thread(tmp_path):
    calls = []
    big = {"w": np.zeros(8 << 20, "u1")}

    def progress(stage, done, total):
        calls.append((threading.get_ident(), stage, done, total))

    safemap.save(tmp_path / "m.safetensors", big, progress=progress)
    assert {call[0] for call in calls} == {threading.get_ident()}
    assert calls[-1][1:] == ("converting", 8 << 20, 8 << 20)


def test_progress_cancels_by_false_and_its_exceptions_pass(tmp_path):
    big = {"w": np.zeros(8 << 20, "u1")}
    with pytest.raises(safemap.SafemapError) as error:
        safemap.save(tmp_path / "m.safetensors", big, progress=lambda *_: False)
    assert error.value.code == "cancelled" and error.value.exit_code == 130
    with pytest.raises(ZeroDivisionError):
        safemap.save(tmp_path / "m.safetensors", big, progress=lambda *_: 1 // 0)
    with pytest.raises(ZeroDivisionError):
        safemap.save(tmp_path / "m.safetensors", big, on_plan=lambda _: 1 // 0)
    out = io.BytesIO()
    with pytest.raises(ZeroDivisionError):
        safemap.save(out, big, progress=lambda *_: 1 // 0)
    assert os.listdir(tmp_path) == [] and out.getvalue() == b""


@pytest.mark.parametrize("installed", [True, False])
def test_progress_bar(tmp_path, capsys, monkeypatch, installed):
    if installed:
        pytest.importorskip("tqdm")
    else:
        monkeypatch.setitem(sys.modules, "tqdm.auto", None)
    safemap.save(tmp_path / "m.safetensors", tensors(), progress=True)
    gc.collect()
    error = capsys.readouterr().err
    assert "converting" in error and "100%" in error and error.endswith("\n")
    safemap.save(tmp_path / "n.safetensors", tensors(), progress=False)
    assert capsys.readouterr().err == ""


# ShardWriter.


def test_a_shard_writer_commits_when_its_block_ends(tmp_path):
    torch = pytest.importorskip("torch")
    out = tmp_path / "out"
    with safemap.ShardWriter(out, {"w": ("F32", (2, 3)), "b": (np.float16, [4]), "c": torch.zeros(2, 2)}) as writer:
        writer["w"] = torch.ones(3, 2).T
        writer.write_range("b", 0, b"\0\0" * 2)
        writer.write_range("b", 4, np.ones(2, "f4"))
        writer.write_box("c", (1, 0), np.full((1, 2), 5.0))
        writer.write_box("c", [0, 0], safemap.Checkpoint.of({"x": np.zeros((1, 2), "f4")})["x"])
        assert os.listdir(tmp_path) != ["out"] and writer.report is None
    assert writer.report.tensors == 3
    found = safemap.open(out)
    assert found["w"].numpy().tolist() == [[1] * 3] * 2
    assert found["b"].numpy().tolist() == [0, 0, 1, 1]
    assert found["c"].numpy().tolist() == [[0, 0], [5, 5]]
    with pytest.raises(safemap.SafemapError) as error:
        writer["w"] = torch.ones(2, 3)
    assert error.value.code == "writer_closed"


def test_an_exception_in_the_block_removes_everything(tmp_path):
    for fault in (ZeroDivisionError, KeyboardInterrupt):
        with pytest.raises(fault):
            with safemap.ShardWriter(tmp_path / "out", {"w": ("F32", (2,))}) as writer:
                writer["w"] = np.ones(2, "f4")
                raise fault
        assert os.listdir(tmp_path) == []


def test_faults_of_a_shard_writer(tmp_path):
    with pytest.raises(safemap.SafemapError) as error:
        with safemap.ShardWriter(tmp_path / "out", {"w": ("F32", (2,))}):
            pass
    assert error.value.code == "not_written" and os.listdir(tmp_path) == []
    with safemap.ShardWriter(tmp_path / "out", {"w": ("F32", (4,))}) as writer:
        faults = {
            "tensor_not_found": lambda: writer.write("x", np.zeros(4)),
            "invalid_argument": lambda: writer.write("w", np.zeros(5)),
            "index_out_of_range": lambda: writer.write_range("w", 12, np.zeros(4, "f4")),
            "unsupported_cast": lambda: writer.write("w", np.zeros(4, "i4")),
        }
        for code, call in faults.items():
            with pytest.raises(safemap.SafemapError) as error:
                call()
            assert error.value.code == code
        for value in (None, 3, "text", [1.0], object()):
            with pytest.raises(TypeError):
                writer["w"] = value
        for arguments in (("w", "0", b""), ("w", -1, b""), (3, 0, b""), ("w", 1.5, b"")):
            with pytest.raises(TypeError):
                writer.write_range(*arguments)
        with pytest.raises(TypeError):
            writer.write_box("w", (0,), b"bytes")
        with pytest.raises(TypeError):
            writer.write_box("w", 0, np.zeros(1))
        writer["w"] = np.zeros(4, "f4")
        with pytest.raises(safemap.SafemapError) as error:
            writer["w"] = np.zeros(4, "f4")
        assert error.value.code == "written_twice"
    for declared in ([1], {"w": 3}, {"w": ("F32",)}, {"w": ("F32", 3)}, {"w": ("F32", "3")}, {"w": (3, (3,))}, None):
        with pytest.raises(TypeError):
            safemap.ShardWriter(tmp_path / "x", declared)
    with pytest.raises(ValueError):
        safemap.ShardWriter(tmp_path / "x", {"w": ("F32", (-1,))})
    with pytest.raises(TypeError):
        safemap.ShardWriter(tmp_path / "x", {}, nonsense=1)
    with pytest.raises(ValueError):
        safemap.ShardWriter(tmp_path / "x", {"w": ("F32", (1,))}, dtype="bf16")


def test_threads_share_a_shard_writer(tmp_path):
    names = [f"t{i}" for i in range(64)]
    with safemap.ShardWriter(tmp_path / "out", {name: ("I32", (1000,)) for name in names}, checksums=True) as writer:
        def write(first):
            for i in range(first, 64, 8):
                writer[f"t{i}"] = np.full(1000, i, "i4")
        threads = [threading.Thread(target=write, args=(i,)) for i in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert all((safemap.open(tmp_path / "out")[f"t{i}"].numpy() == i).all() for i in range(64))
    assert safemap.verify(tmp_path / "out").ok


def test_a_shard_writer_closed_while_threads_write(tmp_path):
    writer = safemap.ShardWriter(tmp_path / "out", {f"t{i}": ("U8", (1 << 20,)) for i in range(64)})
    faults = []

    def write(first):
        try:
            for i in range(first, 64, 4):
                writer[f"t{i}"] = np.zeros(1 << 20, "u1")
        except safemap.SafemapError as error:
            faults.append(error.code)

    threads = [threading.Thread(target=write, args=(i,)) for i in range(4)]
    for thread in threads:
        thread.start()
    writer.close()
    for thread in threads:
        thread.join()
    assert set(faults) <= {"writer_closed"} and os.listdir(tmp_path) == []


def test_writers_that_a_process_leaves_behind_leave_nothing(tmp_path):
    script = f"""
import numpy, safemap
writer = safemap.ShardWriter({str(tmp_path / "a")!r}, {{"w": ("F32", (2,))}})
class Holder: pass
cycle = Holder(); cycle.me = cycle
cycle.writer = safemap.ShardWriter({str(tmp_path / "b")!r}, {{"w": ("F32", (2,))}})
del cycle
writer["w"] = numpy.ones(2, "f4")
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, env=dict(os.environ))
    assert (done.returncode, done.stderr) == (0, "") and os.listdir(tmp_path) == []


def test_an_index_has_what_the_report_says(tmp_path):
    report = safemap.save(tmp_path / "m", {f"t{i}": np.full(10, i) for i in range(5)}, max_shard_size="100")
    index = json.loads((tmp_path / "m" / "model.safetensors.index.json").read_text())
    assert sorted(set(index["weight_map"].values())) == report.files[:-1]
    assert "SaveReport" in repr(report) and "6 in all" in repr(report)
