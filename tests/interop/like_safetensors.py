"""Tests that files of the safetensors package open with the same content, and that digests are those of its bytes."""
import json
import pathlib
import subprocess
import sys
import unittest

import safetensors.numpy
import safetensors.torch
import torch

import common
from common import Case, raw, safemap, shape_of, tensor_of

try:
    import xxhash
except ImportError:
    xxhash = None


class LikeSafetensors(Case):
    def random_state(self):
        return {f'{i}.{self.rng.choice("abc")}': tensor_of(self.rng, self.rng.choice(common.DTYPES), shape_of(self.rng))
                for i in range(60)}

    def save(self, state, metadata=None):
        file = self.folder / 'model.safetensors'
        safetensors.torch.save_file(state, file, metadata)
        return file

    def test_inspect_lists_what_was_written(self):
        state = self.random_state()
        metadata = {'format': 'pt', 'a "key"': 'é\n\\', 'b': ''}
        file = self.save(state, metadata)
        report = safemap('inspect', file)
        self.assertEqual(report['format'], 'safetensors')
        self.assertEqual(report['metadata'], metadata)
        self.assertEqual(report['total_bytes'], sum(t.nbytes for t in state.values()))
        with safetensors.safe_open(file, 'pt') as opened:
            # Tensors without bytes share an offset with the next tensor.
            order = [name for name in opened.offset_keys() if state[name].nbytes]
        listed = {t['name']: t for t in report['tensors']}
        self.assertEqual([name for name in listed if state[name].nbytes], order)
        self.assertEqual(sorted(listed), sorted(state))
        data = file.read_bytes()
        for name, tensor in state.items():
            entry = listed[name]
            self.assertEqual((entry['dtype'], entry['shape'], entry['nbytes']),
                             (common.NAMES[tensor.dtype], list(tensor.shape), tensor.nbytes), name)
            if not tensor.nbytes:
                continue  # a tensor without bytes has no place
            self.assertEqual(data[entry['offset']:entry['offset'] + tensor.nbytes], raw(tensor), name)

    def test_converting_a_file_of_the_reference_gives_the_same_bytes(self):
        file = self.save(self.random_state(), {'format': 'pt'})
        out = self.folder / 'out.safetensors'
        safemap('convert', file, out)
        self.assertEqual(out.read_bytes(), file.read_bytes())

    def exactly_saved(self, file, metadata):
        out = self.folder / 'x'  # one file, although the name has no suffix
        pairs = [word for pair in (metadata or {}).items() for word in pair]
        run = subprocess.run([common.BUILD / 'tests/interop/exact_save', file, out,
                              'none' if metadata is None else 'given', *pairs],
                             capture_output=True, check=True, timeout=60)
        self.assertEqual(run.stdout.strip() == b'1', metadata is not None)
        return out.read_bytes()

    def in_order(self, save, metadata):
        """Saves with the reference until its pairs are sorted by key: it writes metadata in a random order."""
        for _ in range(10000):
            data = save()
            header = json.loads(data[8:8 + int.from_bytes(data[:8], 'little')])
            if list(header.get('__metadata__') or {}) == sorted(metadata or {}):
                return data
        raise AssertionError('never in order')

    def test_exact_metadata_gives_the_bytes_of_the_reference(self):
        state = self.random_state()
        arrays = {name: tensor.numpy() for name, tensor in state.items()
                  if tensor.dtype in (torch.float32, torch.float64, torch.int64, torch.uint8, torch.bool)}
        for metadata in (None, {}, {'a': 'b'}, {'format': 'pt'}, {'': ''}, {'format': 'np', 'step': '7', 'a b': ''},
                         {'\u00e9\n"\\': '\u2028\U0001f600\x7f/\t\x01', '\uffff': '\u0416'}):
            with self.subTest(metadata=metadata):
                file = self.save(state, {'other': 'pairs'})
                self.assertEqual(self.exactly_saved(file, metadata), self.in_order(
                    lambda: safetensors.torch.save(state, metadata), metadata))
                self.assertEqual(self.exactly_saved(self.save(state, metadata), metadata), self.in_order(
                    lambda: self.save(state, metadata).read_bytes(), metadata))
                safetensors.numpy.save_file(arrays, file)
                self.assertEqual(self.exactly_saved(file, metadata), self.in_order(
                    lambda: safetensors.numpy.save(arrays, metadata), metadata))

    def test_an_empty_file(self):
        file = self.save({})
        self.assertEqual(safemap('inspect', file)['tensors'], [])

    def test_a_broken_file_is_refused_by_both(self):
        data = self.save({'w': torch.zeros(100)}).read_bytes()
        for cut in (0, 4, 8, 40, len(data) - 1):
            with self.subTest(cut=cut):
                file = self.folder / 'cut.safetensors'
                file.write_bytes(data[:cut])
                with self.assertRaises(Exception):
                    safetensors.torch.load_file(file)
                self.assertIn('error', safemap('inspect', file, status=1))

    def test_headers_get_the_verdict_of_the_reference(self):
        run = subprocess.run([sys.executable, pathlib.Path(__file__).with_name('headers.py'),
                              common.BUILD / 'tests/interop/header_verdict', '20000', str(common.SEED)],
                             stdout=subprocess.PIPE, text=True, check=False, timeout=600)
        self.assertEqual(run.returncode, 0, run.stdout)

    @unittest.skipUnless(xxhash, 'no xxhash here')
    def test_digests_are_xxh3_of_the_bytes(self):
        state = self.random_state()
        wanted = {name: xxhash.xxh3_128_hexdigest(raw(t)) for name, t in state.items()}
        torch.save(state, self.folder / 'model.pt')
        for file in (self.save(state), self.folder / 'model.pt'):
            with self.subTest(file=file.name):
                report = safemap('load', file, '--device', 'host', '--budget', '1MiB', '--digest')
                self.assertEqual(report['digests'], wanted)
                self.assertEqual(report['bytes'], sum(t.nbytes for t in state.values()))
                lines = sorted(b'\0'.join([name.encode(), common.NAMES[t.dtype].encode(),
                                           ','.join(map(str, t.shape)).encode(), wanted[name].encode()]) + b'\n'
                               for name, t in state.items())
                self.assertEqual(safemap('hash', file), {'algorithm': 'xxh3-128',
                                                         'checkpoint': xxhash.xxh3_128_hexdigest(b''.join(lines)),
                                                         'tensors': wanted})

    def test_the_first_difference_has_the_right_index(self):
        for _ in range(20):
            a = self.random_state()
            b = {name: tensor.clone() for name, tensor in a.items()}
            name, spoiled = self.rng.choice([item for item in b.items() if item[1].nbytes])
            flat = spoiled.reshape(-1).view(torch.uint8)
            places = self.rng.sample(range(len(flat)), min(3, len(flat)))
            for place in places:
                flat[place] ^= 1
            torch.save(a, self.folder / 'a.pt')
            report = safemap('diff', self.folder / 'a.pt', self.save(b), status=1)
            index = torch.unravel_index(torch.tensor(min(places) // spoiled.element_size()), spoiled.shape)
            self.assertEqual([(d['name'], d['what'], d['index']) for d in report['different']],
                             [(name, 'value', [int(i) for i in index])])
            self.assertTrue(safemap('diff', self.folder / 'a.pt', self.save(a))['equal'])
