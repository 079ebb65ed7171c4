"""Tests the example server: server.py SERVER.

It serves slices on several threads, answers errors and continues, switches to another checkpoint, and its views of the
old one stay readable after that file is gone.
"""
import os
import pathlib
import subprocess
import sys
import tempfile
import unittest

sys.path.append(str(pathlib.Path(__file__).resolve().parents[1] / 'forge'))
from forged import floats, safetensors

SERVER = None


def packed(dtype, values):
    data = floats(*values)
    if dtype == 'BF16':  # the upper halves of the floats, which represent the values below exactly
        data = b''.join(data[i + 2:i + 4] for i in range(0, len(data), 4))
    return data


class Server(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = pathlib.Path(folder.name)
        self.old = self.write('old', {'w': ('F32', [4, 2], range(8)), 'half': ('BF16', [2], [0.5, 1.5])})
        self.new = self.write('new', {'w': ('F32', [4, 2], range(100, 108)), 'more': ('F32', [1], [7])})
        self.start(self.old)

    def start(self, *words):
        self.server = subprocess.Popen([SERVER, *words], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        self.asked = 0

    def tearDown(self):
        self.server.stdin.close()
        rest = self.server.stdout.read()
        self.server.stdout.close()
        self.assertEqual((self.server.wait(60), rest), (0, ''))

    def write(self, name, tensors):
        path = self.folder / f'{name}.safetensors'
        path.write_bytes(safetensors([(name, dtype, shape, packed(dtype, values))
                                      for name, (dtype, shape, values) in tensors.items()]))
        return path

    def send(self, *words):
        self.asked += 1
        print(*words, file=self.server.stdin, flush=True)

    def ask(self, *words):
        self.send(*words)
        number, answer = self.server.stdout.readline().rstrip('\n').split(' ', 1)
        self.assertEqual(int(number), self.asked)
        return answer

    def test_slices(self):
        self.assertEqual(self.ask('rows', 'w', 0, 4), 'sum 28')
        self.assertEqual(self.ask('rows', 'w', 1, 2), 'sum 5')
        self.assertEqual(self.ask('rows', 'w', -1, 9), 'sum 13')
        self.assertEqual(self.ask('rows', 'half', 0, 2), 'sum 2')

    def test_a_wrong_request_is_answered_with_an_error(self):
        self.assertTrue(self.ask('rows', 'v', 0, 1).startswith('error tensor_not_found: '))
        self.assertTrue(self.ask('rows', 'w').startswith('error: '))
        self.assertTrue(self.ask('held', 'w').startswith('error: '))
        self.assertTrue(self.ask('dance').startswith('error: '))
        self.assertEqual(self.ask('hold', 'half'), 'holds half')
        self.assertTrue(self.ask('held', 'half').startswith('error wrong_dtype: '))
        self.assertEqual(self.ask('rows', 'w', 0, 4), 'sum 28')

    def test_a_bad_checkpoint_changes_nothing(self):
        bad = self.folder / 'bad.safetensors'
        bad.write_bytes(self.new.read_bytes()[:-1])
        self.assertTrue(self.ask('open', bad).startswith('error file_truncated: '))
        self.assertTrue(self.ask('open', self.folder / 'nowhere').startswith('error path_not_found: '))
        self.assertEqual(self.ask('rows', 'w', 0, 4), 'sum 28')

    def test_a_checkpoint_that_does_not_match_changes_nothing(self):
        self.tearDown()
        expected = self.folder / 'expected.json'
        expected.write_text('{"w": {"dtype": "F32", "shape": [4, 2]}, "half": {"dtype": "BF16", "shape": [2]}}')
        self.start(self.old, expected)
        answer = self.ask('open', self.new)
        self.assertTrue(answer.startswith('error model_mismatch: '), answer)
        self.assertIn('1 missing (half: BF16 [2]), 1 unexpected (more: F32 [1])', answer)
        self.assertEqual(self.ask('rows', 'w', 0, 4), 'sum 28')
        self.assertEqual(self.ask('open', self.old), f'serves {self.old}')
        refused = subprocess.run([SERVER, self.new, expected], stdin=subprocess.DEVNULL, capture_output=True, text=True)
        self.assertEqual(refused.returncode, 1)
        self.assertIn('1 missing', refused.stderr)

    def test_a_held_tensor_outlives_its_checkpoint(self):
        self.assertEqual(self.ask('hold', 'w'), 'holds w')
        self.assertEqual(self.ask('open', self.new), f'serves {self.new}')
        self.assertEqual(self.ask('rows', 'w', 0, 4), 'sum 828')
        self.assertTrue(self.ask('rows', 'half', 0, 2).startswith('error tensor_not_found: '))
        # Replaced by a rename, as a save does, and then removed.
        os.replace(self.new, self.old)
        self.assertEqual(self.ask('held', 'w'), 'sum 28')
        self.old.unlink()
        self.assertEqual(self.ask('held', 'w'), 'sum 28')
        self.assertEqual(self.ask('rows', 'w', 0, 4), 'sum 828')

    def test_many_requests_while_the_checkpoint_changes(self):
        for i in range(300):
            self.send('rows', 'w', i % 4, i % 4 + 1)
            if i % 3 == 0:
                self.send('hold', 'w')
            if i % 10 == 5:
                self.send('open', (self.old, self.new, self.folder)[i // 10 % 3])
        allowed = {f'sum {base + 4 * i + 1}' for i in range(4) for base in (0, 200)}
        allowed |= {f'serves {path}' for path in (self.old, self.new)} | {'holds w'}
        numbers = set()
        for _ in range(self.asked):
            number, answer = self.server.stdout.readline().rstrip('\n').split(' ', 1)
            numbers.add(int(number))
            self.assertTrue(answer in allowed or answer.startswith('error several_models: '), answer)
        self.assertEqual(numbers, set(range(1, self.asked + 1)))
        self.assertIn(self.ask('held', 'w'), ('sum 28', 'sum 828'))


if __name__ == '__main__':
    SERVER = sys.argv.pop(1)
    unittest.main()
