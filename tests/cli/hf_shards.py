"""Tests Hugging Face shards from outside: hf_shards.py SAFEMAP DATA [unittest's own arguments].

Reads the folders that torch and transformers wrote, which are in ../shared/fixtures beside the checkout or in
SAFEMAP_FIXTURES; without them, those tests are skipped. The others write files of ranks with --shards-for.
"""
import argparse
import json
import pathlib
import sys
import unittest

import deepspeed
from deepspeed import FIXTURES, rows_of, tensors_of, value_of

DATA = None

CODES = {
    'hf_gap': 'not_covered',
    'hf_missing_first_shard': 'rank_missing',
    'hf_negative': 'piece_outside',
    'hf_no_offsets': 'field_missing',
    'hf_other_rank': 'piece_mismatch',
    'hf_overlap': 'pieces_overlap',
    'hf_with_object': 'header_too_large',
}


def json_of(path):
    return json.loads(path.read_text(encoding='utf-8'))


def of_torch():
    return [(row, FIXTURES / 'dcp' / row['folder']) for row in json_of(FIXTURES / 'dcp/expected.json')
            if 'hf_' in row['folder']]


def of_trainers():
    return [(row, FIXTURES / 'shapes' / row['folder']) for row in rows_of('shapes', 'rows')
            if row['group'] == 'hf_shards' and not row['folder'].endswith('.metadata')]


class Case(deepspeed.Case):
    def one_file(self, path):
        """Converts to one file, and returns its tensors."""
        out = self.folder / f'{self.count}.safetensors'
        self.count += 1
        answer = deepspeed.safemap('convert', path, out)
        self.assertEqual(answer.code, 0, answer.text)
        return tensors_of(out)[0]

    def done(self, *words, **settings):
        answer = deepspeed.safemap(*words, **settings)
        self.assertEqual(answer.code, 0, answer.text)
        return answer.object


@unittest.skipUnless((FIXTURES / 'dcp/expected.json').is_file(), 'no folders of torch here')
class OfTorch(Case):
    def check_tensors(self, rows):
        for row, path in rows:
            with self.subTest(folder=row['folder']):
                self.same(self.one_file(path), {t['name']: value_of(t) for t in row['tensors']})
                report = self.done('verify', path)
                self.assertEqual((report['ok'], report['tensors']), (True, len(row['tensors'])))

    def test_every_tensor_is_read_bit_for_bit(self):
        self.check_tensors([(row, path) for row, path in of_torch() if row['error'] is None])

    def test_folders_that_trainers_leave(self):
        rows = of_trainers()
        self.check_tensors(rows)
        for row, path in rows:
            with self.subTest(folder=row['folder']):
                found = self.done('inspect', path)
                wanted = row['layout']
                self.assertEqual(found['format'], {'model': 'safetensors'}.get(wanted['kind'], wanted['kind']))
                if wanted['kind'] == 'dcp':
                    self.assertEqual(found['layout']['kind'], 'hf_shards')
                    self.assertEqual(found['layout']['world_size'], wanted['world_size'])
                for name in row['others_named']:
                    self.assertIn(name, '\n'.join(found['notes']))

    def test_globs_and_lists_of_files(self):
        for row, path in of_torch():
            files = sorted(path.glob('shard-*.safetensors'), reverse=True)
            if row['error'] is not None or len(files) < 2 or len(files) < len(list(path.iterdir())):
                continue
            with self.subTest(folder=row['folder']):
                whole = self.done('hash', path)
                self.assertEqual(self.done('hash', f'{path}/shard-*.safetensors'), whole)
                out = self.out()
                self.done('convert', *files, out)
                self.assertEqual(self.done('hash', out), whole)
                if len(files) > 2:  # one file alone is opened as a part
                    out = self.out()
                    self.assertEqual(deepspeed.safemap('convert', *files[:-1], out).code, 1)
                    self.assertFalse(out.exists())

    def test_a_finished_model_with_sharding_information_stays_one(self):
        found = self.done('inspect', FIXTURES / 'dcp/hf_one_rank')
        self.assertEqual(found['format'], 'safetensors')
        self.assertNotIn('layout', found)

    def test_broken_folders_are_refused_before_anything_is_written(self):
        broken = {pathlib.Path(row['folder']).name: path for row, path in of_torch() if row['error']}
        self.assertEqual(sorted(broken), sorted(CODES))
        for name, path in broken.items():
            with self.subTest(folder=name):
                answer = self.refused(path, 1)
                self.assertEqual(answer.error()['code'], CODES[name], answer.text)
                report = deepspeed.safemap('verify', path)
                self.assertEqual(report.code, 1)
                self.assertEqual([fault['code'] for fault in report.object['faults']], [CODES[name]])

    def test_torch_shards_become_ranks_of_another_world_size(self):
        for name in ('hf_sharded_many', 'hf_boxes'):
            with self.subTest(folder=name):
                source = FIXTURES / 'dcp' / name
                out = self.out()
                self.done('convert', source, out, '--shards-for', '3', '--checksums')
                self.assertTrue(self.done('diff', source, out)['equal'])
                self.assertEqual(self.done('hash', source)['checkpoint'], self.done('hash', out)['checkpoint'])


class Written(Case):
    def setUp(self):
        super().setUp()
        self.model = DATA / 'pt/train_gpt.pt'

    def names(self, folder):
        return sorted(path.name for path in folder.iterdir())

    def test_every_command_takes_the_files_of_ranks(self):
        out = self.out()
        written = self.done('convert', self.model, out, '--shards-for', '4', '--checksums')
        files = [f'shard-{rank:05}-model-00001-of-00001.safetensors' for rank in range(1, 5)]
        self.assertEqual(written['files'], files)
        self.assertEqual(self.names(out), files)
        self.assertEqual(written['tensors'], len(self.done('inspect', self.model)['tensors']) - 1)  # one is tied
        layout = self.done('inspect', out)['layout']
        self.assertEqual((layout['kind'], layout['world_size']), ('hf_shards', 4))
        report = self.done('verify', out)
        self.assertEqual((report['ok'], report['checked_bytes']), (True, report['bytes']))
        self.assertTrue(self.done('diff', out, self.model)['equal'])
        self.assertEqual(self.done('hash', out)['checkpoint'], self.done('hash', self.model)['checkpoint'])
        self.assertTrue(self.done('plan', out, '--expect', self.model)['ok'])
        loaded = self.done('load', out, '--device', 'host', '--digest')
        self.assertEqual(loaded['digests'], self.done('hash', self.model)['tensors'])

    def test_more_files_than_descriptors(self):
        few = {'threads': 4, 'limit': 64}
        ranks, again = self.out(), self.out()
        self.done('convert', self.model, ranks, '--shards-for', '316', **few)
        self.assertEqual(len(self.names(ranks)), 316)  # a tensor has 316 times 16 rows
        self.done('convert', ranks, again, '--shards-for', '316', '--shard-dim', '1', **few)
        self.assertTrue(self.done('diff', again, self.model, **few)['equal'])
        self.assertTrue(self.done('verify', again, **few)['ok'])

    def test_the_dimension_and_casts(self):
        out = self.out()
        self.done('convert', self.model, out, '--shards-for', '3', '--shard-dim', '1', '--dtype', 'bf16')
        whole = self.folder / 'whole.safetensors'
        self.done('convert', self.model, whole, '--dtype', 'bf16')
        self.assertTrue(self.done('diff', out, whole)['equal'])
        tensors, metadata = tensors_of(out / 'shard-00002-model-00001-of-00001.safetensors')
        info = json.loads(metadata['DCP_SHARDING_INFO'])
        self.assertEqual(sorted(info), sorted(tensors))
        for name, place in info.items():
            self.assertEqual(place['saved_offsets'][0], 0)
            self.assertGreater(place['saved_offsets'][1], 0)
            self.assertEqual(len(place['global_shape']), len(tensors[name][1]))

    def test_a_dry_run_writes_nothing(self):
        out = self.out()
        plan = self.done('convert', self.model, out, '--shards-for', '2', '--dry-run')
        self.assertEqual(len(plan['plan']), 2)
        self.assertFalse(out.exists())

    def test_a_smaller_set_replaces_a_larger_one_and_a_model_replaces_both(self):
        out = self.out()
        self.done('convert', self.model, out, '--shards-for', '7')
        answer = deepspeed.safemap('convert', self.model, out, '--shards-for', '2')
        self.assertEqual((answer.code, answer.error()['code']), (2, 'already_exists'))
        self.done('convert', self.model, out, '--shards-for', '2', '--force')
        self.assertEqual(len(self.names(out)), 2)
        self.done('convert', self.model, out, '--force')
        self.assertEqual(self.names(out), ['model.safetensors'])
        self.done('convert', self.model, out, '--shards-for', '3', '--force')
        self.assertEqual(len(self.names(out)), 3)
        self.assertTrue(self.done('diff', out, self.model)['equal'])

    def test_wrong_calls_exit_with_2_before_anything_is_opened(self):
        missing = self.folder / 'no such file'
        for out, options in [('x.safetensors', ['--shards-for', '2']),
                             ('x.safetensors', ['--shards-for', '2', '--shard-dim', '1']),
                             ('x', ['--shards-for', '2', '--max-shard-size', '1GB']),
                             ('x', ['--shards-for', '2', '--strategy', 'balanced']),
                             ('x', ['--shards-for', '2', '--index-style', 'hub']),
                             ('x', ['--shard-dim', '1']),
                             ('x', ['--shards-for', '0']),
                             ('x', ['--shards-for', '-1']),
                             ('x', ['--shards-for', 'many']),
                             ('x', ['--shards-for', '2', '--shard-dim', '-1'])]:
            with self.subTest(options=options, out=out):
                answer = deepspeed.safemap('convert', missing, self.folder / out, *options)
                self.assertEqual(answer.code, 2, answer.text)
                self.assertNotIn('no such file', answer.error()['message'])
        answer = deepspeed.safemap('convert', self.model, self.out(), '--shards-for', '0')
        self.assertIn('expected the number of ranks', answer.text)
        answer = deepspeed.safemap('convert', self.model, self.out(), '--shards-for', '100000')
        self.assertEqual((answer.code, answer.error()['code']), (2, 'invalid_argument'))
        self.assertEqual(self.names(self.folder), [])

    def test_a_file_of_a_rank_alone_is_a_part_with_a_note(self):
        out = self.out()
        self.done('convert', self.model, out, '--shards-for', '2')
        found = self.done('inspect', out / 'shard-00002-model-00001-of-00001.safetensors')
        self.assertEqual(found['format'], 'safetensors')
        self.assertIn('rank 2', '\n'.join(found['notes']))

    @unittest.skipUnless((FIXTURES / 'zero/expected.json').is_file(), 'no folders of DeepSpeed here')
    def test_a_deepspeed_folder_and_its_optimizer(self):
        row = next(row for row in rows_of('zero', 'checkpoints') if row['stage'] == 3 and row['layout'] == 'data')
        source = FIXTURES / 'zero' / row['folder']
        out, plain = self.out(), self.out()
        self.done('convert', source, out, '--optimizer', '--shards-for', '3', '--checksums')
        self.done('convert', source, plain, '--optimizer')
        self.assertEqual(len([name for name in self.names(out) if name.startswith('shard-')]), 3)
        self.assertEqual(len(self.names(out / 'optimizer')), 3)
        self.assertTrue(self.done('diff', out, plain)['equal'])
        self.assertTrue(self.done('diff', out / 'optimizer', plain / 'optimizer')['equal'])
        self.assertEqual(self.done('inspect', out / 'optimizer', '--structure')['structure'],
                         self.done('inspect', plain / 'optimizer', '--structure')['structure'])
        report = self.done('verify', out)
        self.assertEqual((report['ok'], report['checked_bytes']), (True, report['bytes']))


if __name__ == '__main__':
    parser = argparse.ArgumentParser()
    parser.add_argument('safemap')
    parser.add_argument('data', type=pathlib.Path)
    arguments, others = parser.parse_known_args()
    deepspeed.SAFEMAP, DATA = arguments.safemap, arguments.data
    unittest.main(argv=[sys.argv[0], *others])
