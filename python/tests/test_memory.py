"""Lazy tensors over the memory of tensors of NumPy, torch and others."""

from __future__ import annotations

import gc
import threading
import weakref

import pytest

import safemap

np = pytest.importorskip("numpy")


def one(tensor):
    return safemap.Checkpoint.of({"t": tensor})["t"]


def test_a_numpy_array_is_shared_not_copied():
    array = np.arange(6, dtype="f4").reshape(2, 3)
    tensor = one(array)
    array[0, 0] = 7
    assert (tensor.dtype, tensor.shape, tensor.nbytes) == ("F32", (2, 3), 24)
    assert np.shares_memory(tensor.numpy(), array)
    assert tensor.numpy()[0, 0] == 7


def layouts():
    base = np.arange(2 * 3 * 4).reshape(2, 3, 4)
    yield base
    yield base.T
    yield base[::-1, :, ::-2]
    yield base[:, 1:, 1:3]
    yield base[1:1]
    yield np.broadcast_to(base[0, 0], (3, 4))
    yield np.array(5)
    yield np.zeros((0, 3))
    yield np.zeros((2, 3), order="F")
    yield np.int16(7)
    yield np.zeros(4, dtype=[("a", "f4"), ("b", "i2")])["b"]


@pytest.mark.parametrize("array", list(layouts()), ids=lambda array: str(np.shape(array)))
@pytest.mark.parametrize("order", ["<", ">"])
def test_any_strides_and_byte_order(array, order):
    array = array if isinstance(array, np.generic) else array.astype(array.dtype.newbyteorder(order), copy=False)
    tensor = one(array)
    assert tensor.shape == array.shape
    np.testing.assert_array_equal(tensor.numpy(), array)
    np.testing.assert_array_equal(tensor[...].numpy(copy=True), array)


@pytest.mark.parametrize("name", "bool uint8 int8 uint16 int16 float16 uint32 int32 float32 uint64 int64 float64 "
                                 "complex64 complex128".split())
def test_dtypes_of_numpy(name):
    array = np.array([[1, 0], [1, 1]]).astype(name)
    assert one(array).numpy().dtype == array.dtype
    np.testing.assert_array_equal(one(array).numpy(), array)


@pytest.mark.parametrize("name", "bfloat16 float8_e4m3fn float8_e5m2 float8_e4m3fnuz float8_e5m2fnuz".split())
def test_dtypes_of_ml_dtypes(name):
    ml_dtypes = pytest.importorskip("ml_dtypes")
    array = np.arange(5).astype(getattr(ml_dtypes, name))
    assert one(array).numpy().tobytes() == array.tobytes()
    assert one(array).numpy().dtype == array.dtype


@pytest.mark.parametrize("array", [
    np.array([object()]), np.zeros(2, dtype=[("a", "f4"), ("b", "i2")]),
    np.ma.masked_array([1, 2], mask=[0, 1]), np.zeros(2, dtype="g"),
], ids=lambda array: str(array.dtype))
def test_arrays_without_a_dtype_are_type_errors_that_name_the_tensor(array):
    with pytest.raises(TypeError, match="bad.name"):
        safemap.Checkpoint.of({"bad.name": array})


def test_types_of_ml_dtypes_with_padded_elements_are_refused():
    ml_dtypes = pytest.importorskip("ml_dtypes")
    for name in ("float4_e2m1fn", "int4", "float6_e2m3fn", "float8_e4m3", "float8_e3m4"):
        with pytest.raises(TypeError, match=name):
            one(np.zeros(4, dtype=getattr(ml_dtypes, name)))


@pytest.mark.parametrize("value", [object(), np.ndarray, lambda: 0, np.array])
def test_values_that_are_no_tensors_are_type_errors_that_name_the_tensor(value):
    with pytest.raises(TypeError, match="bad.name"):
        safemap.Checkpoint.of({"bad.name": value})


def test_values_that_hold_no_tensors():
    for value in (None, 1, "text", dict, object()):
        with pytest.raises(TypeError):
            safemap.Checkpoint.of(value)


class Owned(np.ndarray):
    """An array that can be watched."""


def test_the_array_lives_as_long_as_a_view_whatever_thread_lets_go_of_it():
    array = np.zeros(8).view(Owned)
    watch = weakref.ref(array)
    held = [one(array)[2:].numpy()]
    del array
    gc.collect()
    assert watch() is not None
    thread = threading.Thread(target=held.clear)
    thread.start()
    thread.join()
    gc.collect()
    assert watch() is None


def test_read_only_arrays_are_not_written_to():
    array = np.zeros(3)
    array.flags.writeable = False
    assert not one(array).numpy().flags.writeable
    torch = pytest.importorskip("torch")
    one(array).torch().add_(1)  # a copy
    assert array[0] == 0 and torch is not None


class Dlpack:
    """A tensor of another library."""

    def __init__(self, array, **changes):
        self.array, self.changes = array, changes

    def __dlpack__(self, **options):
        if self.changes.get("old") and options:
            raise TypeError("unexpected keyword argument")
        if "error" in self.changes:
            raise self.changes["error"]
        return self.changes["capsule"] if "capsule" in self.changes else self.array.__dlpack__(**options)


def test_tensors_of_other_libraries_are_shared():
    array = np.arange(6).reshape(2, 3).T
    for tensor in (Dlpack(array), Dlpack(array, old=True)):
        assert np.shares_memory(one(tensor).numpy(), array)
        np.testing.assert_array_equal(one(tensor).numpy(), array)
    with pytest.raises(BufferError, match="not today"):
        one(Dlpack(array, error=BufferError("not today")))
    with pytest.raises((TypeError, ValueError)):
        one(Dlpack(array, capsule=7))
    used = array.__dlpack__(max_version=(1, 1))
    one(Dlpack(array, capsule=used))
    with pytest.raises(TypeError):
        one(Dlpack(array, capsule=used))  # has been taken


torch_dtypes = ("bool uint8 int8 uint16 int16 float16 bfloat16 uint32 int32 float32 uint64 int64 float64 complex64 "
                "float8_e4m3fn float8_e5m2 float8_e4m3fnuz float8_e5m2fnuz float8_e8m0fnu").split()


@pytest.mark.parametrize("name", torch_dtypes)
def test_dtypes_of_torch(name):
    torch = pytest.importorskip("torch")
    dtype = getattr(torch, name)
    tensor = torch.tensor([[1, 2, 4], [8, 1, 2]]).to(dtype)
    found = one(tensor).torch()
    assert found.dtype == dtype and found.data_ptr() == tensor.data_ptr()
    assert torch.equal(found.view(torch.uint8), tensor.view(torch.uint8))
    assert one(tensor.T).torch().stride() == tensor.T.stride()


def test_pairs_of_float4_become_elements():
    torch = pytest.importorskip("torch")
    tensor = torch.arange(8, dtype=torch.uint8).reshape(2, 4).view(torch.float4_e2m1fn_x2)
    assert (one(tensor).dtype, one(tensor).shape) == ("F4", (2, 8))
    assert torch.equal(one(tensor).torch().view(torch.uint8), tensor.view(torch.uint8))
    assert one(tensor.T).shape == (4, 4)
    with pytest.raises(ValueError, match="0-d"):
        one(tensor[0, 0])


def test_views_of_torch_are_shared():
    torch = pytest.importorskip("torch")
    base = torch.arange(24.0).reshape(2, 3, 4).requires_grad_()
    for tensor in (base, base.permute(2, 0, 1), base[:, 1:, ::2], base[0, 0, 0], base[:0], base[0, 0].expand(3, 4)):
        assert one(tensor).shape == tuple(tensor.shape)
        assert torch.equal(one(tensor).torch(), tensor)
        if tensor.numel():
            assert one(tensor).torch().data_ptr() == tensor.data_ptr()
    parameter = torch.nn.Parameter(torch.ones(3))
    tensor = one(parameter)
    parameter.data = torch.zeros(5)  # the memory that was given stays
    assert tensor.torch().tolist() == [1, 1, 1]


def test_conjugate_and_negative_bits_of_torch():
    torch = pytest.importorskip("torch")
    base = torch.tensor([[1 + 2j, 3 - 4j], [0.5j, 2]])
    for tensor in (base.conj(), base.conj().T, base.conj().imag, base.imag, base.conj()._neg_view()):
        assert torch.equal(one(tensor).torch(), tensor.resolve_conj().resolve_neg())
    ties = safemap.Checkpoint.of({"a": base, "b": base.conj(), "c": base})
    assert ties.ties == [["a", "c"]]


def refused():
    torch = pytest.importorskip("torch")
    from torch._subclasses import FakeTensorMode

    if hasattr(torch, "int4"):
        yield torch.zeros(8, dtype=torch.uint8).view(torch.int4), ""
    with FakeTensorMode():
        yield torch.zeros(3), "FakeTensor"


@pytest.mark.filterwarnings("ignore")
def test_tensors_of_torch_without_strided_memory_are_refused_by_name():
    for tensor, why in refused():
        with pytest.raises(safemap.SafemapError, match=why) as error:
            safemap.Checkpoint.of({"bad.name": tensor})
        assert error.value.tensor == "bad.name" and error.value.hint


def on_a_device(tensor, copies):
    """Returns a tensor that behaves as one of a GPU: only cpu() gives its values."""
    torch = pytest.importorskip("torch")

    class OnDevice(torch.Tensor):
        device = property(lambda self: torch.device("cuda:0"))

        def cpu(self):
            copies.append(self.numel())
            return self.as_subclass(torch.Tensor)

    return tensor.as_subclass(OnDevice)


def test_tensors_of_a_gpu_are_copied_when_they_are_read(tmp_path):
    torch = pytest.importorskip("torch")
    copies = []
    whole, big = torch.arange(12.0).reshape(3, 4), torch.zeros(3 << 20)
    tensors = {"whole": whole, "transposed": whole.T, "part": whole[1:, ::2], "empty": whole[:0], "big": big,
               "conj": torch.tensor([1 + 2j]).conj(), "tied": whole}
    checkpoint = safemap.Checkpoint.of({name: on_a_device(one, copies) for name, one in tensors.items()})
    assert checkpoint.ties == [["whole", "tied"]]
    assert not copies
    for name, tensor in tensors.items():
        assert torch.equal(checkpoint[name].torch(), tensor.resolve_conj()), name
    assert max(copies) <= big.nbytes
    copies.clear()
    assert checkpoint["big"][:4].torch().tolist() == [0] * 4
    assert sum(copies) < 64 << 10


def test_tied_tensors_of_torch():
    torch = pytest.importorskip("torch")
    weight = torch.ones(2, 3)
    tied = safemap.Checkpoint.of({"lm_head.weight": weight, "other": weight.clone(), "t": weight.T, "row": weight[0],
                                  "model.embed_tokens.weight": torch.nn.Parameter(weight), "empty": weight[:0],
                                  "nothing": weight[:0]})
    assert tied.ties == [["model.embed_tokens.weight", "lm_head.weight"]]
    assert len(tied) == 7
    again = safemap.Checkpoint.of({"a": tied["other"], "b": tied["other"], "c": tied["other"][:1]})
    assert again.ties == [["a", "b"]]


def test_metadata_of_a_dict():
    made = safemap.Checkpoint.of({"w": np.zeros(1)}, metadata={"license": "mit"})
    assert made.metadata == {"license": "mit"}
    for metadata in ([1], {"a": 1}, {1: "a"}, "text"):
        with pytest.raises(TypeError):
            safemap.Checkpoint.of({"w": np.zeros(1)}, metadata=metadata)
