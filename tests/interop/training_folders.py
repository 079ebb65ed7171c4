"""Tests folders that trainers wrote: the layout of each, which ones open, and how the others are refused.

The folders are beside the checkout, in ../shared/fixtures, or in SAFEMAP_FIXTURES, and have an expected.json; without
them, these tests are skipped. Layouts without a reader must be refused by name, never opened in part.
"""
import collections
import hashlib
import json
import os
import pathlib
import subprocess
import unittest

import common

FIXTURES = pathlib.Path(os.environ.get('SAFEMAP_FIXTURES') or
                        pathlib.Path(__file__).resolve().parents[3] / 'shared/fixtures')

# The layouts in expected.json that have no reader yet, with safemap's names for them.
NOT_READ = {'dcp': ('dcp',), 'fsdp': ('rank_files',)}

# Faults that only a reader of the layout can find. Without one, the layout itself is refused.
NEED_A_READER = {'world_mismatch', 'ranks_differ', 'pieces_overlap', 'piece_missing', 'file_truncated'}


def inspect(path):
    """Returns the exit code and the object of `inspect --json`."""
    command = [common.BUILD / 'cli/safemap', 'inspect', path, '--json']
    run = subprocess.run(command, capture_output=True, check=False, timeout=300)
    return run.returncode, json.loads(run.stdout)


def digests(path):
    return common.safemap('hash', path, '--algorithm', 'sha256')['tensors']


@unittest.skipUnless((FIXTURES / 'shapes/expected.json').is_file(), 'no folders of trainers beside the checkout')
class TrainingFolders(unittest.TestCase):
    def refused(self, path, code, status=1):
        exit_code, answer = inspect(path)
        self.assertEqual((exit_code, answer.get('error', {}).get('code')), (status, code), answer)
        return answer['error']

    def refused_by_name(self, path, names):
        error = self.refused(path, 'unsupported_layout')
        self.assertTrue(any(f"layout '{name}'" in error['message'] for name in names), error)
        self.assertIn('hint', error)

    def opens(self, path, row):
        exit_code, answer = inspect(path)
        self.assertEqual(exit_code, 0, answer)
        for word in [*row['notes_contain'], *row.get('others_named', [])]:
            self.assertIn(word, ' '.join(answer['notes']))
        if row.get('compare'):
            return
        listed = {t['name'] for t in row['tensors']}
        got = {t['name']: (t['dtype'], t['shape']) for t in answer['tensors']}
        if row['layout']['kind'] == 'zero':
            # Rows of stage 3 leave out parameters without elements; tests/cli/deepspeed.py compares the rest.
            got = {name: value for name, value in got.items() if name in listed or 0 not in value[1]}
            for name in row.get('omitted_by_deepspeed', []):
                got.pop(name, None)
        self.assertEqual(got, {t['name']: (t['dtype'], t['shape']) for t in row['tensors']})

    def row(self, row):
        path = FIXTURES / 'shapes' / row['folder']
        kind = (row.get('layout') or {}).get('kind')
        shards = row['group'] == 'hf_shards' and not row['folder'].endswith('.metadata')
        if row['opens'] and kind in NOT_READ and not shards:
            return self.refused_by_name(path, NOT_READ[kind])
        if row['opens']:
            return self.opens(path, row)
        exit_code, answer = inspect(path)
        if answer.get('error', {}).get('code') == 'unsupported_layout' and row['code'] != 'unsupported_layout':
            # File names alone do not show faults inside the files.
            self.assertIn(row['code'], NEED_A_READER | {'rank_missing'}, answer)
            return None
        error = self.refused(path, row['code'], row['exit'])
        for word in row['notes_contain']:
            if word != 'AutoEP':  # a key inside the files
                self.assertIn(word, error['message'])
        return None

    def test_every_folder_of_a_trainer_opens_or_is_refused_as_expected(self):
        rows = json.loads((FIXTURES / 'shapes/expected.json').read_text(encoding='utf-8'))['rows']
        seen = collections.Counter()
        for row in rows:
            if '*' in row['folder'] or row['options']:
                continue  # globs and the options of DeepSpeed folders need a reader
            with self.subTest(folder=row['folder']):
                self.row(row)
                seen[(row.get('layout') or {}).get('kind') or row['code']] += 1
        for kind in ('model', 'torch', 'zero', 'dcp', 'fsdp', 'several_models', 'bad_tag', 'unfinished_checkpoint'):
            self.assertGreater(seen[kind], 0, kind)

    def test_models_that_open_hold_what_the_trainer_held(self):
        rows = json.loads((FIXTURES / 'shapes/expected.json').read_text(encoding='utf-8'))['rows']
        for row in rows:
            if (row.get('layout') or {}).get('kind') != 'model' or row['options']:
                continue
            with self.subTest(folder=row['folder']):
                self.assertEqual(digests(FIXTURES / 'shapes' / row['folder']),
                                 {t['name']: t['sha256'] for t in row['tensors']})

    def test_no_folder_of_an_unsupported_format_is_opened_in_part(self):
        whole = {'dcp/hf_consolidated', 'dcp/hf_one_rank', 'fsdp/accelerate_full'}
        codes = {'unsupported_layout', 'several_models', 'bad_tag', 'unfinished_checkpoint', 'rank_missing'}
        for kind, names in NOT_READ.items():
            folders = [p.parent for p in (FIXTURES / kind).glob('*/*')]
            folders += [p.parent for p in (FIXTURES / kind).glob('broken/*/*')]
            for folder in sorted(set(folders)):
                name = folder.relative_to(FIXTURES).as_posix()
                if folder.name == 'broken' or not folder.is_dir():
                    continue
                if folder.name.startswith('hf_') and name not in whole:
                    continue  # read: tests/cli/hf_shards.py compares them
                with self.subTest(folder=name):
                    exit_code, answer = inspect(folder)
                    if name in whole:
                        self.assertEqual(exit_code, 0, answer)
                        continue
                    self.assertIn(answer.get('error', {}).get('code'), codes, answer)
                    if answer['error']['code'] == 'unsupported_layout':
                        self.refused_by_name(folder, names)
