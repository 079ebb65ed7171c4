"""Tests every command with files that torch wrote."""
import json

import case
from case import Case
from forged import header_bytes, header_of


class Torch(Case):
    """Files that torch wrote."""

    def pt(self, name):
        return str(case.DATA / 'pt' / name)

    def test_a_tied_name_that_is_a_metadata_key_is_refused(self):
        for name in ('format', 'safemap.source'):
            for structure in ('keep', 'drop'):
                self.refused('name_collision', 2, 'convert', self.pt('tied.pt'), 'out', '--structure', structure,
                             '--rename', f's/^head.weight$/{name}/')

    def test_ties(self):
        tied = self.done('inspect', self.pt('tied.pt'))
        aliases = {t['name']: t['alias_of'] for t in tied['tensors'] if 'alias_of' in t}
        self.assertTrue(aliases)
        names = [t['name'] for t in tied['tensors']]
        for alias, stored in aliases.items():
            self.assertLess(names.index(stored), names.index(alias))
        told = self.done('convert', self.pt('tied.pt'), 'out.safetensors')
        self.assertEqual({name: group[0] for group in told['aliases'] for name in group[1:]}, aliases)
        digests = self.done('load', self.pt('tied.pt'), '--device', 'host', '--digest')['digests']
        self.assertEqual(set(digests), set(names))
        self.assertEqual(self.done('hash', self.pt('tied.pt'))['tensors'], digests)
        self.assertTrue(self.done('diff', self.pt('tied.pt'), 'out.safetensors')['equal'])
        for alias, stored in aliases.items():
            self.assertEqual(digests[alias], digests[stored])
        # If only the other name is requested, the tensor has that name.
        alias, stored = next(iter(aliases.items()))
        self.done('convert', self.pt('tied.pt'), 'one.safetensors', '--include', alias)
        one = self.done('load', 'one.safetensors', '--device', 'host', '--digest')
        self.assertEqual(one['digests'], {alias: digests[stored]})

    def test_metadata_takes_precedence_over_ties(self):
        tied = self.done('inspect', self.pt('tied.pt'))
        alias = next(t['name'] for t in tied['tensors'] if 'alias_of' in t)
        (self.folder / 'tied.bin').write_bytes((case.DATA / 'pt' / 'tied.pt').read_bytes())
        index = {'metadata': {alias: 'mine'}, 'weight_map': {t['name']: 'tied.bin' for t in tied['tensors']}}
        (self.folder / 'pytorch_model.bin.index.json').write_text(json.dumps(index))
        self.done('convert', 'pytorch_model.bin.index.json', 'whole.safetensors')
        self.done('convert', 'pytorch_model.bin.index.json', 'part.safetensors', '--include', '*')
        self.done('convert', 'pytorch_model.bin.index.json', 'same.safetensors', '--rename', 's/nothing//')
        whole, part = (self.folder / f'{name}.safetensors' for name in ('whole', 'part'))
        self.assertEqual(whole.read_bytes(), (self.folder / 'same.safetensors').read_bytes())
        self.assertEqual(self.done('inspect', str(whole))['metadata'][alias], 'mine')
        self.assertEqual(whole.read_bytes(), part.read_bytes())

    def test_offsets_are_places_in_the_file(self):
        told = self.done('inspect', self.pt('flat.pt'))
        self.assertEqual(told['format'], 'torch')
        file = (case.DATA / 'pt' / 'flat.pt').read_bytes()
        skipped = self.done('convert', self.pt('flat.pt'), 'out.safetensors')['skipped']
        out = (self.folder / 'out.safetensors').read_bytes()
        written = {t['name']: t for t in self.done('inspect', 'out.safetensors')['tensors']}
        self.assertEqual({t['name'] for t in told['tensors'] if t['dtype'].islower()}, {s['name'] for s in skipped})
        placed = [t for t in told['tensors'] if 'offset' in t and t['nbytes'] and t['name'] in written]
        self.assertTrue(placed)
        for tensor in placed:
            self.assertEqual(tensor['file'], 'flat.pt')
            place, other = tensor['offset'], written[tensor['name']]['offset']
            self.assertEqual(file[place:place + tensor['nbytes']], out[other:other + tensor['nbytes']])

    def test_a_training_checkpoint(self):
        self.expect('inspect_train', self.safemap('inspect', self.pt('train_gpt.pt'), '--tree').out.replace(
            str(case.DATA), 'DATA'))

    def test_the_structure_of_a_training_checkpoint_is_kept(self):
        train = self.pt('train_gpt.pt')
        wanted = self.done('inspect', train, '--structure')['structure']
        self.assertEqual(wanted['v'], 1)
        groups = wanted['root']['optimizer']['param_groups']
        self.assertEqual(groups[0], 'l')
        self.assertEqual(groups[1]['betas'][0], 't')
        self.assertNotIn('structure', self.done('inspect', train))
        text = self.safemap('inspect', train, '--structure').out
        tree = text[text.index('\nstructure\n'):]
        self.assertRegex(tree, r'\n  optimizer\n(.*\n)*    param_groups\n(.*\n)*        betas  \(0.9, 0.95\)')
        self.assertIn('{0..27}', tree)
        report = self.done('convert', train, 'out.safetensors')
        self.assertFalse([note for note in report['notes'] if 'only a structure document' in note])
        self.done('convert', 'out.safetensors', 'shards', '--max-shard-size', '100kB')
        for path in ('out.safetensors', 'shards'):
            self.assertEqual(self.done('inspect', path, '--structure')['structure'], wanted)
        report = self.done('convert', train, 'out.safetensors', '--structure', 'drop', '--force')
        self.assertTrue([note for note in report['notes'] if 'only a structure document' in note])
        self.assertEqual(self.done('inspect', 'out.safetensors')['metadata'],
                         {'format': 'pt', 'model/head.weight': 'model/tokens.weight'})
        self.done('convert', train, 'out.safetensors', '--include', 'model/*', '--rename', 's/model/m/', '--force')
        kept = self.done('inspect', 'out.safetensors', '--structure')['structure']['root']
        self.assertEqual(kept['model'][1]['positions'], ['T', {'n': 'm/positions'}])
        self.assertEqual(kept['optimizer']['state'][1][1]['exp_avg'][:2], ['o', 'torch.Tensor'])
        self.assertEqual(kept['optimizer']['param_groups'], groups)
        self.refused('invalid_argument', 2, 'convert', train, 'x', '--structure', 'maybe')

    def test_root_converts_a_part_of_a_training_checkpoint(self):
        train = self.pt('train_gpt.pt')
        whole = self.done('convert', train, 'whole.safetensors')
        self.assertRegex(whole['notes'][0], r'^all parts are converted: model \(28 tensors, 210.5 kB\), ')
        part = self.done('convert', train, 'model.safetensors', '--root', 'model')
        self.assertFalse([note for note in part['notes'] if '--root' in note])
        self.assertEqual(part['aliases'], [['tokens.weight', 'head.weight']])
        named = {tensor['name'] for tensor in self.done('inspect', 'model.safetensors')['tensors']}
        self.assertEqual({'model/' + name for name in named},
                         {tensor['name'] for tensor in self.done('inspect', train, '--include', 'model/*')['tensors']})
        self.done('convert', 'whole.safetensors', 'again.safetensors', '--root', 'model')
        self.assertEqual(self.done('hash', 'again.safetensors'), self.done('hash', 'model.safetensors'))
        self.done('convert', train, 'group.safetensors', '--root', 'optimizer/state/0')
        error = self.refused('invalid_argument', 2, 'convert', train, 'x', '--root', 'nodel')
        self.assertIn("'model', 'optimizer'", error['hint'])
        self.refused('invalid_argument', 2, 'convert', 'model.safetensors', 'x', '--root', 'model')

    def test_the_same_tensors_in_any_container(self):
        for first, *others in [('train_protocol4.pt', 'train_legacy_protocol4.pt', 'train_protocol3.pt'),
                               ('plain_pickle2.pkl', 'plain_pickle4.pkl'), ('old_address_keys.pt', 'tar_0_1.pt')]:
            whole = self.done('hash', self.pt(first))
            for other in others:
                with self.subTest(file=other):
                    self.assertEqual(self.done('hash', self.pt(other)), whole)
                    self.assertTrue(self.done('verify', self.pt(other))['ok'])
                    self.done('convert', self.pt(other), other + '.safetensors')
                    self.assertEqual(self.done('hash', other + '.safetensors'), whole)

    def test_offsets_in_formats_before_zip_are_places_in_the_file(self):
        for name in ('train_legacy_protocol4.pt', 'plain_pickle4.pkl', 'tar_0_1.pt'):
            file = (case.DATA / 'pt' / name).read_bytes()
            self.done('convert', self.pt(name), 'out.safetensors', '--force')
            out = (self.folder / 'out.safetensors').read_bytes()
            written = {t['name']: t for t in self.done('inspect', 'out.safetensors')['tensors']}
            placed = [t for t in self.done('inspect', self.pt(name))['tensors'] if 'offset' in t]
            self.assertTrue(placed)
            for tensor in placed:
                self.assertEqual(tensor['file'], name)
                place, other = tensor['offset'], written[tensor['name']]['offset']
                self.assertEqual(file[place:place + tensor['nbytes']], out[other:other + tensor['nbytes']])

    def test_a_script_archive_is_read_as_its_state_dict(self):
        told = self.done('inspect', self.pt('torchscript.pt'))
        self.assertEqual([t['name'] for t in told['tensors']], ['weight', 'shift', 'inner.scale'])
        self.assertTrue(any('TorchScript' in note for note in told['notes']))

    def test_a_plan_says_how_tensors_are_read(self):
        for name in ('strided.pt', 'storages.pt', 'odd_dtypes.pt', 'tied_legacy.pt', 'deflated.pt'):
            words = ('convert', self.pt(name), 'out.safetensors', '--allow-empty')
            plan, told = self.done(*words, '--dry-run'), self.done(*words, '--force')
            for key in ('copied_tensors', 'gathered', 'views', 'unreferenced_bytes', 'unsupported'):
                self.assertEqual(told[key], plan[key])
            self.assertEqual(told['copied_tensors']['tensors'] + told['gathered']['tensors'], told['tensors'])
            self.assertEqual(told['copied_tensors']['bytes'] + told['gathered']['bytes'], told['bytes_read'])
            dtypes = sum(dtype['tensors'] for dtype in told['unsupported'])
            self.assertEqual(dtypes, sum('no name for this dtype' in object['why'] for object in told['skipped']))
        self.assertEqual([self.done('convert', self.pt('strided.pt'), 'x', '--dry-run')[key]['tensors'] > 0
                          for key in ('gathered', 'views')], [True, True])
        self.assertEqual(self.done('convert', self.pt('deflated.pt'), 'x', '--dry-run')['unreferenced_bytes'], 0)

    def test_a_skipped_quantized_tensor_is_listed_once_with_the_reason(self):
        skipped = self.done('convert', self.pt('quantized.pt'), 'out.safetensors', '--structure', 'drop')['skipped']
        names = [object['name'] for object in skipped]
        self.assertIn('qint8', names)
        self.assertEqual(len(names), len(set(names)))
        self.assertTrue(all('quantized tensor' in object['why'] for object in skipped))

    def test_dtypes_that_safetensors_lacks_are_kept_with_the_structure_document(self):
        for name in ('quantized.pt', 'odd_dtypes.pt', 'conj_neg.pt', 'strided.pt'):
            source = self.pt(name)
            told = self.done('convert', source, 'out.safetensors', '--structure', 'keep', '--checksums', '--force')
            self.assertEqual(told['unsupported'], [])
            self.assertEqual(told['skipped'], [])
            self.assertEqual(told['tensors'], sum('alias_of' not in tensor
                                                  for tensor in self.done('inspect', source)['tensors']))
            self.assertTrue(self.done('diff', source, 'out.safetensors')['equal'])
            self.assertEqual(*(self.done('hash', file)['checkpoint'] for file in (source, 'out.safetensors')))
            self.assertTrue(self.done('verify', 'out.safetensors')['ok'])
            documents = [self.done('inspect', file, '--structure')['structure'] for file in (source, 'out.safetensors')]
            self.assertEqual(*documents)
            self.assertEqual(documents[0]['v'], 2)
            self.done('convert', 'out.safetensors', 'again.safetensors', '--checksums', '--force')
            self.assertEqual((self.folder / 'again.safetensors').read_bytes(),
                             (self.folder / 'out.safetensors').read_bytes())
        left = self.done('convert', self.pt('quantized.pt'), 'out.safetensors', '--include', 'qint8', '--force')
        self.assertIn('quint8', {object['name'] for object in left['skipped']})
        self.assertNotIn('qint8', {object['name'] for object in left['skipped']})

    def test_a_tied_tensor_keeps_its_names_with_a_structure_document(self):
        tied = [['part.0', 'part.1']]  # unusual; made from a document, because no file of torch here has such a tie
        document = '{"v":2,"root":["l",["T",{"n":"part.0","dtype":"bits8"}],["@","0"]]}'
        header = json.dumps({'__metadata__': {'safemap.structure': document, 'part.1': 'part.0'},
                             'part.0': {'dtype': 'U8', 'shape': [2], 'data_offsets': [0, 2]}}).encode()
        (self.folder / 'in.safetensors').write_bytes(header_bytes(header) + b'ab')
        for how, aliases in (('keep', tied), ('auto', tied), ('drop', [])):
            told = self.done('convert', 'in.safetensors', 'out.safetensors', '--structure', how, '--force',
                             '--allow-empty')
            self.assertEqual(told['aliases'], aliases)

    def test_storages_of_tensors_that_are_not_written_are_unreferenced(self):
        for name in ('state_dict.pt', 'tied_legacy.pt', 'tar_0_1.pt', 'deflated.pt'):
            tensors = [t for t in self.done('inspect', self.pt(name))['tensors'] if 'alias_of' not in t]
            whole = self.done('convert', self.pt(name), 'x', '--dry-run')
            one = self.done('convert', self.pt(name), 'x', '--dry-run', '--include', tensors[0]['name'])
            left = whole['unreferenced_bytes'] + whole['bytes_read'] - one['bytes_read']
            if whole['views']['tensors'] == 0:
                self.assertEqual(one['unreferenced_bytes'], left, name)
        train = self.pt('train_gpt.pt')
        self.assertEqual(self.done('convert', train, 'x', '--dry-run')['unreferenced_bytes'], 0)
        part = self.done('convert', train, 'x', '--dry-run', '--root', 'model')
        whole = self.done('convert', train, 'x', '--dry-run')
        self.assertEqual(part['unreferenced_bytes'], whole['bytes_read'] - part['bytes_read'])

    def test_the_text_of_a_plan(self):
        self.expect('convert_strided', self.safemap('convert', self.pt('strided.pt'), 'out.safetensors', '-v').out)
        result = self.safemap('convert', self.pt('odd_dtypes.pt'), 'out2.safetensors', '--dtype', 'bf16',
                              '--allow-empty', '-v')
        self.expect('convert_odd_dtypes', result.out)
        self.assertEqual(self.safemap('convert', self.pt('tied.pt'), 'quiet', '--quiet').out, '')

    def test_unknown_globals_are_opaque_or_refused(self):
        attack = self.pt('broken/os_system.pt')
        told = self.done('inspect', attack)
        self.assertEqual(told['objects'], [{'name': 'attack', 'type': 'posix.system'}])
        self.assertTrue(any('asks to call posix.system, which was not called' in note for note in told['notes']))
        skipped = self.done('convert', attack, 'out.safetensors')['skipped']
        self.assertEqual([object['name'] for object in skipped], ['attack'])
        for words in [('inspect', attack), ('convert', attack, 'x'), ('hash', attack), ('diff', attack, attack),
                      ('load', attack, '--device', 'host'), ('plan', attack, '--expect', 'small.safetensors')]:
            error = self.refused('unknown_global', 1, *words, '--strict-globals')
            wanted = ('globals that run code: posix.system (os.system)', attack)
            self.assertEqual((error['message'], error['path']), wanted)
        result = self.safemap('verify', attack, '--strict-globals', '--json')
        self.assertEqual(result.code, 1)
        self.assertEqual([fault['code'] for fault in result.json()['faults']], ['unknown_global'])
        error = self.refused('unknown_global', 1, 'inspect', self.pt('lightning.ckpt'), '--strict-globals')
        self.assertEqual(error['message'], 'unknown globals: my_model.EarlyStopping, argparse.Namespace')
        self.refused('unknown_global', 1, 'inspect', self.pt('module_legacy.pt'), '--strict-globals')
        for name in ('train_gpt.pt', 'tied_legacy.pt', 'plain_pickle2.pkl', 'tar_0_1.pt', 'torchscript.pt'):
            self.done('inspect', self.pt(name), '--strict-globals')

    def test_names_in_pickles_are_listed(self):
        attack = self.pt('broken/os_system.pt')
        self.assertNotIn('globals', self.done('inspect', attack))
        told = self.done('inspect', attack, '--globals')
        self.assertIn({'module': 'posix', 'name': 'system', 'known': False, 'called': True,
                       'record': 'archive/data.pkl', 'severity': 'runs code', 'why': 'runs a program'},
                      told['globals'])
        text = self.safemap('inspect', attack, '--globals').out
        self.assertRegex(text.split('\nglobals\n')[1].splitlines()[0],
                         r'^ *posix.system +runs code  called  runs a program  archive/data.pkl$')
        self.assertEqual(self.done('inspect', 'small.safetensors', '--globals')['globals'], [])
        known = self.done('inspect', self.pt('train_gpt.pt'), '--globals')
        self.assertTrue(known['globals'])
        self.assertTrue(all(each['known'] for each in known['globals']))
        self.assertFalse([note for note in known['notes'] if 'would call' in note])

    # A file, its verdict, and the function that the note names.
    VERDICTS = [('broken/os_system.pt', 'runs code: 1', 'posix.system'),
                ('broken/legacy_os_system.pt', 'runs code: 1', 'posix.system'),
                ('broken/getattr.pt', 'runs code: 1', 'builtins.getattr'),
                ('containers.pt', 'needs classes: 18', ''),
                ('lightning.ckpt', 'needs classes: 2', ''), ('module_main.pt', 'needs classes: 1', ''),
                ('train_gpt.pt', 'ok', '')]

    def test_a_file_that_runs_code_fails_and_an_unknown_one_does_not(self):
        for name, verdict, noted in self.VERDICTS:
            with self.subTest(name):
                path = self.pt(name)
                result = self.safemap('verify', path, '--json')
                told = result.json()
                self.assertEqual((told['ok'], told['faults']), (True, []))
                self.assertEqual(told['verdict'], verdict.split(':')[0])
                self.assertEqual(result.code, 1 if told['verdict'] == 'runs code' else 0)
                self.assertEqual(sum(each['severity'] == told['verdict'] for each in told['findings']),
                                 int(verdict.split(':')[1]) if told['verdict'] != 'ok' else 0)
                text = self.safemap('verify', path)
                self.assertEqual(text.code, result.code)
                self.assertIn(f': {verdict}; ', text.out.splitlines()[-1])
                self.assertNotIn('would call', text.out)
                for words in [('inspect', path), ('convert', path, 'x', '--dry-run')]:
                    done = self.done(*words)
                    self.assertEqual((done['verdict'], done['findings']), (told['verdict'], told['findings']))
                    notes = [note for note in done['notes'] if 'would call' in note]
                    self.assertEqual(len(notes), 1 if noted else 0, words)
                    for note in notes:
                        self.assertIn(noted, note)
                        self.assertIn('--strict-globals', note)

    def test_convert_warns_of_a_file_that_runs_code_in_its_last_line(self):
        result = self.safemap('convert', self.pt('broken/os_system.pt'), 'out')
        self.assertEqual((result.code, result.err), (0, ''))
        self.assertEqual(result.out.splitlines()[-1], 'runs code: posix.system runs a program; nothing was called, but '
                                                      'a program that unpickles IN would call it')
        self.assertNotIn('runs code', self.safemap('convert', self.pt('lightning.ckpt'), 'out2').out)
        quiet = self.safemap('verify', self.pt('broken/os_system.pt'), '--quiet')
        self.assertEqual((quiet.code, quiet.out), (1, ''))
        self.assertIn('runs code: posix.system runs a program', quiet.err)

    def test_shards_that_name_unknown_globals_are_refused(self):
        for name in ('tied', 'module'):
            (self.folder / f'{name}.bin').write_bytes((case.DATA / 'pt' / f'{name}.pt').read_bytes())
        names = {name: [t['name'] for t in self.done('inspect', f'{name}.bin')['tensors']]
                 for name in ('tied', 'module')}
        index = {'weight_map': {tensor: f'{name}.bin' for name in names for tensor in names[name]}}
        (self.folder / 'pytorch_model.bin.index.json').write_text(json.dumps(index))
        self.done('inspect', 'pytorch_model.bin.index.json')
        error = self.refused('unknown_global', 1, 'inspect', 'pytorch_model.bin.index.json', '--strict-globals')
        self.assertTrue(error['path'].endswith('module.bin'))

    def test_a_truncated_file_is_reported_with_the_expected_size(self):
        error = self.refused('file_truncated', 1, 'inspect', self.pt('broken/legacy_truncated.pt'))
        self.assertIn('expected 160 bytes, found 140 bytes', error['message'])
        self.refused('zip_missing_record', 1, 'inspect', self.pt('broken/zip_without_entries.pt'))

    def test_a_damaged_record_is_a_fault(self):
        result = self.safemap('verify', self.pt('broken/bad_crc.pt'), '--json')
        self.assertEqual(result.code, 1)
        self.assertIn('checksum_mismatch', [f['code'] for f in result.json()['faults']])


class WholeModules(Case):
    """Files of torch.save(model), instead of model.state_dict()."""
    NAMES = ['conv.weight', 'conv.bias', 'norm.weight', 'norm.bias', 'norm.running_mean', 'norm.running_var',
             'norm.num_batches_tracked', 'linear.weight', 'linear.bias']

    def pt(self, name):
        return case.DATA / 'pt' / name

    def test_every_command_uses_the_names_of_the_state_dict(self):
        for name in ('module.pt', 'module_legacy.pt'):
            found = self.done('inspect', self.pt(name))
            self.assertEqual([tensor['name'] for tensor in found['tensors']], self.NAMES)
            self.assertEqual(found['objects'], [{'name': '~root', 'type': 'my_model.SmallNet'}])
            report = self.done('convert', self.pt(name), name + '.safetensors')
            self.assertEqual([each['name'] for each in report['skipped']], ['~root'])
            self.assertEqual(set(header_of(self.folder / (name + '.safetensors'))) - {'__metadata__'}, set(self.NAMES))
            self.assertTrue(self.done('diff', self.pt(name), name + '.safetensors')['equal'])
            self.assertEqual(sorted(self.done('hash', self.pt(name))['tensors']), sorted(self.NAMES))
            loaded = self.done('load', self.pt(name), '--device', 'host', '--digest', '--include', 'norm.*')
            self.assertEqual(sorted(loaded['digests']), sorted(self.NAMES[2:7]))
        self.assertTrue(self.done('plan', self.pt('module.pt'), '--expect', self.pt('module_legacy.pt'))['ok'])

    def test_the_classes_of_a_module_are_listed_as_called(self):
        for name in ('module.pt', 'module_legacy.pt'):
            self.assertIn(f'{name}: needs classes: 4; ', self.safemap('verify', self.pt(name)).out)
            listed = self.done('inspect', self.pt(name), '--globals')['globals']
            self.assertTrue(next(each for each in listed if each['name'] == 'SmallNet')['called'])

    def test_root_selects_a_part_of_a_module(self):
        source = self.pt('module_main.pt')
        self.assertEqual(list(self.done('hash', source)['tensors']), ['weight', 'mean'])
        self.assertEqual(list(self.done('hash', source, '--root', '')['tensors']), ['net/weight', 'net/mean'])
        self.done('convert', source, 'whole.safetensors')
        for each in (source, 'whole.safetensors'):
            self.done('convert', each, 'net.safetensors', '--root', 'net', '--force')
            self.assertEqual(set(header_of(self.folder / 'net.safetensors')), {'__metadata__', 'weight', 'mean'})
        self.done('convert', self.pt('module.pt'), 'linear.safetensors', '--root', 'linear')
        self.assertEqual(set(header_of(self.folder / 'linear.safetensors')), {'__metadata__', 'weight', 'bias'})
        error = self.refused('invalid_argument', 2, 'convert', source, 'x', '--root', 'model')
        self.assertIn("'net'", error['hint'])

    def test_the_names_of_a_module_can_be_changed(self):
        report = self.done('convert', self.pt('module.pt'), 'o.safetensors', '--rename', r's/^conv\./stem./',
                           '--structure', 'keep', '--checksums')
        self.assertEqual(report['tensors'], 9)
        self.assertIn('stem.weight', header_of(self.folder / 'o.safetensors'))
        self.assertTrue(self.done('verify', 'o.safetensors')['ok'])
        document = self.done('inspect', 'o.safetensors', '--structure')['structure']['root']
        conv = document[3]['_modules']['conv']
        self.assertEqual(conv[3]['_parameters']['weight'], ['T', {'n': 'stem.weight', 'p': 1, 'rg': 1}])
        self.refused('name_collision', 2, 'convert', self.pt('module.pt'), 'x', '--rename', 's/^linear/norm/')
