"""Tests folders that trainers wrote: what each opens as, or how it is refused.

The folders are beside the checkout, in ../shared/fixtures, or in SAFEMAP_FIXTURES, with a row for each in an
expected.json; without them, these tests are skipped. The values of DeepSpeed folders are compared by
tests/cli/deepspeed.py.
"""
import collections
import json
import os
import pathlib
import subprocess
import unittest

import common

FIXTURES = pathlib.Path(os.environ.get('SAFEMAP_FIXTURES') or
                        pathlib.Path(__file__).resolve().parents[3] / 'shared/fixtures')

# Rows that are refused there as two models, and that open since: a model and its optimizer. The model is that of the
# folder, or of the glob.
WITH_OPTIMIZER = {
    'accelerate_fsdp2_dcp': 'pytorch_model_fsdp_0', 'accelerate_fsdp1_dcp': 'pytorch_model_fsdp_0',
    'trainer_fsdp2_sharded/checkpoint-3': 'pytorch_model_fsdp_0',
    'trainer_fsdp1_sharded/checkpoint-3': 'pytorch_model_fsdp_0',
    'accelerate_fsdp2_ranks': 'pytorch_model_fsdp_0_rank*.bin',
    'accelerate_fsdp1_ranks': 'pytorch_model_fsdp_0_rank*.bin',
    'verl_run/global_step_10/actor': 'model_world_size_*_rank_*.pt',
    'verl_run/global_step_10/critic': 'model_world_size_*_rank_*.pt',
}

# safemap's formats for the kinds of layout in expected.json.
FORMATS = {'model': ('safetensors', 'torch'), 'torch': ('torch',), 'zero': ('zero',), 'dcp': ('dcp',),
           'fsdp': ('fsdp',)}


def answer_of(command, path, row, *more):
    """Returns the exit code and the object of `COMMAND --json`."""
    words = [common.BUILD / 'cli/safemap', command, path, '--json', *row['options'], *more]
    run = subprocess.run(words, capture_output=True, check=False, timeout=300)
    return run.returncode, json.loads(run.stdout)


def without_common(tensors):
    """Leaves out the tensors of a common.pt of Megatron, which expected.json does not list."""
    return {name: value for name, value in tensors.items() if not name.startswith('common.pt/')}


def below(name, root):
    """Returns a name as it is in the part `root`, which holds all tensors."""
    return name[len(root) + 1:] if root and name.startswith((root + '.', root + '/')) else name


@unittest.skipUnless((FIXTURES / 'shapes/expected.json').is_file(), 'no folders of trainers beside the checkout')
class TrainingFolders(unittest.TestCase):
    def tensors(self, answer, row):
        got = without_common({t['name']: (t['dtype'], t['shape']) for t in answer['tensors']})
        listed = {below(t['name'], answer['root']): (t['dtype'], t['shape']) for t in row['tensors']}
        if row['layout']['kind'] == 'zero':
            # Rows of stage 3 leave out parameters without elements.
            got = {name: value for name, value in got.items() if name in listed or 0 not in value[1]}
            for name in row.get('omitted_by_deepspeed', []):
                got.pop(name, None)
        self.assertEqual(got, listed)

    def layout(self, answer, row):
        self.assertIn(answer['format'], FORMATS[row['layout']['kind']])
        layout = answer.get('layout') or {}
        for key, value in row['layout'].items():
            if key != 'kind':
                self.assertEqual(layout.get(key), value, key)

    def values(self, path, row, root):
        exit_code, answer = answer_of('hash', path, row, '--algorithm', 'sha256')
        self.assertEqual(exit_code, 0, answer)
        listed = {below(t['name'], root): t['sha256'] for t in row['tensors']}
        self.assertEqual(without_common(answer['tensors']), listed)

    def opens(self, path, row):
        if row.get('compare') == 'notes only' and row['layout']['kind'] == 'torch':
            # One file of a set of ranks, which is refused since.
            self.refused(path, row | {'exit': 1, 'code': 'rank_missing', 'notes_contain': ['rank 1', '2']})
            row['options'] = [*row['options'], '--as-parts']
        exit_code, answer = answer_of('inspect', path, row)
        self.assertEqual(exit_code, 0, answer)
        for word in [*row['notes_contain'], *row.get('others_named', [])]:
            self.assertIn(word, ' '.join(answer['notes']))
        self.layout(answer, row)
        if not row.get('compare'):
            self.tensors(answer, row)
            if row['layout']['kind'] != 'zero':
                self.values(path, row, answer['root'])
        exit_code, answer = answer_of('verify', path, row)
        self.assertEqual(exit_code, 0, answer)

    def refused(self, path, row):
        exit_code, answer = answer_of('inspect', path, row)
        self.assertEqual((exit_code, answer.get('error', {}).get('code')), (row['exit'], row['code']), answer)
        for word in row['notes_contain']:
            self.assertIn(word, answer['error']['message'] + answer['error'].get('tensor', ''))

    def opens_as_model(self, path, row):
        exit_code, answer = answer_of('hash', path, row)
        self.assertEqual(exit_code, 0, answer)
        _, model = answer_of('hash', path / WITH_OPTIMIZER[row['folder']], row)
        self.assertEqual(answer['tensors'], model['tensors'])
        _, answer = answer_of('inspect', path, row)
        for word in row['notes_contain']:
            self.assertIn(word.split('*')[0].rstrip('_'), ' '.join(answer['notes']) + ' '.join(answer['files']))
        self.assertIn('optimizer', [item['name'] for item in answer['objects']])
        exit_code, answer = answer_of('verify', path, row)
        self.assertEqual(exit_code, 0, answer)

    def test_every_folder_of_a_trainer_opens_or_is_refused_as_expected(self):
        rows = json.loads((FIXTURES / 'shapes/expected.json').read_text(encoding='utf-8'))['rows']
        seen = collections.Counter()
        for row in rows:
            with self.subTest(folder=row['folder'], options=row['options']):
                path = FIXTURES / 'shapes' / row['folder']
                if row['opens']:
                    self.opens(path, row)
                elif row['folder'] in WITH_OPTIMIZER:
                    self.opens_as_model(path, row)
                else:
                    self.refused(path, row)
                seen[(row.get('layout') or {}).get('kind') or row['code']] += 1
        for kind in (*FORMATS, 'several_models', 'bad_tag', 'unfinished_checkpoint'):
            self.assertGreater(seen[kind], 0, kind)
