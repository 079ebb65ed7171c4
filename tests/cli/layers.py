"""Tests the example that goes through a checkpoint layer by layer under half of its size: layers.py LAYERS [DEVICE]."""
import os
import pathlib
import random
import re
import subprocess
import sys
import tempfile
import unittest

sys.path.append(str(pathlib.Path(__file__).resolve().parents[1] / 'forge'))
from forged import safetensors

LAYERS = None
DEVICE = 'host'
SAID = re.compile(
    r'(?P<tensors>\d+) tensors of (?P<bytes>\d+) bytes, a budget of (?P<budget>\d+)\n'
    r'(?P<layers>\d+) layers twice: uploaded (?P<first>\d+) and (?P<second>\d+) bytes, '
    r'with at most (?P<peak>\d+) on the device\n'
    r'\d+ layers twice: uploaded (?P<once>\d+) and (?P<again>\d+) bytes, with at most \d+ on the device\n'
    r'the results are equal, the last one is (?P<result>\d+)\n')


def fnv1a(data):
    result = 14695981039346656037
    for byte in data:
        result = (result ^ byte) * 1099511628211 % 2**64
    return result


class Layers(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.model = pathlib.Path(folder.name, 'model.safetensors')

    def write(self, tensors):
        """Writes tensors of random bytes (name: size), and returns their bytes."""
        rng = random.Random(19)
        written = [(name, 'U8', [size], rng.randbytes(size)) for name, size in tensors.items()]
        self.model.write_bytes(safetensors(written))
        return b''.join(data for *_, data in written)

    def run_example(self):
        done = subprocess.run([LAYERS, self.model, DEVICE], capture_output=True, text=True, timeout=100)
        if DEVICE != 'host' and 'no device' in done.stderr and not os.environ.get('CI'):
            self.skipTest(done.stderr.strip())
        return done

    def test_half_of_the_memory_gives_the_same_results(self):
        sizes = {'wte': 50_000}
        for i in range(12):
            sizes |= {f'h.{i}.mlp': 40_000, f'h.{i}.attn': 20_001, f'h.{i}.norm': 300}
        sizes |= {'norm': 300, 'head': 30_000}
        data = self.write(sizes)
        done = self.run_example()
        self.assertEqual((done.returncode, done.stderr), (0, ''), done.stdout)
        said = {key: int(value) for key, value in SAID.fullmatch(done.stdout).groupdict().items()}
        self.assertEqual((said['tensors'], said['bytes'], said['layers']), (len(sizes), len(data), 15))
        self.assertEqual(said['budget'], len(data) // 2)
        self.assertLessEqual(said['peak'], said['budget'])
        # The first pass may have begun to upload the first layer of the second one.
        self.assertGreaterEqual(said['first'], len(data))
        self.assertGreater(said['second'], 0)
        self.assertEqual((said['once'], said['again']), (len(data), 0))
        self.assertEqual(said['result'], fnv1a(data[-30_000:]))

    def test_layers_that_do_not_fit_two_at_a_time_are_refused(self):
        self.write({'h.0.w': 60_000, 'h.1.w': 40_000})
        done = self.run_example()
        self.assertEqual((done.returncode, done.stderr),
                         (1, 'the order needs at least 100000 bytes, but the budget is 50000 bytes\n'))


if __name__ == '__main__':
    LAYERS = sys.argv.pop(1)
    if len(sys.argv) > 1 and not sys.argv[1].startswith('-'):
        DEVICE = sys.argv.pop(1)
    unittest.main()
