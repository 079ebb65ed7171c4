"""Tests safemap convert."""
import json
import os
import resource
import shlex
import shutil
import signal
import struct
import subprocess
import time

import case
from case import Case, environment, SANITIZED
from forged import floats, header_bytes, header_of, safetensors, torch_file, write_sparse


class Convert(Case):
    KEYS = ['tensors', 'files', 'root', 'parts', 'bytes_read', 'bytes_written', 'seconds', 'peak_anon_bytes', 'cast',
            'aliases', 'skipped', 'verdict', 'findings', 'notes', 'unaligned_tensors', 'resumed', 'copied',
            'copied_tensors', 'scaled', 'gathered', 'views', 'unreferenced_bytes', 'unsupported']
    LAYERS = [(name, 'U8', [6], name.encode()[:6].ljust(6)) for name in
              ('wte', 'h.0.a', 'h.1.a', 'h.0.b', 'h.1.b', 'head')]

    def test_json(self):
        told = self.done('convert', 'small.safetensors', 'out.safetensors')
        self.assertEqual(list(told), self.KEYS)
        self.assertEqual((told['tensors'], told['files']), (5, ['out.safetensors']))
        self.assertEqual(told['bytes_written'], (self.folder / 'out.safetensors').stat().st_size)
        self.assertEqual(told['bytes_read'], 72)
        self.assertEqual((told['cast'], told['aliases'], told['skipped']), ({}, [], []))
        self.assertGreater(told['seconds'], 0)
        self.assertGreater(told['peak_anon_bytes'], 100_000)
        self.assertLess(told['peak_anon_bytes'], 64 << 20)
        inspected = self.done('inspect', 'out.safetensors')
        self.assertEqual(inspected['metadata'], {'format': 'pt', 'who': 'a "b"'})

    def test_values_do_not_change(self):
        digests = self.done('load', 'small.safetensors', '--device', 'host', '--digest')['digests']
        self.done('convert', 'small.safetensors', 'out', '--max-shard-size', '30')
        self.assertEqual(self.done('load', 'out', '--device', 'host', '--digest')['digests'], digests)
        self.assertGreater(len(list((self.folder / 'out').glob('model-0000?-of-0000?.safetensors'))), 1)

    def test_casts_are_counted_by_dtype(self):
        told = self.done('convert', 'small.safetensors', 'out', '--dtype', 'bfloat16')
        self.assertEqual(told['cast'], {'F32->BF16': {'tensors': 3, 'values': 14, 'overflowed': 1, 'non_finite': 1}})
        dtypes = {t['name']: t['dtype'] for t in self.done('inspect', 'out')['tensors']}
        self.assertEqual(dtypes, {'layers.0.w': 'BF16', 'layers.1.w': 'BF16', 'ids': 'I64', 'norm': 'BF16',
                                  'none': 'U8'})

    def test_keep_dtype_exempts_tensors_from_the_cast(self):
        self.done('convert', 'small.safetensors', 'out', '--dtype', 'BF16', '--keep-dtype', 'norm',
                  '--keep-dtype', '*.0.*')
        dtypes = {t['name']: t['dtype'] for t in self.done('inspect', 'out')['tensors']}
        self.assertEqual((dtypes['norm'], dtypes['layers.0.w'], dtypes['layers.1.w']), ('F32', 'F32', 'BF16'))

    def test_dtype_of_casts_some_tensors(self):
        self.done('convert', 'small.safetensors', 'out', '--dtype', 'bf16', '--dtype-of', 'layers.*=f16',
                  '--dtype-of', '*.1.*=F64', '--rename', 's/norm/n=m/')
        dtypes = {t['name']: t['dtype'] for t in self.done('inspect', 'out')['tensors']}
        self.assertEqual(dtypes, {'layers.0.w': 'F16', 'layers.1.w': 'F64', 'ids': 'I64', 'n=m': 'BF16', 'none': 'U8'})
        self.done('convert', 'out', 'again', '--dtype-of', 'n=m=f32')
        dtypes = {t['name']: t['dtype'] for t in self.done('inspect', 'again')['tensors']}
        self.assertEqual((dtypes['n=m'], dtypes['layers.0.w']), ('F32', 'F16'))
        for rule in ('norm', '=f32', 'norm=', 'norm=fp8', 'norm=x'):
            self.refused('invalid_argument', 2, 'convert', 'small.safetensors', 'no', '--dtype-of', rule)
        for rule in ('nothing=f32', 'nothing=i64', 'ids=f32'):
            self.refused('tensor_not_found', 2, 'convert', 'small.safetensors', 'no', '--dtype-of', rule)
        error = self.refused('unsupported_cast', 2, 'convert', 'small.safetensors', 'no', '--dtype-of', 'norm=i64')
        self.assertEqual(error['message'], '--dtype-of norm=i64: casts to I64 are not supported')

    def test_quantised_tensors(self):
        numbers = ('l.weight', 'F8_E4M3', [1, 2], b'\x38\xb8')  # 1, -1
        scale = ('l.weight_scale', 'F32', [1], floats(3))
        (self.folder / 'fp8.safetensors').write_bytes(safetensors([scale, numbers, ('norm', 'F32', [1], floats(5))]))
        error = self.refused('quantized_cast', 2, 'convert', 'fp8.safetensors', 'out', '--dtype', 'bf16')
        self.assertEqual(error['hint'], 'multiply the numbers by their scales with --apply-scales, or copy them as '
                         "they are: --keep-dtype '*.weight' --keep-dtype '*.weight_scale'")
        self.refused('quantized_cast', 2, 'convert', 'fp8.safetensors', 'out', '--dtype', 'f32', '--include',
                     '*.weight')
        self.done('convert', 'fp8.safetensors', 'kept', '--dtype', 'bf16', '--keep-dtype', '*.weight', '--keep-dtype',
                  '*.weight_scale')
        for words in (('--strip-prefix', 'l.'), ('--rename', 's/weight/x/'),
                      ('--include', '*_scale', '--rename', 's/_scale/x/'),
                      ('--rename', 's/^/a./', '--dtype-of', 'l.*=f16')):
            words = ('convert', 'fp8.safetensors', 'new', '--dtype', 'bf16', *words)
            error = self.refused('quantized_cast', 2, *words)
            self.assertTrue(error['tensor'].startswith('l.weight'), error)
            typed = shlex.split(error['hint'].partition('are: ')[2])
            self.assertIn('*.weight_scale', typed)
            cast = self.done(*words, *typed, '--dry-run')['cast']
            self.assertEqual(list(cast), [] if '--include' in words else ['F32->BF16'])
        told = self.done('convert', 'fp8.safetensors', 'out', '--apply-scales')
        self.assertEqual(told['scaled'], {'tensors': 1, 'bytes': 2})
        self.assertEqual([object['name'] for object in told['skipped']], ['l.weight_scale'])
        self.assertEqual(told['cast'], {'F8_E4M3->BF16': {'tensors': 1, 'values': 2, 'overflowed': 0, 'non_finite': 0}})
        written = (self.folder / 'out/model.safetensors').read_bytes()
        self.assertTrue(written.endswith(floats(5) + b'\x40\x40\x40\xc0'), written)  # 3, -3
        layers = [(f'l.{i}.{name}', *rest) for i in range(3) for name, *rest in (
            ('weight', 'F8_E4M3', [1, 2], b'\x38\xb8'), ('weight_scale', 'F32', [1], floats(3)))]
        (self.folder / 'layers.safetensors').write_bytes(safetensors(layers))
        self.assertNotIn('skipped', self.safemap('convert', 'layers.safetensors', 'asked', '--apply-scales').out)
        text = self.safemap('convert', 'layers.safetensors', 'folded', '--apply-scales', '-v').out
        self.assertEqual([line for line in text.splitlines() if 'skipped' in line],
                         ['  skipped  l.{0..2}.weight_scale x 3: describes quantised tensors, which are written as '
                          'their values (apply_scales)'])

    def test_text(self):
        result = self.safemap('convert', 'small.safetensors', 'out', '--dtype', 'bf16')
        self.assertEqual((result.code, result.err), (0, ''))
        self.expect('convert', result.out)
        self.expect('convert_verbose',
                    self.safemap('convert', 'small.safetensors', 'out', '--dtype', 'bf16', '-vf').out)
        short = self.safemap('convert', 'small.safetensors', 'copy/').out
        self.assertRegex(short, r'^small\.safetensors → copy/: 5 tensors, 1 file, \d+ B in \d+\.\d\d s\n$')
        (self.folder / 'more.safetensors').write_bytes(safetensors([('x', 'U8', [1], b'x')]))
        many = self.safemap('convert', 'small.safetensors', 'more.safetensors', 'both').out
        self.assertTrue(many.startswith('small.safetensors and 1 more → both: 6 tensors, '), many)

    def test_only_notes_to_act_on_are_printed(self):
        # Attributes of the dict and the hash of the old file are lost, which is in --verbose and JSON only.
        shutil.copy(case.DATA / 'pt' / 'state_dict.pt', self.folder)
        sshs = safetensors([('w', 'U8', [1], b'x')], {'sshs_model_hash': 'abc'})
        (self.folder / 'sshs.safetensors').write_bytes(sshs)
        for source in ('state_dict.pt', 'sshs.safetensors'):
            words = ('convert', source, 'out', '--force', '--strip-prefix', 'no.')
            notes = self.done(*words)['notes']
            self.assertEqual(len(notes), 2, notes)
            act = "--strip-prefix 'no.': no name begins with it"
            informative = next(note for note in notes if note != act)
            self.assertEqual(self.notes_in(self.safemap(*words).out), [act])
            self.assertEqual(sorted(self.notes_in(self.safemap(*words, '-v').out)), sorted(notes))
            self.assertEqual(sorted(self.notes_in(self.safemap(*words, '-n').out)), sorted(notes))
            self.assertIn(informative, self.safemap(*words, '-v').out.partition(' → ')[2])

    @staticmethod
    def notes_in(text):
        return [line.removeprefix('  note     ') for line in text.splitlines() if line.startswith('  note ')]

    def test_many_skipped_tensors_are_counted(self):
        names = [chr(ord('a') + i) * (i + 1) for i in range(25)]
        (self.folder / 'odd.pt').write_bytes(torch_file({name: 'ComplexDoubleStorage' for name in names} |
                                                        {'w': 'FloatStorage'}))
        told = self.safemap('convert', 'odd.pt', 'out').out.splitlines()
        self.assertEqual(len(told), 22)
        self.assertEqual(told[-1], '  skipped  5 more; --verbose lists them')
        told = self.safemap('convert', 'odd.pt', 'out', '-fv').out
        self.assertEqual(told.count('  skipped  '), 25)

    def test_a_dry_run_writes_nothing_and_prints_the_plan(self):
        result = self.safemap('convert', 'small.safetensors', 'out', '--max-shard-size', '30', '--dry-run')
        self.assertEqual((result.code, result.err), (0, ''))
        self.expect('convert_dry_run', result.out)
        self.assertEqual(self.leftovers(), ['small.safetensors'])

    def test_a_dry_run_predicts_the_files_of_the_run(self):
        words = ('convert', 'small.safetensors', 'out', '--max-shard-size', '30', '--dtype', 'bf16')
        plan, text = self.done(*words, '--dry-run'), self.safemap(*words, '--dry-run')
        self.assertEqual(list(plan), self.KEYS + ['predicted_anon_bytes', 'plan'])
        self.expect('convert_dry_run_cast', text.out)
        done = self.done(*words)
        self.assertEqual([file['file'] for file in plan['plan']], done['files'])
        for file in plan['plan']:
            path = self.folder / 'out' / file['file']
            self.assertEqual(file['bytes'], path.stat().st_size)
            held = 0 if path.suffix == '.json' else len(self.done('inspect', str(path))['tensors'])
            self.assertEqual(file['tensors'], held)

    def test_memory_is_predicted(self):
        size = 1 << 26
        header = json.dumps({f'w.{i}': {'dtype': 'F32', 'shape': [size // 16], 'data_offsets': [i * size // 4,
                                                                                           (i + 1) * size // 4]}
                             for i in range(4)}).encode()
        with open(self.folder / 'big.safetensors', 'wb') as big:
            big.write(header_bytes(header))
            big.truncate(8 + len(header) + size)
        for more in ((), ('--dtype', 'bf16'), ('--threads', '4')):
            words = ('convert', 'big.safetensors', 'out.safetensors', *more, '--json')
            # With MALLOC_PERTURB_, buffers would be filled at allocation, and all of their pages would count.
            env = environment(MALLOC_PERTURB_='0')
            predicted = self.safemap(*words, '--dry-run', env=env).json()['predicted_anon_bytes']
            self.assertLess(predicted, 32 << 20)
            measured = self.safemap(*words, env=env).json()['peak_anon_bytes']
            self.assertGreater(measured, 0)
            if not SANITIZED:  # sanitizers use memory of their own
                self.assertLess(measured, predicted + (4 << 20))
                self.assertLess(predicted, measured + (12 << 20))
            (self.folder / 'out.safetensors').unlink()

    def by_file(self, folder):
        """Returns the names in each shard, in the order of the index."""
        index = json.loads((self.folder / folder / 'model.safetensors.index.json').read_text(encoding='utf-8'))
        files = {}
        for name, file in index['weight_map'].items():
            files.setdefault(file, []).append(name)
        return [files[file] for file in sorted(files)]

    def test_strategies(self):
        (self.folder / 'layers.safetensors').write_bytes(safetensors(self.LAYERS))
        split = {}
        for strategy in ('greedy', 'balanced', 'by_prefix'):
            self.done('convert', 'layers.safetensors', strategy, '--max-shard-size', '24', '--strategy', strategy)
            self.assertTrue(self.done('diff', 'layers.safetensors', strategy)['equal'])
            split[strategy] = self.by_file(strategy)
        self.assertEqual(split['greedy'], [['wte', 'h.0.a', 'h.1.a', 'h.0.b'], ['h.1.b', 'head']])
        self.assertEqual(split['balanced'], [['wte', 'h.0.a', 'h.1.a'], ['h.0.b', 'h.1.b', 'head']])
        self.assertEqual(split['by_prefix'], [['wte', 'h.0.a', 'h.0.b'], ['h.1.a', 'h.1.b', 'head']])
        told = self.done('convert', 'layers.safetensors', 'small', '--max-shard-size', '11', '--strategy', 'by_prefix')
        self.assertEqual(self.by_file('small'), [['h.0.a', 'h.0.b'], ['h.1.a', 'h.1.b'], ['wte'], ['head']])
        self.assertEqual(told['notes'][0], "the layer of 'h.0' takes 12 bytes, more than 11 bytes; it is stored whole "
                                           'in model-00001-of-00004.safetensors')
        self.assertEqual(len(told['notes']), 2)

    def test_an_index_of_transformers(self):
        self.done('convert', 'small.safetensors', 'out', '--max-shard-size', '30', '--index-style', 'transformers')
        text = (self.folder / 'out' / 'model.safetensors.index.json').read_text(encoding='utf-8')
        index = json.loads(text)
        self.assertEqual(text, json.dumps(index, indent=2, sort_keys=True) + '\n')
        self.assertEqual(index['metadata'], {'total_parameters': 16, 'total_size': 72, 'who': 'a "b"'})
        self.assertTrue(self.done('diff', 'small.safetensors', 'out')['equal'])

    def test_tensors_are_aligned_as_asked(self):
        tensors = [('a', 'F32', [3], bytes(12)), ('b', 'U8', [64], bytes(64)), ('c', 'F16', [32], bytes(64))]
        (self.folder / 'odd.safetensors').write_bytes(safetensors(tensors))
        for more, unaligned in (((), 2), (('--align-tensors',), 0)):
            told = self.done('convert', 'odd.safetensors', f'{unaligned}.safetensors', '--align', '64', *more)
            self.assertEqual(told['unaligned_tensors'], unaligned)
            offsets = [t['offset'] % 64 for t in self.done('inspect', f'{unaligned}.safetensors')['tensors']]
            self.assertEqual(len([offset for offset in offsets if offset]), unaligned)
        text = self.safemap('convert', 'odd.safetensors', 'out', '--align', '4096', '--align-tensors', '-v').out
        self.assertIn('\n  aligned  all but 2 tensors\n', text)

    def names(self, path):
        return [t['name'] for t in self.done('inspect', path)['tensors']]

    def test_names_are_changed_by_prefixes_and_then_by_rules(self):
        told = self.done('convert', 'small.safetensors', 'out.safetensors', '--strip-prefix', 'layers.',
                         '--rename', r's/^(\d+)\.w$/h.$1.weight/', '--rename', 's/n/N/g', '--rename', 's/none/x/',
                         '--dtype', 'bf16', '--keep-dtype', 'layers.1.*')
        self.assertEqual(sorted(self.names('out.safetensors')), ['NoNe', 'Norm', 'h.0.weight', 'h.1.weight', 'ids'])
        self.assertEqual(told['notes'], ["--rename 's/none/x/': it changes no name"])
        dtypes = {t['name']: t['dtype'] for t in self.done('inspect', 'out.safetensors')['tensors']}
        self.assertEqual((dtypes['h.0.weight'], dtypes['h.1.weight']), ('BF16', 'F32'))
        self.assertEqual(self.done('inspect', 'out.safetensors')['metadata'], {'format': 'pt', 'who': 'a "b"'})

    def test_tensors_are_selected_by_their_names_before_renaming(self):
        self.done('convert', 'small.safetensors', 'out.safetensors', '--include', 'layers.*', '--rename', 's/layers/h/')
        self.assertEqual(self.names('out.safetensors'), ['h.0.w', 'h.1.w'])
        self.refused('tensor_not_found', 2, 'convert', 'small.safetensors', 'more', '--include', 'h.*',
                     '--rename', 's/layers/h/')

    def test_colliding_names_are_refused_before_anything_is_written(self):
        for more in ((), ('--dry-run',)):
            error = self.refused('name_collision', 2, 'convert', 'small.safetensors', 'out',
                                 '--rename', r's/\.[01]\./.N./', *more)
            self.assertEqual(error['message'], "'layers.0.w' and 'layers.1.w' would both become 'layers.N.w'")
        self.refused('name_collision', 2, 'convert', 'small.safetensors', 'out', '--rename', 's/ids/__metadata__/')
        self.refused('invalid_argument', 2, 'convert', 'small.safetensors', 'out', '--rename', 's/.*ids.*//')
        self.assertEqual(self.leftovers(), ['small.safetensors'])

    def test_an_invalid_rule_is_refused_before_the_path_is_opened(self):
        for rule in ('', 's/(/x/', 's/a/$1/', 'a/b/', 's/a/b', 's/a/b/i'):
            error = self.refused('invalid_argument', 2, 'convert', 'nowhere', 'out', '--rename', rule)
            self.assertTrue(error['message'].startswith(f"--rename: '{rule}' "), error)
            self.assertIn('s/RE/TEXT/', error['hint'])

    def test_a_name_too_long_for_a_rule_is_refused(self):
        (self.folder / 'long.safetensors').write_bytes(safetensors([('x' * 1_000_000, 'U8', [1], b'x')]))
        error = self.refused('invalid_argument', 2, 'convert', 'long.safetensors', 'out', '--rename', 's/(x|y)*/z/')
        self.assertIn('a name has 1000000 bytes', error['message'])
        self.assertLess(len(error['message']), 300)

    def test_names_of_tied_tensors_are_changed_too(self):
        tied = safetensors([('wte', 'U8', [1], b'x'), ('b', 'U8', [1], b'y')], {'head': 'wte', 'by': 'me'})
        (self.folder / 'tied.safetensors').write_bytes(tied)
        told = self.done('convert', 'tied.safetensors', 'out.safetensors', '--rename', 's/^/model./')
        self.assertEqual(told['aliases'], [['model.wte', 'model.head']])
        inspected = self.done('inspect', 'out.safetensors')
        self.assertEqual(inspected['metadata'], {'format': 'pt', 'by': 'me', 'model.head': 'model.wte'})
        self.assertEqual([t.get('alias_of') for t in inspected['tensors'] if t['name'] == 'model.head'], ['model.wte'])
        # Checks the tied name when it is the only selected name, when both names would become one, and when it collides
        # with metadata.
        self.done('convert', 'tied.safetensors', 'one.safetensors', '--include', 'head', '--rename', 's/head/h/')
        self.assertEqual(self.names('one.safetensors'), ['h'])
        self.assertEqual(self.done('inspect', 'one.safetensors')['metadata'], {'format': 'pt', 'by': 'me'})
        self.refused('name_collision', 2, 'convert', 'tied.safetensors', 'two', '--rename', 's/head|wte/w/')
        error = self.refused('name_collision', 2, 'convert', 'tied.safetensors', 'two', '--rename', 's/head/by/')
        self.assertEqual(error['message'], "'head' would become 'by', which is already a metadata key")

    def test_the_selected_names_of_a_tied_tensor_stay_tied(self):
        tied = safetensors([('wte', 'U8', [1], b'x'), ('b', 'U8', [1], b'y')],
                           {'head': 'wte', 'other': 'wte', 'by': 'me'})
        (self.folder / 'tied.safetensors').write_bytes(tied)
        told = self.done('convert', 'tied.safetensors', 'two.safetensors', '--exclude', 'wte')
        self.assertEqual(told['aliases'], [['head', 'other']])
        self.assertEqual(self.done('inspect', 'two.safetensors')['metadata'],
                         {'format': 'pt', 'by': 'me', 'other': 'head'})
        self.assertEqual(self.names('two.safetensors'), ['b', 'head', 'other'])
        # With none of its names selected, and with one.
        self.done('convert', 'tied.safetensors', 'none.safetensors', '--include', 'b')
        self.assertEqual(self.done('inspect', 'none.safetensors')['metadata'], {'format': 'pt', 'by': 'me'})
        self.done('convert', 'tied.safetensors', 'one.safetensors', '--include', 'other')
        self.assertEqual(self.done('inspect', 'one.safetensors')['metadata'], {'format': 'pt', 'by': 'me'})

    def test_every_name_of_a_skipped_tied_tensor_is_reported(self):
        (self.folder / 'tied.pt').write_bytes(torch_file({'t': 'ComplexDoubleStorage', 'u': 'ComplexDoubleStorage',
                                                          'x': 'ComplexDoubleStorage', 'w': 'FloatStorage'}))
        for options, wanted in (([], ['t', 'u', 'x']), (['--exclude', 't'], ['u', 'x']),
                                (['--rename', 's/^/a./'], ['a.t', 'a.u', 'a.x']),
                                (['--rename', 's/^/a./', '--exclude', 't'], ['a.u', 'a.x'])):
            for form in ('out.safetensors', 'out'):
                with self.subTest(options=options, form=form):
                    told = self.done('convert', 'tied.pt', form, '--force', *options)
                    self.assertEqual([object['name'] for object in told['skipped']], wanted)
                    self.assertEqual(len({object['why'] for object in told['skipped']}), 1)
                    self.assertEqual(told['aliases'], [])
                    metadata = self.done('inspect', form)['metadata']
                    self.assertEqual(metadata, {'format': 'pt'})

    def test_the_output_must_be_new(self):
        (self.folder / 'out').mkdir()
        (self.folder / 'out' / 'pytorch_model.bin').write_bytes(b'mine')
        self.refused('already_exists', 2, 'convert', 'small.safetensors', 'out')
        self.refused('already_exists', 2, 'convert', 'small.safetensors', 'small.safetensors')
        self.assertEqual(self.done('inspect', 'small.safetensors')['total_bytes'], 72)

    def test_force_replaces_the_model_and_leaves_the_rest(self):
        self.done('convert', 'small.safetensors', 'out', '--max-shard-size', '30')
        (self.folder / 'out' / 'config.json').write_text('mine')
        (self.folder / 'out' / 'logs').mkdir()
        told = self.done('convert', 'out', 'out', '--force')
        self.assertEqual(told['files'], ['model.safetensors'])
        self.assertEqual(sorted(p.name for p in (self.folder / 'out').iterdir()),
                         ['config.json', 'logs', 'model.safetensors'])
        self.assertTrue(self.done('diff', 'small.safetensors', 'out')['equal'])
        self.done('convert', 'small.safetensors', 'small.safetensors', '--force', '--dtype', 'bf16')
        self.assertEqual(self.done('inspect', 'small.safetensors')['total_bytes'], 44)
        self.refused('already_exists', 2, 'convert', 'small.safetensors', 'out/config.json', '--force')
        self.assertEqual(self.leftovers(), ['out', 'small.safetensors'])

    def test_evicting_the_sources_changes_no_byte(self):
        self.done('convert', 'small.safetensors', 'kept.safetensors')
        self.done('convert', 'small.safetensors', 'out.safetensors', '--drop-cache')
        self.assertEqual(*((self.folder / name).read_bytes() for name in ('out.safetensors', 'kept.safetensors')))

    def test_a_killed_conversion_is_resumed(self):
        # The input is sparse, so that it is made quickly; the output is not.
        count, size = 12, 1 << 24
        write_sparse(self.folder / 'big.safetensors', [f't{i:02}' for i in range(count)], size)
        words = ['convert', 'big.safetensors', 'out', '--max-shard-size', str(size), '--checksums']
        journal = self.folder / '.out.safemap-tmp' / 'journal'
        process = subprocess.Popen([case.SAFEMAP, *words, '--quiet'], cwd=self.folder)
        while process.poll() is None and not (journal.exists() and journal.read_bytes().count(b'\n') > 3):
            time.sleep(0.001)
        process.kill()
        if process.wait() == 0:
            self.skipTest('this machine writes 192 MiB before it can be killed')
        self.assertEqual(self.leftovers(), ['.out.safemap-tmp', 'big.safetensors', 'small.safetensors'])
        told = self.done(*words, '--resume')
        self.assertGreaterEqual(len(told['resumed']), 3)
        self.assertLess(told['bytes_read'], count * size)
        self.assertEqual(self.leftovers(), ['big.safetensors', 'out', 'small.safetensors'])
        self.assertEqual(self.done('verify', 'out')['checked_bytes'], count * size)
        self.assertTrue(self.done('diff', 'big.safetensors', 'out')['equal'])

    def test_the_optimizer_of_other_checkpoints_is_not_separate(self):
        for out in ('out.safetensors', 'out.sft'):
            message = self.refused('invalid_argument', 2, 'convert', 'nothing', out, '--optimizer')['message']
            self.assertEqual(message, '--optimizer writes a folder, but OUT is one file: ' + out)
        for path in ('small.safetensors', str(case.DATA / 'pt' / 'train_gpt.pt')):
            error = self.refused('invalid_argument', 2, 'convert', path, 'out', '--optimizer')
            self.assertEqual((error['message'], error['path']),
                             ('--optimizer is for folders of DeepSpeed, and for models with the state of their '
                              'optimizer beside them; this is neither', path))
        self.refused('path_not_found', 2, 'convert', 'nothing', 'out', '--optimizer')
        self.assertEqual(self.leftovers(), ['small.safetensors'])

    def test_stdout_is_refused_as_output(self):
        error = self.refused('invalid_argument', 2, 'convert', 'small.safetensors', '-')
        self.assertIn("'-'", error['message'])
        self.assertEqual(self.leftovers(), ['small.safetensors'])

    def test_a_slash_after_the_output_makes_it_a_folder(self):
        told = self.done('convert', 'small.safetensors', 'out.safetensors/')
        self.assertEqual(told['files'], ['model.safetensors'])
        self.assertTrue((self.folder / 'out.safetensors' / 'model.safetensors').is_file())
        self.assertEqual(len(self.done('inspect', 'out.safetensors')['tensors']), 5)

    def test_a_foreign_folder_with_the_name_of_the_temporary_folder_is_kept(self):
        mine = self.folder / '.out.safemap-tmp'
        mine.mkdir()
        (mine / 'thesis.tex').write_text('mine')
        error = self.refused('already_exists', 2, 'convert', 'small.safetensors', 'out')
        self.assertIn("'.out.safemap-tmp'", error['message'])
        self.assertEqual((mine / 'thesis.tex').read_text(), 'mine')

    def test_a_file_that_does_not_fit_is_reported_with_path_and_bytes(self):
        def limited():  # the process also gets SIGXFSZ
            resource.setrlimit(resource.RLIMIT_FSIZE, (100, 100))

        for out, file in [('out', 'out/model.safetensors'), ('out.safetensors', 'out.safetensors')]:
            result = self.safemap('convert', 'small.safetensors', out, '--json', preexec_fn=limited)
            error = result.json()['error']
            self.assertEqual((error['code'], result.code, error['path']), ('no_space', 3, file))
            self.assertRegex(error['message'], r'^cannot allocate \d{3} bytes: .*at most 100 bytes \(ulimit -f\)')
        self.assertEqual(self.leftovers(), ['small.safetensors'])

    def test_data_is_aligned_as_asked(self):
        for align in (64, 256, 4096):
            self.done('convert', 'small.safetensors', f'{align}.safetensors', '--align', str(align))
            begin = (self.folder / f'{align}.safetensors').read_bytes()[:8]
            self.assertEqual((struct.unpack('<Q', begin)[0] + 8) % align, 0)

    def test_checksums_are_written_where_verify_and_hash_find_them(self):
        for out, words in [('out.safetensors', ()), ('out', ('--max-shard-size', '30')), ('half', ('--dtype', 'bf16'))]:
            told = self.done('convert', 'small.safetensors', out, '--checksums', *words)
            self.assertEqual(list(told), self.KEYS)
            hashed = self.done('hash', out)
            metadata = self.done('inspect', out)['metadata']
            self.assertEqual(metadata['safemap.checkpoint_xxh3_128'], hashed['checkpoint'])
            self.assertEqual(metadata['who'], 'a "b"')
            found = {}
            files = [self.folder / out] if out.endswith('s') else (self.folder / out).glob('*.safetensors')
            for file in files:
                found.update(json.loads(header_of(file)['__metadata__']['safemap.xxh3_128']))
            self.assertEqual(found, hashed['tensors'])
            checked = self.done('verify', out)
            self.assertEqual((checked['ok'], checked['checked_bytes']), (True, checked['bytes']))
        # Digests of a whole say nothing about a part of it, nor about a file saved without checksums.
        self.done('convert', 'out.safetensors', 'part.safetensors', '--include', 'layers.*')
        self.assertEqual(self.done('inspect', 'part.safetensors')['metadata'], {'format': 'pt', 'who': 'a "b"'})
        self.done('convert', 'out.safetensors', 'again.safetensors', '--include', 'layers.*', '--checksums')
        self.assertEqual(self.done('verify', 'again.safetensors')['checked_bytes'], 48)

    def test_a_dry_run_counts_the_bytes_of_checksums(self):
        words = ('small.safetensors', 'out', '--max-shard-size', '30', '--checksums')
        planned = self.done('convert', *words, '--dry-run')
        written = self.done('convert', *words)
        self.assertEqual((planned['files'], planned['bytes_written']), (written['files'], written['bytes_written']))

    def test_a_selection_keeps_the_metadata(self):
        self.done('convert', 'small.safetensors', 'out.safetensors', '--include', 'layers.*')
        told = self.done('inspect', 'out.safetensors')
        self.assertEqual([t['name'] for t in told['tensors']], ['layers.0.w', 'layers.1.w'])
        self.assertEqual(told['metadata'], {'format': 'pt', 'who': 'a "b"'})

    def test_the_longest_header_is_an_option_of_every_command(self):
        size = str(struct.unpack('<Q', (self.folder / 'small.safetensors').read_bytes()[:8])[0])
        small = 'small.safetensors'
        for words in (['inspect', small], ['convert', small, 'out'], ['verify', small], ['hash', small],
                      ['diff', small, small], ['plan', small, '--expect', small], ['load', small, '--device', 'host'],
                      ['repair', small, 'repaired'], ['edit', small, '--set', 'a=b']):
            with self.subTest(command=words[0]):
                refused = self.safemap(*words, '--json', '--max-header-size', '100')
                self.assertEqual(refused.code, 1, refused.out)
                found = json.loads(refused.out)
                found = found['faults'][0] if words[0] == 'verify' else found['error']
                self.assertEqual(found['code'], 'header_too_large')
                self.assertIn(f'--max-header-size {size}', found['hint'])
                allowed = self.safemap(*words, '--max-header-size', '1kB')
                self.assertEqual(allowed.code, 0, allowed.err)

    def test_headers_are_kept_short_by_more_shards(self):
        told = self.done('convert', 'small.safetensors', 'out', '--max-header-size', '420')
        self.assertGreater(len(told['files']), 2)
        self.assertTrue(self.done('diff', 'small.safetensors', 'out')['equal'])
        size = struct.unpack('<Q', (self.folder / 'small.safetensors').read_bytes()[:8])[0]
        refused = self.safemap('convert', 'small.safetensors', 'one.safetensors', '--checksums', '--json',
                               '--max-header-size', str(size))
        self.assertEqual(refused.code, 1)
        error = json.loads(refused.out)['error']
        self.assertEqual(error['code'], 'header_too_large')
        self.assertIn('--max-shard-size', error['hint'])
        self.assertIn('--max-header-size', error['hint'])

    def test_ctrl_c_leaves_nothing(self):
        for signal_number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            # The input has no blocks on disk; the run that is stopped would write all of them.
            for size in (1 << 28, 1 << 30, 1 << 32):
                if self.cancelled(size, signal_number):
                    break
            else:
                self.skipTest('this machine writes 4 GiB before a signal arrives')

    def test_a_signal_keeps_finished_shards_for_resume_and_says_how_to_continue(self):
        # Odd names, because the command of the hint is for a shell.
        source, out = "it's\ta model.safetensors", '$out *'
        for signal_number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            for size in (1 << 22, 1 << 24, 1 << 27):
                if self.continued(source, out, size, signal_number):
                    break
            else:
                self.skipTest('this machine writes 1 GiB before a signal arrives')

    def continued(self, source, out, size, signal_number):
        count = 8
        write_sparse(self.folder / source, [f't{i}' for i in range(count)], size, lambda i: bytes([i + 1]))
        before = self.leftovers()
        hidden = self.folder / f'.{out}.safemap-tmp'
        call = ['convert', source, out, '--max-shard-size', str(size), '--resume']
        json_wanted = signal_number != signal.SIGINT
        process = subprocess.Popen([case.SAFEMAP, *call, *['--json'] * json_wanted], cwd=self.folder,
                                   stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                                   preexec_fn=lambda: signal.signal(signal.SIGHUP, signal.SIG_DFL))
        while process.poll() is None and self.lines_of(hidden / 'journal') < 3:
            time.sleep(0.0005)
        for _ in range(3):  # the second and the third change nothing
            process.send_signal(signal_number)
        told, err = process.communicate(timeout=120)
        if process.returncode == 0:
            subprocess.run(['rm', '-rf', self.folder / out], check=True)
            return False
        self.assertEqual(process.returncode, 130, (told, err))
        self.assertEqual(sorted(os.listdir(hidden)), ['content', 'journal', 'safemap.lock'])
        kept = {file.name: (file.stat().st_ino, file.stat().st_mtime_ns) for file in (hidden / 'content').iterdir()}
        self.assertGreaterEqual(len(kept), 2)
        if json_wanted:
            self.assertEqual(err, b'')
            error = json.loads(told)['error']
            self.assertEqual((error['code'], error['message']), ('cancelled', 'cancelled on request'))
            hint = error['hint']
        else:
            self.assertEqual(err.decode().count('hint: '), 1, err)
            hint = err.decode().split('hint: ')[1]
        self.assertTrue(hint.startswith(f'{len(kept)} of {count + 1} files are finished'), hint)
        command = hint.split('; to continue: ')[1]
        done = subprocess.run(['bash', '-c', command], cwd=self.folder, capture_output=True, check=False, timeout=120)
        self.assertEqual(done.returncode, 0, (command, done.stderr))
        if not json_wanted:
            self.assertRegex(done.stdout.decode(), rf' s; {len(kept)} files already finished\n')
        if json_wanted:
            report = json.loads(done.stdout)
            self.assertEqual(sorted(report['resumed']), sorted(kept))
            self.assertEqual(report['bytes_read'], size * (count - len([n for n in kept if n.endswith('s')])))
        for name, stamp in kept.items():
            now = (self.folder / out / name).stat()
            self.assertEqual((now.st_ino, now.st_mtime_ns), stamp)
        self.done('convert', source, 'whole', '--max-shard-size', str(size))
        subprocess.run(['diff', '-r', out, 'whole'], cwd=self.folder, check=True)
        subprocess.run(['rm', '-rf', self.folder / out, self.folder / 'whole'], check=True)
        self.assertEqual(self.leftovers(), before)
        return True

    @staticmethod
    def lines_of(path):
        try:
            return path.read_bytes().count(b'\n')
        except FileNotFoundError:
            return 0

    def cancelled(self, size, signal_number):
        write_sparse(self.folder / 'big.safetensors', ['w'], size)
        before = self.leftovers()
        process = subprocess.Popen([case.SAFEMAP, 'convert', 'big.safetensors', 'out', '--json'], cwd=self.folder,
                                   stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                                   preexec_fn=lambda: signal.signal(signal.SIGHUP, signal.SIG_DFL))
        while process.poll() is None and self.leftovers() == before:
            time.sleep(0.001)
        process.send_signal(signal_number)
        out, err = process.communicate(timeout=120)
        if process.returncode == 0:
            subprocess.run(['rm', '-rf', self.folder / 'out'], check=True)
            return False
        self.assertEqual((process.returncode, err), (130, b''), out)
        self.assertEqual(json.loads(out)['error']['code'], 'cancelled')
        self.assertEqual(self.leftovers(), before)
        return True


class Extras(Case):
    EXTRAS = ['LICENSE', 'README.md', 'config.json', 'merges.txt', 'spiece.model', 'template.jinja', 'tokenizer.json']

    def setUp(self):
        super().setUp()
        self.done('convert', 'small.safetensors', 'in', '--max-shard-size', '30')
        for name in (*self.EXTRAS, 'tokenizer.py', 'optimizer.pt', 'notes.md', '.hidden.json'):
            (self.folder / 'in' / name).write_text(name)

    def files(self, folder):
        return {p.name: p.read_bytes() for p in (self.folder / folder).iterdir() if p.is_file()}

    def test_the_small_files_of_a_model_folder_are_copied(self):
        told = self.done('convert', 'in', 'out', '--dtype', 'bf16')
        self.assertEqual(told['copied'], self.EXTRAS)
        self.assertEqual(sorted(self.files('out')), sorted(self.EXTRAS + told['files']))
        self.assertEqual(told['bytes_written'], sum(len(self.files('out')[name]) for name in told['files']))
        for name in self.EXTRAS:
            self.assertEqual(self.files('out')[name], name.encode())
        self.assertEqual(self.leftovers(), ['in', 'out', 'small.safetensors'])

    def test_every_conversion_of_a_folder_to_a_folder_copies_them(self):
        for words in (['--rename', 's/norm/x/'], ['--include', 'norm'], ['--max-shard-size', '1GB'], ['--resume']):
            self.assertEqual(self.done('convert', 'in', 'out', *words)['copied'], self.EXTRAS)
            self.assertEqual(self.files('out')['config.json'], b'config.json')
            for file in (self.folder / 'out').iterdir():
                file.unlink()
            (self.folder / 'out').rmdir()

    def test_a_file_of_a_usual_name_has_those_of_the_model(self):
        model = ['config.json', 'merges.txt', 'spiece.model', 'tokenizer.json']
        self.assertEqual(self.done('convert', 'in/model.safetensors.index.json', 'out')['copied'], model)
        self.assertEqual(self.done('convert', 'in/model.safetensors.index.json', 'x', '--no-extras')['copied'], [])
        shards = sorted(str(path) for path in (self.folder / 'in').glob('*.safetensors'))
        self.assertEqual(self.done('convert', *shards, 'together')['copied'], model)
        (self.folder / 'in' / 'config.json').unlink()
        self.assertEqual(self.done('convert', *shards, 'without')['copied'], [])

    def test_other_conversions_copy_none(self):
        self.assertEqual(self.done('convert', 'in', 'plain', '--no-extras')['copied'], [])
        self.assertEqual(self.done('convert', 'in', 'out.safetensors')['copied'], [])
        told = self.done('convert', 'small.safetensors', 'out')
        self.assertEqual((told['copied'], sorted(self.files('out'))), ([], sorted(told['files'])))
        # A single file of weights in a folder may have any name.
        (self.folder / 'some').mkdir()
        (self.folder / 'small.safetensors').rename(self.folder / 'some' / 'weights.safetensors')
        (self.folder / 'some' / 'config.json').write_text('{}')
        self.assertEqual(self.done('convert', 'some', 'other')['copied'], [])

    def test_a_dry_run_lists_them(self):
        self.assertEqual(self.done('convert', 'in', 'out', '--dry-run')['copied'], self.EXTRAS)
        text = self.safemap('convert', 'in', 'out', '--dry-run').out
        self.assertIn('  extras   ' + ', '.join(self.EXTRAS) + '\n', text)
        self.assertEqual(self.leftovers(), ['in', 'small.safetensors'])

    def test_force_replaces_them_and_leaves_the_rest(self):
        self.done('convert', 'small.safetensors', 'out')
        (self.folder / 'out' / 'config.json').write_text('old')
        (self.folder / 'out' / 'mine.json').write_text('mine')
        (self.folder / 'out' / 'merges.txt').mkdir()
        told = self.done('convert', 'in', 'out', '--force')
        self.assertEqual(told['copied'], [name for name in self.EXTRAS if name != 'merges.txt'])
        self.assertEqual([note for note in told['notes'] if 'merges.txt' in note],
                         ["'merges.txt' is not copied: the output folder has that name, but not as a regular file"])
        self.assertEqual(self.files('out')['config.json'], b'config.json')
        self.assertEqual(self.files('out')['mine.json'], b'mine')

    def test_a_model_converted_in_place_keeps_its_own(self):
        before = (self.folder / 'in' / 'config.json').stat().st_ino
        told = self.done('convert', 'in', 'in', '--force')
        self.assertEqual(told['copied'], [])
        self.assertEqual((self.folder / 'in' / 'config.json').stat().st_ino, before)
        self.assertEqual(self.files('in')['tokenizer.py'], b'tokenizer.py')

    def test_links_of_a_hub_cache_are_followed(self):
        (self.folder / 'in').rename(self.folder / 'blobs')
        (self.folder / 'snapshots' / '0a1b').mkdir(parents=True)
        for file in (self.folder / 'blobs').iterdir():
            (self.folder / 'snapshots' / '0a1b' / file.name).symlink_to('../../blobs/' + file.name)
        self.assertEqual(self.done('convert', 'snapshots/0a1b', 'out')['copied'], self.EXTRAS)
        self.assertFalse((self.folder / 'out' / 'config.json').is_symlink())
        self.assertEqual(self.files('out')['config.json'], b'config.json')

    def test_a_link_out_of_the_folder_is_noted_and_not_copied(self):
        secret = self.folder / 'secret'
        secret.write_bytes(b'mine')
        (self.folder / 'in' / 'config.json').unlink()
        (self.folder / 'in' / 'config.json').symlink_to('../secret')
        told = self.done('convert', 'in', 'out')
        self.assertNotIn('config.json', told['copied'])
        self.assertIn(f"'config.json' is not copied: it is a link out of the folder, to {secret.resolve()}",
                      told['notes'])
        self.assertFalse((self.folder / 'out' / 'config.json').exists())

    def test_a_file_that_is_too_large_is_noted(self):
        with open(self.folder / 'in' / 'vocab.json', 'wb') as large:
            large.truncate((64 << 20) + 1)
        told = self.done('convert', 'in', 'out')
        self.assertEqual(told['copied'], self.EXTRAS)
        self.assertIn("'vocab.json' is not copied: it has 67108865 bytes, more than 67108864 bytes", told['notes'])
        self.assertNotIn('vocab', ' '.join(self.done('convert', 'in', 'out.safetensors')['notes']))


class Runs(Case):
    """Folders of a run: what a training leaves, and the cache of a model hub."""

    def small(self, folder):
        (self.folder / folder).mkdir(parents=True)
        shutil.copy(self.folder / 'small.safetensors', self.folder / folder / 'model.safetensors')

    def test_the_newest_save_of_a_run_is_in_the_hint(self):
        for number in (100, 1000, 200):
            self.small(f'run/checkpoint-{number}')
        self.small('run/best')
        error = self.refused('several_models', 2, 'inspect', 'run')
        self.assertEqual(error['hint'], 'give one of them; the newest is run/checkpoint-1000')

    def test_a_run_with_one_save_opens_and_its_configuration_is_copied(self):
        shutil.copytree(case.DATA / 'reports' / 'verl_actor_folder', self.folder / 'run' / 'global_step_7')
        for name in ('config.json', 'vocab.json'):
            (self.folder / 'run' / name).write_text(name)
        told = self.done('convert', 'run', 'out', '--optimizer')
        self.assertEqual(told['copied'], ['config.json', 'tokenizer.json', 'vocab.json'])
        inner = self.folder / 'run' / 'global_step_7' / 'huggingface' / 'config.json'
        self.assertEqual((self.folder / 'out' / 'config.json').read_bytes(), inner.read_bytes())
        self.assertIn('another one is nearer', ' '.join(told['notes']))
        self.assertEqual(self.done('inspect', 'run')['training'], {'step': 1, 'learning_rate': 0.01, 'world_size': 2})
        self.assertIn('training: step 1, learning rate 0.01, 2 ranks\n', self.safemap('inspect', 'run').out)

    def test_the_cache_of_a_hub_opens_by_its_reference(self):
        self.small('models--a--b/snapshots/0a1b')
        self.small('models--a--b/snapshots/ffff')
        (self.folder / 'models--a--b' / 'refs').mkdir()
        main = self.folder / 'models--a--b' / 'refs' / 'main'
        self.refused('several_models', 2, 'inspect', 'models--a--b')
        main.write_text('ffff\n')
        self.assertIn('snapshots/ffff', ' '.join(self.done('inspect', 'models--a--b')['notes']))
        main.write_text('0123')
        self.refused('shard_missing', 1, 'inspect', 'models--a--b')
        for hostile in ('../../etc', '/etc', 'ffff\nffff', '', 'a' * 5000):
            main.write_text(hostile)
            self.refused('bad_tag', 1, 'inspect', 'models--a--b')

    def test_dtype_leaves_the_optimizer_as_it_is(self):
        train = str(case.DATA / 'pt' / 'train_gpt.pt')
        told = self.done('convert', train, 'out', '--dtype', 'bf16')
        self.assertEqual(told['cast']['F32->BF16']['tensors'], 28)
        self.assertIn("84 tensors of the optimizer's state, 'optimizer/state/0/step' first, keep their dtypes; "
                      '--dtype-optimizer D (SaveOptions::optimizer_dtype) casts them', told['notes'])
        told = self.done('convert', train, 'all', '--dtype', 'bf16', '--dtype-optimizer', 'f16')
        self.assertEqual({key: cast['tensors'] for key, cast in told['cast'].items()},
                         {'F32->BF16': 28, 'F32->F16': 84})
        self.refused('invalid_argument', 2, 'convert', train, 'x', '--dtype-optimizer', 'q4')
