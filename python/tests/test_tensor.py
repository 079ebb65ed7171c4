"""LazyTensor and Checkpoint besides values: bytes, the page cache, tables for notebooks, extras."""

from __future__ import annotations

import numbers

import pytest

import safemap

np = pytest.importorskip("numpy")


@pytest.fixture
def model(tmp_path):
    tensors = {f"layers.{i}.w": np.arange(6, dtype="f4").reshape(2, 3) + i for i in range(4)}
    safemap.save(tmp_path / "m", {**tensors, "t": tensors["layers.0.w"].T.copy(), "empty": np.zeros((0, 2))})
    return tmp_path / "m"


@pytest.mark.parametrize("access", ["private_copy", "mapped", "copied", "automatic"])
def test_bytes_of_a_tensor(model, access):
    tensor = safemap.open(model, access=access)["layers.1.w"]
    expected = tensor.numpy()
    assert tensor.tobytes() == tensor.read() == expected.tobytes()
    assert tensor.read(4, 8) == expected.tobytes()[4:12]
    assert tensor.read(24) == b"" and tensor.read(20) == expected.tobytes()[20:]
    assert tensor[:, ::-2].tobytes() == expected[:, ::-2].tobytes()
    assert tensor.to("f16").tobytes() == expected.astype("f2").tobytes()
    with pytest.raises(IndexError):
        tensor.read(5, 20)
    with pytest.raises(IndexError):
        tensor.read(25)
    with pytest.raises(ValueError):
        tensor.read(1, 2)
    for arguments in ((-1,), ("1",), (0, -1), (0, 1.5)):
        with pytest.raises(TypeError):
            tensor.read(*arguments)


@pytest.mark.parametrize("access", ["private_copy", "mapped", "copied"])
def test_large_values_are_loaded_in_parallel(tmp_path, access, rng):
    array = np.frombuffer(rng.randbytes(9 << 20), "u2").reshape(3, -1)
    safemap.save(tmp_path / "m.safetensors", {"w": array, "f": array.view("f2")}, overwrite=True)
    checkpoint = safemap.open(tmp_path / "m.safetensors", access=access)
    tensor = checkpoint["w"]
    for found, wanted in ((tensor, array), (tensor[:, ::-1], array[:, ::-1]), (tensor[1:], array[1:])):
        np.testing.assert_array_equal(found.numpy(copy=True), wanted)
        assert found.tobytes() == wanted.tobytes()
    cast = checkpoint["f"].to("f32").numpy()
    np.testing.assert_array_equal(cast, array.view("f2").astype("f4"))
    assert cast.ctypes.data % 64 == 0
    assert tensor.numpy(copy=True).flags.writeable


def test_bytes_as_u8(model):
    checkpoint = safemap.open(model)
    tensor = checkpoint["layers.2.w"].as_bytes()
    assert (tensor.dtype, tensor.shape) == ("U8", (2, 12))
    assert tensor.numpy().tobytes() == checkpoint["layers.2.w"].tobytes()
    torch = pytest.importorskip("torch")
    assert torch.equal(tensor.torch().view(torch.float32), checkpoint["layers.2.w"].torch())
    tensor.torch().zero_()
    assert checkpoint["layers.2.w"].torch().sum() == 0  # the same memory


def test_bits_of_torch(tmp_path):
    torch = pytest.importorskip("torch")
    for name in ("bits8", "bits16", "bits1x8", "bits2x4", "bits4x2"):
        dtype = getattr(torch, name)
        bits = torch.arange(8, dtype=torch.uint8).reshape(2, 4).view(dtype)
        found = safemap.Checkpoint.of({"b": bits, "s": bits[0, 0]})
        assert found["b"].dtype == name
        for key, tensor in (("b", bits), ("s", bits[0, 0])):
            value = found[key].torch()
            assert value.dtype == dtype and value.shape == tensor.shape
            assert value.reshape(-1).view(torch.uint8).tolist() == tensor.reshape(-1).view(torch.uint8).tolist()


def test_digest_of_a_tensor(model):
    tensor = safemap.open(model)["layers.0.w"]
    assert len(tensor.digest()) == 32 and tensor.digest() == safemap.Checkpoint.of({"x": tensor.numpy()})["x"].digest()
    assert tensor[1].digest() != tensor[0].digest()
    for wrong in (3, None):
        with pytest.raises(TypeError):
            tensor.digest(wrong)
    with pytest.raises(ValueError):
        tensor.digest("md5")


def test_page_cache(model):
    checkpoint = safemap.open(model)
    tensor = checkpoint["layers.0.w"]
    tensor.prefetch()
    assert isinstance(tensor.residency().resident, numbers.Integral) and tensor.residency().total > 0
    calls = []
    tensor.prefetch(progress=lambda *call: calls.append(call), threads=2)
    assert all(stage == "prefetching" for stage, _, _ in calls)
    tensor.evict()
    assert tensor.numpy()[1, 2] == 5
    assert safemap.Checkpoint.of({"a": np.zeros(3)})["a"].residency().total in (0, 24, 4096)


def test_tables_for_notebooks(model):
    html = safemap.open(model)._repr_html_()
    assert "layers.{0..3}.w</code> &times; 4" in html and "F32 [2, 3]" in html and "6 tensors" in html
    names = ["<script>alert(1)</script>&\"'", "\x1b[2J"]
    hostile = safemap.Checkpoint.of({name: np.zeros(1) for name in names})._repr_html_()
    assert "<script" not in hostile and "&lt;script&gt;" in hostile and "\x1b" not in hostile
    many = safemap.Checkpoint.of({f"{'x' * i}y": np.zeros(i) for i in range(1000)})._repr_html_()
    assert "and 800 other rows" in many


def test_extras_and_stored_names(model, tmp_path):
    (model / "config.json").write_text("{}")
    extras = safemap.open(model).extras()
    assert extras.files == {"config.json": str(model / "config.json")} and extras.notes == []
    assert safemap.Checkpoint.of({"a": np.zeros(1)}).extras().files == {}
    weight = np.ones(2)
    tied = safemap.Checkpoint.of({"lm_head.weight": weight, "embed_tokens.weight": weight})
    assert tied.ties == [["embed_tokens.weight", "lm_head.weight"]]
    assert tied.stored_as(["lm_head.weight"]).ties == [["lm_head.weight", "embed_tokens.weight"]]
    assert tied.stored_as("lm_head.weight").stored_as().ties == tied.ties
    with pytest.raises(KeyError):
        tied.stored_as(["nothing"])
    with pytest.raises(TypeError):
        tied.stored_as(3)
    safemap.save(tmp_path / "tied.safetensors", tied)
    import pickle

    again = pickle.loads(pickle.dumps(safemap.open(tmp_path / "tied.safetensors").stored_as(["lm_head.weight"])))
    assert again.ties == [["lm_head.weight", "embed_tokens.weight"]]


def test_rows(model):
    tensor = safemap.open(model)["layers.1.w"]
    assert [row.shape for row in tensor] == [(3,), (3,)]
    with pytest.raises(TypeError, match="0-d"):
        iter(tensor[0, 0])


def test_arguments_that_are_none_or_cannot_be_cast_to(model):
    tensor = safemap.open(model)["layers.1.w"]
    with pytest.raises(TypeError, match="expected integers, slices"):
        tensor[None]
    with pytest.raises(TypeError, match="expected a dtype such as"):
        tensor.to(None)
    with pytest.raises(TypeError, match="expected a path"):
        safemap.open(None)
    with pytest.raises(safemap.SafemapError, match="no cast from F32 to I64") as caught:
        tensor.to("int64")
    assert ".numpy().astype(dtype)" in caught.value.hint
