"""Tests what the command line says of folders that DeepSpeed wrote: deepspeed_cli.py SAFEMAP DATA [arguments].

The folders are beside the checkout, in ../shared/fixtures/zero, or in SAFEMAP_FIXTURES/zero, and have an expected.json;
without them, these tests are skipped. Covers exit codes, the layout, the plan, and the files that --optimizer writes;
deepspeed.py compares the tensors.
"""
import argparse
import json
import os
import pathlib
import shutil
import sys
import unittest
import zipfile

import case
from case import Case
from forged import header_of, value_file

ZERO = pathlib.Path(os.environ.get('SAFEMAP_FIXTURES') or
                    pathlib.Path(__file__).resolve().parents[3] / 'shared/fixtures') / 'zero'
EXPECTED = json.loads((ZERO / 'expected.json').read_text()) if (ZERO / 'expected.json').is_file() else None
ROWS = {row['folder']: row for row in EXPECTED['checkpoints']} if EXPECTED else {}
MOMENTS = ['exp_avg', 'exp_avg_sq']


def at(folder):
    return str(ZERO / folder)


def given(row):
    """Returns the weights that a folder gives without options."""
    return 'module' if row['stage'] == 0 else 'fp32'


def place_in_record(file):
    """Returns the place of a byte in the middle of the largest record of a zip."""
    with zipfile.ZipFile(file) as archive:
        largest = max(archive.infolist(), key=lambda record: record.file_size)
    data = file.read_bytes()
    header = data[largest.header_offset:largest.header_offset + 30]
    names = int.from_bytes(header[26:28], 'little') + int.from_bytes(header[28:30], 'little')
    return largest.header_offset + 30 + names + largest.file_size // 2


def rename_in_pickle(file, name, new):
    """Changes a name in the pickle of a zip. Both names are of one length."""
    with zipfile.ZipFile(file) as archive:
        records = {record.filename: archive.read(record) for record in archive.infolist()}
    with zipfile.ZipFile(file, 'w') as archive:
        for record, data in records.items():
            archive.writestr(record, data.replace(name, new) if record.endswith('data.pkl') else data)


class Folders(Case):
    def copy(self, folder, to='run'):
        shutil.copytree(at(folder), self.folder / to)
        return self.folder / to


@unittest.skipUnless(EXPECTED, 'no folders of DeepSpeed beside the checkout')
class Inspect(Folders):
    def test_the_layout_says_what_the_folder_says(self):
        for folder, row in ROWS.items():
            with self.subTest(folder):
                report = self.done('inspect', at(folder))
                self.assertEqual(report['format'], 'zero')
                layout = report['layout']
                self.assertLessEqual(set(layout), {'kind', 'stage', 'world_size', 'tag', 'version', 'mesh', 'chunks',
                                                   'optimizer'})
                self.assertEqual(layout['kind'], 'universal' if row['layout'] == 'universal' else 'deepspeed')
                self.assertEqual(layout['tag'], row['tag'])
                if row['layout'] != 'universal':
                    self.assertEqual(layout['stage'], row['stage'])
                    self.assertEqual(layout['world_size'], row['world'])
                self.assertEqual([name for name in layout['optimizer'] if name != 'step'], MOMENTS)
                for file in report['files']:
                    self.assertTrue((ZERO / folder / file).is_file(), file)

    def test_the_head_of_the_text_is_the_layout(self):
        for folder, row in ROWS.items():
            with self.subTest(folder):
                layout = self.done('inspect', at(folder))['layout']
                lines = self.safemap('inspect', at(folder)).out.splitlines()
                self.assertRegex(lines[0], r': zero, \d+ files?, \d+ tensors?, ')
                words = ['universal'] if layout['kind'] == 'universal' else []
                words += [f"stage {layout['stage']}"] if 'stage' in layout else []
                words += [f"{layout['world_size']} ranks"] if layout.get('world_size', 1) > 1 else []
                for word in words:
                    self.assertIn(word, lines[1])
                self.assertTrue(lines[1].startswith('zero: '), lines[1])
                self.assertIn(f"tag {row['tag']}", lines[1])
                if 'version' in layout:
                    self.assertIn('DeepSpeed ' + layout['version'], lines[1])
                weights = 'weights: of the module' if given(row) == 'module' else 'masters: fp32'
                self.assertEqual(lines[2], f"{weights}; optimizer: {', '.join(layout['optimizer'])}: --optimizer")

    def test_a_head_to_the_byte(self):
        lines = self.safemap('inspect', at('z3-w4-bf16-sub-groups')).out.splitlines()
        self.assertEqual(lines[1], 'zero: stage 3, 4 ranks, tag global_step2, DeepSpeed 0.19.8, bf16')
        self.assertEqual(lines[2], 'masters: fp32; optimizer: exp_avg, exp_avg_sq: --optimizer')
        module = self.safemap('inspect', at('z2-w2-fp16'), '--weights', 'module').out.splitlines()
        self.assertEqual(module[1], 'zero: stage 2, 2 ranks, tag global_step2, DeepSpeed 0.19.8, fp16')
        self.assertTrue(module[2].startswith('weights: of the module'), module[2])

    def test_the_tag_has_the_name_of_its_folder(self):
        root = self.copy('z2-w2-two-tags')
        (root / 'link').symlink_to('global_step1')
        self.folder = root / 'global_step1'
        for path in ('.', '../global_step1', '../link', './'):
            inspect = self.done('inspect', path)
            self.assertEqual(inspect['layout']['tag'], 'global_step1', path)
            self.assertIn("read the tag 'global_step1'", inspect['notes'])

    def test_a_link_to_a_tag_is_as_good_as_the_file(self):
        root = self.copy('z2-w2-two-tags')
        (root / 'latest').unlink()
        self.refused('bad_tag', 1, 'inspect', 'run')
        for target in ('global_step1', './global_step2/', root / 'global_step1'):
            (root / 'latest').symlink_to(target)
            inspect = self.done('inspect', 'run')
            self.assertEqual(inspect['layout']['tag'], pathlib.Path(target).name)
            self.assertFalse([note for note in inspect['notes'] if 'latest' in note])
            (root / 'latest').unlink()
        shutil.copytree(root / 'global_step1', root / 'latest')
        error = self.refused('bad_tag', 1, 'inspect', 'run')
        self.assertIn('there are 3 tags', error['message'])

    def test_something_else_with_the_name_of_a_file_is_named(self):
        root = self.copy('z2-w3-bf16')
        file = root / ROWS['z2-w3-bf16']['tag'] / 'mp_rank_00_model_states.pt'
        for kind, make in (('a folder', file.mkdir), ('a pipe', lambda: os.mkfifo(file)),
                           ('a broken link', lambda: file.symlink_to('nowhere')),
                           ('a link that leads back to itself', lambda: file.symlink_to(file.name))):
            file.unlink()
            make()
            error = self.refused('rank_missing', 1, 'inspect', 'run')
            self.assertIn('1 file of a rank is missing: %s (%s has this name)' % (file.name, kind), error['message'])
            if kind == 'a folder':
                file.rmdir()
                file.touch()
        file.unlink()
        error = self.refused('rank_missing', 1, 'inspect', 'run')
        self.assertNotIn('has this name', error['message'])

    def test_a_tag_is_opened_by_itself(self):
        root = at('z2-w2-two-tags')
        for tag in ('global_step1', 'global_step2'):
            self.assertEqual(self.done('inspect', root + '/' + tag)['layout']['tag'], tag)
        self.assertEqual(self.done('hash', root), self.done('hash', root + '/global_step2'))
        self.assertEqual(self.safemap('diff', root, root + '/global_step1').code, 1)


@unittest.skipUnless(EXPECTED, 'no folders of DeepSpeed beside the checkout')
class Weights(Folders):
    def test_every_command_gives_the_weights_that_are_asked_for(self):
        path = at('z2-w3-bf16')
        fp32, module = self.done('hash', path), self.done('hash', path, '--weights', 'module')
        self.assertEqual(self.done('hash', path, '--weights', 'fp32'), fp32)
        self.assertEqual(set(fp32['tensors']), set(module['tensors']))
        self.assertNotEqual(fp32['checkpoint'], module['checkpoint'])
        for weights, hashes in (('fp32', fp32), ('module', module)):
            load = self.done('load', path, '--device', 'host', '--digest', '--weights', weights)
            self.assertEqual(load['digests'], hashes['tensors'])
            report = self.done('convert', path, weights, '--weights', weights)
            self.assertEqual(report['weights'], weights)
            self.assertEqual(self.done('hash', weights), hashes)
            self.assertTrue(self.done('diff', path, weights, '--weights', weights)['equal'])
            self.assertTrue(self.done('plan', path, '--expect', weights, '--weights', weights)['ok'])
            self.assertTrue(self.done('verify', path, '--weights', weights)['ok'])
        self.assertEqual(self.safemap('plan', path, '--expect', 'module').code, 1)
        # Both sides of a comparison are opened with the option.
        self.assertTrue(self.done('diff', path, path, '--weights', 'module')['equal'])

    def test_stage_3_has_no_weights_of_the_module(self):
        error = self.refused('invalid_argument', 2, 'inspect', at('z3-w3-fp32'), '--weights', 'module')
        self.assertIn('--dtype bf16', error['hint'])

    def test_experts_without_masters_are_read_from_their_files(self):
        folder = self.copy('z2-w2-experts')
        before = self.done('hash', folder)['tensors']
        for file in (folder / ROWS['z2-w2-experts']['tag']).glob('layer_*'):
            rename_in_pickle(file, b'down.bias', b'down.lora')
        after = self.done('hash', folder)['tensors']
        added = ['mixture.deepspeed_moe.experts.deepspeed_experts.%d.down.lora' % i for i in range(4)]
        self.assertEqual(set(after), set(before) | set(added))
        module = self.done('hash', folder, '--weights', 'module')['tensors']
        self.assertEqual([after[name] for name in added], [module[name] for name in added])
        self.assertEqual({name: after[name] for name in before}, before)

    def test_the_module_is_refused_without_the_files_of_experts(self):
        folder = self.copy('z2-w2-experts')
        before = self.done('hash', folder)
        for file in (folder / ROWS['z2-w2-experts']['tag']).glob('layer_*'):
            file.unlink()
        self.refused('rank_missing', 1, 'hash', folder, '--weights', 'module')
        self.assertEqual(self.done('hash', folder), before)

    def test_empty_optimizer_files_of_experts_do_not_matter(self):
        folder = self.copy('z2-w2-experts')
        tag = folder / ROWS['z2-w2-experts']['tag']
        before = self.done('hash', folder)
        (tag / 'expp_rank_0_mp_rank_00_optim_states.pt').write_bytes(value_file({'optimizer': None}))
        self.assertEqual(self.done('hash', folder), before)
        (tag / 'expp_rank_0_mp_rank_00_optim_states.pt').write_bytes(value_file({'optimizer': {'state': {}}}))
        self.refused('unsupported_layout', 1, 'hash', folder)
        self.done('hash', folder, '--weights', 'module')

    def test_compat_refuses_what_the_script_refuses(self):
        for folder, row in ROWS.items():
            with self.subTest(folder):
                if 'deepspeed_error' in row:
                    self.refused('invalid_argument', 2, 'inspect', at(folder), '--deepspeed-compat')
                else:
                    self.done('inspect', at(folder), '--deepspeed-compat')
        self.refused('invalid_argument', 2, 'hash', at('z1-w2-bf16'), '--deepspeed-compat', '--weights', 'module')

    def test_beside_a_finished_model_the_folder_is_opened_on_request(self):
        self.done('convert', 'small.safetensors', 'run')
        copy = self.copy('z2-w2-fp16', 'copy')
        for each in copy.iterdir():
            shutil.move(each, self.folder / 'run')
        self.assertEqual(self.done('inspect', 'run')['format'], 'safetensors')
        for words in (('--weights', 'fp32'), ('--weights', 'module'), ('--deepspeed-compat',)):
            self.assertEqual(self.done('inspect', 'run', *words)['format'], 'zero')
        report = self.done('convert', 'run', 'out', '--optimizer')
        self.assertEqual((report['layout']['stage'], report['weights']), (2, 'fp32'))
        self.assertTrue(self.done('diff', at('z2-w2-fp16'), 'out')['equal'])


@unittest.skipUnless(EXPECTED, 'no folders of DeepSpeed beside the checkout')
class Convert(Folders):
    def test_the_plan_says_what_is_read_and_skipped(self):
        for folder, row in ROWS.items():
            with self.subTest(folder):
                plan = self.done('convert', at(folder), 'out', '--dry-run')
                self.assertEqual(plan['layout'], self.done('inspect', at(folder))['layout'])
                self.assertEqual((plan['weights'], plan['unreferenced_bytes']), (given(row), 0))
                state = [each for each in plan['skipped'] if 'optimizer' in each['name']]
                self.assertEqual(len(state), 1, plan['skipped'])
                self.assertRegex(state[0]['why'], r'\d (bytes|[kMG]?B)')
                lines = self.safemap('convert', at(folder), 'out', '--dry-run').out.splitlines()
                self.assertTrue(lines[1].startswith('  layout   '), lines)
                masters = 'of the module' if given(row) == 'module' else 'fp32 masters'
                self.assertEqual(lines[2], '  weights  ' + masters)
                self.assertTrue(any(line.startswith('  skipped  ' + state[0]['name']) for line in lines), lines)
                self.assertRegex(lines[-1], 'to read, .* of memory at most')
        self.assertEqual(self.leftovers(), ['small.safetensors'])

    def test_the_optimizer_is_written_beside_the_model(self):
        for folder, row in ROWS.items():
            with self.subTest(folder):
                out = folder + '.out'
                alone = self.done('convert', at(folder), out + '.alone')
                report = self.done('convert', at(folder), out, '--optimizer')
                names = [f"optimizer/state/{name}/{state}" for name in row['optimizer'] for state in MOMENTS]
                written = self.done('inspect', out + '/optimizer', '--structure')
                if folder != 'z0-w2-bf16':  # its masters have no names
                    self.assertLessEqual(set(names), {tensor['name'] for tensor in written['tensors']})
                self.assertIn('structure', written)
                self.assertEqual([note for note in written['notes'] if 'document' in note], [])
                self.assertNotIn('not stored', json.dumps(written['structure']))
                added = sum('alias_of' not in tensor for tensor in written['tensors'])
                self.assertEqual(report['tensors'], alone['tensors'] + added)
                self.assertIn('optimizer/model.safetensors', report['files'])
                self.assertEqual(report['bytes_written'], sum((self.folder / out / f).stat().st_size
                                                              for f in report['files']))
                self.assertEqual([each for each in report['skipped'] if each['name'] == 'optimizer'], [])
                self.assertTrue(self.done('diff', at(folder), out)['equal'])
                self.assertTrue(self.done('verify', out)['ok'])

    def test_the_optimizer_beside_a_converted_model_is_converted_with_it(self):
        self.done('convert', at('z3-w2-fp16'), 'first', '--optimizer')
        report = self.done('convert', 'first', 'second', '--optimizer')
        self.assertIn('optimizer/model.safetensors', report['files'])
        for folder in ('', '/optimizer'):
            self.assertTrue(self.done('diff', 'first' + folder, 'second' + folder)['equal'])
            structure = [self.done('inspect', out + folder, '--structure').get('structure')
                         for out in ('first', 'second')]
            self.assertEqual(*structure)
        report = self.done('convert', 'first', 'third')
        self.assertTrue(any('--optimizer' in note for note in report['notes']), report['notes'])
        self.assertFalse((self.folder / 'third/optimizer').exists())

    def test_the_structure_of_the_optimizer_is_written_unless_it_is_dropped(self):
        path = at('z3-w2-fp16')
        for how, there in (('auto', True), ('keep', True), ('drop', False)):
            self.done('convert', path, how, '--optimizer', '--structure', how, '--checksums')
            metadata = header_of(self.folder / how / 'optimizer' / 'model.safetensors')['__metadata__']
            self.assertEqual('safemap.structure' in metadata, there)
            model = header_of(self.folder / how / 'model.safetensors')['__metadata__']
            self.assertEqual('safemap.structure' in model, how == 'keep')
            self.assertTrue(self.done('verify', how)['ok'])
        root = self.done('inspect', 'auto/optimizer', '--structure')['structure']['root']
        self.assertIn('loss_scaler', json.dumps(root))

    def test_every_parameter_has_a_step_and_a_group(self):
        for folder in ('z2-w2-experts', 'z1-w4-pipeline', 'z1-w4-tensor-parallel', 'z3-w3-fp32'):
            with self.subTest(folder):
                self.done('convert', at(folder), folder, '--optimizer')
                data = (self.folder / folder / 'optimizer/model.safetensors').read_bytes()
                metadata = json.loads(data[8:8 + int.from_bytes(data[:8], 'little')])['__metadata__']
                optimizer = json.loads(metadata['safemap.structure'])['root']['optimizer']
                names = set(ROWS[folder]['optimizer'])
                self.assertEqual({name for name, state in optimizer['state'].items() if 'step' in state}, names)
                grouped = [name for group in optimizer['param_groups'][1:] for name in group['params'][1:]]
                self.assertEqual(sorted(grouped), sorted(names))

    def test_the_state_of_the_training_is_kept(self):
        for folder in ROWS:
            with self.subTest(folder):
                self.done('convert', at(folder), folder, '--optimizer')
                document = self.done('inspect', folder + '/optimizer', '--structure')['structure']
                self.assertEqual(document['root']['optimizer']['training']['global_steps'], 2)

    def test_without_zero_each_rank_of_experts_has_its_optimizer(self):
        folder = self.copy('z0-w2-bf16')
        (folder / ROWS['z0-w2-bf16']['tag'] / 'expp_rank_0_mp_rank_00_optim_states.pt').write_bytes(
            value_file({'optimizer': {'state': {}, 'lr': 0.5}}))
        notes = self.done('convert', folder, 'out', '--optimizer')['notes']
        self.assertTrue(any('no names of parameters' in note for note in notes), notes)
        root = self.done('inspect', 'out/optimizer', '--structure')['structure']['root']
        self.assertEqual(root['optimizer']['expp_rank_0_mp_rank_00']['lr'], 0.5)

    def test_a_later_save_without_it_says_that_it_stays(self):
        path = at('z2-w2-fp16')
        self.done('convert', path, 'out', '--optimizer', '--checksums')
        before = (self.folder / 'out' / 'optimizer' / 'model.safetensors').read_bytes()
        for words in (('--dry-run',), ()):
            notes = self.done('convert', path, 'out', '--force', '--dtype', 'bf16', *words)['notes']
            self.assertEqual([note for note in notes if 'optimizer' in note],
                             ["'optimizer' in the output folder is from another save, and stays"])
        self.assertEqual((self.folder / 'out' / 'optimizer' / 'model.safetensors').read_bytes(), before)
        again = self.done('convert', path, 'out', '--force', '--optimizer')
        self.assertEqual([note for note in again['notes'] if 'another save' in note], [])

    def test_options_for_tensors_do_not_apply_to_the_optimizer(self):
        path = at('z2-w2-fp16')
        self.done('convert', path, 'plain', '--optimizer')
        self.done('convert', path, 'out', '--optimizer', '--dtype', 'bf16', '--include', '*.weight', '--rename',
                  's/^/x./')
        self.assertEqual(self.done('hash', 'out/optimizer'), self.done('hash', 'plain/optimizer'))
        self.assertTrue(all(name.startswith('x.') for name in self.done('hash', 'out')['tensors']))

    def test_the_optimizer_needs_a_folder(self):
        for out in ('out.safetensors', 'out.sft'):
            self.refused('invalid_argument', 2, 'convert', at('z2-w2-fp16'), out, '--optimizer')
        self.assertEqual(self.leftovers(), ['small.safetensors'])

    def test_a_universal_checkpoint_without_files_of_model_states(self):
        for folder, opens in (('z2-w3-bf16-universal', True), ('z3-w2-bf16-frozen-universal', False)):
            copy = self.copy(folder, folder)
            whole = self.done('hash', folder)['tensors']
            for file in copy.rglob('*_model_states.pt'):
                file.unlink()
            if opens:
                self.assertIn('no files of model states', ' '.join(self.done('inspect', folder)['notes']))
                self.done('convert', folder, 'out', '--optimizer')
                alone = self.done('hash', 'out')['tensors']
                states = self.done('hash', 'out/optimizer')['tensors']
                masters = {name.split('/')[2] for name in states if 'exp_avg' in name}
                self.assertTrue(masters)
                for name in masters:
                    self.assertEqual(alone[name], whole[name])
                continue
            error = self.refused('rank_missing', 1, 'inspect', folder)
            self.assertIn('fp32.pt of stage 3 is flat', error['message'])
            self.assertIn('--deepspeed-compat', error['hint'])
            self.done('convert', folder, 'flat', '--deepspeed-compat')

    def test_a_folder_without_state_of_an_optimizer_is_refused(self):
        copy = self.copy('z2-w3-bf16-universal')
        for pattern in ('exp_avg.pt', 'exp_avg_sq.pt', 'step.pt', 'optimizer_state.pt'):
            for file in copy.rglob(pattern):
                file.unlink()
        self.assertNotIn('optimizer', self.done('inspect', 'run')['layout'])
        self.done('convert', 'run', 'out')
        error = self.refused('invalid_argument', 2, 'convert', 'run', 'other', '--optimizer')
        self.assertEqual((error['message'], error['path']),
                         ('--optimizer: the files have no state of an optimizer', 'run'))


@unittest.skipUnless(EXPECTED, 'no folders of DeepSpeed beside the checkout')
class Verify(Folders):
    def test_every_folder_is_ok_and_all_its_records_are_checked(self):
        for folder in ROWS:
            with self.subTest(folder):
                report = self.done('verify', at(folder))
                self.assertTrue(report['ok'])
                self.assertIn(report['verdict'], ('ok', 'needs classes'))
                records = 0
                for file in self.done('inspect', at(folder))['files']:
                    with zipfile.ZipFile(ZERO / folder / file) as archive:
                        records += sum(record.file_size for record in archive.infolist() if record.CRC)
                self.assertGreaterEqual(report['checked_bytes'], records)

    def test_a_folder_whose_pickles_call_classes_of_deepspeed_needs_classes(self):
        for command in ('inspect', 'verify'):
            told = self.done(command, at('z2-w3-bf16'))
            self.assertFalse([note for note in told['notes'] if 'would call' in note])
            self.assertEqual(told['verdict'], 'needs classes')
            self.assertTrue(any(each['name'].startswith('deepspeed.') for each in told['findings']))
        self.assertRegex(self.safemap('verify', at('z2-w3-bf16')).out, ': needs classes: ')
        self.refused('unknown_global', 1, 'hash', at('z2-w3-bf16'), '--strict-globals')

    def test_the_classes_of_every_file_are_listed(self):
        for folder, name, old, new in (
                ('z2-w3-bf16-universal', 'zero/blocks.0.up.weight/fp32.pt', b'OrderedDict', b'OrderedXict'),
                ('z2-w3-bf16-universal', 'zero/optimizer_state.pt', b'LossScaler', b'LossXcaler'),
                ('z2-w2-experts', 'layer_0_expert_3_mp_rank_00_model_states.pt', b'OrderedDict', b'OrderedXict')):
            with self.subTest(name):
                shutil.rmtree(self.folder / 'run', ignore_errors=True)
                file = self.copy(folder) / ROWS[folder]['tag'] / name
                rename_in_pickle(file, old, new)
                self.check_listed(file, new.decode())
        tag = self.copy('z1-w4-pipeline', 'pipeline') / ROWS['z1-w4-pipeline']['tag']
        (tag / 'layer_09-model_states.pt').write_bytes(value_file({'x': argparse.Namespace(y=1)}))
        self.check_listed(tag / 'layer_09-model_states.pt', 'Namespace')

    def check_listed(self, file, name):
        root = file.relative_to(self.folder).parts[0]
        found = [named for named in self.done('inspect', root, '--globals')['globals'] if named['name'] == name]
        self.assertEqual([(named['known'], named['called']) for named in found], [(False, True)])
        self.assertIn(str(file.relative_to(self.folder / root)), found[0]['record'])

    def test_unknown_classes_of_a_parameter_are_refused_on_request(self):
        tag = self.copy('z2-w3-bf16-universal') / ROWS['z2-w3-bf16-universal']['tag']
        (tag / 'zero/optimizer_state.pt').unlink()
        self.done('hash', 'run', '--strict-globals')
        self.assertRegex(self.safemap('verify', 'run').out, ': ok; ')
        rename_in_pickle(tag / 'zero/blocks.0.up.weight/exp_avg.pt', b'OrderedDict', b'OrderedXict')
        self.assertRegex(self.safemap('verify', 'run').out, ': unknown: 1; ')
        error = self.refused('unknown_global', 1, 'hash', 'run', '--strict-globals')
        self.assertTrue(error['path'].endswith('zero/blocks.0.up.weight/exp_avg.pt'))

    def test_a_wrong_bit_in_any_file_is_found(self):
        for folder in ('z1-w2-bf16', 'z3-w2-fp16', 'z0-w2-bf16', 'z2-w3-bf16-universal'):
            copy = self.copy(folder, folder)
            for file in sorted(copy.rglob('*.pt')):
                if file.name == 'optimizer_state.pt':
                    continue
                data = bytearray(file.read_bytes())
                place = place_in_record(file)
                data[place] ^= 1
                file.write_bytes(data)
                result = self.safemap('verify', folder, '--json')
                data[place] ^= 1
                file.write_bytes(data)
                faults = result.json()['faults']
                self.assertEqual(result.code, 1, file)
                found = [fault for fault in faults if fault.get('path', '').endswith(file.name)]
                self.assertTrue(found, (file, faults))

    def test_two_damaged_ranks_are_two_faults(self):
        copy = self.copy('z3-w2-fp16')
        files = sorted(copy.rglob('*_optim_states.pt'))
        self.assertEqual(len(files), 2)
        for file in files:
            data = bytearray(file.read_bytes())
            data[place_in_record(file)] ^= 1
            file.write_bytes(data)
        result = self.safemap('verify', 'run', '--json')
        faults = result.json()['faults']
        self.assertEqual(([fault['code'] for fault in faults], result.code), (['checksum_mismatch'] * 2, 1))
        self.assertEqual([pathlib.Path(fault['path']).name for fault in faults], [file.name for file in files])

    def test_a_broken_folder_is_a_fault_and_stops_every_other_command(self):
        for row in EXPECTED['broken']:
            with self.subTest(row['folder']):
                result = self.safemap('verify', at(row['folder']), '--json')
                faults = result.json()['faults']
                self.assertEqual(result.code, 1)
                error = self.safemap('inspect', at(row['folder']), '--json')
                self.assertEqual(error.code, 1)
                self.assertIn(error.json()['error']['code'], [fault['code'] for fault in faults])
                self.assertEqual(self.safemap('convert', at(row['folder']), 'out').code, 1)
        self.assertEqual(self.leftovers(), ['small.safetensors'])


if __name__ == '__main__':
    words = sys.argv[1:]
    case.use(*words[:2])
    unittest.main(argv=[sys.argv[0], *words[2:]])
