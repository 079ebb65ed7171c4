"""Tests safemap scan: what it finds, what it leaves out, its exit codes, and duplicates."""
import json
import os
import pathlib
import shutil

import case
from case import Case, SMALL
from forged import floats, safetensors, write_sparse

FIXTURES = pathlib.Path(os.environ.get('SAFEMAP_FIXTURES') or
                        pathlib.Path(__file__).resolve().parents[4] / 'shared/fixtures')
RUNS_CODE = b'cposix\nsystem\n(S"true"\ntR.'
WIDE = [('wide', 'F32', [2048], floats(*range(2048)))]


class Scan(Case):
    KEYS = ['path', 'files', 'file_bytes', 'format', 'tensors', 'parameters', 'bytes', 'dtypes', 'verdict', 'findings',
            'notes']

    def write(self, name, data):
        path = self.folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)

    def rows(self, *words):
        """Returns the entries by path, as scanned from the folder of the test."""
        return {row['path']: row for row in self.done('scan', *words)['checkpoints']}

    def test_a_row_says_what_a_checkpoint_is(self):
        told = self.done('scan', 'small.safetensors')
        self.assertEqual(list(told), ['checkpoints', 'summary'])
        [row] = told['checkpoints']
        self.assertEqual(list(row), self.KEYS)
        self.assertEqual((row['path'], row['format'], row['tensors'], row['parameters'], row['bytes'], row['verdict']),
                         ('small.safetensors', 'safetensors', 5, 16, 72, 'ok'))
        self.assertEqual(row['dtypes'], {'F32': {'tensors': 3, 'bytes': 56}, 'I64': {'tensors': 1, 'bytes': 16},
                                         'U8': {'tensors': 1, 'bytes': 0}})
        self.assertEqual(row['file_bytes'], (self.folder / 'small.safetensors').stat().st_size)
        summary = told['summary']
        self.assertEqual((summary['checkpoints'], summary['tensors'], summary['bytes'], summary['verdicts']),
                         (1, 5, 72, {'ok': 1}))

    def test_folders_are_searched_at_any_depth(self):
        for name in ('a/b/c/d.sft', 'a/e.bin', '.hidden/f.safetensors', '__pycache__/g.safetensors', 'a/.h.safetensors',
                     'a/i.txt', 'tagged/j.safetensors'):
            self.write(name, safetensors(SMALL))
        self.write('tagged/CACHEDIR.TAG', b'Signature: 8a477f597d28d172789f06886806bc55')
        self.assertEqual(list(self.rows('.')), ['./a/b/c/d.sft', './a/e.bin', './small.safetensors'])
        self.assertEqual(len(self.rows('.', '--hidden')), 7)
        self.assertEqual(list(self.rows('tagged', 'a/i.txt')), ['a/i.txt', 'tagged/j.safetensors'])

    def test_globs_select_files(self):
        for name in ('a/one.safetensors', 'a/two.dat', 'b/three.safetensors'):
            self.write(name, safetensors(SMALL))
        self.assertEqual(list(self.rows('.', '--include', '*.dat')), ['./a/two.dat'])
        self.assertEqual(list(self.rows('.', '--include', 'a/*')), ['./a/one.safetensors', './a/two.dat'])
        self.assertEqual(list(self.rows('.', '--exclude', 'a', '--exclude', 'small*')), ['./b/three.safetensors'])

    def test_links_to_files_are_followed_and_links_to_folders_are_not(self):
        self.write('real/x.safetensors', safetensors(SMALL))
        (self.folder / 'link').symlink_to('real')
        (self.folder / 'loop').symlink_to('.')
        (self.folder / 'y.safetensors').symlink_to('real/x.safetensors')
        (self.folder / 'gone.safetensors').symlink_to('nowhere')
        self.assertEqual(list(self.rows('.')),
                         ['./gone.safetensors', './real/x.safetensors', './small.safetensors', './y.safetensors'])
        self.assertEqual(list(self.rows('link')), ['link/x.safetensors'])

    def test_shards_of_an_index_are_one_checkpoint(self):
        self.done('convert', 'small.safetensors', 'out', '--max-shard-size', '30')
        self.write('out/other.safetensors', safetensors(SMALL))
        rows = self.rows('out')
        self.assertEqual(list(rows), ['out/model.safetensors.index.json', 'out/other.safetensors'])
        self.assertEqual(rows['out/model.safetensors.index.json']['tensors'], 5)

    def test_a_file_that_cannot_be_opened_is_a_row(self):
        self.write('cut.safetensors', safetensors(SMALL)[:-1])
        self.write('text.bin', b'this is no checkpoint, but some text')
        rows = self.rows('.')
        self.assertEqual(len(rows), 3)
        self.assertEqual(rows['./text.bin']['error']['code'], 'unknown_format')
        self.assertNotIn('tensors', rows['./cut.safetensors'])
        summary = self.done('scan', '.')['summary']
        self.assertEqual((summary['checkpoints'], summary['damaged'], summary['unknown_format']), (1, 1, 1))
        self.assertEqual(self.safemap('scan', '.', '--fail-on', 'damage').code, 1)
        self.assertEqual(self.safemap('scan', '.', '--fail-on', 'code').code, 0)
        self.assertEqual(self.safemap('scan', '.', '--fail-on', 'damage', '--exclude', 'cut*').code, 0)
        quiet = self.safemap('scan', '.', '--fail-on', 'damage', '--quiet')
        self.assertEqual((quiet.code, quiet.out, quiet.err.count('error:')), (1, '', 1))

    def test_a_pickle_that_runs_code_is_named(self):
        self.write('bad.pkl', RUNS_CODE)
        self.write('cut.pt', RUNS_CODE[:-1])
        for name in ('bad.pkl', 'cut.pt'):
            row = self.rows(name)[name]
            self.assertEqual(row['verdict'], 'runs code', row)
            self.assertEqual(row['findings'][0]['name'], 'posix.system')
        self.assertEqual(self.safemap('scan', 'bad.pkl').code, 0)
        self.assertEqual(self.safemap('scan', 'cut.pt', '--fail-on', 'damage,code').code, 1)
        failed = self.safemap('scan', '.', '--fail-on', 'code')
        self.assertEqual(failed.code, 1)
        self.assertIn('bad.pkl: posix.system: ', failed.out)

    def test_fail_on_what_nobody_can_judge(self):
        self.write('odd.pkl', b'\x80\x02cproject\nrun\nU\x01a\x85R.')
        self.write('page.bin', b'<html>not found</html>')
        self.assertEqual(self.rows('.')['./odd.pkl']['verdict'], 'unknown')
        for word, path, others in (('unknown', 'odd.pkl', 'code,format'), ('format', 'page.bin', 'code,damage')):
            self.assertEqual(self.safemap('scan', path, '--fail-on', word).code, 1, word)
            self.assertEqual(self.safemap('scan', path, '--fail-on', others).code, 0, word)

    def test_odd_paths_are_rows(self):
        os.mkfifo(self.folder / 'model.safetensors')
        (self.folder / 'loop.pt').symlink_to('loop.pt')
        (self.folder / 'gone.ckpt').symlink_to('nowhere')
        rows = self.rows('.', 'loop.pt')
        odd = ['./gone.ckpt', './loop.pt', './model.safetensors']
        self.assertEqual(sorted(path for path in rows if 'error' in rows[path]), odd)
        self.assertEqual(self.safemap('scan', 'model.safetensors', '--fail-on', 'damage').code, 1)

    def test_endings_in_capitals_and_globs_of_folders(self):
        self.write('runs/a/M.PT', RUNS_CODE)
        self.write('runs/b/x.safetensors', safetensors(SMALL))
        rows = self.rows('runs/*')
        self.assertEqual({path: row['verdict'] for path, row in rows.items()},
                         {'runs/a/M.PT': 'runs code', 'runs/b/x.safetensors': 'ok'})
        self.refused('path_not_found', 2, 'scan', 'nothing/*')

    def test_an_index_that_is_damaged_has_no_pickles(self):
        self.write('model.safetensors.index.json', b'xx')
        self.write('other.pt', RUNS_CODE)
        rows = self.rows('.')
        self.assertEqual(rows['./model.safetensors.index.json']['verdict'], 'ok')
        self.assertEqual(rows['./other.pt']['verdict'], 'runs code')

    def test_files_that_were_not_looked_at_are_counted(self):
        for name in ('model.dat', '.hidden.pt', 'README.md'):
            self.write(name, b'text')
        self.assertEqual(self.done('scan', '.')['summary']['other_files'], 3)
        self.assertIn('3 other files not looked at', self.safemap('scan', '.').out)

    def test_a_folder_called_zero_is_no_sign_of_deepspeed(self):
        self.write('zero/other/x.safetensors', safetensors(SMALL))
        self.write('runs/model_world_size_1_rank_0.pt', RUNS_CODE)
        rows = self.rows('.')
        self.assertIn('./zero/other/x.safetensors', rows)
        self.assertNotIn('.', rows)

    def test_paths_that_overlap_count_once(self):
        self.write('a/x.safetensors', safetensors(SMALL))
        self.done('convert', 'small.safetensors', 'a/out', '--max-shard-size', '30')
        paths = ('a', 'a/x.safetensors', './a/out', str(self.folder / 'a'))
        self.assertEqual(list(self.rows(*paths)), ['a/out/model.safetensors.index.json', 'a/x.safetensors'])

    def test_wrong_calls(self):
        self.refused('path_not_found', 2, 'scan', 'nowhere')
        self.refused('invalid_argument', 2, 'scan', '.', '--fail-on', 'rain')
        self.refused('invalid_argument', 2, 'scan')
        (self.folder / 'empty').mkdir()
        self.assertEqual(self.done('scan', 'empty')['checkpoints'], [])
        self.assertIn('0 checkpoints', self.safemap('scan', 'empty').out)

    def test_lines_are_objects_and_the_summary_is_the_last(self):
        self.write('a.safetensors', safetensors(SMALL))
        result = self.safemap('scan', '.', '--json-lines')
        lines = [json.loads(line) for line in result.out.splitlines()]
        self.assertEqual((result.code, [line.get('path') for line in lines]),
                         (0, ['./a.safetensors', './small.safetensors', None]))
        self.assertEqual(lines[-1]['summary']['checkpoints'], 2)
        hashed = [json.loads(line) for line in self.safemap('scan', '.', '--json-lines', '--digest').out.splitlines()]
        self.assertEqual(hashed[0]['digest'], self.done('hash', 'a.safetensors')['checkpoint'])

    def test_text(self):
        self.write('a/bad.pkl', RUNS_CODE)
        self.write('a/cut.safetensors', safetensors(SMALL)[:-1])
        self.expect('scan', self.safemap('scan', '.').out)

    def test_sparse_terabytes_take_no_time(self):
        write_sparse(self.folder / 'huge.safetensors', [f't{i}' for i in range(4)], 1 << 40)
        row = self.rows('huge.safetensors')['huge.safetensors']
        self.assertEqual((row['tensors'], row['bytes']), (4, 4 << 40))

    def test_copies_are_found_in_any_format(self):
        shutil.copy(self.folder / 'small.safetensors', self.folder / 'a.safetensors')
        (self.folder / 'same.safetensors').hardlink_to(self.folder / 'a.safetensors')
        self.done('convert', 'small.safetensors', 'renamed.safetensors', '--rename', 's/^/x./')
        told = self.done('scan', '.', '--duplicates')['duplicates']
        [copies] = told['copies']
        self.assertEqual((len(copies['paths']), copies['tensors'], copies['same_names']), (4, 5, False))
        self.assertEqual((told['contained'], told['shared']), ([], []))
        sizes = [(self.folder / name).stat().st_size for name in ('small.safetensors', 'renamed.safetensors')]
        self.assertEqual(told['bytes_that_could_go'], sum(sizes))

    def test_a_checkpoint_in_another_is_found(self):
        state = [('optimizer.' + name, *rest[:-1], bytes(len(rest[-1]))) for name, *rest in WIDE]
        self.write('train.safetensors', safetensors(WIDE + state))
        self.write('model.safetensors', safetensors(WIDE))
        self.write('other.safetensors', safetensors([('wide', 'F32', [2048], floats(*range(1, 2049)))]))
        told = self.done('scan', '.', '--duplicates')['duplicates']
        self.assertEqual(told['copies'], [])
        held = {(pair['path'], pair['holds']): pair for pair in told['contained']}
        self.assertEqual(set(held), {('./train.safetensors', './model.safetensors')})
        pair = held['./train.safetensors', './model.safetensors']
        self.assertEqual((pair['tensors'], pair['bytes'], pair['without_tensors']), (1, 8192, 1))
        self.assertIn('./train.safetensors without optimizer (1 tensor, 8.2 kB) is ./model.safetensors: 1 tensor',
                      self.safemap('scan', '.', '--duplicates').out)

    def test_shared_tensors_are_found(self):
        more = [('head', 'F32', [8], floats(*range(8)))]
        self.write('one.safetensors', safetensors(WIDE + more))
        self.write('two.safetensors', safetensors(WIDE + [('head', 'F32', [8], bytes(32))]))
        [pair] = self.done('scan', 'one.safetensors', 'two.safetensors', '--duplicates')['duplicates']['shared']
        self.assertEqual((pair['path'], pair['and'], pair['bytes']), ('one.safetensors', 'two.safetensors', 8192))

    @case.unittest.skipUnless((FIXTURES / 'shapes').is_dir(), 'the folders of trainers are beside the checkout')
    def test_every_folder_of_the_fixtures_has_its_row(self):
        told = self.done('scan', str(FIXTURES))
        rows = {row['path']: row for row in told['checkpoints']}
        self.assertEqual(len(rows), len(told['checkpoints']))
        zero = json.loads((FIXTURES / 'zero/expected.json').read_text(encoding='utf-8'))['checkpoints']
        dcp = json.loads((FIXTURES / 'dcp/expected.json').read_text(encoding='utf-8'))
        wanted = [('zero', 'zero', each, sum(tensor['kind'] != 'shared' for tensor in each['tensors']))
                  for each in zero]
        wanted += [('dcp', 'dcp', each, len(each['tensors'])) for each in dcp if not each.get('error')]
        for folder, kind, each, tensors in wanted:
            with self.subTest(each['folder']):
                place = str(FIXTURES / folder / each['folder'])
                row = rows.get(place) or next(row for path, row in rows.items() if path.startswith(place + '/'))
                self.assertIn(row.get('format'), (kind, 'safetensors'), row.get('error'))
                # A tuple with a tensor is among the objects of torch.distributed.
                self.assertIn(row['tensors'] - tensors, (0, 1) if kind == 'dcp' else (0,))
        for path, row in rows.items():
            if '/broken' not in path and 'error' not in row:
                self.assertIn(row['verdict'], ('ok', 'needs classes'), path)
        self.assertEqual(sum(told['summary']['verdicts'].values()), len(rows))

    @case.unittest.skipUnless((FIXTURES / 'shapes').is_dir(), 'the folders of trainers are beside the checkout')
    def test_folders_of_trainers_are_one_checkpoint_each(self):
        for folder, formats in (('zero/z2-w2-two-tags', ['zero', 'zero']), ('fsdp/fsdp2', ['fsdp'] * 3),
                                ('dcp/fsdp2_adamw', ['dcp']), ('zero/z2-w3-bf16-universal', ['zero'])):
            rows = self.done('scan', str(FIXTURES / folder))['checkpoints']
            self.assertEqual([row.get('format') for row in rows], formats, [row['path'] for row in rows])
        rows = self.done('scan', str(FIXTURES / 'pt'), '--exclude', 'broken')['checkpoints']
        self.assertGreater(len(rows), 40)
        self.assertEqual([row['path'] for row in rows if 'error' in row], [])
