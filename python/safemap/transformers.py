"""Models of transformers with weights from any checkpoint that safemap opens: a DeepSpeed or FSDP run, a `.pt`, shards.

    from transformers import AutoModelForCausalLM
    model = safemap.transformers.from_pretrained(AutoModelForCausalLM, "model/", weights="run/global_step500/")
"""

from __future__ import annotations

from . import state_dict as _state_dict


def from_pretrained(cls, folder, *, weights=None, options: dict | None = None, **kwargs):
    """Returns cls.from_pretrained() of a folder's configuration, with the weights of another path.

    Tensors are views of the mapped files until transformers moves or casts them; what is written to them changes no
    file.

    Args:
        cls: a model class of transformers, also of the kind AutoModel.
        folder: the folder or the hub's name that has config.json.
        weights: whatever safemap.open() takes, or a Checkpoint; None: the folder.
        options: options of safemap.open(). Of a file with more than a model in it, the model is taken.
        kwargs: arguments of cls.from_pretrained(): dtype, device_map, attn_implementation, ...

    Example:
        model = safemap.transformers.from_pretrained(LlamaForCausalLM, "model/", weights="zero_run/", dtype="bfloat16")
    """
    config = kwargs.pop("config", None)
    config = _config(cls, folder, kwargs) if config is None else config
    options = {"root_auto": True, **(options or {})} if not hasattr(weights, "select") else options or {}
    state = _state_dict(folder if weights is None else weights, **options)
    model = _class_for(cls, config).from_pretrained(None, config=config, state_dict=state, **kwargs)
    _set_generation(model, folder)
    return model


def _config(cls, folder, kwargs: dict):
    """Returns the configuration of a folder, and takes the arguments that are for finding it."""
    from transformers import AutoConfig

    names = ("cache_dir", "revision", "token", "trust_remote_code", "local_files_only", "force_download")
    found = {name: kwargs[name] for name in names if name in kwargs}
    config_class = getattr(cls, "config_class", None) or AutoConfig
    return config_class.from_pretrained(folder, **found)


def _class_for(cls, config):
    """Returns the model class that an AutoModel chooses; these look for a folder of their own."""
    mapping = getattr(cls, "_model_mapping", None)
    if mapping is None:
        return cls
    chosen = mapping[type(config)]
    if not isinstance(chosen, tuple):
        return chosen
    names = set(config.architectures or ())
    return next((one for one in chosen if one.__name__ in names), chosen[0])


def _set_generation(model, folder):
    """Sets the folder's generation_config.json, as from_pretrained() of the folder does."""
    if not getattr(model, "can_generate", lambda: False)():
        return
    from transformers import GenerationConfig

    try:
        model.generation_config = GenerationConfig.from_pretrained(folder)
    except OSError:  # there is none
        pass
