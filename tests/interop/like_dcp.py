"""Compares fresh checkpoints of torch.distributed.checkpoint with what was saved, and with torch's own script that
makes one file of them. Each run has other tensors, meshes and placements.
"""
import importlib.util
import pathlib
import subprocess
import sys
import unittest

import torch
from safetensors.torch import load_file
from torch.distributed.checkpoint.format_utils import dcp_to_torch_save

import common

HAS_ACCELERATE = importlib.util.find_spec('accelerate')
HAS_ZSTD = any(importlib.util.find_spec(name) for name in ('zstandard', 'pyzstd'))


def flat(value, path=()):
    """Yields the tensors of a nested state dict under the names of DCP."""
    if isinstance(value, torch.Tensor):
        yield '.'.join(path), value
    elif isinstance(value, (dict, list, tuple)):
        for key, item in value.items() if isinstance(value, dict) else enumerate(value):
            yield from flat(item, (*path, str(key)))


class LikeDcp(common.Case):
    def saved(self, kind, world):
        out = self.folder / f'{kind}{world}'
        script = pathlib.Path(__file__).with_name('save_dcp.py')
        run = subprocess.run([sys.executable, script, kind, str(self.rng.randrange(2**31)), str(world), out],
                             capture_output=True, check=False, timeout=600)
        self.assertEqual(run.returncode, 0, run.stderr.decode()[-3000:])
        return out

    def compare(self, kind, world):
        out = self.saved(kind, world)
        common.safemap('convert', out / 'checkpoint', out / 'out', '--root', '')
        got = load_file(out / 'out/model.safetensors')
        self.assert_same_dict(got, load_file(out / 'live.safetensors'))
        self.assertTrue(common.safemap('verify', out / 'checkpoint')['ok'])
        self.assertTrue(common.safemap('diff', out / 'checkpoint', out / 'out')['equal'])
        return out / 'checkpoint', got

    def like_torch(self, kind, world):
        checkpoint, got = self.compare(kind, world)
        dcp_to_torch_save(checkpoint, self.folder / 'all.pt')
        state = torch.load(self.folder / 'all.pt', weights_only=False)
        self.assert_same_dict(got, dict(flat(state)))

    def test_random_meshes(self):
        for kind in ('plain', 'threads', 'items', 'async'):
            world = self.rng.choice([1, 2, 3, 4, 6])
            with self.subTest(kind=kind, world=world):
                self.like_torch(kind, world)

    def test_trained_model(self):
        self.like_torch('fsdp', self.rng.choice([2, 3]))

    def test_ranks_that_save_without_each_other(self):
        # torch's script does not read these.
        self.compare('alone', self.rng.choice([2, 3, 4]))

    @unittest.skipUnless(HAS_ACCELERATE, 'no accelerate')
    def test_model_and_optimizer_that_accelerate_saves(self):
        for kind, model, optimizer in (
                ('accelerate', 'pytorch_model_fsdp_0', 'optimizer_0'),
                ('accelerate_ranks', 'pytorch_model_fsdp_0_rank*.bin', 'optimizer_0_rank*.bin')):
            out = self.saved(kind, self.rng.choice([1, 2, 3]))
            live = load_file(out / 'live.safetensors')
            with self.subTest(kind=kind):
                common.safemap('convert', out / 'checkpoint' / model, out / 'model.safetensors', '--structure', 'drop',
                               '--root', '')
                got = {'model.' + name.removeprefix('model.'): value
                       for name, value in load_file(out / 'model.safetensors').items()}
                self.assert_same_dict(got, {name: live[name] for name in live if name.startswith('model.')})
                common.safemap('convert', out / 'checkpoint' / optimizer, out / 'o.safetensors', '--structure', 'drop')
                # The names differ: those of DCP, or paths in the tree.
                moments = [value for name, value in live.items() if name.startswith('optim.state.')]
                same = sorted(value.numpy().tobytes() for value in load_file(out / 'o.safetensors').values())
                self.assertEqual(same, sorted(value.numpy().tobytes() for value in moments))

    @unittest.skipUnless(HAS_ZSTD, 'no zstandard')
    def test_compressed_items(self):
        self.like_torch('zstd', self.rng.choice([1, 2]))
