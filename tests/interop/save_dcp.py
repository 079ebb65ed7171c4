"""Saves random sharded tensors with torch.distributed.checkpoint: save_dcp.py KIND SEED WORLD OUT.

OUT/checkpoint is the checkpoint, and OUT/live.safetensors holds the whole tensors, under the names of DCP.

    plain    one file for each rank     async    saved in the background
    threads  several files              alone    each rank saves its own metadata
    items    a file for each item       zstd     compressed items
    fsdp     a trained model and its optimizer, sharded by FSDP2
    accelerate, accelerate_ranks
             the same, saved by accelerate: as folders of DCP, or as a file for each rank. live.safetensors has the
             names of DCP
"""
import functools
import os
import pathlib
import random
import sys
import tempfile
import warnings

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from safetensors.torch import save_file
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor, Replicate, Shard, distribute_tensor

import common

DTYPES = [dtype for dtype in common.DTYPES if dtype.itemsize > 0 and 'float8' not in str(dtype)]


def meshes(world):
    """Returns a mesh of one dimension, and those of two dimensions that the world has."""
    found = [init_device_mesh('cpu', (world,))]
    return found + [init_device_mesh('cpu', (n, world // n)) for n in range(2, world) if world % n == 0]


def random_state(rng, world):
    """Returns a state dict of DTensors, tensors that every rank has, and objects, the same in each rank; and the whole
    tensors.
    """
    groups = [{'lr': rng.random(), 'params': [0, 1]}]
    state = {'model': {}, 'optimizer': {'state': [], 'param_groups': groups}, 'step': 7}
    choices = meshes(world)
    wholes = {}
    for i in range(12):
        tensor = whole = common.tensor_of(rng, rng.choice(DTYPES), common.shape_of(rng, 4))
        mesh = rng.choice(choices)
        if rng.random() < 0.8:
            placements = [Shard(rng.randrange(tensor.dim())) if tensor.dim() and rng.random() < 0.8 else Replicate()
                          for _ in range(mesh.ndim)]
            tensor = distribute_tensor(tensor, mesh, placements, src_data_rank=None)  # gloo cannot send all dtypes
        if i % 3:
            state['model'][f'layers.{i}.weight'] = tensor
            wholes[f'model.layers.{i}.weight'] = whole
        else:
            moments = state['optimizer']['state']
            wholes[f'optimizer.state.{len(moments)}.exp_avg'] = whole
            moments.append({'exp_avg': tensor, 'n': i})
    return state, wholes


def trained(seed, world):
    """Returns a model that FSDP2 shards, and its optimizer, after two steps."""
    from torch.distributed.fsdp import fully_shard
    torch.manual_seed(seed)
    net = torch.nn.Sequential(torch.nn.Linear(7, 5), torch.nn.LayerNorm(5), torch.nn.Linear(5, 3, bias=False))
    fully_shard(net[0], mesh=init_device_mesh('cpu', (world,)))
    fully_shard(net, mesh=init_device_mesh('cpu', (world,)))
    optimizer = torch.optim.AdamW(net.parameters(), lr=0.1)
    for _ in range(2):
        net(torch.randn(4, 7)).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
    return net, optimizer


def trained_state(net, optimizer):
    from torch.distributed.checkpoint.state_dict import get_state_dict
    model, moments = get_state_dict(net, optimizer)
    state = {'model': model, 'optim': moments, 'epoch': 3}
    return state, dict(live(state))


def live(value, path=()):
    """Yields the name and the whole value of each tensor."""
    if isinstance(value, torch.Tensor):
        whole = value.full_tensor() if isinstance(value, DTensor) else value
        yield '.'.join(path), whole.detach().contiguous().clone()
    elif isinstance(value, (dict, list)):
        for key, item in value.items() if isinstance(value, dict) else enumerate(value):
            yield from live(item, (*path, str(key)))


def save(kind, state, folder):
    if kind == 'async':
        dcp.async_save(state, checkpoint_id=folder).result()
        return
    writer = functools.partial(dcp.FileSystemWriter, folder)
    if kind == 'threads':
        dcp.save(state, storage_writer=writer(thread_count=3))
    elif kind == 'items':
        dcp.save(state, storage_writer=writer(single_file_per_rank=False))
    elif kind == 'zstd':
        from torch.distributed.checkpoint._extension import ZStandard
        dcp.save(state, storage_writer=writer(_extensions=[ZStandard()]))
    else:
        dcp.save(state, checkpoint_id=folder, use_collectives=kind != 'alone')


def save_by_accelerate(kind, net, optimizer, folder):
    import logging
    from types import SimpleNamespace

    from accelerate.utils import fsdp_utils
    from torch.distributed.fsdp import StateDictType
    fsdp_utils.logger = logging.getLogger('accelerate')  # its own needs an Accelerator
    plugin = SimpleNamespace(fsdp_version=2, state_dict_type=StateDictType.SHARDED_STATE_DICT,
                             state_dict_config=SimpleNamespace(offload_to_cpu=False, rank0_only=False),
                             optim_state_dict_config=None)
    accelerator = SimpleNamespace(process_index=dist.get_rank(), num_processes=dist.get_world_size(), is_fsdp2=True)
    for save_part, *parts in ((fsdp_utils.save_fsdp_model, net), (fsdp_utils.save_fsdp_optimizer, optimizer, net)):
        save_part(plugin, accelerator, *parts, folder, use_dcp=kind == 'accelerate')


def run(rank, kind, seed, world, out, store):
    warnings.simplefilter('ignore')
    dist.init_process_group('gloo', init_method=f'file://{store}', rank=rank, world_size=world)
    if kind in ('fsdp', 'accelerate', 'accelerate_ranks'):
        parts = trained(seed, world)
        state, wholes = trained_state(*parts)
    else:
        state, wholes = random_state(random.Random(seed), world)
    if kind.startswith('accelerate'):
        save_by_accelerate(kind, *parts, f'{out}/checkpoint')
    else:
        save(kind, state, f'{out}/checkpoint')
    if rank == 0:
        save_file(wholes, f'{out}/live.safetensors')
    dist.barrier()
    dist.destroy_process_group()


if __name__ == '__main__':
    KIND, SEED, WORLD, OUT = sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), sys.argv[4]
    pathlib.Path(OUT).mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as SCRATCH:
        torch.multiprocessing.spawn(run, (KIND, SEED, WORLD, OUT, os.path.join(SCRATCH, 'store')), nprocs=WORLD)
