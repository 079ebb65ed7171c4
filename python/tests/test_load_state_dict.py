"""safemap.load_state_dict(), beside model.load_state_dict(torch.load(...))."""

import collections
import io

import pytest

import safemap

torch = pytest.importorskip("torch")

from same_objects import require_same  # noqa: E402


class Net(torch.nn.Module):
    """A module with tied Parameters, a norm with buffers, and a buffer that is not saved."""

    def __init__(self, size=4):
        super().__init__()
        self.embed = torch.nn.Embedding(7, size)
        self.norm = torch.nn.BatchNorm1d(size)
        self.head = torch.nn.Linear(size, 7, bias=False)
        self.head.weight = self.embed.weight
        self.register_buffer("mask", torch.ones(3), persistent=False)

    def forward(self, rows):
        return self.head(self.norm(self.embed(rows)))


@pytest.fixture
def trained(tmp_path):
    model = Net()
    model(torch.arange(5)).sum().backward()
    path = tmp_path / "model.pt"
    torch.save(model.state_dict(), path)
    return model, path


def on_meta():
    with torch.device("meta"):
        return Net()


def same_state(ours, theirs):
    require_same(dict(ours.state_dict()), dict(theirs.state_dict()), values=True)


@pytest.mark.parametrize("assign", [True, False])
@pytest.mark.parametrize("dtype", [None, torch.float16])
def test_a_module_gets_what_torch_gives_it(trained, assign, dtype):
    _, path = trained
    ours, theirs = Net(), Net()
    state = torch.load(path, weights_only=True)
    if dtype is not None:
        state = collections.OrderedDict(
            (name, one.to(dtype) if one.is_floating_point() else one) for name, one in state.items()
        )
    found = theirs.load_state_dict(state, assign=assign)
    assert safemap.load_state_dict(ours, path, assign=assign, dtype=dtype) == found
    same_state(ours, theirs)


def test_a_module_on_meta_gets_views_of_the_file(trained):
    model, path = trained
    ours = on_meta()
    before = path.read_bytes()
    assert safemap.load_state_dict(ours, path) == ([], [])
    same_state(ours, model)
    assert ours.head.weight is ours.embed.weight and isinstance(ours.head.weight, torch.nn.Parameter)
    with torch.no_grad():
        ours.head.weight.add_(1)
    assert path.read_bytes() == before
    assert torch.equal(ours.embed.weight, model.embed.weight + 1)


def test_one_name_of_tied_parameters_is_enough(trained, tmp_path):
    model, _ = trained
    state = model.state_dict()
    del state["head.weight"]
    torch.save(state, tmp_path / "one.pt")
    ours = on_meta()
    safemap.load_state_dict(ours, tmp_path / "one.pt")
    assert ours.head.weight is ours.embed.weight
    same_state(ours, model)


def test_names_that_the_module_does_not_tie_share_no_memory(tmp_path):
    weight = torch.randn(3, 3)
    torch.save({"0.weight": weight, "1.weight": weight}, tmp_path / "tied.pt")
    model = torch.nn.Sequential(torch.nn.Linear(3, 3, bias=False), torch.nn.Linear(3, 3, bias=False))
    safemap.load_state_dict(model, tmp_path / "tied.pt")
    with torch.no_grad():
        model[0].weight.zero_()
    assert torch.equal(model[1].weight, weight)


def test_faults_name_tensors_and_shapes_and_change_nothing(trained):
    model, path = trained
    wider, other = Net(5), torch.nn.Sequential(torch.nn.Linear(2, 2))
    before = {name: one.clone() for name, one in wider.state_dict().items()}
    with pytest.raises(safemap.SafemapError, match="embed.weight") as error:
        safemap.load_state_dict(wider, path)
    assert error.value.code == "model_mismatch" and "[7, 4]" in str(error.value)
    require_same(dict(wider.state_dict()), before, values=True)
    with pytest.raises(safemap.SafemapError, match="0.weight"):
        safemap.load_state_dict(other, path)
    with pytest.raises(safemap.SafemapError):
        safemap.load_state_dict(wider, path, strict=False)
    ours, theirs = safemap.load_state_dict(other, path, strict=False), other.load_state_dict(model.state_dict(), False)
    assert ours.missing_keys == theirs.missing_keys and sorted(ours.unexpected_keys) == sorted(theirs.unexpected_keys)
    with pytest.raises(TypeError, match="Module"):
        safemap.load_state_dict({}, path)
    model.added = torch.nn.Linear(1, 1)
    with pytest.raises(safemap.SafemapError) as error:
        safemap.load_state_dict(model, path)
    assert error.value.hint == "strict=False loads the tensors that both have"


def test_the_model_of_a_training_file_is_taken(trained, tmp_path):
    model, _ = trained
    torch.save({"model": model.state_dict(), "optimizer": {"state": {0: {"m": torch.ones(2)}}}}, tmp_path / "run.pt")
    ours = Net()
    safemap.load_state_dict(ours, tmp_path / "run.pt")
    same_state(ours, model)


class Counting(torch.nn.Linear):
    """Has a state of its own, an older name of a Parameter, and a version."""

    _version = 3

    def get_extra_state(self):
        return {"seen": self.seen}

    def set_extra_state(self, state):
        self.seen = state["seen"]

    def _load_from_state_dict(self, state, prefix, metadata, *rest):
        self.version = metadata.get("version")
        if prefix + "kernel" in state:
            state[prefix + "weight"] = state.pop(prefix + "kernel")
        super()._load_from_state_dict(state, prefix, metadata, *rest)


def test_modules_that_rename_what_they_load(tmp_path):
    def counting(seen):
        model = torch.nn.Sequential(Counting(2, 3))
        model[0].seen = seen
        return model

    theirs = counting(5)
    state = theirs.state_dict()
    state["0.kernel"] = state.pop("0.weight")
    torch.save(state, tmp_path / "old.pt")
    ours = counting(0)
    assert safemap.load_state_dict(ours, tmp_path / "old.pt") == ([], [])
    assert ours[0].seen == 5 and ours[0].version == 3
    same_state(ours, theirs)
    del state["0.kernel"]
    torch.save(state, tmp_path / "old.pt")
    with pytest.raises(safemap.SafemapError, match="0.weight"):
        safemap.load_state_dict(counting(0), tmp_path / "old.pt")


class Counted(io.BytesIO):
    """A file that counts the bytes that are read."""

    bytes_read = 0

    def read(self, size=-1):
        part = super().read(size)
        self.bytes_read += len(part)
        return part


@pytest.mark.parametrize("assign", [True, False])
def test_only_what_the_module_needs_is_read(assign):
    linear, file = torch.nn.Linear(3, 2), Counted()
    torch.save({**linear.state_dict(), "huge": torch.zeros(2**20)}, file)
    ours = torch.nn.Linear(3, 2)
    assert safemap.load_state_dict(ours, file, strict=False, assign=assign).unexpected_keys == ["huge"]
    same_state(ours, linear)
    assert file.bytes_read < 2**20
