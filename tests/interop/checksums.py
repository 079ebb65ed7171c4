"""Tests that safetensors and huggingface_hub read files with checksums, and that the digests are those of xxhash."""
import hashlib
import json
import unittest

import huggingface_hub
import safetensors
import safetensors.torch
import torch

import common
from common import Case, raw, safemap, shape_of, tensor_of

try:
    import xxhash
except ImportError:
    xxhash = None

LIST, WHOLE = 'safemap.xxh3_128', 'safemap.checkpoint_xxh3_128'
DOCUMENT = 'safemap.structure_xxh3_128'


def metadata_of(file):
    with safetensors.safe_open(file, 'pt') as opened:
        return opened.metadata()


class Checksums(Case):
    def convert(self, *options):
        """Saves a random state with tied and transposed tensors. Returns the state and its path."""
        rng = self.rng
        state = {f'{i}.{rng.choice(["w", "é", "a quote", "back/slash"])}': tensor_of(rng, rng.choice(common.DTYPES),
                                                                                     shape_of(rng))
                 for i in range(40)}
        state['\x01"quoted"\\'] = torch.randn(3)
        state['transposed'] = torch.randn(300, 200).T
        state['tied'] = state['transposed']
        torch.save(state, self.folder / 'in.pt')
        safemap('convert', self.folder / 'in.pt', self.folder / options[0], '--checksums', *options[1:])
        return state, self.folder / options[0]

    def check_lists(self, files, state):
        found = {}
        for file in files:
            listed = json.loads(metadata_of(file)[LIST])
            # The package lists names in another order; the digests are in the order of the data.
            with safetensors.safe_open(file, 'pt') as opened:
                self.assertEqual(sorted(listed), sorted(opened.keys()))
            found.update(listed)
        self.assertEqual(set(state) - set(found), {'tied'})
        for name, digest in found.items():
            self.assertRegex(digest, '^[0-9a-f]{32}$')
            if xxhash:
                self.assertEqual(digest, xxhash.xxh3_128_hexdigest(raw(state[name])), name)
        return found

    def test_one_file_is_loaded_by_safetensors(self):
        state, file = self.convert('out.safetensors')
        loaded = safetensors.torch.load_file(file)
        stored = {name: tensor for name, tensor in state.items() if name != 'tied'}
        self.assert_same_dict(loaded, stored)
        found = self.check_lists([file], state)
        hashed = safemap('hash', file)
        self.assertEqual(metadata_of(file)[WHOLE], hashed['checkpoint'])
        self.assertEqual(hashed['tensors'], {**found, 'tied': found['transposed']})

    def test_shards_are_loaded_by_hub(self):
        state, folder = self.convert('out', '--max-shard-size', '20000')
        files = sorted(folder.glob('*.safetensors'))
        self.assertGreater(len(files), 1)
        self.check_lists(files, state)
        index = json.loads((folder / 'model.safetensors.index.json').read_text())
        self.assertEqual(index['metadata'][WHOLE], safemap('hash', folder)['checkpoint'])
        loaded = {}
        for file in files:
            loaded.update(huggingface_hub.load_state_dict_from_file(file))
        self.assert_same_dict(loaded, {name: tensor for name, tensor in state.items() if name != 'tied'})

    def test_hub_loads_the_shards_into_a_module(self):
        def module():
            return torch.nn.Sequential(torch.nn.Linear(20, 30), torch.nn.GELU(), torch.nn.Linear(30, 10))

        model, other = module(), module()
        torch.save(model.state_dict(), self.folder / 'm.pt')
        for limit in ('1500', '1GB'):
            out = self.folder / limit
            safemap('convert', self.folder / 'm.pt', out, '--checksums', '--max-shard-size', limit)
            huggingface_hub.load_torch_model(other, out, strict=False)
            self.assert_same_dict(other.state_dict(), model.state_dict())

    def test_the_structure_document_has_a_digest(self):
        torch.save({'model': {'w': torch.randn(3)}, 'step': 1000, 'lr': 1e-3}, self.folder / 'nested.pt')
        file = self.folder / 'nested.safetensors'
        safemap('convert', self.folder / 'nested.pt', file, '--checksums')
        metadata = metadata_of(file)
        if xxhash:
            self.assertEqual(metadata[DOCUMENT], xxhash.xxh3_128_hexdigest(metadata['safemap.structure'].encode()))
        metadata['safemap.structure'] = metadata['safemap.structure'].replace('1000', '9000')
        safetensors.torch.save_file(safetensors.torch.load_file(file), file, metadata)
        told = safemap('verify', file, status=1)
        self.assertEqual([f['code'] for f in told['faults']], ['checksum_mismatch'])

    def test_sha256_agrees_with_hashlib(self):
        state, file = self.convert('out.safetensors')
        told = safemap('hash', file, '--algorithm', 'sha256')
        self.assertEqual(told['tensors'], {name: hashlib.sha256(raw(tensor)).hexdigest()
                                           for name, tensor in state.items()})

    def test_digests_stay_valid_if_safetensors_rewrites_the_file(self):
        _, file = self.convert('out.safetensors')
        again = self.folder / 'again.safetensors'
        safetensors.torch.save_file(safetensors.torch.load_file(file), again, metadata_of(file))
        told = safemap('verify', again)
        self.assertTrue(told['ok'])
        self.assertEqual(told['checked_bytes'], told['bytes'])

    def test_a_tensor_that_another_program_changed_is_found(self):
        _, file = self.convert('out.safetensors')
        tensors = safetensors.torch.load_file(file)
        tensors['transposed'][3, 5] += 1
        safetensors.torch.save_file(tensors, file, metadata_of(file))
        told = safemap('verify', file, status=1)
        self.assertEqual([(f['code'], f['tensor']) for f in told['faults']], [('checksum_mismatch', 'transposed')])
