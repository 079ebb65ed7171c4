"""Tests parts of nested state dicts and names in every command: --root, --ema, --clean, --keep-name and their kind."""
import json
import urllib.parse

import case
from case import Case
from forged import Tensor, floats, header_of, nested_file, safetensors


def weights(*names):
    return {name: Tensor(i + 1, i + 2) for i, name in enumerate(names)}


class Parts(Case):
    """The part that gives the tensors."""

    def write(self, name, value):
        (self.folder / name).write_bytes(nested_file(value))
        return name

    def names(self, *words):
        return sorted(tensor['name'] for tensor in self.done('inspect', *words)['tensors'])

    def test_the_only_part_in_every_command(self):
        one = self.write('one.ckpt', {'state_dict': weights('m.w', 'm.b'), 'epoch': 3})
        names = ['m.b', 'm.w']
        told = self.done('inspect', one)
        self.assertEqual(told['root'], 'state_dict')
        self.assertEqual(told['parts'], [{'name': 'state_dict', 'tensors': 2, 'bytes': 16}])
        self.assertEqual(self.names(one), names)
        self.assertEqual(self.names(one, '--root', ''), ['state_dict/m.b', 'state_dict/m.w'])
        self.assertEqual(self.names(one, '--root', 'state_dict'), names)
        self.assertEqual(self.names(one, '--root', 'auto'), names)
        self.assertIn('names are below state_dict', self.safemap('inspect', one).out)
        for options, stored in (((), names), (('--root', ''), ['state_dict/m.b', 'state_dict/m.w'])):
            report = self.done('convert', one, 'out.safetensors', '--force', *options)
            self.assertEqual(report['parts'], told['parts'])
            self.assertEqual(sorted(set(header_of(self.folder / 'out.safetensors')) - {'__metadata__'}), stored)
            self.assertTrue(self.done('diff', one, 'out.safetensors')['equal'])
            self.assertTrue(self.done('diff', one, 'out.safetensors', '--root', '')['equal'])
            self.assertEqual(self.done('hash', one), self.done('hash', 'out.safetensors'))
            self.assertEqual(self.done('inspect', 'out.safetensors', '--structure')['root'], 'state_dict')
            self.assertTrue(self.done('verify', 'out.safetensors', '--root', '')['ok'])
            self.assertTrue(self.done('plan', one, '--expect', 'out.safetensors')['ok'])
            loaded = self.done('load', 'out.safetensors', '--device', 'host', '--digest')['digests']
            self.assertEqual(sorted(loaded), names)
            again = self.done('inspect', 'out.safetensors', '--structure')['structure']['root']
            self.assertEqual(again['epoch'], 3)
        self.assertEqual(sorted(self.done('hash', one, '--root', '')['tensors']), ['state_dict/m.b', 'state_dict/m.w'])
        self.assertTrue(self.done('verify', one, '--root', 'state_dict')['ok'])
        self.assertEqual(self.done('repair', 'out.safetensors', 'fixed.safetensors', '--root', '')['tensors'], 2)

    def test_edit_changes_the_names_of_the_file(self):
        one = self.write('one.pt', {'model': weights('w')})
        self.done('convert', one, 'old.safetensors', '--root', '')
        self.done('edit', 'old.safetensors', '--rename', 's/^model\\/w$/model\\/v/', '--root', '')
        self.assertEqual(set(header_of(self.folder / 'old.safetensors')) - {'__metadata__'}, {'model/v'})

    def test_several_parts_are_noted_first(self):
        two = self.write('two.pt', {'model': weights('w'), 'optimizer': weights('m', 'v'), 'epoch': 1})
        report = self.done('convert', two, 'out')
        self.assertEqual(report['notes'][0],
                         'all parts are converted: model (1 tensor, 8 B), optimizer (2 tensors, 16 B); --root auto '
                         'takes the model, --root PART one of them')
        parts = [{'name': 'model', 'tensors': 1, 'bytes': 8}, {'name': 'optimizer', 'tensors': 2, 'bytes': 16}]
        self.assertEqual(report['parts'], parts)
        report = self.done('convert', two, 'model.safetensors', '--root', 'auto')
        self.assertEqual((report['tensors'], report['root'], report['parts']), (1, 'model', parts))
        self.assertEqual(report['notes'][0], "took the model from the part 'model' (1 tensor, 8 bytes); "
                                             "left 'optimizer' (2 tensors, 16 bytes)")
        self.assertEqual(set(header_of(self.folder / 'model.safetensors')), {'__metadata__', 'w'})
        self.assertTrue(self.done('diff', two, 'model.safetensors', '--root', 'auto')['equal'])
        told = self.done('diff', two, 'model.safetensors', '--root', 'model')
        self.assertEqual((told['equal'], told['notes']), (True, ["B has no part 'model', and is compared as it is"]))
        self.assertTrue(self.done('plan', two, '--expect', 'model.safetensors', '--root', 'model')['ok'])
        self.assertTrue(self.done('plan', 'model.safetensors', '--expect', two, '--root', 'model')['ok'])
        for words in (('inspect', two), ('convert', two, 'x'), ('hash', two), ('diff', two, two),
                      ('load', two, '--device', 'host'),
                      ('plan', two, '--expect', two)):
            error = self.refused('invalid_argument', 2, *words, '--root', 'nodel')
            self.assertIn("'model', 'optimizer'", error['hint'])
        odd = self.write('odd.pt', {'x': weights('w'), 'y': weights('v')})
        error = self.refused('invalid_argument', 2, 'inspect', odd, '--root', 'auto')
        self.assertIn('no part has a name', error['message'])

    def test_long_names_are_those_of_torch(self):
        expected = {}
        for line in (case.DATA / 'pt' / 'expected.tsv').read_text(encoding='utf-8').splitlines():
            kind, *fields = line.split('\t')
            if kind == 'file':
                names = expected.setdefault(fields[0], set())
            elif kind == 'tensor':
                names.add(urllib.parse.unquote(fields[0]))
        checked = 0
        for file, names in expected.items():
            path = case.DATA / 'pt' / file
            if 'broken' in file or not path.exists() or not all('/' in name for name in names):
                continue
            told = self.done('inspect', str(path), '--root', '')
            self.assertLessEqual(names, {tensor['name'] for tensor in told['tensors']}, file)
            checked += 1
        self.assertGreater(checked, 0)

    def test_averages(self):
        value = {'state_dict': {**weights('model.a.w', 'model.b'), 'model_ema.aw': Tensor(7, 8),
                                'model_ema.b': Tensor(9, 9), 'model_ema.decay': Tensor(1)}}
        sd = self.write('sd.ckpt', value)
        report = self.done('convert', sd, 'out', '--ema')
        self.assertIn("averages replace 2 weights of 2 (state_dict/model_ema.)", report['notes'])
        self.assertIn('2 tensors are averages of weights (EMA): names begin with state_dict/model_ema.; --ema',
                      self.safemap('convert', sd, 'all').out)
        self.assertNotIn('(EMA)', report['notes'][0] + self.safemap('inspect', 'out').out)
        want = self.write('want.pt', {'model.a.w': Tensor(7, 8), 'model.b': Tensor(9, 9)})
        self.assertTrue(self.done('diff', want, 'out')['equal'])
        self.assertEqual(self.done('hash', sd, '--ema'), self.done('hash', want))
        told = self.done('diff', sd, 'out', '--ema')
        self.assertEqual((told['equal'], told['notes']), (True, ['B has no averages, and is compared as it is']))
        self.assertTrue(self.done('plan', sd, '--expect', 'out', '--ema')['ok'])
        self.refused('tensor_not_found', 2, 'diff', 'out', 'out', '--ema')
        bad = self.write('bad.pt', {'model': weights('w'), 'ema': {'v': Tensor(1, 2)}})
        self.assertIn("'ema/v'", self.refused('model_mismatch', 1, 'convert', bad, 'x', '--ema')['message'])
        self.refused('tensor_not_found', 2, 'convert', want, 'x', '--ema')


class Names(Case):
    """The names that are written."""

    def file(self, *names, name='in.safetensors'):
        (self.folder / name).write_bytes(safetensors([(each, 'F32', [1], floats(i)) for i, each in enumerate(names)]))
        return name

    def converted(self, *words):
        report = self.done('convert', *words, 'out.safetensors', '--force')
        return sorted(set(header_of(self.folder / 'out.safetensors')) - {'__metadata__'}), report

    def test_clean(self):
        source = self.file('module.a', '_orig_mod.module.b', 'x._orig_mod.c', '_forward_module.d',
                           'base_model.model.model.e', 'net._fsdp_wrapped_module.f',
                           'layers.0._checkpoint_wrapped_module.g', 'module.module.h', 'submodule.i', 'my_orig_mod.j')
        names, report = self.converted(source, '--clean')
        self.assertEqual(names, ['a', 'b', 'd', 'h', 'layers.0.g', 'model.e', 'my_orig_mod.j', 'net.f', 'submodule.i',
                                 'x.c'])
        told = {note.split("'")[1]: note for note in report['notes'] if note.startswith('--clean: ')}
        self.assertEqual(set(told), {'module.', '_orig_mod.', '_forward_module.', 'base_model.model.',
                                     '_fsdp_wrapped_module.', '_checkpoint_wrapped_module.'})
        self.assertIn('removed from 3 names', told['module.'])
        names, report = self.converted(self.file('a'), '--clean')
        self.assertIn('--clean: no name has a part that a wrapper adds', report['notes'])
        both = self.file('module.a', 'a')
        error = self.refused('name_collision', 2, 'convert', both, 'x', '--clean')
        self.assertIn("'module.a'", error['message'])

    def test_prefixes_and_suffixes(self):
        source = self.file('p.a.x', 'q.p.b.x', 'c')
        names, report = self.converted(source, '--strip-prefix', 'q.', '--strip-prefix', 'p.', '--strip-suffix', '.x',
                                       '--strip-suffix', '.y')
        self.assertEqual(names, ['a', 'b', 'c'])
        self.assertEqual([note for note in report['notes'] if 'strip' in note],
                         ["--strip-suffix '.y': no name ends with it"])

    def test_names_of_both_sides(self):
        self.file('module.w', 'module.v', name='a.safetensors')
        self.file('w', 'v', name='b.safetensors')
        for a, b in (('a', 'b'), ('b', 'a'), ('a', 'a'), ('b', 'b')):
            for words in (('--strip-prefix', 'module.'), ('--clean',), ('--rename', 's/^module\\.//'),
                          ('--rename', 's/^(?!module)/module./')):
                with self.subTest(a=a, b=b, words=words):
                    self.assertTrue(self.done('diff', f'{a}.safetensors', f'{b}.safetensors', *words)['equal'])
                    self.assertTrue(self.done('plan', f'{a}.safetensors', '--expect', f'{b}.safetensors', *words)['ok'])
        # A rule that adds a prefix fits one side only.
        for a, b in (('a', 'b'), ('b', 'a')):
            words = ('diff', f'{a}.safetensors', f'{b}.safetensors', '--rename', 's/^/module./')
            self.assertTrue(self.done(*words)['equal'])
        (self.folder / 'model.json').write_text(json.dumps({name: {'dtype': 'F32', 'shape': [1]} for name in 'wv'}))
        told = self.safemap('plan', 'a.safetensors', '--expect', 'model.json', '--json').json()
        self.assertIn('--strip-prefix module.', told['notes'][0])
        self.assertTrue(self.done('plan', 'a.safetensors', '--expect', 'model.json', '--strip-prefix', 'module.')['ok'])

    def test_the_stored_name_of_a_tied_tensor(self):
        head = Tensor(1, 2, 3)
        (self.folder / 'pytorch_model.bin').write_bytes(nested_file(
            {'lm_head.weight': head, 'model.embed_tokens.weight': Tensor(of=head), 'third': Tensor(of=head)}))
        stored = {(): 'model.embed_tokens.weight', ('--keep-name', 'lm_head.weight'): 'lm_head.weight',
                  ('--keep-name', 'third'): 'third', ('--rename', 's/embed_tokens/x/'): 'model.x.weight',
                  ('--rename', 's/^/y./', '--keep-name', 'third'): 'y.third',
                  ('--rename', 's/third/wte.weight/', '--rename', 's/embed_tokens/x/'): 'wte.weight'}
        for words, name in stored.items():
            with self.subTest(words=words):
                names, report = self.converted('pytorch_model.bin', *words)
                self.assertEqual(names, [name])
                self.assertEqual(report['aliases'][0][0], name)
        # A file of safetensors whose stored name is the other one gets the right one, too.
        self.done('convert', 'pytorch_model.bin', 'old.safetensors', '--keep-name', 'lm_head.weight')
        self.assertEqual(self.done('inspect', 'old.safetensors')['tensors'][0]['name'], 'lm_head.weight')
        self.assertEqual(self.converted('old.safetensors')[0], ['model.embed_tokens.weight'])
        self.assertTrue(self.done('diff', 'old.safetensors', 'out.safetensors')['equal'])
        self.refused('tensor_not_found', 2, 'convert', 'pytorch_model.bin', 'x', '--keep-name', 'lm_heat.weight')
        self.refused('invalid_argument', 2, 'convert', 'pytorch_model.bin', 'x', '--keep-name', 'third', '--keep-name',
                     'lm_head.weight')

    def test_a_model_that_says_that_its_names_are_not_tied_is_noted(self):
        head = Tensor(1, 2, 3)
        (self.folder / 'hf').mkdir()
        (self.folder / 'hf/pytorch_model.bin').write_bytes(nested_file(
            {'lm_head.weight': head, 'model.embed_tokens.weight': Tensor(of=head)}))
        for text, noted in (('{"tie_word_embeddings": false}', True), ('{"tie_word_embeddings": true}', False),
                            ('{}', False)):
            (self.folder / 'hf/config.json').write_text(text)
            report = self.done('convert', 'hf', 'out', '--force')
            self.assertEqual(any('tie_word_embeddings' in note for note in report['notes']), noted, text)
        (self.folder / 'hf/config.json').write_text('{"tie_word_embeddings": false}')
        report = self.done('convert', 'hf', 'out', '--force', '--untie')
        self.assertFalse([note for note in report['notes'] if 'tie_word_embeddings' in note])

    def test_globs_match_each_name_of_a_tied_tensor(self):
        head = Tensor(1, 2, 3)
        (self.folder / 'in.pt').write_bytes(nested_file(
            {'lm_head.weight': head, 'wte.weight': Tensor(of=head), 'w': Tensor(1, 2)}))
        for words in (('--dtype', 'bf16', '--keep-dtype', 'w'), ('--dtype-of', 'lm_head*=bf16')):
            self.done('convert', 'in.pt', 'out.safetensors', '--force', *words)
            dtypes = {tensor['name']: tensor['dtype'] for tensor in self.done('inspect', 'out.safetensors')['tensors']}
            self.assertEqual(dtypes, {'lm_head.weight': 'BF16', 'wte.weight': 'BF16', 'w': 'F32'})

    def test_untie(self):
        head = Tensor(1, 2, 3)
        (self.folder / 'in.pt').write_bytes(nested_file({'lm_head.weight': head, 'wte.weight': Tensor(of=head)}))
        for source in ('in.pt', 'tied.safetensors'):
            names, report = self.converted(source, '--untie')
            self.assertEqual((names, report['aliases']), (['lm_head.weight', 'wte.weight'], []))
            self.assertEqual(self.done('inspect', 'out.safetensors')['metadata'], {'format': 'pt'})
            self.assertTrue(self.done('diff', source, 'out.safetensors')['equal'])
            self.done('convert', 'in.pt', 'tied.safetensors', '--force')
