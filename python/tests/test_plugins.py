"""safemap.transformers and safemap.vllm, with stand-ins for both packages."""

import sys
import types

import pytest

import safemap

torch = pytest.importorskip("torch")


@pytest.fixture
def weights(tmp_path):
    state = {"weight": torch.randn(3, 2), "bias": torch.randn(3)}
    torch.save({"model": state, "optimizer": {"state": {0: {"step": torch.ones(1)}}}}, tmp_path / "run.pt")
    return tmp_path / "run.pt", state


def stand_in(monkeypatch, name, **attributes):
    module = types.ModuleType(name)
    vars(module).update(attributes)
    monkeypatch.setitem(sys.modules, name, module)
    return module


class BaseModelLoader:
    def __init__(self, load_config):
        self.load_config = load_config


@pytest.fixture
def loaders(monkeypatch):
    """The load formats that vLLM knows after register()."""
    found = {}

    def register_model_loader(name):
        return lambda cls: found.setdefault(name, cls) if issubclass(cls, BaseModelLoader) else None

    stand_in(monkeypatch, "vllm")
    stand_in(monkeypatch, "vllm.model_executor")
    stand_in(monkeypatch, "vllm.model_executor.model_loader", register_model_loader=register_model_loader)
    stand_in(monkeypatch, "vllm.model_executor.model_loader.base_loader", BaseModelLoader=BaseModelLoader)
    safemap.vllm.register()
    safemap.vllm.register()
    return found


class Model(torch.nn.Linear):
    def load_weights(self, pairs):
        self.got = dict(pairs)
        return {name for name in self.got if name in self.state_dict()}


def configs(model, **extra):
    load = types.SimpleNamespace(model_loader_extra_config=extra, download_dir=None)
    return load, types.SimpleNamespace(model=str(model), quantization=None, revision=None)


def test_vllm_loads_weights_by_name(loaders, weights):
    path, state = weights
    load, model_config = configs(path)
    loader, model = loaders["safemap"](load), Model(2, 3)
    loader.download_model(model_config)
    loader.load_weights(model, model_config)
    assert model.got.keys() == state.keys() and all(torch.equal(model.got[name], state[name]) for name in state)


def test_vllm_passes_options_and_other_weights(loaders, weights, tmp_path):
    path, state = weights
    load, model_config = configs(tmp_path, weights=str(path), root="optimizer")
    loader = loaders["safemap"](load)
    assert [name for name, _ in loader.all_weights(Model(2, 3), model_config)] == ["state/0/step"]
    second = types.SimpleNamespace(model_or_path=str(path), prefix="second.")
    model = Model(2, 3)
    model.secondary_weights = [second]
    load, model_config = configs(path)
    names = [name for name, _ in loaders["safemap"](load).all_weights(model, model_config)]
    assert names == ["weight", "bias", "second.weight", "second.bias"]


def test_vllm_names_weights_that_the_checkpoint_lacks(loaders, tmp_path):
    torch.save({"weight": torch.ones(3, 2)}, tmp_path / "part.pt")
    load, model_config = configs(tmp_path / "part.pt")
    with pytest.raises(ValueError, match="bias"):
        loaders["safemap"](load).load_weights(Model(2, 3), model_config)


class Config:
    architectures = ("PlainModel",)

    @classmethod
    def from_pretrained(cls, folder, **kwargs):
        made = cls()
        made.folder, made.kwargs = folder, kwargs
        return made


class PlainModel:
    config_class = Config

    @classmethod
    def from_pretrained(cls, path, *, config, state_dict, **kwargs):
        assert path is None
        made = cls()
        made.config, made.state, made.kwargs = config, state_dict, kwargs
        return made

    def can_generate(self):
        return True


class AutoModel:
    _model_mapping = {Config: (object, PlainModel)}


@pytest.mark.parametrize("cls", [PlainModel, AutoModel])
def test_transformers_gets_a_configuration_and_a_state_dict(monkeypatch, weights, cls):
    stand_in(monkeypatch, "transformers", AutoConfig=Config, GenerationConfig=Config)
    path, state = weights
    model = safemap.transformers.from_pretrained(cls, "folder/", weights=path, revision="main", dtype="auto")
    assert type(model) is PlainModel and model.config.folder == model.generation_config.folder == "folder/"
    assert model.config.kwargs == {"revision": "main"} and model.kwargs["dtype"] == "auto"
    assert model.state.keys() == state.keys() and torch.equal(model.state["bias"], state["bias"])


def test_neither_package_is_imported_with_safemap():
    import subprocess

    code = "import sys, safemap.vllm; print(sorted({'torch', 'numpy', 'vllm', 'transformers'} & set(sys.modules)))"
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert run.stdout.strip() == "[]"
