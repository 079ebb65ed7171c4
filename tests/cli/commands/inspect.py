"""Tests safemap inspect."""
import csv
import io
import json
import re
import subprocess

import case
from case import Case, SMALL
from forged import safetensors


class Inspect(Case):
    def test_text(self):
        self.expect('inspect', self.safemap('inspect', 'small.safetensors').out)
        self.expect('inspect_tree', self.safemap('inspect', 'small.safetensors', '--tree').out)

    def test_eighty_layers_fold(self):
        layers = [(f'model.layers.{i}.{part}', 'BF16', [2, 2], bytes(8))
                  for i in range(80) for part in ('attn.q.weight', 'mlp.weight')]
        (self.folder / 'deep.safetensors').write_bytes(safetensors(layers + [('model.norm', 'F32', [1], bytes(4))]))
        self.expect('inspect_deep', self.safemap('inspect', 'deep.safetensors').out)
        self.expect('inspect_deep_tree', self.safemap('inspect', 'deep.safetensors', '--tree').out)

    def test_json(self):
        told = self.done('inspect', 'small.safetensors')
        self.assertEqual(list(told), ['format', 'files', 'metadata', 'total_bytes', 'root', 'parts', 'tensors',
                                      'objects', 'verdict', 'findings', 'notes'])
        self.assertEqual(told['format'], 'safetensors')
        self.assertEqual(told['files'], ['small.safetensors'])
        self.assertEqual(told['metadata'], {'format': 'pt', 'who': 'a "b"'})
        self.assertEqual(told['total_bytes'], sum(len(data) for *_, data in SMALL))
        self.assertEqual(told['objects'], [])
        file = (self.folder / 'small.safetensors').read_bytes()
        self.assertEqual([t['name'] for t in told['tensors']], [name for name, *_ in SMALL])
        for tensor, (name, dtype, shape, data) in zip(told['tensors'], SMALL):
            self.assertEqual((tensor['dtype'], tensor['shape'], tensor['nbytes']), (dtype, shape, len(data)))
            self.assertNotIn('alias_of', tensor)
            if not data:
                continue
            self.assertEqual((tensor['file'], tensor['pieces']), ('small.safetensors', 1))
            self.assertEqual(file[tensor['offset']:tensor['offset'] + len(data)], data)

    def test_selected_tensors_only(self):
        told = self.done('inspect', 'small.safetensors', '--include', 'layers.*', '--include', 'n*',
                         '--exclude', '*.1.*')
        self.assertEqual([t['name'] for t in told['tensors']], ['layers.0.w', 'norm', 'none'])
        self.assertEqual(told['total_bytes'], 32)
        bracket = self.done('inspect', '--include', '[li]*', 'small.safetensors')
        self.assertEqual([t['name'] for t in bracket['tensors']], ['layers.0.w', 'layers.1.w', 'ids'])

    def test_shards_are_named_as_the_index_names_them(self):
        self.done('convert', 'small.safetensors', 'out', '--max-shard-size', '30')
        told = self.done('inspect', 'out')
        self.assertEqual({t['file'] for t in told['tensors'] if t['nbytes']}, set(told['files']) - {
            'model.safetensors.index.json'})
        for tensor in told['tensors']:
            if tensor['nbytes']:
                data = dict((name, data) for name, _, _, data in SMALL)[tensor['name']]
                file = (self.folder / 'out' / tensor['file']).read_bytes()
                self.assertEqual(file[tensor['offset']:tensor['offset'] + len(data)], data)

    def test_files_of_the_same_name_in_different_folders_are_distinguished(self):
        # If `sub` is opened, the path of its m.safetensors ends in sub/m.safetensors, the name of another of its files.
        sub = self.folder / 'sub'
        (sub / 'sub' / 'sub').mkdir(parents=True)
        shards = {'m.safetensors': 'a', 'sub/m.safetensors': 'b', 'sub/sub/m.safetensors': 'c'}
        for file, name in shards.items():
            (sub / file).write_bytes(safetensors([(name, 'U8', [1], name.encode())]))
        weight_map = {name: file for file, name in shards.items()}
        (sub / 'model.safetensors.index.json').write_text(json.dumps({'weight_map': weight_map}))
        (sub / 'weights').write_text(json.dumps({'weight_map': weight_map}))
        absolute = str(sub)
        for path in ('sub', 'sub/', './sub', absolute, 'sub/model.safetensors.index.json', 'sub/weights'):
            told = self.done('inspect', path)
            self.assertEqual({t['name']: t['file'] for t in told['tensors']}, weight_map, path)
            text = self.safemap('inspect', path).out
            for number, file in enumerate(sorted(shards), 1):
                self.assertRegex(text, rf'\n  {number}  {re.escape(file)} +1 tensor  1 B\n')
                self.assertRegex(text, rf'\n  {shards[file]}  +U8 \[1\]  1 B  in {number}\n')
        for path in ('.', 'model.safetensors.index.json', 'weights'):
            done = subprocess.run([case.SAFEMAP, 'inspect', path, '--json'], cwd=sub, stdout=subprocess.PIPE,
                                  check=True)
            self.assertEqual({t['name']: t['file'] for t in json.loads(done.stdout)['tensors']}, weight_map, path)
        for path in ('m.safetensors', './m.safetensors', 'sub/m.safetensors'):
            done = subprocess.run([case.SAFEMAP, 'inspect', path, '--json'], cwd=sub, stdout=subprocess.PIPE,
                                  check=True)
            self.assertEqual(json.loads(done.stdout)['tensors'][0]['file'], 'm.safetensors')

    def test_shards_and_prefixes_have_totals(self):
        layers = [(f'model.layers.{i}.{part}', 'BF16', [2, 2], bytes(8))
                  for i in range(8) for part in ('attn.q.weight', 'mlp.weight')]
        (self.folder / 'deep.safetensors').write_bytes(safetensors(layers + [('lm_head', 'F32', [1], bytes(4))]))
        self.done('convert', 'deep.safetensors', 'out', '--max-shard-size', '40')
        self.expect('inspect_shards', self.safemap('inspect', 'out').out)
        self.expect('inspect_shards_tree', self.safemap('inspect', 'out', '--tree').out)

    def test_names_of_a_tied_tensor_are_on_one_line(self):
        tied = safetensors([('wte', 'U8', [1], b'x')], {'head': 'wte', 'other': 'wte', 'format': 'pt'})
        (self.folder / 'tied.safetensors').write_bytes(tied)
        line = 'head = other = wte\n'
        self.assertIn('\ntied\n  ' + line, self.safemap('inspect', 'tied.safetensors').out)
        self.assertIn('\n  tied     ' + line, self.safemap('convert', 'tied.safetensors', 'out', '-n').out)
        told = self.safemap('inspect', 'tied.safetensors', '--include', 'head').out
        self.assertIn('\ntied\n  head = wte\n', told)

    def test_ties_that_differ_in_numbers_are_one_line(self):
        names = [f'm.{i}.part.{j}.w' for i in range(2) for j in range(12)]
        ties = {f'copy/{i}/{j}/w': f'm.{i}.part.{j}.w' for i in range(2) for j in range(12)}
        # Numbers that the stored name does not have, or that are not in each group, are not folded.
        ties |= {'head.7': 'm.1.part.3.w', 'x.0.0.y': 'n.0', 'x.0.1.y': 'n.1', 'x.5.2.y': 'n.2'}
        tensors = [(name, 'U8', [1], b'x') for name in [*names, 'n.0', 'n.1', 'n.2']]
        (self.folder / 'tied.safetensors').write_bytes(safetensors(tensors, ties))
        lines = ['copy/{0..1}/{0..11}/w = m.{0..1}.part.{0..11}.w', 'x.0.{0..1}.y = n.{0..1}', 'x.5.2.y = n.2']
        told = self.safemap('inspect', 'tied.safetensors', '--exclude', 'head.7').out
        self.assertEqual(told.partition('\ntied\n')[2].partition('\n\n')[0].splitlines(), ['  ' + x for x in lines])
        told = self.safemap('convert', 'tied.safetensors', 'out', '-n', '--exclude', 'head.7').out
        self.assertEqual([x for x in told.splitlines() if x.startswith('  tied')], ['  tied     ' + x for x in lines])
        told = self.safemap('inspect', 'tied.safetensors').out
        self.assertIn('\n  copy/1/3/w = head.7 = m.1.part.3.w\n', told)
        self.assertIn('\n  copy/0/{0..11}/w = m.0.part.{0..11}.w\n', told)

    def test_a_table_of_markdown(self):
        odd = [('a|b`c', 'F32', [2, 3], bytes(24)), *[(f'l.{i}.w', 'BF16', [], b'xx') for i in range(3)]]
        (self.folder / 'odd.safetensors').write_bytes(safetensors(odd))
        self.assertEqual(self.safemap('inspect', 'odd.safetensors', '--format', 'md').out,
                         '| name | tensors | dtype | shape | size |\n'
                         '| --- | ---: | --- | --- | ---: |\n'
                         '| `` a\\|b`c `` | 1 | F32 | [2, 3] | 24 B |\n'
                         '| `l.{0..2}.w` | 3 | BF16 | [] | 6 B |\n'
                         '\n4 tensors, 30 B\n')

    def test_rows_of_csv(self):
        names = ['=1+1', '+a', '-a', '@a', '\uff1da', 'a,"b"', 'a\n=b', 'a=b', 'wte']
        (self.folder / 'odd.safetensors').write_bytes(
            safetensors([(name, 'F32', [1, 2], bytes(8)) for name in names], {'=head': 'wte'}))
        done = self.safemap('inspect', 'odd.safetensors', '--format=csv')
        rows = list(csv.DictReader(io.StringIO(done.out)))
        self.assertEqual(list(rows[0]), ['name', 'dtype', 'shape', 'bytes', 'file', 'alias_of'])
        self.assertEqual({row['name'] for row in rows}, {"'=1+1", "'+a", "'-a", "'@a", "'\uff1da", 'a,"b"',
                                                         'a\\x0a=b', 'a=b', 'wte', "'=head"})
        for row in rows:
            alias = 'wte' if row['name'] == "'=head" else ''
            self.assertEqual((row['dtype'], json.loads(row['shape']), row['bytes'], row['file'], row['alias_of']),
                             ('F32', [1, 2], '8', 'odd.safetensors', alias))
        chosen = self.safemap('inspect', 'odd.safetensors', '--format', 'csv', '--include', 'a=b').out
        self.assertEqual(chosen.splitlines()[1:], ['a=b,F32,"[1, 2]",8,odd.safetensors,'])

    def test_other_formats(self):
        self.assertEqual(self.safemap('inspect', 'small.safetensors', '--format', 'text').out,
                         self.safemap('inspect', 'small.safetensors').out)
        for words in (['--format', 'json'], ['--format=json'], ['--json', '--format', 'json']):
            self.assertEqual(self.safemap('inspect', 'small.safetensors', *words).json(),
                             self.done('inspect', 'small.safetensors'))
            refused = self.safemap('inspect', 'nowhere', *words)
            self.assertEqual((refused.code, refused.json()['error']['code']), (2, 'path_not_found'))
        for words in (['xml'], ['md', '--tree'], ['csv', '--globals'], ['csv', '--structure']):
            self.refused('invalid_argument', 2, 'inspect', 'small.safetensors', '--format', *words)
        for word in ('text', 'md', 'csv'):
            refused = self.safemap('inspect', 'small.safetensors', '--json', '--format', word)
            self.assertEqual(refused.json()['error']['message'], '--json does not apply to this --format')

    def test_a_damaged_header_exits_with_1(self):
        (self.folder / 'cut.safetensors').write_bytes(safetensors(SMALL)[:100])
        self.refused('header_past_end', 1, 'inspect', 'cut.safetensors')
