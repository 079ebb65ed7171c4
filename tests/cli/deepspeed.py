"""Tests folders that DeepSpeed wrote, from outside: deepspeed.py SAFEMAP [unittest's own arguments].

The folders are beside the checkout, in ../shared/fixtures, or in SAFEMAP_FIXTURES, each with its tensors in an
expected.json; without them, this is skipped. Written files are read here, without torch.
"""
import hashlib
import json
import os
import pathlib
import struct
import subprocess
import sys
import tempfile
import unittest

sys.path.append(str(pathlib.Path(__file__).resolve().parents[1] / 'forge'))
import forged

SAFEMAP = None
FIXTURES = pathlib.Path(os.environ.get('SAFEMAP_FIXTURES') or
                        pathlib.Path(__file__).resolve().parents[3] / 'shared/fixtures')
SKIPPED = 77  # for Meson
IN_MEMORY = '/dev/shm' if os.access('/dev/shm', os.W_OK | os.X_OK) else None


def rows_of(name, part):
    return json.loads((FIXTURES / name / 'expected.json').read_text(encoding='utf-8'))[part]


class Answer:
    """The answer of a command; its only object is on stdout."""

    def __init__(self, done):
        self.code = done.returncode
        self.text = done.stdout.decode() + done.stderr.decode()
        self.object = json.loads(done.stdout) if done.stdout else {}

    def notes(self):
        return '\n'.join(self.object.get('notes', []))

    def error(self):
        return self.object.get('error', {})


def safemap(*words, threads=1, limit=None):
    """Runs a command; `limit` is that of open files."""
    command = [SAFEMAP, *map(str, words), '--json', '--threads', str(threads)]
    if limit:
        command = ['bash', '-c', f'ulimit -n {limit}; exec "$@"', 'bash', *command]
    return Answer(subprocess.run(command, capture_output=True, check=False, timeout=60, stdin=subprocess.DEVNULL))


def tensors_of(file):
    """Returns the tensors of one safetensors file as (dtype, shape, sha256), and its metadata."""
    values, metadata = forged.tensors_of(file)
    return {name: (dtype, shape, hashlib.sha256(data).hexdigest())
            for name, (dtype, shape, data) in values.items()}, metadata


def model_of(folder):
    """Returns the tensors of a folder of one shard, those of ties too, and its metadata."""
    values, metadata = tensors_of(folder / 'model.safetensors')
    for alias, stored in metadata.items():
        if stored in values:
            values[alias] = values[stored]
    return values, metadata


def scalars_below(node, key):
    """Returns all values with this key, anywhere in a structure document."""
    found = []
    stack = [node]
    while stack:
        here = stack.pop()
        if isinstance(here, dict):
            found += [value for name, value in here.items() if name == key]
            stack += here.values()
        elif isinstance(here, list):
            stack += here
    return found


class Case(unittest.TestCase):
    maxDiff = None

    def setUp(self):
        folder = tempfile.TemporaryDirectory(dir=IN_MEMORY)
        self.addCleanup(folder.cleanup)
        self.folder = pathlib.Path(folder.name)
        self.count = 0

    def out(self):
        self.count += 1
        return self.folder / str(self.count)

    def converted(self, path, *options):
        """Returns what convert wrote, the folder, and what it said."""
        out = self.out()
        answer = safemap('convert', path, out, *options)
        self.assertEqual(answer.code, 0, answer.text)
        values, _ = model_of(out)
        return values, out, answer

    def same(self, got, wanted):
        self.assertEqual(sorted(got), sorted(wanted))
        for name, value in wanted.items():
            self.assertEqual(tuple(got[name]), tuple(value), name)

    def refused(self, path, status, *options):
        """Checks that convert refuses the folder with this exit code, and writes nothing."""
        out = self.out()
        answer = safemap('convert', path, out, *options)
        self.assertEqual(answer.code, status, answer.text)
        self.assertFalse(out.exists())
        self.assertFalse(any(self.folder.glob('.*')))
        return answer


def each_row(check):
    """Makes a test of a check: of all rows, which fail one by one."""
    def test(self):
        for row, path in self.rows():
            with self.subTest(folder=row['folder'], options=row.get('options')):
                check(self, row, path)
    return test


def of_deepspeed(row):
    names = f"{row['folder']} {row['case']}".lower()
    return (row['layout'] or {}).get('kind') == 'zero' or any(w in names for w in ('zero', 'autoep', 'universal'))


def value_of(tensor):
    return tensor['dtype'], tensor['shape'], tensor['sha256']


def as_deepspeed(tensors):
    """Returns what DeepSpeed gives of these tensors."""
    return {t['name']: (t.get('deepspeed_dtype', t['dtype']), t.get('deepspeed_shape', t['shape']),
                        t.get('deepspeed_sha256', t['sha256']))
            for t in tensors if t.get('deepspeed') != 'absent'}


class Folders(Case):
    """The folders of ../shared/fixtures/zero: real checkpoints of every stage."""

    @staticmethod
    def rows():
        return [(row, FIXTURES / 'zero' / row['folder']) for row in rows_of('zero', 'checkpoints')]

    def test_folders_of_all_kinds_are_there(self):
        rows = rows_of('zero', 'checkpoints')
        self.assertEqual({row['stage'] for row in rows}, {0, 1, 2, 3})
        self.assertEqual({row['layout'] for row in rows}, {'data', 'tensor', 'pipeline', 'experts', 'universal'})
        self.assertGreater(len(rows_of('zero', 'broken')), 10)

    @each_row
    def test_weights_and_ties(self, row, path):
        got, _, answer = self.converted(path)
        self.same(got, {t['name']: value_of(t) for t in row['tensors']})
        ties = [sorted(group) for group in answer.object['aliases']]
        shared = [[t['name'], t['note'].rpartition(' ')[2]] for t in row['tensors'] if t['kind'] == 'shared']
        self.assertEqual(ties, [sorted(pair) for pair in row.get('shared', shared)] if ties else [])
        if row['layout'] == 'data':
            self.assertEqual(len(ties), len(row['shared']))

    @each_row
    def test_what_no_file_holds_is_noted(self, row, path):
        for name in row.get('not_saved', []):
            # If frozen weights were not saved, files name their modules only.
            notes = safemap('inspect', path).notes()
            self.assertTrue(name in notes or name.rpartition('.')[0] in notes, (name, notes))

    @each_row
    def test_layout(self, row, path):
        answer = safemap('inspect', path)
        self.assertEqual(answer.code, 0, answer.text)
        self.assertEqual(answer.object['format'], 'zero')
        layout = answer.object['layout']
        self.assertEqual(layout['kind'], 'universal' if row['layout'] == 'universal' else 'deepspeed')
        self.assertEqual(layout.get('stage', row['stage']), row['stage'])
        self.assertEqual(layout.get('world_size', row['world']), row['world'])
        if row['layout'] == 'data':
            self.assertEqual((layout['stage'], layout['world_size']), (row['stage'], row['world']))
        self.assertEqual(layout['tag'], row['tag'])
        if 'old-names' not in row['folder']:
            self.assertEqual(layout['version'], '0.19.8')
        self.assertEqual(sorted(layout['optimizer']), ['exp_avg', 'exp_avg_sq'])

    @each_row
    def test_weights_of_the_module(self, row, path):
        if row['stage'] == 3:
            answer = self.refused(path, 2, '--weights', 'module')
            self.assertIn('--dtype bf16', answer.text)
            return
        if row['layout'] not in ('data', 'experts'):
            return
        got, _, _ = self.converted(path, '--weights', 'module')
        wanted = {t['name']: value_of(t) for t in row['tensors'] if t['kind'] == 'buffer'}
        wanted |= {name: value_of(about) for name, about in row['module16'].items()}
        for name in row.get('not_saved', []):
            wanted.pop(name, None)
        self.same(got, wanted)

    @each_row
    def test_masters_of_stage_0(self, row, path):
        if row['stage'] != 0:
            return
        got, _, _ = self.converted(path, '--weights', 'fp32')
        masters = sorted(value[2] for name, value in got.items() if name.startswith('fp32/'))
        self.assertEqual(masters, sorted(state['fp32']['sha256'] for state in row['optimizer'].values()))

    @each_row
    def test_what_deepspeed_gives(self, row, path):
        if 'deepspeed_error' in row:
            self.refused(path, 2, '--deepspeed-compat')
            return
        got, _, _ = self.converted(path, '--deepspeed-compat')
        self.same(got, as_deepspeed(row['tensors']))
        self.refused(path, 2, '--deepspeed-compat', '--weights', 'module')

    @each_row
    def test_optimizer(self, row, path):
        _, out, _ = self.converted(path, '--optimizer')
        got, metadata = model_of(out / 'optimizer')
        moments = {name: value for name, value in got.items() if name.rpartition('/')[2].startswith('exp_avg')}
        if row['stage'] == 0:  # without names
            wanted = sorted(state[moment]['sha256'] for state in row['optimizer'].values()
                            for moment in ('exp_avg', 'exp_avg_sq'))
            self.assertEqual(sorted(value[2] for value in moments.values()), wanted)
        else:
            self.same(moments, {f'optimizer/state/{name}/{moment}': ('F32', state[moment]['shape'],
                                                                     state[moment]['sha256'])
                                for name, state in row['optimizer'].items()
                                for moment in ('exp_avg', 'exp_avg_sq')})
        self.assertIn('safemap.structure', metadata)
        if row['layout'] != 'universal' or row['stage'] < 3:  # ds_to_universal drops the steps of stage 3
            self.check_steps(row, got, json.loads(metadata['safemap.structure']))

    def check_steps(self, row, tensors, document):
        """Checks that every step is there: a tensor of one F32, or a number in the document."""
        steps = {state['step'] for state in row['optimizer'].values()}
        self.assertEqual(len(steps), 1)
        step = steps.pop()
        as_tensor = hashlib.sha256(struct.pack('<f', step)).hexdigest()
        stored = [value for name, value in tensors.items() if name.endswith('/step')]
        self.assertEqual([value for value in stored if value[2] != as_tensor], [])
        if not stored:
            self.assertTrue(scalars_below(document, 'step') or str(step) in json.dumps(document))

    @each_row
    def test_an_optimizer_that_is_not_asked_for_is_skipped(self, row, path):
        _, out, answer = self.converted(path)
        self.assertFalse((out / 'optimizer').exists())
        skipped = [entry for entry in answer.object['skipped'] if entry['name'].startswith('optimizer')]
        self.assertEqual(len(skipped), 1, answer.object['skipped'])

    def test_broken_folders_are_refused_before_anything_is_written(self):
        for row in rows_of('zero', 'broken'):
            with self.subTest(folder=row['folder']):
                answer = self.refused(FIXTURES / 'zero' / row['folder'], 1)
                self.assertIn(row['complaint'], answer.error().get('message', ''), answer.text)
                self.refused(FIXTURES / 'zero' / row['folder'], 1, '--optimizer')


class Trainers(Case):
    """The rows of ../shared/fixtures/shapes in which DeepSpeed has a part: what trainers leave around its folders."""

    @staticmethod
    def rows():
        return [(row, FIXTURES / 'shapes' / row['folder']) for row in rows_of('shapes', 'rows') if of_deepspeed(row)]

    @each_row
    def test_every_row(self, row, path):
        answer = safemap('inspect', path, *row['options'])
        self.assertEqual(answer.code, row['exit'], answer.text)
        if row['opens']:
            self.check_open(row, path, answer)
        else:
            self.assertEqual(answer.error()['code'], row['code'], answer.text)
            for word in row['notes_contain']:
                self.assertIn(word, answer.error()['message'])
            self.refused(path, row['exit'], *row['options'])

    def check_open(self, row, path, answer):
        for word in [*row['notes_contain'], *row['others_named']]:
            self.assertIn(word, answer.notes())
        if row['layout']['kind'] != 'zero':
            return
        layout = answer.object['layout']
        for key in ('stage', 'world_size', 'tag'):
            self.assertEqual(layout[key], row['layout'][key], key)
        options = [*row['options'], *(['--optimizer'] if row['optimizer'] else [])]
        got, out, _ = self.converted(path, *options)
        for name in row.get('omitted_by_deepspeed', []):
            got.pop(name, None)
        # These rows leave out parameters without elements of stage 3, which ../zero lists.
        listed = {t['name'] for t in row['tensors']}
        got = {name: value for name, value in got.items() if name in listed or 0 not in value[1]}
        self.same(got, {t['name']: value_of(t) for t in row['tensors']})
        if row['optimizer']:
            state, _ = model_of(out / 'optimizer')
            moments = {name: value for name, value in state.items() if name.rpartition('/')[2].startswith('exp_avg')}
            self.same(moments, {'optimizer/state/' + t['name']: value_of(t) for t in row['optimizer']})


if __name__ == '__main__':
    SAFEMAP = sys.argv[1]
    if not (FIXTURES / 'zero/expected.json').is_file() or not (FIXTURES / 'shapes/expected.json').is_file():
        print(f'no folders of DeepSpeed in {FIXTURES}')
        sys.exit(SKIPPED)
    unittest.main(argv=[sys.argv[0], *sys.argv[2:]])
