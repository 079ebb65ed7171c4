"""Shards and index are those of huggingface_hub, byte for byte, and its loader reads them."""
import json

import huggingface_hub
import torch

import common
from common import Case, safemap, tensor_of


class LikeHub(Case):
    def random_state(self):
        """Contiguous, untied tensors under names as models have them, some with what JSON has to escape."""
        rng = self.rng
        state = {}
        for i in range(rng.randrange(1, 40)):
            shape = tuple(rng.randrange(1, 9) for _ in range(rng.randrange(4)))
            tail = rng.choice(['weight', 'bias', 'é', 'a "quoted" name', 'back\\slash', 'tab\there', '/'])
            state[f'model.layers.{i}.{tail}'] = tensor_of(rng, rng.choice(common.DTYPES), shape)
        return state

    def convert(self, state, limit):
        torch.save(state, self.folder / 'in.pt')
        out = self.folder / 'ours'
        safemap('convert', self.folder / 'in.pt', out, '--max-shard-size', limit)
        return out

    def test_the_same_files_byte_for_byte(self):
        for round_ in range(12):
            with self.subTest(round=round_):
                state = self.random_state()
                sizes = [t.nbytes for t in state.values()]
                # Some tensors larger than a shard, some shards that fill up exactly.
                limit = self.rng.choice([max(sizes), sum(sizes), 1 + sum(sizes) // 3, self.rng.randrange(1, 2000)])
                theirs = self.folder / 'theirs'
                theirs.mkdir()
                huggingface_hub.save_torch_state_dict(dict(state), theirs, max_shard_size=limit)
                ours = self.convert(state, limit)
                names = sorted(path.name for path in theirs.iterdir())
                self.assertEqual(sorted(path.name for path in ours.iterdir()), names)
                for name in names:
                    self.assertEqual((ours / name).read_bytes(), (theirs / name).read_bytes(), name)
                for folder in (ours, theirs):
                    for path in folder.iterdir():
                        path.unlink()
                    folder.rmdir()

    def test_the_same_split_of_many_tensors(self):
        state = {f't.{i}': tensor_of(self.rng, torch.uint8, (self.rng.randrange(1, 40),)) for i in range(1000)}
        split = huggingface_hub.split_torch_state_dict_into_shards(state, max_shard_size=100)
        ours = self.convert(state, 100)
        index = json.loads((ours / 'model.safetensors.index.json').read_text())
        self.assertEqual(index['weight_map'], split.tensor_to_filename)
        self.assertEqual(index['metadata'], split.metadata)
        self.assertEqual(sorted(p.name for p in ours.glob('*.safetensors')), sorted(split.filename_to_tensors))

    def test_its_loader_fills_a_module(self):
        def module():
            return torch.nn.Sequential(torch.nn.Linear(20, 30), torch.nn.GELU(), torch.nn.Linear(30, 10))

        model, other = module(), module()
        out = self.convert(model.state_dict(), 1500)
        self.assertTrue((out / 'model.safetensors.index.json').is_file())
        # Not strict: the loader gives the flag to each shard, and no shard has all keys.
        huggingface_hub.load_torch_model(other, out, strict=False)
        self.assert_same_dict(other.state_dict(), model.state_dict())

    def test_what_it_saved_opens(self):
        state = self.random_state()
        theirs = self.folder / 'theirs'
        theirs.mkdir()
        huggingface_hub.save_torch_state_dict(state, theirs, max_shard_size=500)
        listed = safemap('inspect', theirs)['tensors']
        self.assertEqual({t['name']: (t['dtype'], t['shape']) for t in listed},
                         {name: (common.NAMES[t.dtype], list(t.shape)) for name, t in state.items()})
        self.assertTrue(safemap('verify', theirs)['ok'])
