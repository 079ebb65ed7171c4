"""The load format "safemap" of vLLM: a model from any checkpoint that safemap opens.

    vllm serve model/ --load-format safemap
    vllm serve model/ --load-format safemap --model-loader-extra-config '{"weights": "run/global_step500/"}'

vLLM finds register() by the entry point `vllm.general_plugins`. The extra configuration holds options of
safemap.open(), and `weights`, the path of the weights if that is not the model's.
"""

from __future__ import annotations

import os

from . import open as _open


def weights_of(path, *, prefix: str = "", **options):
    """Yields each name of a checkpoint with its tensor of torch, one after the other. Mapped tensors are not read.

    Of a file with more than a model in it, the model is taken.
    """
    if not {"root", "stored_names"} & set(options):
        options.setdefault("root_auto", True)
    with _open(path, **options) as checkpoint:
        for name, tensor in checkpoint.items():
            yield prefix + name, tensor.torch()


def _folder(load_config, name, revision=None) -> str:
    """Returns a path as it is, and the local folder of a name of the hub."""
    if os.path.exists(name):
        return name
    from huggingface_hub import snapshot_download

    return snapshot_download(name, revision=revision, cache_dir=getattr(load_config, "download_dir", None))


def _loader_class(base):
    class SafemapModelLoader(base):
        """Loads weights with safemap."""

        def __init__(self, load_config):
            super().__init__(load_config)
            self.options = dict(getattr(load_config, "model_loader_extra_config", None) or {})
            self.weights = self.options.pop("weights", None)

        def path(self, model_config) -> str:
            if self.weights is not None:
                return self.weights
            name = getattr(model_config, "model_weights", None) or model_config.model
            return _folder(self.load_config, name, getattr(model_config, "revision", None))

        def download_model(self, model_config) -> None:
            self.path(model_config)

        def all_weights(self, model, model_config):
            yield from weights_of(self.path(model_config), **self.options)
            for source in getattr(model, "secondary_weights", ()):
                path = _folder(self.load_config, source.model_or_path, getattr(source, "revision", None))
                subfolder = getattr(source, "subfolder", None)
                path = os.path.join(path, subfolder) if subfolder else path
                yield from weights_of(path, prefix=getattr(source, "prefix", ""))

        def load_weights(self, model, model_config) -> None:
            loaded = model.load_weights(self.all_weights(model, model_config))
            # Models that tell what they have loaded show what the checkpoint lacks.
            if loaded is None or getattr(model_config, "quantization", None) is not None:
                return
            lacking = sorted({name for name, _ in model.named_parameters()} - set(loaded))
            if lacking:
                raise ValueError(f"the checkpoint lacks {len(lacking)} weights of the model: {', '.join(lacking[:20])}")

    return SafemapModelLoader


def register() -> None:
    """Registers the load format "safemap". vLLM calls it in each of its processes; again does nothing more."""
    from vllm.model_executor.model_loader import register_model_loader
    from vllm.model_executor.model_loader.base_loader import BaseModelLoader

    register_model_loader("safemap")(_loader_class(BaseModelLoader))
