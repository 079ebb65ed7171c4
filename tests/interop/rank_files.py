"""Compares sets of rank files that torch writes here with the tensors that it shared among the ranks.

Each rank is a forked process with a process group of torch's fake backend: what distribute_tensor() and fully_shard()
cut for a rank needs no other rank. (In one process, DTensor would take the meshes of earlier ranks out of its caches.)
"""
import logging
import multiprocessing
import os
import warnings

import torch
import torch.distributed as dist
from safetensors.torch import load_file
from torch import nn
from torch.distributed._shard.sharded_tensor import Shard as LocalShard
from torch.distributed._shard.sharded_tensor import ShardedTensor, ShardedTensorMetadata, TensorProperties
from torch.distributed._shard.metadata import ShardMetadata
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor, Partial, Replicate, Shard, distribute_tensor
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module
from torch.distributed.tensor.placement_types import _StridedShard
from torch.testing._internal.distributed.fake_pg import FakeStore

import common

warnings.simplefilter('ignore')
logging.getLogger('torch.distributed').setLevel(logging.ERROR)
os.environ.setdefault('GLOO_SOCKET_IFNAME', 'lo')

DTYPES = [torch.float32, torch.bfloat16, torch.int64, torch.bool, torch.float8_e4m3fn]


def save_as_rank(rank, world, state_of, file):
    torch.set_num_threads(1)
    dist.init_process_group('fake', store=FakeStore(), rank=rank, world_size=world)
    torch.save(state_of(), file)
    dist.destroy_process_group()


class RankFiles(common.Case):
    def saved(self, world, state_of, name='model'):
        """Saves what state_of() returns as each rank, and returns the folder."""
        folder = self.folder / f'set{len(list(self.folder.iterdir()))}'
        folder.mkdir()
        fork = multiprocessing.get_context('fork')
        ranks = [fork.Process(target=save_as_rank, args=(
            rank, world, state_of, folder / f'{name}_world_size_{world}_rank_{rank}.pt')) for rank in range(world)]
        for rank in ranks:
            rank.start()
        for rank in ranks:
            rank.join()
            self.assertEqual(rank.exitcode, 0)
        return folder

    def opened(self, folder, *options):
        out = self.folder / 'out.safetensors'
        answer = common.safemap('convert', folder, out, '--force', *options)
        tensors = load_file(out)
        for group in answer['aliases']:
            for name in group[1:]:
                tensors[name] = tensors[group[0]]
        return tensors

    def mesh_sizes(self):
        while True:
            sizes = [self.rng.choice([1, 2, 2, 3, 4]) for _ in range(self.rng.randint(1, 3))]
            if torch.tensor(sizes).prod() <= 12:
                return sizes

    def mesh(self, sizes, order):
        names = tuple(f'm{i}' for i in range(len(sizes)))
        if order is None:
            return init_device_mesh('cpu', tuple(sizes), mesh_dim_names=names)
        return DeviceMesh('cpu', torch.tensor(order).reshape(sizes), mesh_dim_names=names)

    def placed(self, dims, mesh_dims):
        return [Shard(self.rng.randrange(dims)) if dims and self.rng.random() < 0.7 else Replicate()
                for _ in range(mesh_dims)]

    def test_tensors_that_torch_distributes_over_random_meshes(self):
        for _ in range(12):
            sizes = self.mesh_sizes()
            world = int(torch.tensor(sizes).prod())
            order = self.rng.sample(range(world), world) if self.rng.random() < 0.5 else None
            whole, placements = {}, {}
            for i in range(6):
                shape = [self.rng.randrange(10) for _ in range(self.rng.randint(0, 3))]
                whole[f't{i}'] = common.tensor_of(self.rng, self.rng.choice(DTYPES), shape)
                placements[f't{i}'] = self.placed(len(shape), len(sizes))

            def state_of(sizes=sizes, order=order, whole=whole, placements=placements):
                mesh = self.mesh(sizes, order)
                return {name: distribute_tensor(value, mesh, placements[name], src_data_rank=None)
                        for name, value in whole.items()}
            folder = self.saved(world, state_of)
            with self.subTest(mesh=sizes, order=order, placements=placements):
                self.assert_same_dict(self.opened(folder), whole)
                self.assertEqual(common.safemap('inspect', folder)['layout']['mesh'], sizes)
                self.assertTrue(common.safemap('verify', folder)['ok'])

    def test_interleaved_shards(self):
        for _ in range(8):
            world, parts = self.rng.randint(1, 4), self.rng.randint(2, 5)
            whole = common.tensor_of(self.rng, torch.float32, (self.rng.randrange(20), 3))

            def state_of(world=world, parts=parts, whole=whole):
                mesh = init_device_mesh('cpu', (world,))
                return {'w': distribute_tensor(whole, mesh, [_StridedShard(0, split_factor=parts)], src_data_rank=None)}
            with self.subTest(world=world, parts=parts, shape=whole.shape):
                self.assert_same_dict(self.opened(self.saved(world, state_of)), {'w': whole})

    def test_fsdp_over_tensor_parallelism(self):
        for _ in range(6):
            rows, columns = self.rng.choice([(2, 2), (3, 2), (4, 2), (2, 3), (2, 4)])
            width, hidden = self.rng.randint(1, 7), columns * self.rng.randint(1, 5)
            torch.manual_seed(self.rng.randrange(2**32))
            model = nn.Sequential(nn.Linear(width, hidden), nn.ReLU(), nn.Linear(hidden, width))
            whole = {name: value.clone() for name, value in model.state_dict().items()}

            def state_of(rows=rows, columns=columns, width=width, hidden=hidden, whole=whole):
                own = nn.Sequential(nn.Linear(width, hidden), nn.ReLU(), nn.Linear(hidden, width))
                own.load_state_dict(whole)
                mesh = init_device_mesh('cpu', (rows, columns), mesh_dim_names=('dp', 'tp'))
                parallelize_module(own, mesh['tp'], {'0': ColwiseParallel(), '2': RowwiseParallel()},
                                   src_data_rank=None)
                fully_shard(own, mesh=mesh['dp'])
                return own.state_dict()
            with self.subTest(mesh=(rows, columns), width=width, hidden=hidden):
                self.assert_same_dict(self.opened(self.saved(rows * columns, state_of)), whole)

    def test_slices_of_a_mesh_hold_replicas(self):
        whole = {'w': common.tensor_of(self.rng, torch.float32, (7, 3))}
        for sizes, name in (((2, 3), 'dp'), ((2, 3), 'tp'), ((3, 2), 'dp')):
            def state_of(sizes=sizes, name=name):
                mesh = init_device_mesh('cpu', sizes, mesh_dim_names=('dp', 'tp'))[name]
                return {'w': distribute_tensor(whole['w'], mesh, [Shard(0)], src_data_rank=None)}
            folder = self.saved(6, state_of)
            with self.subTest(sizes=sizes, name=name):
                self.assert_same_dict(self.opened(folder), whole)
                self.assertTrue(common.safemap('verify', folder)['ok'])

    def test_a_model_with_its_optimizer(self):
        for world in (1, 2, 3):
            def state_of(kind, world=world):
                torch.manual_seed(1)
                model = nn.Sequential(nn.Embedding(11, 5), nn.LayerNorm(5), nn.Linear(5, 11, bias=False))
                model[2].weight = model[0].weight
                fully_shard(model, mesh=init_device_mesh('cpu', (world,)))
                optimizer = torch.optim.AdamW(model.parameters(), lr=0.5)
                for number, parameter in enumerate(model.parameters()):
                    parameter.grad = parameter.detach().clone() * (number + 1)
                optimizer.step()
                return model.state_dict() if kind == 'model' else optimizer.state_dict()
            torch.manual_seed(1)
            plain = nn.Sequential(nn.Embedding(11, 5), nn.LayerNorm(5), nn.Linear(5, 11, bias=False))
            plain[2].weight = plain[0].weight
            optimizer = torch.optim.AdamW(plain.parameters(), lr=0.5)
            for number, parameter in enumerate(plain.parameters()):
                parameter.grad = parameter.detach().clone() * (number + 1)
            optimizer.step()
            with self.subTest(world=world):
                folder = self.saved(world, lambda: state_of('model'))
                self.assert_same_dict(self.opened(folder), plain.state_dict())
                got = self.opened(self.saved(world, lambda: state_of('optim'), 'optim'))
                wanted = {f'state/{i}/{key}': value for i, state in optimizer.state_dict()['state'].items()
                          for key, value in state.items()}
                self.assert_same_dict(got, wanted)

    def test_sharded_tensors(self):
        for world in (1, 2, 4):
            whole = common.tensor_of(self.rng, torch.float32, (self.rng.randint(1, 9), 3))
            chunks = whole.chunk(world)
            starts = [sum(len(chunk) for chunk in chunks[:i]) for i in range(len(chunks))]

            def state_of(world=world, whole=whole, chunks=chunks, starts=starts):
                rank = dist.get_rank()
                shards = [ShardMetadata([start, 0], list(chunk.shape), f'rank:{i}/cpu')
                          for i, (start, chunk) in enumerate(zip(starts, chunks))]
                local = [LocalShard(chunks[rank].clone(), shards[rank])] if rank < len(chunks) else []
                metadata = ShardedTensorMetadata(shards, whole.size(), TensorProperties(dtype=whole.dtype))
                return {'w': ShardedTensor._init_from_local_shards_and_global_metadata(local, metadata)}
            with self.subTest(world=world, shape=whole.shape):
                self.assert_same_dict(self.opened(self.saved(world, state_of)), {'w': whole})

    def test_partial_tensors_are_refused(self):
        def state_of():
            return {'w': DTensor.from_local(torch.ones(2), init_device_mesh('cpu', (2,)), [Partial()])}
        error = common.safemap('inspect', self.saved(2, state_of), status=1)['error']
        self.assertEqual((error['code'], error['tensor']), ('partial_placement', 'w'))
