"""Tests that slices mean the same as in NumPy, and that arrays of integers are printed as NumPy prints them."""
import json
import subprocess

import numpy as np

import common
from common import Case

CASES = 20000


def verdicts(lines):
    """Returns the library's result for each case."""
    run = subprocess.run([common.BUILD / 'tests/interop/view_verdict'], input='\n'.join(lines) + '\n',
                         stdout=subprocess.PIPE, text=True, check=True, timeout=300)
    answers = [json.loads(line) for line in run.stdout.splitlines()]
    assert len(answers) == len(lines), (len(answers), len(lines))
    return answers


def word(index):
    if index is Ellipsis:
        return '...'
    if isinstance(index, slice):
        return ':'.join('' if n is None else str(n) for n in (index.start, index.stop, index.step))
    return str(index)


class LikeNumpy(Case):
    def random_number(self, length):
        """Returns a number inside the dimension, at its ends, or slightly or far beyond them."""
        far = self.rng.choice([2**31, 2**62, 2**63 - 1])
        return self.rng.choice([self.rng.randrange(-length - 2, length + 3)] * 12 + [far, -far])

    def random_index(self, length):
        if self.rng.random() < 0.25:
            return self.rng.randrange(-length - 1, length + 1) if self.rng.random() < 0.1 or not length else \
                self.rng.randrange(-length, length)
        step = self.rng.choice([None, None, 1, 2, 3, -1, -1, -2, -3, self.random_number(length) or 1])
        return slice(*(None if self.rng.random() < 0.3 else self.random_number(length) for _ in range(2)), step)

    def random_indices(self, shape):
        indices = [self.random_index(n) for n in shape]
        if self.rng.random() < 0.5:
            at = self.rng.randrange(len(indices) + 1)
            indices[at:at + self.rng.randrange(3)] = [Ellipsis]
        elif indices:
            del indices[self.rng.randrange(len(indices) + 1):]
        if self.rng.random() < 0.02:
            indices += [self.rng.choice([Ellipsis, 0])] * (len(shape) + 1)
        return tuple(indices)

    def test_slices_and_slices_of_slices(self):
        lines, wanted = [], []
        while len(lines) < CASES:
            shape = [self.rng.choice([0, 1, 1, 2, 3, 4, 5, 7]) for _ in range(self.rng.randrange(6))]
            array = np.arange(np.prod(shape, dtype=np.int64)).reshape(shape)
            line = 'slice ' + ' '.join(map(str, shape))
            for _ in range(self.rng.randrange(1, 4)):
                indices = self.random_indices(array.shape)
                line += ' ; ' + ' '.join(map(word, indices))
                try:
                    # NumPy returns a number if every dimension is indexed; the ellipsis keeps it an array.
                    array = array[indices] if Ellipsis in indices else array[(*indices, Ellipsis)]
                except IndexError:
                    array = None
                    break
            lines.append(line)
            wanted.append(array)
        refused = 0
        for line, array, got in zip(lines, wanted, verdicts(lines)):
            if array is None:
                refused += 1
                self.assertIn(got.get('error'), ('index_out_of_range', 'too_many_indices'), line)
            else:
                self.assertEqual(got, {'shape': list(array.shape), 'values': array.ravel().tolist()}, line)
        self.assertGreater(refused, CASES // 200)
        self.assertLess(refused, CASES // 2)

    def test_arrays_of_integers_are_printed_as_numpy_prints_them(self):
        lines, wanted = [], []
        for _ in range(2000):
            shape = [self.rng.choice([1, 2, 3, 5, 6, 7, 8, 20]) for _ in range(self.rng.randrange(5))]
            if self.rng.random() < 0.1:
                shape = [self.rng.choice([0, 75, 999, 1000, 1001, 2000])] + shape[:1]
            count = int(np.prod(shape))
            if count > 5000:
                continue
            most = 10**self.rng.randrange(1, 19)
            array = np.array([self.rng.randrange(-most, most) for _ in range(count)], dtype=np.int64).reshape(shape)
            lines.append(f'print i64 {" ".join(map(str, shape))} ; {" ".join(map(str, array.ravel().tolist()))}')
            shown = np.array2string(array, max_line_width=75, threshold=1000, edgeitems=3)
            wanted.append(f'I64 {list(shape)}\n{shown if count else "[]"}')
        for line, text, got in zip(lines, wanted, verdicts(lines)):
            self.assertEqual(got['text'], text, line[:80])
