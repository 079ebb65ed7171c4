"""Nested objects that are saved and loaded again: Checkpoint.of(), save() and load()."""

import collections
import math

import pytest

import safemap

torch = pytest.importorskip("torch")
np = pytest.importorskip("numpy")

from same_objects import require_same  # noqa: E402

pytestmark = pytest.mark.filterwarnings("ignore")


def everything():
    """Returns an object of every kind that can be saved; some of them occur in several places."""
    linear, shared, cycle = torch.nn.Linear(3, 2), [1, 2], []
    cycle.append({"again": (cycle,)})
    noted, listed = torch.nn.Parameter(torch.randn(2)), torch.nn.Parameter(torch.randn(2))
    noted.note, listed.history = 3, [1, torch.randn(2)]
    numbers = collections.defaultdict(list, a=[1])
    rows = [torch.randn(2, 2), torch.randn(3, 2)]
    weight = torch.randn(4, 6)
    return {
        "state": linear.state_dict(), "weight": linear.weight, "noted": noted, "listed": listed,
        "grad": torch.randn(2, requires_grad=True), "tied": [weight, weight, weight.t(), weight[1:]],
        "lazy bits": [torch.randn(3, dtype=torch.complex64).conj(), torch._neg_view(torch.randn(3))],
        "empty": torch.empty(0, 3), "float4": torch.zeros(2, 3, dtype=torch.uint8).view(torch.float4_e2m1fn_x2),
        "bits": torch.zeros(3, dtype=torch.uint8).view(torch.bits8), "complex": torch.randn(2, dtype=torch.complex128),
        "quantized": torch.quantize_per_tensor(torch.randn(4, 3), 0.1, 3, torch.qint8),
        "channels": torch.quantize_per_channel(weight[:, :3], torch.rand(4) + 0.1, torch.zeros(4), 0, torch.quint4x2),
        "sparse": [torch.eye(3).to_sparse(), torch.eye(4).to_sparse_csc(), torch.eye(4).to_sparse_bsr((2, 2))],
        "meta": [torch.empty(2, 3, device="meta").t(), torch.nn.Parameter(torch.empty(2, device="meta"))],
        "nested": [torch.nested.nested_tensor(rows), torch.nested.nested_tensor(rows, layout=torch.jagged)],
        "constants": [torch.bfloat16, torch.device("cuda:1"), torch.sparse_csr, torch.channels_last, torch.Size([1, 2]),
                      torch.per_tensor_affine, collections.OrderedDict, torch.Size, torch.nn.Parameter, ...],
        "plain": [None, True, 1, -(2**80), 7**6000, 0.5, math.nan, -0.0, 1j, "", "\ud800", b"ab", bytearray(b"x")],
        "sets": [{1, "a"}, frozenset((2, (3, 4)))], "shared": (shared, shared), "cycle": cycle,
        "dicts": [collections.Counter("aab"), numbers, collections.OrderedDict(b=1, a=2)],
        "keys": {1: 2, None: 3, (1, "x"): 4, 0.5: 5, True if False else "a/b~c": 6},
        "arrays": [np.arange(6).reshape(2, 3), np.asfortranarray(np.ones((2, 3), ">f4")), np.array(["a", "bc"]),
                   np.array(["2020-01-01"], "M8[D]"), np.zeros((2, 0), "i2")],
        "scalars": [np.float32(1.5), np.int8(-1), np.bool_(True), np.complex64(1j), np.datetime64("2020-01-01", "ns"),
                    np.str_("hi"), np.bytes_(b"hi"), np.dtype("<f4"), np.float16("nan")],
    }


def test_everything_that_is_saved_comes_back(tmp_path):
    objects = everything()
    require_same(safemap.load(safemap.Checkpoint.of(objects)), objects, values=True)
    for out in ("one.safetensors", "folder/"):
        safemap.save(tmp_path / out, objects)
        require_same(safemap.load(tmp_path / out), objects, values=True)
    safemap.save(tmp_path / "again.safetensors", safemap.Checkpoint.of(safemap.load(tmp_path / "one.safetensors")))
    require_same(safemap.load(tmp_path / "again.safetensors"), objects, values=True)


def test_a_tree_can_be_saved_without_torch(tmp_path):
    objects = {"model": {"w": torch.ones(2)}, "step": 3, "dtype": torch.float16, "size": np.float32(2)}
    torch.save(objects, tmp_path / "x.pt")
    with safemap.open(tmp_path / "x.pt") as checkpoint:
        safemap.save(tmp_path / "x.safetensors", checkpoint.tree())
    again = safemap.load(tmp_path / "x.safetensors")
    assert again["step"] == 3 and again["dtype"] is torch.float16 and torch.equal(again["model"]["w"], torch.ones(2))


def test_ties_and_names(tmp_path):
    weight = torch.randn(3, 2)
    checkpoint = safemap.Checkpoint.of({"model": {"a": weight, "b": weight.view(3, 2), "c": weight.t()}, "step": 1})
    assert checkpoint.ties == [["a", "b"]] and list(checkpoint) == ["a", "b", "c"] and checkpoint.root == "model"
    assert checkpoint["c"].torch().data_ptr() == weight.data_ptr()
    weight.zero_()
    assert not checkpoint["a"].torch().any()


class Custom(dict):
    pass


@pytest.mark.parametrize("value, path", [
    ({"a": [1, {"b": object()}]}, "'a/1/b'"),
    ({"a": Custom()}, "'a'"),
    ([collections.namedtuple("Point", "x y")(1, 2)], "'0'"),
    ({"a": collections.defaultdict(lambda: 0)}, "'a'"),
    ({1: {2: type}}, "'1/2'"),
    (3, "int"),
])
def test_unknown_objects_are_type_errors_with_their_path(value, path):
    with pytest.raises(TypeError, match=path):
        safemap.Checkpoint.of(value)


def test_objects_that_change_meanwhile_are_no_crash():
    objects = {str(i): [i] for i in range(100)}
    made = safemap.Checkpoint.of({"objects": objects, "w": torch.ones(2)})
    objects.clear()
    assert len(made.tree()["objects"]) == 100


def parts(form, type="torch.Tensor", **children):
    """Returns an object of parts, as a file might have it."""
    made = safemap.Opaque(type, "", children)
    made._form = form
    return made


def ints(*values):
    return torch.tensor(values, dtype=torch.int64)


ROW = {"buffer": torch.ones(4), "sizes": ints([2, 2]), "strides": ints([2, 1]), "offsets": ints(0)}
COO = {"layout": torch.sparse_coo, "indices": ints([0, 1]), "values": torch.ones(2), "size": torch.Size([2])}
CSR = {"layout": torch.sparse_csr, "compressed_indices": ints(0, 1, 2), "plain_indices": ints(0, 1), **COO,
       "size": torch.Size([2, 2])}
del CSR["indices"]
CSR["layout"] = torch.sparse_csr
META = {"dtype": torch.float32, "size": (2,), "stride": (1,), "device": torch.device("meta")}
JAGGED = {"values": torch.ones(4, 2), "offsets": ints(0, 1, 4), "lengths": None, "_ragged_idx": 1}
NJT = "torch.nested._internal.nested_tensor.NestedTensor"


@pytest.mark.parametrize("form, type, good, bad", [
    ("nested", "torch.Tensor", ROW, {"sizes": ints([2, 3])}),
    ("nested", "torch.Tensor", ROW, {"sizes": ints([2, 2], [0, 9])}),
    ("nested", "torch.Tensor", ROW, {"sizes": ints([2**62, 4])}),
    ("nested", "torch.Tensor", ROW, {"strides": ints([-2, 1])}),
    ("nested", "torch.Tensor", ROW, {"offsets": ints(1)}),
    ("nested", "torch.Tensor", ROW, {"offsets": ints(-1)}),
    ("nested", "torch.Tensor", ROW, {"offsets": "text"}),
    ("nested", "torch.Tensor", ROW, {"sizes": ints([2, 2]).float()}),
    ("sparse", "torch.Tensor", COO, {"indices": ints([0, 2])}),
    ("sparse", "torch.Tensor", COO, {"size": torch.Size([1])}),
    ("sparse", "torch.Tensor", COO, {"values": None}),
    ("sparse", "torch.Tensor", CSR, {"plain_indices": ints(0, 7)}),
    ("sparse", "torch.Tensor", CSR, {"layout": torch.sparse_coo}),
    ("object", "torch.Tensor", META, {"size": (-2,)}),
    ("object", "torch.Tensor", META, {"dtype": None}),
    ("object", NJT, JAGGED, {"offsets": ints(0, 1, 5)}),
    ("object", NJT, JAGGED, {"offsets": ints(0, 3, 1)}),
    ("object", NJT, JAGGED, {"_ragged_idx": 9}),
    ("object", "numpy.ndarray", {"dtype": np.dtype("<U1"), "shape": (1,), "fortran": False, "data": b"a\0\0\0"},
     {"data": b"a"}),
])
def test_parts_that_do_not_fit_stay_opaque(form, type, good, bad):
    def loaded(children):
        return safemap.load(safemap.Checkpoint.of([parts(form, type, **children)]))[0]

    assert not isinstance(loaded(good), safemap.Opaque)
    found = loaded({**good, **bad})
    assert isinstance(found, safemap.Opaque) and set(found.children) == set(good)


def test_quantized_parts_that_do_not_fit_stay_opaque():
    good = torch.quantize_per_channel(torch.randn(4, 3), torch.rand(4) + 0.1, torch.zeros(4), 0, torch.qint8)
    tree = safemap.Checkpoint.of([good]).tree()
    for name, bad in (("axis", 2), ("axis", -1), ("scales", torch.ones(3)), ("zero_points", None), ("scheme", 5)):
        children = tree[0].children
        held = children[name]
        children[name] = bad
        found = safemap.load(safemap.Checkpoint.of(tree))[0]
        assert isinstance(found, safemap.Opaque) and found.children[""].dtype == torch.int8
        children[name] = held
    require_same(safemap.load(safemap.Checkpoint.of(tree)), [good], values=True)
