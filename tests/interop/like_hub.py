"""Tests that shards and index are those of huggingface_hub, byte for byte, and that its loader reads them."""
import json
import shutil
import struct
import unittest

import huggingface_hub
import safetensors.torch
import torch

import common
from common import Case, safemap, tensor_of

try:
    import transformers
except ImportError:
    transformers = None

INDEX = 'model.safetensors.index.json'

# The splits of huggingface_hub, at most ten bytes in a shard: name, bytes, and the storage if it is shared.
SPLITS = [
    [('t0', 6), ('t1', 6), ('t2', 2), ('t3', 6), ('t4', 2), ('t5', 2)],
    [('a', 2), ('big', 12), ('b', 2), ('c', 9)],
    [('a', 5), ('b', 5), ('c', 1)],
    [('a', 10), ('b', 10)],
    [('a', 0), ('b', 10), ('c', 0), ('d', 1)],
    [('a', 0), ('b', 10), ('d', 1), ('c', 0)],
    [('b', 10), ('a', 0), ('d', 10), ('c', 0), ('e', 10), ('f', 0)],
    [('big', 12), ('a', 0), ('b', 10), ('d', 1), ('c', 0)],
    [('a', 4, 1), ('b', 4, 1), ('c', 8, 2), ('d', 4, 1), ('e', 1)],
    [('a', 4, 1), ('c', 8, 2), ('b', 4, 1), ('d', 8, 2), ('e', 1)],
    [('a', 20, 1), ('x', 1), ('b', 20, 1)],
    [('a', 12)],
    [('s', 'str'), ('a', 1)],
    [],
]


def header_of(path):
    """Returns the header members of a file in order, and its data."""
    data = path.read_bytes()
    end = 8 + struct.unpack('<Q', data[:8])[0]
    return json.loads(data[8:end], object_pairs_hook=list), data[end:]


class LikeHub(Case):
    def random_state(self):
        """Returns contiguous, untied tensors with typical names, some with characters that JSON escapes."""
        rng = self.rng
        state = {}
        for i in range(rng.randrange(1, 40)):
            shape = tuple(rng.randrange(1, 9) for _ in range(rng.randrange(4)))
            tail = rng.choice(['weight', 'bias', 'é', 'a "quoted" name', 'back\\slash', 'tab\there', '/'])
            state[f'model.layers.{i}.{tail}'] = tensor_of(rng, rng.choice(common.DTYPES), shape)
        return state

    def convert(self, state, limit, *options):
        torch.save(state, self.folder / 'in.pt')
        return self.convert_file(self.folder / 'in.pt', limit, *options)

    def convert_file(self, file, limit, *options):
        out = self.folder / 'ours'
        shutil.rmtree(out, ignore_errors=True)
        safemap('convert', file, out, '--structure', 'drop', '--max-shard-size', limit, *options)
        return out

    def save(self, state, limit, metadata=None):
        """Saves with huggingface_hub."""
        theirs = self.folder / 'theirs'
        shutil.rmtree(theirs, ignore_errors=True)
        theirs.mkdir()
        huggingface_hub.save_torch_state_dict(dict(state), theirs, max_shard_size=limit, metadata=metadata)
        return theirs

    def assert_same_files(self, ours, theirs):
        """Compares names and bytes. The metadata of huggingface_hub's files is sorted first, because its order is not
        defined: in a header it is that of a hash table with random keys, in an index that of the caller and of tied
        names."""
        names = sorted(path.name for path in theirs.iterdir())
        self.assertEqual(sorted(path.name for path in ours.iterdir()), names)
        for name in names:
            if name == INDEX:
                index = json.loads((theirs / name).read_text(encoding='utf-8'))
                total = index['metadata'].pop('total_size')
                index['metadata'] = {'total_size': total, **dict(sorted(index['metadata'].items()))}
                wanted = json.dumps(index, indent=2)
                self.assertEqual((ours / name).read_text(encoding='utf-8'), wanted, name)
                continue
            header, data = header_of(theirs / name)
            if header[0][0] == '__metadata__' and len(header[0][1]) > 1:
                header[0] = ('__metadata__', sorted(header[0][1]))
                ordered, bytes_ = header_of(ours / name)
                self.assertEqual([tuple(member) for member in ordered], [tuple(member) for member in header], name)
                self.assertEqual(bytes_, data, name)
                self.assertEqual((ours / name).stat().st_size, (theirs / name).stat().st_size)
            else:
                self.assertEqual((ours / name).read_bytes(), (theirs / name).read_bytes(), name)

    def test_the_same_files_byte_for_byte(self):
        for round_ in range(12):
            with self.subTest(round=round_):
                state = self.random_state()
                sizes = [t.nbytes for t in state.values()]
                # Some tensors larger than a shard, and some shards that are filled exactly.
                limit = self.rng.choice([max(sizes), sum(sizes), 1 + sum(sizes) // 3, self.rng.randrange(1, 2000)])
                theirs = self.save(state, limit)
                ours = self.convert(state, limit)
                names = sorted(path.name for path in theirs.iterdir())
                self.assertEqual(sorted(path.name for path in ours.iterdir()), names)
                for name in names:
                    self.assertEqual((ours / name).read_bytes(), (theirs / name).read_bytes(), name)

    def test_special_cases_are_split_like_hub(self):
        for split in SPLITS:
            with self.subTest(split=split):
                storages, state = {}, {}
                for name, size, *storage in split:
                    if size == 'str':
                        state[name] = 'a string'
                        continue
                    new = tensor_of(self.rng, torch.uint8, (size,))
                    state[name] = storages.setdefault(storage[0], new) if storage else new
                ours = self.convert(state, 10)
                if not state:  # huggingface_hub writes no file for an empty state
                    self.assertEqual([path.name for path in ours.iterdir()], ['model.safetensors'])
                    continue
                # huggingface_hub accepts strings when splitting, but not when saving.
                self.assert_same_files(ours, self.save({k: v for k, v in state.items() if k != 's'}, 10))
                if len({id(tensor) for tensor in state.values()}) == len(state):
                    files = huggingface_hub.split_torch_state_dict_into_shards(state, max_shard_size=10)
                    self.assertEqual({path.name for path in ours.glob('*.safetensors')},
                                     set(files.filename_to_tensors))

    def test_parts_of_a_storage_stay_together(self):
        base, other = torch.arange(8, dtype=torch.uint8), torch.arange(6, dtype=torch.uint8)
        state = {'a': base[:3], 'x': torch.zeros(5, dtype=torch.uint8), 'b': other[:2], 'c': base[3:],
                 'y': torch.ones(4, dtype=torch.uint8), 'd': other[2:]}
        for limit in (8, 9, 11, 13, 14, 22):
            with self.subTest(limit=limit):
                # huggingface_hub splits such states, but refuses to save them.
                split = huggingface_hub.split_torch_state_dict_into_shards(state, max_shard_size=limit)
                index = json.loads((self.convert(state, limit) / INDEX).read_text(encoding='utf-8'))
                self.assertEqual(list(index['weight_map'].items()), list(split.tensor_to_filename.items()))
                self.assertEqual(index['metadata'], split.metadata)

    def test_tied_tensors(self):
        for round_ in range(8):
            with self.subTest(round=round_):
                state = self.random_state()
                # huggingface_hub keeps the alphabetically first of tied names, and safemap the first in order.
                for name in self.rng.sample(sorted(state), min(len(state), 3)):
                    if state[name].nbytes:
                        state[f'z.{name}'] = state[name]
                        state[f'zz.{self.rng.randrange(100)}.{name}'] = state[name]
                limit = self.rng.randrange(1, 2000)
                self.assert_same_files(self.convert(state, limit), self.save(state, limit))

    def test_metadata_is_stored_where_hub_stores_it(self):
        metadata = {'a "key"': 'é\n\\', 'b': '', 'é.€.𝄞': '1'}
        for format_ in ('pt', 'mlx', None):
            state = {name: tensor for name, tensor in self.random_state().items()}
            given = {**metadata, **({'format': format_} if format_ else {})}
            source = self.folder / 'in.safetensors'
            safetensors.torch.save_file(state, source, given)
            with safetensors.safe_open(source, 'pt') as opened:
                order = opened.offset_keys()
            ordered = {name: state[name] for name in order}
            for limit in (10**9, 1 + sum(t.nbytes for t in state.values()) // 3):
                with self.subTest(format=format_, limit=limit):
                    ours = self.convert_file(source, limit)
                    if (ours / INDEX).is_file():
                        self.assertNotIn('format', json.loads((ours / INDEX).read_text(encoding='utf-8'))['metadata'])
                    if format_ != 'mlx':  # huggingface_hub would not keep it
                        self.assert_same_files(ours, self.save(ordered, limit, dict(metadata)))

    def test_an_index_of_transformers(self):
        for _ in range(4):
            state = self.random_state()
            limit = self.rng.randrange(1, 500)
            split = huggingface_hub.split_torch_state_dict_into_shards(state, max_shard_size=limit)
            ours = self.convert(state, limit, '--index-style', 'transformers')
            self.assertEqual(sorted(path.name for path in ours.glob('*.safetensors')),
                             sorted(split.filename_to_tensors))
            if len(split.filename_to_tensors) > 1:
                index = {'metadata': {'total_parameters': sum(t.numel() for t in state.values()), **split.metadata},
                         'weight_map': split.tensor_to_filename}
                self.assertEqual((ours / INDEX).read_text(encoding='utf-8'),
                                 json.dumps(index, indent=2, sort_keys=True) + '\n')

    @unittest.skipUnless(transformers, 'no transformers here')
    def test_files_are_those_that_transformers_saves(self):
        config = transformers.LlamaConfig(vocab_size=64, hidden_size=32, intermediate_size=48, num_hidden_layers=3,
                                          num_attention_heads=4, tie_word_embeddings=False)
        model = transformers.LlamaForCausalLM(config)
        theirs = self.folder / 'theirs'
        model.save_pretrained(theirs, max_shard_size='20KB')
        ours = self.convert(model.state_dict(), '20kB', '--index-style', 'transformers')
        names = sorted(path.name for path in theirs.glob('model*'))
        self.assertIn(INDEX, names)
        self.assertEqual(sorted(path.name for path in ours.iterdir()), names)
        for name in names:
            self.assertEqual((ours / name).read_bytes(), (theirs / name).read_bytes(), name)
        (ours / 'config.json').write_bytes((theirs / 'config.json').read_bytes())
        self.assert_same_dict(transformers.LlamaForCausalLM.from_pretrained(ours).state_dict(), model.state_dict())

    def test_the_same_split_of_many_tensors(self):
        state = {f't.{i}': tensor_of(self.rng, torch.uint8, (self.rng.randrange(1, 40),)) for i in range(1000)}
        split = huggingface_hub.split_torch_state_dict_into_shards(state, max_shard_size=100)
        ours = self.convert(state, 100)
        index = json.loads((ours / 'model.safetensors.index.json').read_text())
        self.assertEqual(index['weight_map'], split.tensor_to_filename)
        self.assertEqual(index['metadata'], split.metadata)
        self.assertEqual(sorted(p.name for p in ours.glob('*.safetensors')), sorted(split.filename_to_tensors))

    def test_hub_loads_the_shards_into_a_module(self):
        def module():
            return torch.nn.Sequential(torch.nn.Linear(20, 30), torch.nn.GELU(), torch.nn.Linear(30, 10))

        model, other = module(), module()
        out = self.convert(model.state_dict(), 1500)
        self.assertTrue((out / 'model.safetensors.index.json').is_file())
        # Not strict: the loader passes the flag to each shard, and no shard has all keys.
        huggingface_hub.load_torch_model(other, out, strict=False)
        self.assert_same_dict(other.state_dict(), model.state_dict())

    def test_checkpoints_saved_by_hub_open(self):
        state = self.random_state()
        theirs = self.save(state, 500)
        listed = safemap('inspect', theirs)['tensors']
        self.assertEqual({t['name']: (t['dtype'], t['shape']) for t in listed},
                         {name: (common.NAMES[t.dtype], list(t.shape)) for name, t in state.items()})
        self.assertTrue(safemap('verify', theirs)['ok'])
