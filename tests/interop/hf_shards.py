"""Compares Hugging Face shards with torch: folders that HuggingFaceStorageWriter writes, and files of ranks that
HuggingFaceStorageReader loads, for as many ranks as there are or for others. Ranks are forked processes (gloo).
"""
import datetime
import pathlib
import random
import tempfile
import unittest

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
import torch.multiprocessing
from safetensors.torch import load_file, save_file
from torch.distributed.checkpoint import HuggingFaceStorageReader, HuggingFaceStorageWriter
from torch.distributed.checkpoint._consolidate_hf_safetensors import consolidate_safetensors_files
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import Replicate, Shard, distribute_tensor

import common
from common import safemap

# HuggingFaceStorageReader takes no other dtypes.
LOADED = [torch.float64, torch.float32, torch.float16, torch.bfloat16, torch.int64, torch.int32, torch.int16,
          torch.int8, torch.uint8, torch.bool]


def state_of(seed, floats=False):
    """Returns random tensors by name, the same in every process."""
    rng = random.Random(seed)
    dtypes = [torch.float32, torch.bfloat16, torch.float64] if floats else LOADED
    state = {}
    for i in range(rng.randrange(2, 8)):
        shape = tuple(rng.choice([1, 2, 3, 5, 8, 13]) for _ in range(rng.randrange(1 if floats else 0, 4)))
        state[f'layer.{i}.weight'] = common.tensor_of(rng, rng.choice(dtypes), shape)
    return state


def placements_of(seed, state, dimensions):
    """Returns for each tensor how it is placed on a mesh of so many dimensions."""
    rng = random.Random(f'{seed} placements')
    placed = {}
    for name, tensor in state.items():
        kinds = [Replicate(), *(Shard(d) for d in range(tensor.dim()))]
        placed[name] = [rng.choice(kinds) for _ in range(dimensions)]
    return placed


def sharded(seed, mesh_shape, floats):
    state = state_of(seed, floats)
    mesh = init_device_mesh('cpu', mesh_shape)
    placed = placements_of(seed, state, len(mesh_shape))
    return {name: distribute_tensor(tensor, mesh, placed[name], src_data_rank=None) for name, tensor in state.items()}


def begin(rank, world, folder):
    torch.set_num_threads(1)
    dist.init_process_group('gloo', rank=rank, world_size=world, init_method=f'file://{folder}/rendezvous',
                            timeout=datetime.timedelta(seconds=60))


def write(rank, world, folder, out, seed, mesh_shape, floats, options):
    begin(rank, world, folder)
    try:
        dcp.save(sharded(seed, mesh_shape, floats), storage_writer=HuggingFaceStorageWriter(str(out), **options))
    finally:
        dist.destroy_process_group()


def read(rank, world, folder, source, seed, mesh_shape, floats):
    """Loads files of ranks into another placement, and checks the values."""
    begin(rank, world, folder)
    try:
        wanted = sharded(seed, mesh_shape, floats)
        state = sharded(seed, mesh_shape, floats)
        for tensor in state.values():
            tensor.to_local().zero_()
        dcp.load(state, storage_reader=HuggingFaceStorageReader(str(source)))
        for name, tensor in state.items():
            if common.raw(tensor.to_local()) != common.raw(wanted[name].to_local()):
                raise AssertionError(f'{name}: other bytes')
    finally:
        dist.destroy_process_group()


def fork(function, world, *arguments):
    with tempfile.TemporaryDirectory(prefix='safemap-ranks-') as folder:
        torch.multiprocessing.start_processes(function, (world, folder, *arguments), nprocs=world,
                                              start_method='fork')


def mesh_of(rng, world):
    return rng.choice([(world,), *((a, world // a) for a in (2, 3) if world % a == 0 and world > a)])


class HfShards(common.Case):
    def compare(self, path, wanted):
        out = self.folder / 'compared.safetensors'
        safemap('convert', path, out, '--force')
        self.assert_same_dict(load_file(out), wanted)
        self.assertTrue(safemap('verify', path)['ok'])

    def test_shards_that_torch_writes(self):
        for number in range(3):
            seed, world = self.rng.randrange(2**32), self.rng.choice([2, 3, 4])
            mesh, out = mesh_of(self.rng, world), self.folder / f'torch{number}'
            options = {'save_distributed': True}
            if self.rng.random() < 0.5:
                options['fqn_to_index_mapping'] = {name: 1 + i % 2 for i, name in enumerate(state_of(seed))}
            with self.subTest(seed=seed, mesh=mesh, options=options):
                fork(write, world, out, seed, mesh, False, options)
                self.compare(out, state_of(seed))
                self.assertEqual(safemap('inspect', out)['layout']['kind'], 'hf_shards')

    def test_one_rank_with_an_index(self):
        seed = self.rng.randrange(2**32)
        state = state_of(seed)
        files = {name: 1 + i % 2 for i, name in enumerate(state)}
        dcp.save(state, storage_writer=HuggingFaceStorageWriter(str(self.folder / 'one'), files), no_dist=True)
        self.compare(self.folder / 'one', state)
        self.assertEqual(safemap('inspect', self.folder / 'one')['format'], 'safetensors')

    def test_torchs_consolidation_and_the_shards_below_it(self):
        seed, out = self.rng.randrange(2**32), self.folder / 'both'
        fork(write, 2, out, seed, (2,), True, {'save_distributed': True, 'enable_consolidation': True})
        found = safemap('inspect', out)
        self.assertEqual(found['format'], 'safetensors')
        self.assertIn('sharded', ' '.join(found['notes']))
        self.compare(out, state_of(seed, True))
        self.compare(out / 'sharded', state_of(seed, True))

    def test_torch_loads_files_of_ranks_whole_and_for_another_world_size(self):
        for number in range(3):
            seed = self.rng.randrange(2**32)
            state = state_of(seed)
            source, out = self.folder / f'in{number}.safetensors', self.folder / f'ranks{number}'
            save_file(state, source)
            ranks, dimension = self.rng.randrange(1, 6), self.rng.randrange(2)
            with self.subTest(seed=seed, ranks=ranks, dimension=dimension):
                safemap('convert', source, out, '--shards-for', ranks, '--shard-dim', dimension, '--checksums')
                loaded = {name: torch.zeros_like(tensor) for name, tensor in state.items()}
                dcp.load(loaded, storage_reader=HuggingFaceStorageReader(str(out)), no_dist=True)
                self.assert_same_dict(loaded, state)
                world = self.rng.choice([2, 3])
                fork(read, world, out, seed, mesh_of(self.rng, world), False)

    def test_torch_consolidates_files_of_ranks(self):
        seed = self.rng.randrange(2**32)
        state = state_of(seed, floats=True)
        save_file(state, self.folder / 'in.safetensors')
        # Without files for ranks that get nothing, which torch refuses to consolidate.
        safemap('convert', self.folder / 'in.safetensors', self.folder / 'ranks', '--shards-for', 64)
        out = self.folder / 'consolidated'
        out.mkdir()
        consolidate_safetensors_files(str(self.folder / 'ranks'), str(out), dict.fromkeys(state, 1))
        file = next(pathlib.Path(out).glob('*.safetensors'))
        self.assert_same_dict(load_file(file), state)

    def test_torch_shards_through_safemap_and_back_to_torch(self):
        seed, world = self.rng.randrange(2**32), 3
        fork(write, world, self.folder / 'torch', seed, (world,), False, {'save_distributed': True})
        safemap('convert', self.folder / 'torch', self.folder / 'four', '--shards-for', 4)
        safemap('convert', self.folder / 'four', self.folder / 'three', '--shards-for', world, '--shard-dim', 1)
        self.compare(self.folder / 'three', state_of(seed))
        fork(read, 2, self.folder / 'three', seed, (2,), False)

    def test_a_missing_file_of_torch_is_named(self):
        seed = self.rng.randrange(2**32)
        state = {'w': torch.arange(9.0)}
        save_file(state, self.folder / 'in.safetensors')
        safemap('convert', self.folder / 'in.safetensors', self.folder / 'ranks', '--shards-for', 3)
        for rank, code in [(3, 'not_covered'), (1, 'rank_missing')]:
            (self.folder / f'ranks/shard-{rank:05}-model-00001-of-00001.safetensors').unlink()
            answer = safemap('inspect', self.folder / 'ranks', status=1)
            self.assertEqual(answer['error']['code'], code, seed)


if __name__ == '__main__':
    unittest.main()
