"""Tests folders that torch.distributed.checkpoint wrote, from outside: dcp.py SAFEMAP [unittest's own arguments].

The folders are beside the checkout, in ../shared/fixtures, or in SAFEMAP_FIXTURES, each with its tensors and objects in
an expected.json; without them, this is skipped. Written files are read here, without torch.
"""
import base64
import itertools
import json
import math
import os
import resource
import shutil
import subprocess
import sys
import unittest

import deepspeed
from deepspeed import FIXTURES, model_of, safemap, tensors_of, value_of

# The code of each broken folder; the word of expected.json is in the message or the path.
CODES = {
    'absolute_path': 'shard_outside_folder',
    'chunk_far_outside': 'piece_outside',
    'chunk_not_stored': 'piece_missing',
    'chunk_of_other_rank': 'piece_mismatch',
    'chunk_outside': 'piece_outside',
    'empty_distcp': 'piece_missing',
    'empty_metadata': 'pickle_truncated',
    'gap': 'not_covered',
    'huge_tensor': 'shape_overflow',
    'item_wants_command': 'unsafe_call',
    'length_past_end': 'piece_missing',
    'metadata_is_no_metadata': 'not_a_checkpoint',
    'metadata_wants_command': 'unsafe_call',
    'metadata_without_stop': 'pickle_bad_count',
    'missing_distcp': 'rank_missing',
    'negative_item': 'piece_missing',
    'negative_offset': 'piece_outside',
    'negative_size': 'bad_tensor',
    'not_a_tensor': 'piece_mismatch',
    'object_not_stored': 'piece_missing',
    'offset_past_end': 'piece_missing',
    'other_dtype': 'piece_mismatch',
    'other_shape': 'piece_mismatch',
    'overlapping_chunks': 'pieces_overlap',
    'parent_path': 'shard_outside_folder',
    'parent_path_inside': 'shard_outside_folder',
    'rank_metadata_dtypes_differ': 'ranks_differ',
    'rank_metadata_missing': 'not_covered',
    'rank_metadata_sizes_differ': 'ranks_differ',
    'repeated_chunk': 'pieces_overlap',
    'truncated_distcp': 'piece_missing',
    'truncated_metadata': 'pickle_bad_count',
    'unfinished': 'unfinished_checkpoint',
    'unknown_transform': 'unknown_transform',
}


def rows():
    text = (FIXTURES / 'dcp/expected.json').read_text(encoding='utf-8')
    return [(row, FIXTURES / 'dcp' / row['folder']) for row in json.loads(text)
            if not row['folder'].startswith(('hf_', 'broken/hf_'))]


def good():
    return [(row, path) for row, path in rows() if row['error'] is None]


def reals(text):
    return {'nan': math.nan, 'inf': math.inf, '-inf': -math.inf}[text]


class Document:
    """A structure document, whose nodes are described as expected.json describes objects."""

    def __init__(self, text, tensors):
        self.root = json.loads(text)['root']
        self.tensors = tensors

    def at(self, path):
        """Returns the node at a path, and the name that a tensor there has unless the node gives another."""
        node, name = self.root, []
        for step in path:
            if isinstance(step, int):
                assert node[0] == 'l', node
                node = node[step + 1]
            else:
                assert isinstance(node, dict), node
                node = node[step]
            name.append(segment(step))
        return node, '/'.join(name)

    def name_of(self, node, implied):
        assert node[0] == 'T', node
        return node[1].get('n', implied) if len(node) > 1 else implied

    def described(self, node, path):
        if node is None or isinstance(node, (bool, int, float, str)):
            return {'type': type(node).__name__, 'value': node}
        if isinstance(node, dict):
            return {'type': 'dict', 'value': [[self.described(key, ''), self.described(value, f'{path}/{segment(key)}')]
                                              for key, value in node.items()]}
        tag, rest = node[0], node[1:]
        if tag in ('l', 't', 'size'):
            return {'type': {'l': 'list', 't': 'tuple', 'size': 'Size'}[tag],
                    'value': [self.described(item, f'{path}/{i}') for i, item in enumerate(rest)]}
        if tag == 'T':
            dtype, shape, digest = self.tensors[self.name_of(node, path)]
            return {'type': 'tensor', 'value': {'dtype': dtype, 'shape': shape, 'sha256': digest}}
        if tag == 'i':
            return {'type': 'int', 'value': rest[0]}
        if tag == 'f':
            return {'type': 'float', 'value': str(reals(rest[0]))}
        if tag == 'b':
            return {'type': 'bytes', 'value': base64.b64decode(rest[0]).hex()}
        if tag == 'c':
            return {'type': 'complex', 'value': rest}
        if tag == 'dtype':
            return {'type': 'dtype', 'value': f'torch.{rest[0]}'}
        raise AssertionError(f'unexpected node {node}')


def segment(key):
    if isinstance(key, int):
        return str(key)
    if key == '' or key.lstrip('-').isdigit():
        return f'~s{key}'
    return key.replace('~', '~0').replace('/', '~1')


def in_objects(node, path=''):
    """Yields the path in an object of each tensor that expected.json describes there."""
    if node['type'] == 'tensor':
        yield path
    elif node['type'] == 'dict':
        for key, value in node['value']:
            yield from in_objects(value, f"{path}/{segment(key['value'])}")
    elif isinstance(node['value'], list) and node['type'] in ('list', 'tuple', 'OrderedDict'):
        for i, item in enumerate(node['value']):
            yield from in_objects(item, f'{path}/{i}')


def names_in_objects(row):
    return {'.'.join(map(str, item['path'])) + path for item in row['objects'] for path in in_objects(item)}


class Case(deepspeed.Case):
    def done(self, *words):
        answer = safemap(*words)
        self.assertEqual(answer.code, 0, answer.text)
        return answer.object


def each_good(check):
    def test(self):
        for row, path in good():
            with self.subTest(folder=row['folder']):
                check(self, row, path)
    return test


class Folders(Case):
    def test_all_kinds_are_there(self):
        self.assertEqual(len(good()), 16)
        self.assertEqual({row['folder'].removeprefix('broken/') for row, _ in rows() if row['error']}, set(CODES))

    @each_good
    def test_inspect(self, row, path):
        told = self.done('inspect', path, '--root', '')
        self.assertEqual(told['format'], 'dcp')
        self.assertEqual(told['layout']['kind'], 'dcp')
        self.assertEqual(told['layout']['world_size'], row['world'])
        self.assertGreaterEqual(told['layout']['chunks'], len(row['tensors']))
        # A thread of a rank without items leaves an empty file.
        names = [entry.name for entry in os.scandir(path) if entry.name != 'metadata.json' and entry.stat().st_size > 0]
        self.assertEqual(sorted(told['files']), sorted(names))
        got = {tensor['name']: (tensor['dtype'], tensor['shape']) for tensor in told['tensors']}
        inside = names_in_objects(row)
        wanted = {t['name']: ('complex128' if t['dtype'] == 'C128' else t['dtype'], t['shape']) for t in row['tensors']}
        self.assertEqual({name: value for name, value in got.items() if name not in inside}, wanted)
        self.assertEqual(set(got) & inside, inside)

    @each_good
    def test_every_tensor_to_the_bit(self, row, path):
        told = self.done('hash', path, '--algorithm', 'sha256', '--root', '')['tensors']
        for tensor in row['tensors']:
            self.assertEqual(told[tensor['name']], tensor['sha256'], tensor['name'])

    @each_good
    def test_converted(self, row, path):
        out = self.out()
        report = self.done('convert', path, out, '--root', '')
        tensors, metadata = model_of(out)
        for tensor in row['tensors']:
            dtype, shape, digest = tensors[tensor['name']]
            self.assertEqual(digest, tensor['sha256'])
            if tensor['dtype'] != 'C128':
                self.assertEqual((dtype, shape), (tensor['dtype'], tensor['shape']))
        self.assertEqual(report['skipped'], [])
        plain = not row['objects'] and all(len(t['path']) == 1 for t in row['tensors'])
        self.assertEqual('safemap.structure' in metadata, not plain)
        if not plain:
            self.check_document(row, Document(metadata['safemap.structure'], tensors))
        self.check_again(path, out)

    def check_document(self, row, document):
        for tensor in row['tensors']:
            self.assertEqual(document.name_of(*document.at(tensor['path'])), tensor['name'])
        for item in row['objects']:
            node, _ = document.at(item['path'])
            got = document.described(node, '.'.join(map(str, item['path'])))
            self.assertEqual(got, {key: item[key] for key in ('type', 'value')}, item['path'])

    def check_again(self, path, out):
        """Checks that what was written is the same checkpoint, and is written as the same bytes again."""
        self.assertTrue(self.done('diff', path, out)['equal'])
        self.assertEqual(self.done('hash', path), self.done('hash', out))
        again = self.out()
        self.done('convert', out, again, '--root', '')
        self.assertEqual((again / 'model.safetensors').read_bytes(), (out / 'model.safetensors').read_bytes())
        own, same = self.out(), self.out()
        self.done('convert', path, own)
        self.done('convert', own, same)
        self.assertEqual((own / 'model.safetensors').read_bytes(), (same / 'model.safetensors').read_bytes())
        self.assertTrue(self.done('diff', path, own)['equal'])
        self.assertTrue(self.done('diff', out, own)['equal'])
        self.assertEqual(self.done('inspect', path, '--structure')['structure'],
                         self.done('inspect', out, '--structure')['structure'])

    @each_good
    def test_structure_policies(self, row, path):
        dropped = self.out()
        self.done('convert', path, dropped, '--structure', 'drop', '--root', '')
        tensors, metadata = model_of(dropped)
        self.assertNotIn('safemap.structure', metadata)
        wanted = {t['name'] for t in row['tensors'] if t['dtype'] != 'C128'}
        self.assertEqual(set(tensors), wanted | names_in_objects(row))
        kept = self.out()
        self.done('convert', path, kept, '--structure', 'keep')
        self.assertIn('safemap.structure', model_of(kept)[1])

    def test_the_only_part_gives_its_own_names(self):
        found = 0
        for row, path in good():
            heads = {tensor['path'][0] if len(tensor['path']) > 1 else None for tensor in row['tensors']}
            told = self.done('inspect', path)
            if heads != {'model'} or row['objects'] or names_in_objects(row):
                continue
            names = {tensor['name'].removeprefix('model.') for tensor in row['tensors']}
            self.assertEqual((told['root'], {tensor['name'] for tensor in told['tensors']}), ('model', names))
            found += 1
        self.assertGreater(found, 0)

    @each_good
    def test_below_each_part(self, row, path):
        heads = {}
        for tensor in row['tensors']:
            if len(tensor['path']) > 1:
                heads.setdefault(tensor['path'][0], []).append(tensor)
        for head, tensors in heads.items():
            out = self.out()
            self.done('convert', path, out, '--root', head, '--structure', 'keep')
            got, _ = model_of(out)
            for tensor in tensors:
                self.assertEqual(got[tensor['name'].removeprefix(f'{head}.')][2], tensor['sha256'])
        error = safemap('convert', path, self.out(), '--root', 'nothing of this name')
        self.assertEqual(error.code, 2)
        for head in itertools.islice(heads, 10):
            self.assertIn(head, error.error()['hint'])

    @each_good
    def test_verify_load_and_plan(self, row, path):
        told = self.done('verify', path)
        self.assertTrue(told['ok'])
        self.assertEqual(told['faults'], [])
        self.assertGreater(told['checked_bytes'], 0)
        self.assertIn('checksum', ' '.join(told['notes']))
        digests = self.done('load', path, '--device', 'host', '--digest')['digests']
        for name, digest in self.done('hash', path)['tensors'].items():
            if name in digests:
                self.assertEqual(digests[name], digest)
        expected = self.folder / 'expected.json'
        expected.write_text(json.dumps({t['name']: {'dtype': t['dtype'], 'shape': t['shape']} for t in row['tensors']
                                        if t['dtype'] != 'C128'}))
        self.assertTrue(self.done('plan', path, '--expect', expected, '--non-strict', '--root', '')['ok'])
        self.assertTrue(self.done('plan', path, '--expect', path)['ok'])


class Broken(Case):
    def test_every_fault_before_anything_is_written(self):
        for row, path in rows():
            if row['error'] is None:
                continue
            with self.subTest(folder=row['folder']):
                name = row['folder'].removeprefix('broken/')
                answer = self.refused(path, 1)
                error = answer.error()
                self.assertEqual(error['code'], CODES[name], answer.text)
                self.assertIn(row['error'], ' '.join([error['message'], error.get('path', ''), error.get('hint', '')]))
                self.assertFalse(safemap('verify', path).object['ok'])
                self.assertNotIn('unpickled', answer.text)

    def test_strict_globals(self):
        for row, path in good():
            with self.subTest(folder=row['folder']):
                self.done('inspect', path, '--strict-globals')
                told = self.done('inspect', path, '--globals')['globals']
                self.assertTrue(all(one['known'] for one in told))
                self.assertIn('Metadata', {one['name'] for one in told})
                self.assertIn('_rebuild_tensor_v2', {one['name'] for one in told})


class Options(Case):
    path = FIXTURES / 'dcp/plain'

    def test_names(self):
        out = self.out()
        self.done('convert', self.path, out, '--include', 'model.*', '--rename', r's/^model\.//', '--structure', 'drop')
        got, _ = model_of(out)
        self.assertIn('layers.0.weight', got)
        self.assertFalse(any(name.startswith(('model.', 'dtypes.')) for name in got))
        with_document = self.out()
        self.done('convert', self.path, with_document, '--rename', r's/^model\./m./')
        document = json.loads(model_of(with_document)[1]['safemap.structure'])['root']
        self.assertEqual(document['model']['layers.0.weight'], ['T', {'n': 'm.layers.0.weight'}])
        again = self.out()
        self.done('convert', with_document, again, '--root', 'model')
        self.assertIn('layers.0.weight', model_of(again)[0])

    def test_casts_and_one_file(self):
        out = self.folder / 'one.safetensors'
        self.done('convert', FIXTURES / 'dcp/mesh_2d', out, '--dtype', 'bf16')
        tensors, _ = tensors_of(out)
        self.assertEqual(tensors['rows_columns'][0], 'BF16')
        self.assertEqual(tensors['mask'][0], 'BOOL')

    @each_good
    def test_metadata_as_path(self, row, path):
        names = [name for name in os.listdir(path) if name.endswith('.metadata')]
        self.assertTrue(names)
        for name in names:
            self.assertEqual(self.done('hash', path / name), self.done('hash', path), name)
            # The folder is that of the file, whatever else it holds.
            folder = self.out()
            shutil.copytree(path, folder)
            (folder / 'model.safetensors').write_bytes(b'\x08' + bytes(7) + b'{}      ')
            self.assertEqual(self.done('hash', folder / name), self.done('hash', path), name)
            self.assertNotEqual(self.done('hash', folder), self.done('hash', path))

    def test_files_of_one_folder(self):
        same = self.done('hash', FIXTURES / 'dcp/rank_metadata')
        other = self.done('hash', self.path)
        for name in ('rank_metadata', 'plain'):
            shutil.copytree(FIXTURES / 'dcp' / name, self.folder / name)
            (self.folder / name).chmod(0o755)
        ranks, plain = self.folder / 'rank_metadata', self.folder / 'plain'
        self.assertEqual(self.done('hash', ranks / '__1.metadata'), same)
        self.assertEqual(self.done('hash', ranks / '__?.metadata'), same)
        self.assertEqual(self.done('hash', ranks / '__*'), same)
        self.assertEqual(self.done('hash', plain / '.meta*'), other)
        for files in (sorted(ranks.glob('__*.metadata')), sorted(ranks.iterdir()), [plain / '.metadata']):
            out = self.out()
            self.done('convert', *files, out)
            self.assertEqual(self.done('hash', out), other if files[0].parent == plain else same)
        shutil.copy(plain / '.metadata', ranks)
        for word in (self.folder / '*/.metadata', self.folder / '*/.*'):
            error = safemap('inspect', word).error()
            self.assertEqual(error['code'], 'several_models')
            self.assertIn('plain/.metadata, ', error['message'])
        os.mkfifo(self.folder / '.metadata')
        for path, code in ((plain / '__9.metadata', 'path_not_found'), (self.folder / '.metadata', 'invalid_argument'),
                           (plain / '__0_0.distcp', 'unsupported_layout')):
            self.assertEqual(safemap('inspect', path).error()['code'], code)

    def test_leftovers_are_named(self):
        copy = self.folder / 'copy'
        shutil.copytree(FIXTURES / 'dcp/collectives', copy)
        copy.chmod(0o755)
        (copy / '__9_0.distcp').write_bytes(b'older')
        (copy / '__8_1.distcp').write_bytes(b'')
        (copy / '.metadata.tmp').write_bytes(b'x')
        notes = ' '.join(self.done('inspect', copy)['notes'])
        self.assertIn('__9_0.distcp', notes)
        self.assertNotIn('__8_1.distcp', notes)
        self.assertIn('.metadata.tmp', notes)

    def test_damage_is_found_by_verify(self):
        copy = self.folder / 'copy'
        shutil.copytree(FIXTURES / 'dcp/zstd', copy)
        source = FIXTURES / 'dcp/collectives/__0_0.distcp'
        shutil.copytree(FIXTURES / 'dcp/collectives', self.folder / 'flipped')
        flipped = self.folder / 'flipped/__0_0.distcp'
        flipped.chmod(0o644)
        data = bytearray(source.read_bytes())
        data[710] ^= 1  # in the numbers of the first item
        flipped.write_bytes(bytes(data))
        self.done('inspect', self.folder / 'flipped')
        told = safemap('verify', self.folder / 'flipped')
        self.assertEqual(told.code, 1)
        self.assertEqual([fault['code'] for fault in told.object['faults']], ['checksum_mismatch'])
        self.assertTrue(told.object['faults'][0]['path'].endswith('__0_0.distcp'))

    def test_few_descriptors(self):
        # Each item in a file of its own.
        command = [deepspeed.SAFEMAP, 'convert', FIXTURES / 'dcp/file_per_item', self.out(), '--quiet']
        limit = lambda: resource.setrlimit(resource.RLIMIT_NOFILE, (16, 16))
        subprocess.run(command, check=True, timeout=60, preexec_fn=limit)


if __name__ == '__main__':
    deepspeed.SAFEMAP = sys.argv[1]
    if not (FIXTURES / 'dcp/expected.json').is_file():
        print(f'no folders of torch.distributed.checkpoint in {FIXTURES}')
        sys.exit(deepspeed.SKIPPED)
    unittest.main(argv=[sys.argv[0], *sys.argv[2:]])
