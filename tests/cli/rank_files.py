"""Tests sets of rank files that torch and accelerate wrote, from outside: rank_files.py SAFEMAP [unittest's arguments].

The folders are beside the checkout, in ../shared/fixtures, or in SAFEMAP_FIXTURES, each with its tensors in an
expected.json; without them, this is skipped. Each set is copied to a folder of its own, because a folder with several
sets is not one checkpoint. Written files are read here, without torch.
"""
import json
import pathlib
import re
import shutil
import struct
import sys
import unittest
import zipfile

import deepspeed
from deepspeed import FIXTURES, SKIPPED, model_of, safemap

# The code of each broken set, and words of the message beside the one in expected.json.
BROKEN = {
    'rank_missing': ('rank_missing', ['model_world_size_2_rank_1.pt']),
    'rank_0_missing': ('rank_missing', ['model_world_size_2_rank_0.pt']),
    'rank_truncated': ('zip_bad_directory', []),
    'rank_empty': ('file_truncated', []),
    'rank_outside_mesh': ('world_mismatch', ['model_world_size_2_rank_2.pt']),
    'world_size_differs': ('world_mismatch', ['3 ranks']),
    'rank_0_twice': ('rank_repeated', ['model_world_size_2_rank_0.pt']),
    'meshes_differ': ('ranks_differ', ['[2]', '[1, 2]']),
    'placements_differ': ('ranks_differ', ['Shard(0)', 'Shard(1)']),
    'local_shape': ('piece_mismatch', ['[2, 3]', '[3, 3]']),
    'global_shape': ('ranks_differ', ['[7, 3]', '[9, 3]']),
    'dtype_differs': ('ranks_differ', ['F32', 'F64']),
    'partial': ('partial_placement', []),
    'shard_dim_outside': ('piece_outside', ['Shard(2)']),
    'missing_name': ('ranks_differ', ['rows']),
    'plain_shape_differs': ('ranks_differ', ['[4]', '[5]']),
    'plain_on_one_rank': ('ranks_differ', ['DTensor', 'plain']),
    'wants_command': ('unsafe_call', []),
    'sharded_rank_missing': ('rank_missing', ['pytorch_model_fsdp_0_rank1.bin']),
    'sharded_overlap': ('pieces_overlap', []),
    'sharded_outside': ('piece_outside', []),
    'flat_without_manifest': ('manifest_missing', []),
    'flat_rank_missing': ('rank_missing', ['pytorch_model_fsdp_rank1.bin']),
    'flat_manifest_too_long': ('manifest_mismatch', []),
    'flat_manifest_numel': ('manifest_mismatch', []),
}
# The words in expected.json that no message needs: what the code says.
SAID_BY_CODE = {'rank_truncated', 'rank_0_twice', 'wants_command'}


def rows():
    return json.loads((FIXTURES / 'fsdp' / 'expected.json').read_text(encoding='utf-8'))


def segment(key):
    if isinstance(key, int):
        return str(key)
    escaped = key.replace('~', '~0').replace('/', '~1')
    return '~s' + escaped if key == '' or re.fullmatch(r'-?\d+', key) or key == '__metadata__' else escaped


def names_of(tensors):
    """Returns the name of each path, by the grammar of names; a flat dictionary has its keys."""
    if all(len(t['path']) == 1 and isinstance(t['path'][0], str) for t in tensors):
        return {t['path'][0]: t for t in tensors}
    return {'/'.join(map(segment, t['path'])): t for t in tensors}


def at_path(node, path):
    """Returns the node of a structure document at a path of keys."""
    for key in path:
        if isinstance(node, dict):
            node = node[key]
        elif node[0] == 'od':
            items = node[1:]
            if isinstance(items[0], dict):
                node = items[0][key]
            else:
                node = next(value for name, value in items if name == key)
        elif node[0] == 'd':
            node = next(value for name, value in node[1:] if name == key)
        else:
            node = node[1 + key]
    return node


def value_of(node):
    """Returns (type, value) of a node of a structure document, as expected.json spells them."""
    if node is None:
        return 'NoneType', None
    if isinstance(node, (bool, int, float, str)):
        return type(node).__name__, node
    kind = node[0] if isinstance(node, list) else 'dict'
    if kind in ('l', 't'):
        return {'l': 'list', 't': 'tuple'}[kind], [dict(zip(('type', 'value'), value_of(n))) for n in node[1:]]
    if kind == 'i':
        return 'int', node[1]
    if kind == 'f':
        return 'float', node[1]
    if kind in ('dict', 'd') and not (node if kind == 'dict' else node[1:]):
        return 'dict', []
    if kind == 'od' and not (node[1] if len(node) > 1 else []):
        return 'OrderedDict', []
    raise AssertionError(f'unknown node {node!r}')


def data_of(file):
    """Returns the place of each record's bytes in a zip, and their number."""
    with zipfile.ZipFile(file) as archive, file.open('rb') as raw:
        for record in archive.infolist():
            raw.seek(record.header_offset + 26)
            name, extra = struct.unpack('<HH', raw.read(4))
            yield record.header_offset + 30 + name + extra, record.file_size


def each_set(check):
    """Makes a test of a check: of all good sets, which fail one by one."""
    def test(self):
        seen = 0
        for row in rows():
            # The others are a folder of DCP, and single files.
            if row['error'] is None and 'rank' in row.get('files', ''):
                with self.subTest(folder=row['folder'], files=row['files']):
                    check(self, row, self.set_of(row))
                    seen += 1
        self.assertGreaterEqual(seen, 15)
    return test


class Case(deepspeed.Case):
    def set_of(self, row):
        """Returns a folder with only the files of a row, and the manifest."""
        source, out = FIXTURES / 'fsdp' / row['folder'], self.out()
        out.mkdir()
        for file in source.glob(row['files']):
            shutil.copy(file, out)
        if (source / 'manifest.json').exists():
            shutil.copy(source / 'manifest.json', out)
        return out

    def converted(self, path, *options, **settings):
        out = self.out()
        answer = safemap('convert', path, out, *options, **settings)
        self.assertEqual(answer.code, 0, answer.text)
        return model_of(out)[0], answer


class Sets(Case):
    @each_set
    def test_every_tensor_is_bit_for_bit_the_one_that_was_saved(self, row, path):
        got, _ = self.converted(path, '--structure', 'keep', '--root', '')
        wanted = names_of(row['tensors'])
        self.assertEqual(sorted(got), sorted(wanted))
        for name, tensor in wanted.items():
            self.assertEqual(got[name], (tensor['dtype'], tensor['shape'], tensor['sha256']), name)

    @each_set
    def test_every_object_has_its_type_and_value(self, row, path):
        answer = safemap('inspect', path, '--structure')
        self.assertEqual(answer.code, 0, answer.text)
        for wanted in row['objects']:
            kind, value = value_of(at_path(answer.object['structure']['root'], wanted['path']))
            self.assertEqual((kind, value), (wanted['type'], wanted['value']), wanted['path'])

    @each_set
    def test_what_inspect_says(self, row, path):
        answer = safemap('inspect', path)
        self.assertEqual(answer.object['format'], 'fsdp')
        layout = answer.object['layout']
        self.assertEqual(layout['world_size'], row['world'])
        # One rank of FSDP1 has no flat parameters.
        flat = row['folder'].startswith(('olmo', 'zero3')) or (row['folder'].startswith('flat') and row['world'] > 1)
        self.assertEqual(layout['kind'], 'flat_parameters' if flat else 'rank_files')
        self.assertEqual(sorted(answer.object['files']), sorted(f.name for f in path.glob('*rank*')))
        if row['folder'] in ('fsdp2_hsdp', 'fsdp2_tp', 'placements', 'older_2_3', 'older_2_6'):
            self.assertEqual(len(layout['mesh']), 2)
        # The classes of torch are read, so nothing is said of them.
        self.assertNotIn('unknown class', answer.notes())

    @each_set
    def test_verify_reads_every_byte(self, row, path):
        answer = safemap('verify', path)
        self.assertEqual(answer.code, 0, answer.text)
        stored = sum(size for file in path.glob('*rank*') for _, size in data_of(file))
        self.assertEqual(answer.object['checked_bytes'], stored)
        self.assertNotIn('different values', answer.notes())

    @each_set
    def test_verify_finds_a_changed_byte_in_any_record(self, row, path):
        if row['folder'] not in ('fsdp2_hsdp', 'sharded_tensor', 'olmo_local'):
            return
        for file in path.glob('*rank*'):
            data = bytearray(file.read_bytes())
            for at, size in data_of(file):
                if size == 0:
                    continue
                data[at + size // 2] ^= 1
                file.write_bytes(data)
                answer = safemap('verify', path)
                self.assertEqual(answer.code, 1, answer.text)
                self.assertIn(file.name, json.dumps(answer.object['faults']))
                data[at + size // 2] ^= 1
            file.write_bytes(data)

    @each_set
    def test_one_file_alone_is_refused_with_the_glob_to_type(self, row, path):
        file = sorted(path.glob('*rank*'))[min(row['world'], 2) - 1]
        if row['world'] == 1:
            wanted, _ = self.converted(path)
            self.assertEqual(self.converted(file)[0], wanted)
            return
        answer = safemap('inspect', file, '--as-parts')
        self.assertEqual(answer.object['format'], 'torch')
        self.assertIn(f"rank 1 of {row['world']}", answer.notes())
        # Nothing in plain lists says that they are parts, and no state of a random number generator is one.
        if row['folder'].startswith('zero3') or row['files'].startswith('extra_state_'):
            return
        answer = safemap('inspect', file)
        self.assertEqual((answer.code, answer.error().get('code')), (1, 'rank_missing'), answer.text)
        glob = re.search("in quotes: '([^']*)'", answer.error()['hint'])
        self.assertEqual(self.converted(pathlib.Path(glob[1]))[0], self.converted(path)[0])

    @each_set
    def test_files_of_other_names_open_when_they_are_linked(self, row, path):
        if row['folder'] not in ('fsdp2_hsdp', 'sharded_tensor'):
            return
        wanted, _ = self.converted(path)
        names = sorted(path.glob('*rank*'), key=lambda file: int(re.search(r'(\d+)\.\w+$', file.name)[1]))
        folder = self.out()
        folder.mkdir()
        for rank, file in enumerate(names):
            file.rename(path / f'x{rank}.pt')
            (folder / f'rank_{rank}.pt').symlink_to(path / f'x{rank}.pt')
        given = [path / f'x{rank}.pt' for rank in range(len(names))]
        for words in (['convert', *given, self.out()], ['inspect', given[0]], ['inspect', path]):
            hint = safemap(*words).error()['hint']
            self.assertIn('rank_0.pt', hint)
            self.assertNotIn('files of all ranks together', hint)
        self.assertEqual(self.converted(folder)[0], wanted)

    @each_set
    def test_a_manifest_of_another_name(self, row, path):
        manifest = path / 'manifest.json'
        if not manifest.exists() or row['world'] == 1:
            return
        wanted, _ = self.converted(path)
        elsewhere = self.out()
        manifest.rename(elsewhere)
        refused = safemap('convert', path, self.out())
        self.assertEqual((refused.code, refused.error()['code']), (1, 'manifest_missing'))
        got, _ = self.converted(path, '--manifest', elsewhere)
        self.assertEqual(got, wanted)
        missing = safemap('inspect', path, '--manifest', self.out())
        self.assertEqual(missing.code, 2, missing.text)

    @each_set
    def test_strict_globals_know_the_classes_of_torch(self, row, path):
        answer = safemap('inspect', path, '--strict-globals')
        self.assertEqual(answer.code, 0, answer.text)

    @each_set
    def test_globs_and_lists_of_files(self, row, path):
        wanted, _ = self.converted(path)
        got, _ = self.converted(FIXTURES / 'fsdp' / row['folder'] / row['files'])
        self.assertEqual(got, wanted)
        files = sorted(path.glob('*rank*'), reverse=True)
        if len(files) == 1:
            return
        out = self.out()
        self.assertEqual(safemap('convert', *files, out).code, 0)
        self.assertEqual(model_of(out)[0], wanted)
        if len(files) == 2:  # one file alone is opened as a part
            return
        answer = safemap('convert', *files[:-1], self.out())
        self.assertEqual((answer.code, answer.error()['code']), (1, 'rank_missing'))

    @each_set
    def test_threads_and_few_descriptors_change_nothing(self, row, path):
        one, _ = self.converted(path)
        for settings in ({'threads': 4}, {'threads': 4, 'limit': 20}):
            got, _ = self.converted(path, **settings)
            self.assertEqual(got, one)

    def test_ties_are_aliases(self):
        row = next(row for row in rows() if row['folder'] == 'placements')
        answer = safemap('inspect', self.set_of(row))
        tied = next(t for t in answer.object['tensors'] if t['name'] == 'tied')
        self.assertEqual(tied['alias_of'], 'rows_columns')

    def test_broken_sets_are_refused_by_code_before_any_output(self):
        seen = 0
        for row in rows():
            if row['error'] is None:
                continue
            name = pathlib.Path(row['folder']).name
            with self.subTest(folder=name):
                out = self.out()
                answer = safemap('convert', FIXTURES / 'fsdp' / row['folder'], out)
                code, words = BROKEN[name]
                self.assertEqual((answer.code, answer.error().get('code')), (1, code), answer.text)
                for word in words + ([] if name in SAID_BY_CODE else [row['error']]):
                    self.assertIn(word.lower(), answer.text.lower())
                self.assertNotIn('unpickled', answer.text)
                self.assertFalse(out.exists())
                self.assertFalse(any(self.folder.glob('.*')))
                verified = safemap('verify', FIXTURES / 'fsdp' / row['folder'])
                self.assertIn(code, [fault['code'] for fault in verified.object['faults']])
                seen += 1
        self.assertEqual(seen, len(BROKEN))


def shapes():
    """The rows of folders of rank files that trainers leave."""
    about = FIXTURES / 'shapes' / 'expected.json'
    if not about.exists():
        return
    for row in json.loads(about.read_text(encoding='utf-8'))['rows']:
        if '*' in row['folder'] or not (FIXTURES / 'shapes' / row['folder']).is_dir():
            continue
        if (row['layout'] or {}).get('kind') == 'fsdp' or row['case'] == 'unfinished_rank_files' or \
                row['folder'].endswith('local_sets'):
            yield row, FIXTURES / 'shapes' / row['folder']


class Folders(Case):
    def test_folders_that_trainers_leave(self):
        for row, path in shapes():
            with self.subTest(folder=row['folder']):
                if not row['opens']:
                    answer = safemap('inspect', path, *row['options'])
                    self.assertEqual((answer.code, answer.error().get('code')), (row['exit'], row['code']), answer.text)
                    continue
                got, answer = self.converted(path, *row['options'])
                wanted = {t['name']: (t['dtype'], t['shape'], t['sha256']) for t in row['tensors']}
                self.assertEqual(got, wanted)


if __name__ == '__main__':
    deepspeed.SAFEMAP = sys.argv.pop(1)
    if not (FIXTURES / 'fsdp' / 'expected.json').exists():
        print(f'no sets of rank files in {FIXTURES}')
        sys.exit(SKIPPED)
    unittest.main()
