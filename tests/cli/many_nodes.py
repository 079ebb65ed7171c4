"""Tests several processes that convert together: many_nodes.py SAFEMAP DATA MPIRUN [unittest's own arguments].

SAFEMAP is built with MPI. All processes run on this machine; what one of them does not see is forged by giving it other
paths.
"""
import argparse
import json
import os
import pathlib
import signal
import subprocess
import sys
import time
import unittest

import deepspeed
from forged import header_bytes

SAFEMAP = MPIRUN = DATA = None

# Options of Open MPI's mpirun, which MPICH's does not have: root is allowed, and more processes than processors.
LAUNCH = ['--allow-run-as-root', '--oversubscribe']
# Each process writes its id beside the others and becomes safemap.
RANK = '${OMPI_COMM_WORLD_RANK:-$PMI_RANK}'
NOTED = f'echo $$ > "$0.{RANK}"; exec "$@"'

# Words of mpirun, not of safemap, when a process fails: Open MPI's, and MPICH's.
OF_MPIRUN = ('mpirun', 'Primary job', 'a non-zero exit', 'the job to be', '  Process name', '  Exit code', '-----',
             '=====', '=   ', 'YOUR APPLICATION', 'This typically', 'Please see')


def finished(command):
    """Runs a command. Returns its exit code, stdout, and the words of safemap on stderr."""
    done = subprocess.run(command, capture_output=True, check=False, timeout=120, stdin=subprocess.DEVNULL)
    words = [line for line in done.stderr.decode().splitlines() if line and not line.startswith(OF_MPIRUN)]
    return done.returncode, done.stdout.decode(), words


def alone(*words):
    return finished([SAFEMAP, 'convert', *map(str, words)])


def together(*words, count=3):
    return finished([MPIRUN, *LAUNCH, '-n', str(count), SAFEMAP, 'convert', *map(str, words)])


def each(*calls):
    """One process for each call, which is a list of words for convert."""
    command = [MPIRUN, *LAUNCH]
    for call in calls:
        command += [*([':'] if call is not calls[0] else []), '-n', '1', SAFEMAP, 'convert', *map(str, call)]
    return finished(command)


def contents(path):
    if path.is_file():
        return path.read_bytes()
    return {str(file.relative_to(path)): file.read_bytes() for file in path.rglob('*') if file.is_file()}


def write_large(path, tensors, size):
    """Writes a safetensors file of F32 tensors of `size` numbers."""
    end = 4 * size
    with open(path, 'wb') as file:
        file.write(header_bytes({f'layers.{i}.weight': {'dtype': 'F32', 'shape': [size],
                                                        'data_offsets': [end * i, end * (i + 1)]}
                                 for i in range(tensors)}))
        for i in range(tensors):
            file.write(bytes([i + 1, 0, 0, 60]) * size)


def is_running(process):
    try:
        state = pathlib.Path(f'/proc/{process}/stat').read_text(encoding='utf-8')
    except OSError:
        return False
    return state.rpartition(')')[2].split()[0] not in 'ZX'


class Case(deepspeed.Case):
    def setUp(self):
        super().setUp()
        self.model = DATA / 'pt/train_gpt.pt'

    def left(self):
        """Returns what lies in the folder of the test, hidden folders too."""
        return sorted(path.name for path in self.folder.iterdir())


class Equal(Case):
    def check(self, source, *options, out='out'):
        """Checks that several processes write what one writes, and report it once."""
        wanted, got = self.folder / 'one' / out, self.folder / 'many' / out
        wanted.parent.mkdir()
        got.parent.mkdir()
        code, text, words = alone(source, wanted, *options, '--json')
        self.assertEqual(code, 0, (text, words))
        code, many, words = together(source, got, *options, '--json')
        self.assertEqual((code, words), (0, []), many)
        self.assertEqual(contents(got), contents(wanted))
        reports = [json.loads(report) for report in (text, many)]
        for report in reports:
            del report['seconds'], report['peak_anon_bytes']
            report.pop('bytes_read')  # tensors that several processes write are read once more for their digests
        self.assertEqual(*reports)
        self.assertEqual([os.listdir(wanted.parent), os.listdir(got.parent)], [[out], [out]])

    def test_a_folder(self):
        self.check(self.model)

    def test_shards_casts_and_digests(self):
        self.check(self.model, '--dtype', 'bf16', '--max-shard-size', '100kB', '--checksums')

    def test_one_file(self):
        self.check(self.model, '--checksums', out='out.safetensors')

    def test_files_of_ranks(self):
        self.check(self.model, '--shards-for', '4', '--checksums')

    def test_an_optimizer_beside_the_weights(self):
        fixtures = deepspeed.FIXTURES / 'zero'
        if not (fixtures / 'expected.json').is_file():
            self.skipTest('no folders of DeepSpeed here')
        rows = json.loads((fixtures / 'expected.json').read_text(encoding='utf-8'))['checkpoints']
        row = next(row for row in rows if row['stage'] == 2 and row['layout'] == 'data')
        self.check(fixtures / row['folder'], '--optimizer', '--checksums')

    def test_an_old_checkpoint_is_replaced(self):
        for name in ('one', 'many'):
            self.assertEqual(alone(self.model, self.folder / name, '--max-shard-size', '50kB')[0], 0)
        self.assertEqual(alone(self.model, self.folder / 'one', '--force')[0], 0)
        self.assertEqual(together(self.model, self.folder / 'many', '--force', count=2)[0], 0)
        self.assertEqual(contents(self.folder / 'many'), contents(self.folder / 'one'))
        self.assertEqual(self.left(), ['many', 'one'])

    def test_one_process_under_mpirun_is_alone(self):
        code, text, words = together(self.model, self.folder / 'out', count=1)
        self.assertEqual((code, words), (0, []), text)


class Output(Case):
    def test_only_one_process_speaks(self):
        code, text, words = together(self.model, self.folder / 'out')
        self.assertEqual((code, words), (0, []))
        self.assertEqual(text.count(' → '), 1, text)

    def test_a_signal_is_answered_once(self):
        # While MPI begins, too.
        noted = self.folder / 'id'
        with subprocess.Popen([MPIRUN, *LAUNCH, '-n', '3', 'sh', '-c', NOTED, str(noted), SAFEMAP, 'convert',
                               str(self.model), str(self.folder / 'out'), '--json'], stdin=subprocess.DEVNULL,
                              stdout=subprocess.PIPE, stderr=subprocess.DEVNULL) as launcher:
            until = time.monotonic() + 60
            ids = [self.folder / f'id.{rank}' for rank in range(3)]
            while not all(map(self.is_safemap, ids)):
                self.assertLess(time.monotonic(), until, 'a process did not start')
            for each_id in ids:
                os.kill(int(each_id.read_text()), signal.SIGTERM)
            text = launcher.communicate(timeout=60)[0].decode()
        self.assertEqual(text.count('by a signal'), 1, text)

    @staticmethod
    def is_safemap(noted):
        """Returns true if the process has become safemap, and answers to signals."""
        try:
            process = pathlib.Path('/proc', noted.read_text().strip())
            status = (process / 'status').read_text()
            caught = int(next(line.split()[1] for line in status.splitlines() if line.startswith('SigCgt')), 16)
            return b'convert' in (process / 'cmdline').read_bytes() and bool(caught >> (signal.SIGTERM - 1) & 1)
        except (OSError, ValueError, StopIteration):
            return False

    def test_a_dry_run_writes_nothing(self):
        code, text, words = together(self.model, self.folder / 'out', '--dry-run')
        self.assertEqual((code, words), (0, []))
        self.assertEqual(text.count('will write') + text.count('would write'), 1, text)
        self.assertEqual(self.left(), [])

    def test_an_error_is_reported_once(self):
        (self.folder / 'there').write_text('')
        for call, wanted in ((('nothing', self.folder / 'out'), 'safemap: error: nothing: cannot open it'),
                             ((self.model, self.folder / 'there'), 'already exists'),
                             (('--bad',), "safemap: error: convert has no option '--bad'"),
                             ((self.model, self.folder / 'out', '--root', 'nowhere'), 'nowhere')):
            with self.subTest(call=call):
                code, text, words = together(*call)
                self.assertEqual((code, text), (2, ''))
                self.assertEqual(sum('error' in line for line in words), 1, words)
                self.assertIn(wanted, words[0])
                self.assertEqual(self.left(), ['there'])


class Disagreeing(Case):
    def refused(self, *calls):
        code, text, words = each(*calls)
        self.assertEqual(code, 2, (text, words))
        self.assertEqual(sum('error' in line for line in words), 1, words)
        self.assertEqual(self.left(), [])
        return '\n'.join(words)

    def test_a_process_without_the_input(self):
        out = self.folder / 'out'
        words = self.refused([self.model, out], ['nothing', out], [self.model, out])
        self.assertIn('nothing: rank 1: cannot open it', words)

    def test_a_process_with_another_call(self):
        out = self.folder / 'out'
        self.assertIn('rank 1', self.refused([self.model, out], [self.model, out, '--bad']))
        self.assertIn('rank 1', self.refused([self.model, out], [self.model, out, '--dtype', 'bf16']))
        self.assertIn('rank 1', self.refused([self.model, out], [DATA / 'pt/state_dict.pt', out]))

    def test_a_process_that_does_not_convert(self):
        self.assertIn('rank 1 has ended', self.refused([self.model, self.folder / 'out'], ['--help']))

    def test_targets_that_are_not_the_same_place(self):
        words = self.refused([self.model, self.folder / 'a'], [self.model, self.folder / 'b'])
        self.assertIn('does not see what the first process has created', words)
        self.assertIn('all processes share', words)


class Ending(Case):
    """Processes that end in the middle."""

    def setUp(self):
        super().setUp()
        self.large = self.folder / 'large.safetensors'
        write_large(self.large, 8, 8 << 20)  # 256 MiB
        self.out = self.folder / 'out'
        self.options = (self.large, self.out, '--max-shard-size', '64MiB', '--checksums')

    def start(self, finished=0):
        """Starts three processes and stops one of them when so many files are finished, or, with 0, when one has been
        created. Returns mpirun and the ids of the three."""
        noted = self.folder / 'id'
        for old in self.folder.glob('id.*'):
            old.unlink()
        launcher = subprocess.Popen(
            [MPIRUN, *LAUNCH, '-n', '3', 'sh', '-c', NOTED, str(noted), SAFEMAP, 'convert', *map(str, self.options)],
            stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        self.addCleanup(launcher.kill)
        until = time.monotonic() + 60
        while not any(self.folder.glob('.out*/*/*')) or self.finished_files() < finished:
            self.assertLess(time.monotonic(), until, 'nothing was created')
            time.sleep(0.0005)
        ids = [int((self.folder / f'id.{rank}').read_text()) for rank in range(3)]
        os.kill(ids[1], signal.SIGSTOP)
        self.assertFalse(self.out.exists())
        return launcher, ids

    def finished_files(self):
        try:  # the first line is the key of the save
            return (self.folder / '.out.safemap-tmp/journal').read_bytes().count(b'\n') - 1
        except FileNotFoundError:
            return -1

    def ended(self, launcher, ids):
        begin = time.monotonic()
        code = launcher.wait(timeout=30)
        self.assertNotEqual(code, 0)
        self.assertLess(time.monotonic() - begin, 15)
        while any(map(is_running, ids)):
            self.assertLess(time.monotonic() - begin, 15, 'a process is left')
            time.sleep(0.01)
        self.assertFalse(self.out.exists())

    def finish(self, run):
        """Continues, and checks the result."""
        code, text, words = run(*self.options, '--resume')
        self.assertEqual(code, 0, (text, words))
        wanted = self.folder / 'wanted'
        self.assertEqual(alone(self.large, wanted, *self.options[2:])[0], 0)
        self.assertEqual(contents(self.out), contents(wanted))
        self.assertEqual(list(self.folder.glob('.*')), [])

    def test_a_killed_process_ends_all_and_one_process_continues(self):
        launcher, ids = self.start()
        os.kill(ids[1], signal.SIGKILL)
        self.ended(launcher, ids)
        self.assertNotEqual(list(self.folder.glob('.out*')), [])
        self.finish(alone)

    def test_the_first_process_is_killed_and_others_continue(self):
        launcher, ids = self.start()
        os.kill(ids[0], signal.SIGKILL)
        self.ended(launcher, ids)
        self.finish(together)

    def test_a_process_that_is_told_to_end_ends_all_and_nothing_is_left(self):
        # As mpirun does on Ctrl-C.
        launcher, ids = self.start()
        os.kill(ids[1], signal.SIGTERM)
        os.kill(ids[1], signal.SIGCONT)
        self.ended(launcher, ids)
        self.assertEqual(list(self.folder.glob('.*')), [])

    def test_with_resume_a_process_that_is_told_to_end_ends_all_and_finished_files_stay(self):
        self.options += ('--resume',)
        launcher, ids = self.start(finished=1)
        os.kill(ids[1], signal.SIGTERM)
        os.kill(ids[1], signal.SIGCONT)
        self.ended(launcher, ids)
        kept = sorted((self.folder / '.out.safemap-tmp/content').iterdir())
        self.assertTrue(0 < len(kept) < 5, kept)
        stamps = {file.name: file.stat().st_ino for file in kept}
        self.options = self.options[:-1]
        self.finish(alone)
        for name, number in stamps.items():
            self.assertEqual((self.out / name).stat().st_ino, number)

    def test_no_room_for_one_process(self):
        # The second process may write 20 MiB of a file only.
        limited = f'test "{RANK}" = 1 && trap "" XFSZ && ulimit -f 40960; exec "$0" "$@"'
        code, text, words = finished([MPIRUN, *LAUNCH, '-n', '3', 'sh', '-c', limited, SAFEMAP, 'convert',
                                      *map(str, self.options)])
        self.assertNotEqual(code, 0, text)
        self.assertEqual(sum('error' in line for line in words), 1, words)
        self.assertIn('rank 1', words[0])
        self.assertFalse(self.out.exists())


if __name__ == '__main__':
    parser = argparse.ArgumentParser()
    parser.add_argument('safemap')
    parser.add_argument('data', type=pathlib.Path)
    parser.add_argument('mpirun')
    arguments, others = parser.parse_known_args()
    SAFEMAP, DATA, MPIRUN = arguments.safemap, arguments.data, arguments.mpirun
    if b'HYDRA' in subprocess.run([MPIRUN, '--version'], capture_output=True, check=True).stdout:
        LAUNCH = []
    unittest.main(argv=[sys.argv[0], *others])
