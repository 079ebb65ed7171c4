"""plan, diff, digests, verify, examine, scan, edit and repair."""

from __future__ import annotations

import hashlib
import json
import os
import pathlib

import pytest

import safemap

np = pytest.importorskip("numpy")


@pytest.fixture
def model(tmp_path):
    """A folder with a model, and its tensors."""
    tensors = {"a.w": np.arange(6, dtype="f4").reshape(2, 3), "a.b": np.ones(3, "f4"), "n": np.arange(4)}
    safemap.save(tmp_path / "model", tensors, checksums=True)
    return tmp_path / "model", tensors


# diff


def test_equal_checkpoints_whatever_they_are(model):
    path, tensors = model
    both = [path, str(path), safemap.open(path), tensors, list(safemap.open(path).values()),
            safemap.Checkpoint.of(tensors), (path / "model.safetensors").read_bytes()]
    for a in both:
        for b in both:
            report = safemap.diff(a, b)
            assert report.equal and report.tensors == 3


def test_differences_have_names_values_and_indices(model):
    path, tensors = model
    other = dict(tensors, new=np.zeros(1))
    other["a.w"] = tensors["a.w"].copy()
    other["a.w"][1, 2] = 7
    other["a.b"] = tensors["a.b"].astype("f8")
    other["n"] = tensors["n"][:2]
    del other["new"]
    other["extra"] = np.zeros(1)
    report = safemap.diff(path, other)
    assert not report.equal and report.only_in_b == ["extra"] and report.only_in_a == []
    found = {one.name: one for one in report.different}
    assert (found["a.w"].what, found["a.w"].index, found["a.w"].a.value, found["a.w"].b.value) == (
        "value", (1, 2), "5", "7")
    assert (found["a.b"].what, found["a.b"].a.dtype, found["a.b"].b.dtype) == ("dtype", "F32", "F64")
    assert (found["n"].what, found["n"].b.shape, found["n"].index) == ("shape", (2,), None)
    assert "different=[Difference(name='" in repr(report)
    with pytest.raises(TypeError, match="equal"):
        bool(report)


def test_tolerances_casts_patterns_and_names(model):
    path, tensors = model
    near = {name: array + 1e-3 if array.dtype.kind == "f" else array for name, array in tensors.items()}
    assert not safemap.diff(path, near).equal
    assert safemap.diff(path, near, atol=2e-3).close[0].max_abs == pytest.approx(1e-3, rel=1e-2)
    assert not safemap.diff(path, near, rtol=1e-6).equal
    assert safemap.diff(path, near, patterns=["n"]).equal
    assert safemap.diff(path, {"a.w": tensors["a.w"].astype("f8")}, cast=True, patterns="a.w").equal
    renamed = {"x." + name: array for name, array in tensors.items()}
    assert safemap.diff(path, renamed, rename=lambda name: "x." + name).equal
    assert safemap.diff(path, renamed, rename={name: "x." + name for name in tensors}).equal
    for options in ({"atol": "1"}, {"rename": 3}, {"rename": lambda name: 3}, {"cast": "yes"}, {"patterns": 3},
                    {"threads": -1}, {"threads": "1"}, {"unknown": 1}):
        with pytest.raises(TypeError):
            safemap.diff(path, path, **options)
    for options in ({"atol": -1}, {"rtol": float("nan")}, {"atol": float("inf")}, {"rename": lambda name: "same"}):
        with pytest.raises(ValueError):
            safemap.diff(path, path, **options)
    with pytest.raises(ZeroDivisionError):
        safemap.diff(path, path, rename=lambda name: 1 // 0)
    for arguments in ((None, path), (path, 3), ({"a": object()}, path)):
        with pytest.raises(TypeError):
            safemap.diff(*arguments)


# digests


def test_digests_do_not_depend_on_the_format(model, tmp_path):
    path, tensors = model
    found = safemap.digests(path)
    assert found == safemap.digests(tensors) == safemap.digests(safemap.open(path))
    assert list(found.tensors) == safemap.open(path).keys() and len(found.checkpoint) == 32
    stored = json.loads(safemap.open(path).metadata["safemap.xxh3_128"])
    assert stored == found.tensors
    assert list(safemap.digests(path, patterns="a.*").tensors) == [name for name in found.tensors if name[0] == "a"]
    for name, tensor in safemap.open(path).items():
        assert tensor.digest() == found.tensors[name]
        assert tensor.digest("sha256") == hashlib.sha256(tensors[name].tobytes()).hexdigest()
    assert safemap.digests(path, algorithm="sha256").tensors["n"] == hashlib.sha256(tensors["n"].tobytes()).hexdigest()
    assert safemap.open(path)["a.w"][1:].digest() == safemap.Checkpoint.of({"x": tensors["a.w"][1:]})["x"].digest()
    with pytest.raises(ValueError):
        safemap.digests(path, algorithm="md5")
    with pytest.raises(TypeError):
        safemap.digests(path, algorithm=3)


# verify, examine


def test_verify_lists_every_fault(model):
    path, _ = model
    report = safemap.verify(path)
    assert report and report.ok and report.checked_bytes == report.bytes == 6 * 4 + 3 * 4 + 4 * 8
    assert safemap.verify(safemap.open(path)).ok
    file = path / "model.safetensors"
    damaged = bytearray(file.read_bytes())
    damaged[-1] ^= 1
    file.write_bytes(damaged)
    report = safemap.verify(str(path))
    assert not report and not report.ok and {fault.code for fault in report.faults} == {"checksum_mismatch"}
    assert isinstance(report.faults[0], safemap.SafemapError) and "checksum_mismatch" not in repr(report)[:30]
    with pytest.raises(FileNotFoundError):
        safemap.verify(path / "nothing")
    for bad in (None, 3, {"a": np.zeros(1)}):
        with pytest.raises(TypeError):
            safemap.verify(bad)
    with pytest.raises(TypeError):
        safemap.verify(path, nonsense=1)
    with pytest.raises(ValueError):
        safemap.verify(safemap.Checkpoint.of({"a": np.zeros(1)}))


def test_examine_does_not_run_a_pickle(tmp_path):
    import pickle

    class Evil:
        def __reduce__(self):
            return os.system, (f"touch {tmp_path / 'ran'}",)

    (tmp_path / "evil.pt").write_bytes(pickle.dumps({"w": Evil()}))
    found = safemap.examine(tmp_path / "evil.pt")
    assert found.verdict == "runs code" and found.findings[0].name == "posix.system"
    assert safemap.verify(tmp_path / "evil.pt").verdict == "runs code"
    assert not (tmp_path / "ran").exists()


# scan


def test_scan_finds_checkpoints_and_faults(model):
    path, _ = model
    (path.parent / "bad.safetensors").write_bytes((99).to_bytes(8, "little") + b"{}")
    (path.parent / "notes.txt").write_text("no checkpoint")
    report = safemap.scan(path.parent)
    found = {pathlib.Path(one.path).name: one for one in report.found}
    assert found["bad.safetensors"].fault.code == "header_past_end" and found["bad.safetensors"].checkpoint is None
    good = next(one for one in report.found if one.fault is None)
    assert len(good.checkpoint) == 3 and good.verdict == "ok" and report.not_opened >= 1
    assert len(safemap.scan([path, path.parent / "bad.safetensors"]).found) == 2
    assert safemap.scan(path.parent, excludes=["bad*"]).found == [good] or len(
        safemap.scan(path.parent, excludes=["bad*"]).found) == 1
    with pytest.raises(FileNotFoundError):
        safemap.scan(path / "nothing")
    for bad in (None, 3, [3]):
        with pytest.raises(TypeError):
            safemap.scan(bad)
    import pickle
    again = pickle.loads(pickle.dumps(good.checkpoint))
    assert again.keys() == good.checkpoint.keys()


# edit, repair


def test_edit_changes_metadata_and_names(model):
    file = model[0] / "model.safetensors"
    report = safemap.edit(file, set={"license": "mit"}, rename=lambda name: name.replace("a.", "b."))
    assert report.changed and report.renamed == 2 and report.metadata["license"] == "mit"
    assert sorted(safemap.open(file).keys()) == ["b.b", "b.w", "n"]
    assert not safemap.edit(file, set={"license": "mit"}).changed
    safemap.edit(file, unset=["license"], rename={"n": "m"})
    assert "license" not in safemap.open(file).metadata and "m" in safemap.open(file)
    with pytest.raises(ValueError):
        safemap.edit(file, rename={"nothing": "x"})
    for options in ({"set": [1]}, {"unset": 3}, {"rename": 3}, {"nonsense": 1}):
        with pytest.raises(TypeError):
            safemap.edit(file, **options)
    assert safemap.verify(file).ok


def test_repair_writes_a_conforming_copy(tmp_path):
    header = json.dumps({"a": {"dtype": "U8", "shape": [2], "data_offsets": [4, 6]}}).encode()
    (tmp_path / "gap.safetensors").write_bytes(len(header).to_bytes(8, "little") + header + b"....ab")
    with pytest.raises(safemap.SafemapError):
        safemap.open(tmp_path / "gap.safetensors")
    report = safemap.repair(tmp_path / "gap.safetensors", tmp_path / "good.safetensors", checksums=True, threads=1)
    assert report.repairs and report.saved.tensors == 1
    assert safemap.open(tmp_path / "good.safetensors")["a"].numpy().tobytes() == b"ab"
    with pytest.raises(TypeError):
        safemap.repair(tmp_path / "gap.safetensors", tmp_path / "x.safetensors", nonsense=1)


# plan


def test_a_plan_lists_what_does_not_match(model):
    path, tensors = model
    expected = {"a.w": ("F32", (2, 3)), "a.b": (np.float16, [3]), "n": np.zeros(5, "i8"), "more": ("BF16", ())}
    plan = safemap.plan(path, expected)
    assert not plan and not plan.ok
    assert [one.name for one in plan.missing] == ["more"] and plan.missing[0].shape == ()
    assert [(one.expected.name, one.found.shape) for one in plan.shape] == [("n", (4,))]
    assert [(one.expected.dtype, one.found.dtype) for one in plan.dtype] == [("F16", "F32")]
    assert "more" in plan.text and "1 missing" in repr(plan)
    with pytest.raises(safemap.SafemapError) as error:
        plan.tensors()
    assert error.value.code == "model_mismatch"
    good = safemap.plan(path, {"a.w": tensors["a.w"]}, ignore_unexpected=True)
    assert good and [one.name for one in good.unexpected] == ["a.b", "n"] or len(good.unexpected) == 2
    assert good.tensors()[0].numpy().tolist() == tensors["a.w"].tolist()
    zeros = safemap.plan(path, {"zero": ("F32", (2,))}, fill="zeros", ignore_unexpected=True).tensors()
    assert zeros[0].numpy().tolist() == [0, 0]
    assert safemap.plan(path, path) and safemap.plan(path, safemap.open(path))
    for bad in (None, 3, {"w": 3}, {"w": ("F32",)}, {3: ("F32", (1,))}, [1]):
        with pytest.raises(TypeError):
            safemap.plan(path, bad)
    with pytest.raises(ValueError):
        safemap.plan(path, expected, fill="ones")


def test_a_plan_for_a_module_on_any_device(tmp_path):
    torch = pytest.importorskip("torch")

    def module(device):
        made = torch.nn.Module()
        made.embed = torch.nn.Embedding(5, 4, device=device)
        made.head = torch.nn.Linear(4, 5, bias=False, device=device)
        made.head.weight = made.embed.weight
        made.norm = torch.nn.BatchNorm1d(4, device=device)
        return made

    model = module("cpu")
    torch.save(model.state_dict(), tmp_path / "m.pt")
    body = {name: one for name, one in model.state_dict().items() if "head" not in name}
    safemap.save(tmp_path / "m.safetensors", body)
    for device in ("cpu", "meta"):
        for path in ("m.pt", "m.safetensors"):
            plan = safemap.plan(tmp_path / path, module(device))
            assert plan.ok, plan.text
            assert {"embed.weight", "head.weight"} <= set(sum(plan.tied, []))
            found = {one.name: one.torch() for one in plan.tensors()}
            assert torch.equal(found["head.weight"], model.embed.weight)
    assert not safemap.plan(tmp_path / "m.pt", torch.nn.Linear(2, 2, device="meta"))


def test_a_prefix_is_found(model):
    path, tensors = model
    plan = safemap.plan(path, {"module." + name: array for name, array in tensors.items()})
    assert plan.model_prefix == "module." and plan.notes
