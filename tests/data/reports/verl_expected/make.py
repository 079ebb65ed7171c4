"""Writes the tensors of the sets in ../verl_actor_folder and ../verl_world1_file as torch reads them: make.py

The DTensors of all ranks are joined by hand, without a process group: each is replicated or cut along one dimension.
"""
import pathlib

import torch
from safetensors.torch import save_file

HERE = pathlib.Path(__file__).resolve().parent


def joined(values):
    """Returns the whole value of the values of all ranks."""
    first = values[0]
    if isinstance(first, dict):
        return {key: joined([value[key] for value in values]) for key in first}
    if type(first).__name__ != 'DTensor':
        return first
    (placement,) = first.placements
    parts = [value._local_tensor for value in values]
    return torch.cat(parts, placement.dim) if placement.is_shard() else parts[0]


def flat(value, path=()):
    """Returns the tensors of a nested dictionary by their paths."""
    if isinstance(value, torch.Tensor):
        return {'/'.join(path): value.detach().contiguous().clone()}
    if not isinstance(value, dict):
        return {}
    return {name: tensor for key, item in value.items() for name, tensor in flat(item, (*path, str(key))).items()}


for name, folder, glob in (('model', 'verl_actor_folder', 'model_*'), ('optimizer', 'verl_actor_folder', 'optim_*'),
                           ('world1', 'verl_world1_file', 'model_*')):
    files = sorted((HERE.parent / folder).glob(glob))
    values = [torch.load(file, map_location='cpu', weights_only=False) for file in files]
    save_file(flat(joined(values)), HERE / f'{name}.safetensors')
